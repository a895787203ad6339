"""A draft whose names are off has a way out: the pair is named, advice is tried, `--rename` is judged by the rules."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from drafts import DraftBuild, flat_config, sglang_name, tensors, write_draft, write_folder, write_target
from eyas.cli.app import main
from eyas.contract.check.check import check
from eyas.contract.engines.registry import parse_engine
from eyas.contract.files.read_checkpoint import read_checkpoint
from eyas.contract.spec.renames import Rename, RenameInvalid, parse_rename, renamed, shared_prefix

ENGINES = ["sglang==0.5.9", "sglang==0.5.23", "vllm==0.33.0"]


def named(folder: Path, rename: Callable[[str], str], *, without: tuple[str, ...] = ()) -> Path:
    """SGLang's spelling, changed by `rename`."""
    found = {sglang_name(name): value for name, value in tensors(DraftBuild()).items()}
    found = {rename(name): value for name, value in found.items() if name not in without}
    return write_folder(folder, flat_config(DraftBuild()), found)


OFF = {
    "one letter": lambda name: name.replace("hidden_norm", "hiddennorm"),
    "a layer": lambda name: name.replace("midlayer.", "blk0_"),
    "a module": lambda name: name.replace("midlayer.", "blocks.0."),
    "a wrapper": lambda name: f"module.draft_model.{name}",
    "the map": lambda name: name.replace("d2t", "draft_to_target"),
    "the head": lambda name: name.replace("lm_head", "draft_head"),
    "everything": lambda name: "eagle." + name.replace("midlayer.", "block0."),
    "two": lambda name: name.replace("q_proj", "query").replace("down_proj", "out"),
}


def advised(folder: Path, target: Path) -> set[str]:
    """Every `eyas convert` that some finding advises, on any engine."""
    engines = [parse_engine(text) for text in ENGINES]
    report = check(read_checkpoint(folder), read_checkpoint(target), engines)
    found = [re.search(r"eyas convert \S+ --to .* OUT", finding.advice) for finding in report.findings]
    return {match.group() for match in found if match}


@pytest.mark.parametrize("rename", OFF.values(), ids=OFF)
def test_every_conversion_that_is_advised_works_and_gives_the_sound_draft(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rename: Callable[[str], str]
):
    target, off, right = write_target(tmp_path / "target"), named(tmp_path / "off", rename), tmp_path / "right"
    write_draft(right, names="midlayer")
    commands = advised(off, target)
    assert commands
    assert not any(re.search(r"[^\W_]\*", command) for command in commands), "a star cuts no part of a name"

    wanted = {}
    for i, command in enumerate(sorted(commands)):
        to = re.search(r"--to (\w+)", command)[1]
        if to not in wanted:
            assert main(["convert", str(right), str(tmp_path / to), "--to", to, "--target", str(target)]) == 0
            wanted[to] = (tmp_path / to / "model.safetensors").read_bytes()
        out = tmp_path / f"out{i}"
        words = shlex.split(command)[1:-1]
        assert main([*words, str(out), "--target", str(target)]) == 0, capsys.readouterr().err
        assert (out / "model.safetensors").read_bytes() == wanted[to]


def test_advice_that_a_refusal_would_follow_is_not_given(tmp_path: Path):
    target = write_target(tmp_path / "target")
    broken = named(
        tmp_path / "broken", lambda n: n.replace("midlayer.", "blk0_"), without=("midlayer.self_attn.q_proj.weight",)
    )

    report = check(read_checkpoint(broken), read_checkpoint(target), [parse_engine("sglang==0.5.23")])

    assert not [f.advice for f in report.findings if "eyas convert" in f.advice and " OUT" in f.advice]
    [unfilled] = [f for f in report.findings if f.code == "parameters-unfilled"]
    assert "settle [tensor-missing] first" in unfilled.advice
    some = next(f for f in report.findings if "blk0_input_layernorm" in f.what and f.code == "tensor-unknown")
    assert some.advice.startswith("if so: `eyas convert` with --rename blk0_*=layers.0.*,")


def test_names_that_are_all_off_take_one_rename_for_each_prefix(tmp_path: Path):
    off = named(tmp_path / "off", OFF["everything"])

    commands = advised(off, write_target(tmp_path / "target"))

    assert commands
    assert all(" --rename 'eagle.block0.*=layers.0.*' --rename 'eagle.*=*' OUT" in c for c in commands)


def test_the_pair_is_told_from_both_sides(tmp_path: Path):
    off = named(tmp_path / "off", OFF["one letter"])

    report = check(read_checkpoint(off), None, [])

    whats = {f.code: f.what for f in report.findings}
    assert "midlayer.hiddennorm.weight" in whats["tensor-unknown"]
    assert "did you mean midlayer.hidden_norm.weight?" in whats["tensor-unknown"]
    assert whats["tensor-missing"].endswith("is it midlayer.hiddennorm.weight?")


def test_shapes_that_differ_are_never_paired(tmp_path: Path):
    found = tensors(DraftBuild())
    dtype, _, data = found.pop("layers.0.mlp.up_proj.weight")
    found["layers.0.mlp.upproj.weight"] = (dtype, (len(data) // 2,), data)
    folder = write_folder(tmp_path / "off", flat_config(DraftBuild()), found)

    report = check(read_checkpoint(folder), None, [])

    assert {f.code for f in report.findings} >= {"tensor-unknown", "tensor-missing"}
    assert not [f for f in report.findings if "did you mean" in f.what or "is it" in f.what]


def test_a_prefix_of_all_is_one_finding_and_convert_strips_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    off = named(tmp_path / "off", OFF["a wrapper"])

    assert main(["check", str(off)]) == 1
    out = capsys.readouterr().out
    assert "begin with 'module.draft_model.'" in out
    assert "1 error," in out
    assert main(["convert", str(off), str(tmp_path / "out"), "--to", "sglang"]) == 0
    assert "begin with 'module.draft_model.'" in capsys.readouterr().err
    assert main(["check", str(tmp_path / "out")]) == 0


def test_renamed_damage_is_still_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    off = named(tmp_path / "off", OFF["one letter"])
    # another tensor of the same shape: there is then none for its own place
    wrong = ["--rename", "midlayer.input_layernorm.weight=midlayer.hidden_norm.weight"]

    assert main(["convert", str(off), str(tmp_path / "out"), "--to", "sglang", *wrong]) == 1

    message = capsys.readouterr().err
    assert "input_layernorm.weight [16] is missing" in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", ["a", "a=", "=b", "a*=b", "a=b*", "a*b=c", "a=b=c*"])
def test_what_is_no_renaming_is_refused(text: str):
    with pytest.raises(RenameInvalid):
        parse_rename(text)


def test_a_rename_that_fits_nothing_or_collides_is_refused():
    assert renamed(["a.x", "a.y", "b"], [parse_rename("a.*=c.*")]) == {"a.x": "c.x", "a.y": "c.y", "b": "b"}
    with pytest.raises(RenameInvalid, match="matches no tensor"):
        renamed(["a"], [Rename(old="b", new="c")])
    with pytest.raises(RenameInvalid, match="would both be b"):
        renamed(["a", "b"], [Rename(old="a", new="b")])


def test_a_prefix_is_only_what_stands_before_all_names():
    names = ["fc.weight", "norm.weight", "midlayer.hidden_norm.weight"]
    assert shared_prefix(names) == ""
    assert shared_prefix([f"a.b.{name}" for name in names]) == "a.b."
    assert shared_prefix([*(f"a.b.{name}" for name in names), "step"]) == ""
    assert shared_prefix(["h.0.attn.weight", "h.0.mlp.weight"]) == ""
    assert shared_prefix([]) == ""


def test_json_keeps_every_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    off = named(tmp_path / "off", OFF["a layer"])
    main(["check", str(off), "--json"])
    captured = capsys.readouterr()
    findings = json.loads(captured.out.splitlines()[-1])["findings"]
    assert sum(f["code"] == "tensor-unknown" for f in findings) == 10
    assert captured.err.count("[tensor-unknown]") == 1
