"""The start-up module against the interfaces of nine SGLang versions, as their sources have them.

`sglang_entry_points.json` was read from the wheels: parameters of what is wrapped, and which fields a batch has.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

import pytest

from engine_site import load
from eyas.contract.engines.registry import engine_named
from eyas.contract.engines.version import at_least

SITE = engine_named("sglang").folder / "site"
READ: Mapping[str, Any] = json.loads((Path(__file__).parent / "sglang_entry_points.json").read_text())


capture = load(SITE, "eyas_sglang_capture")


def taking(*parameters: str) -> Any:
    """A function with these parameters."""
    namespace: dict[str, Any] = {}
    exec(f"def made({', '.join(parameters)}): ...", namespace)
    return namespace["made"]


def classes(read: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    runner = type("ModelRunner", (), {"__init__": taking(*read["init"]), "load_model": taking(*read["load_model"])})
    processor = type("LogitsProcessor", (), {"forward": taking(*read["forward"])})
    return runner, processor, make_dataclass("ForwardBatch", read["batch"])


@pytest.mark.parametrize("version", READ)
def test_the_entry_points_of_every_version_in_the_window_are_those_that_are_wrapped(version: str):
    capturing = engine_named("sglang").capturing
    assert capturing is not None
    assert READ[version]["has_tp_rank"]
    if at_least(version, capturing.first):
        capture.check_entry_points(*classes(READ[version]))
    else:
        with pytest.raises(capture.CaptureRefused, match="ForwardBatch has no rids"):
            capture.check_entry_points(*classes(READ[version]))


def test_the_table_reaches_from_before_the_window_to_the_newest_release_known():
    releases = engine_named("sglang").releases
    assert next(iter(READ)) == releases.oldest
    assert list(READ)[-1] == releases.newest


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"forward": ["self", "input_ids", "hidden_states", "lm_head", "batch"]}, "LogitsProcessor.forward takes"),
        ({"load_model": ["self", "weights"]}, "load_model takes arguments"),
        ({"init": ["self", "model_config"]}, "whether it is a draft's"),
        ({"batch": ["rids", "input_ids", "forward_mode", "extend_seq_lens_cpu"]}, "has no extend_prefix_lens_cpu"),
    ],
)
def test_a_version_that_differs_is_refused_by_what_differs(change, why):
    with pytest.raises(capture.CaptureRefused, match=why):
        capture.check_entry_points(*classes(READ["0.5.23"] | change))


def test_layers_that_the_hook_reads_otherwise_are_refused():
    class Module:
        layers_to_capture = (3, 16, 28)

    class Model:
        def set_eagle3_layers_to_capture(self, ids: list[int]) -> None: ...

        def modules(self) -> list[Any]:
            return [self, Module()]

    runner = type("Runner", (), {"model": Model()})()
    with pytest.raises(capture.CaptureRefused, match=r"before layers \[3, 16, 28\], expected \[2, 15, 27\]"):
        capture._start(runner, {"layer_ids": [1, 14, 26], "boundaries": [2, 15, 27]}, object)


def test_the_hidden_sitecustomize_runs_too_and_nothing_is_wrapped_without_a_wish(tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text("print('the hidden one')\n")
    code = "import sys; print(sum('eyas' in type(f).__module__ for f in sys.meta_path))"

    def ran(wish: str) -> list[str]:
        environment = {"PYTHONPATH": f"{SITE}:{tmp_path}", "EYAS_CAPTURE": wish, "PATH": ""}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        return done.stdout.split("\n")[:2]

    assert ran("") == ["the hidden one", "0"]
    assert ran("{}") == ["the hidden one", "1"]
