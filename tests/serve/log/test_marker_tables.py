"""The marker tables are data: they must load, hold for the versions they name, and be found in real logs."""

import pytest

from eyas.contract.engines.version import matches
from eyas.serve.log.tables import engine_of_line, table_for
from fake_world import LOGS

VERSIONS = {
    "sglang": ["0.5.9", "0.5.12", "0.5.15.post1", "0.5.17", "0.5.23"],
    "vllm": ["0.25.1", "0.32.0", "0.33.0"],
}


@pytest.mark.parametrize(("engine", "version"), [(e, v) for e, vs in VERSIONS.items() for v in vs])
def test_every_version_has_the_start_the_graphs_and_the_end(engine: str, version: str):
    table = table_for(engine, version)
    begun = {marker.phase for marker in table.markers if marker.event == "begin"}
    begun |= {rule.phase for rule in table.progress}

    assert {"processes", "distributed", "weights", "memory-pools", "graphs", "scheduler-ready"} <= begun
    assert any(marker.event == "ready" for marker in table.markers)


def test_every_marker_names_a_phase_that_exists():
    table = table_for("unknown", None)
    named = {marker.phase for marker in table.markers if marker.phase} | {rule.phase for rule in table.progress}

    assert named <= set(table.phases)


@pytest.mark.parametrize(
    ("version", "line", "key"),
    [
        ("0.5.9", "Capture cuda graph begin. This can take up to several minutes. avail mem=60.00 GB", "target"),
        ("0.5.12", "Capture draft cuda graph begin. This can take up to several minutes. avail mem=60.00 GB", "draft"),
        (
            "0.5.12",
            "Capture draft extend cuda graph begin. This can take up to several minutes. avail mem=6 GB",
            "draft",
        ),
        ("0.5.15.post1", "Capture target verify CUDA graph begin. backend=full, num_tokens_per_bs=4", "target"),
        ("0.5.23", "Capture draft extend CUDA graph begin. backend=full", "draft"),
        ("0.5.23", "Capture target decode cpu graph begin. backend=full", "target"),
    ],
)
def test_each_spelling_of_a_graph_capture_is_known(version: str, line: str, key: str):
    found = table_for("sglang", version).find(line)

    assert found is not None
    marker, match = found
    assert marker.phase == "graphs"
    assert (match.groupdict().get("role") or marker.role) == key


def test_an_unknown_version_meets_every_condition():
    assert matches(None, ">=0.5.14")
    assert not matches("0.5.13", ">=0.5.14")
    assert matches("0.5.15.post1", ">=0.5.15,<0.5.16")


def test_our_own_probes_in_the_access_log_prove_nothing():
    table = table_for("sglang", "0.5.23")

    assert table.proves_nothing('127.0.0.1:50102 - "GET /health HTTP/1.1" 503 Service Unavailable')
    assert not table.proves_nothing("Load weight begin. avail mem=139.09 GB")


@pytest.mark.parametrize("name", sorted(path.name for path in LOGS.glob("*.log")))
def test_a_real_logs_engine_is_known_from_its_lines(name: str):
    from eyas.serve.log.log_lines import LineSplitter

    lines = LineSplitter().feed((LOGS / name).read_bytes(), 0.0)
    engines = {engine for line in lines if (engine := engine_of_line(line.message)) is not None}

    assert engines in ({name.split("-")[0]}, set())
