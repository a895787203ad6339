"""What `convert` writes for an engine loads whole on that engine, by the rules of the ledger: nothing needs repair."""

from pathlib import Path

import pytest

from conversions import BUILDS, HOLDS, convert
from drafts import write_draft, write_target
from eyas.contract.check.check import check
from eyas.contract.engines.registry import parse_engine
from eyas.contract.files.read_checkpoint import read_checkpoint

GOALS = {
    "sglang": ("sglang==0.5.23",),
    "vllm": ("vllm==0.33.0",),
    "speculators": ("vllm==0.33.0",),
    "torchspec": ("sglang==0.5.23",),
}
# not for the format to repair: SGLang cannot tap behind the target's last layer, and skips fc for one state
ENGINE_CANNOT = {("five aux", "sglang"), ("one aux", "torchspec")}


@pytest.mark.parametrize("to", GOALS)
@pytest.mark.parametrize("name", BUILDS)
def test_a_converted_draft_loads_whole(tmp_path: Path, name: str, to: str):
    if to not in HOLDS[name] or (name, to) in ENGINE_CANNOT:
        pytest.skip("the format or its engine cannot hold this draft; other tests prove that it says so")
    build = BUILDS[name]
    target = write_target(tmp_path / "target", build)
    source = write_draft(tmp_path / "source", build, names="layers" if build.qk_norm else "midlayer")
    convert(source, to, tmp_path / "out", target)

    for engine in GOALS[to]:
        report = check(read_checkpoint(tmp_path / "out"), read_checkpoint(target), [parse_engine(engine)])

        assert [ledger.verdict for ledger in report.ledgers.values()] == ["ok"]
        assert [f.code for f in report.findings if f.severity in ("warning", "error", "fatal")] == []
