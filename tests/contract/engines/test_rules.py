"""Load rules are data: every value in `rules.toml` is of the type that its field says."""

import typing
from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import Any, Literal

import pytest

from drafts import write_draft, write_target
from eyas.contract.check.check import check
from eyas.contract.engines.loading.load_rules import LoadRules, read_rules
from eyas.contract.engines.registry import all_engines, parse_engine
from eyas.contract.files.read_checkpoint import read_checkpoint, read_target_checkpoint

HINTS = typing.get_type_hints(LoadRules)


def fits(value: Any, hint: Any) -> bool:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return value in parts
    if origin is tuple:
        items = parts[:1] * len(value) if parts[-1] is Ellipsis else parts
        return isinstance(value, tuple) and len(value) == len(items) and all(map(fits, value, items))
    if origin in (typing.Union, UnionType):
        return any(fits(value, part) for part in parts)
    return type(value) is hint


@pytest.mark.parametrize("engine", all_engines(), ids=lambda e: e.name)
def test_every_value_is_of_its_fields_type(engine):
    for rules in engine.loading.rules:
        wrong = [f.name for f in fields(LoadRules) if not fits(getattr(rules, f.name), HINTS[f.name])]
        assert wrong == [], f"{rules.draft_class} since {rules.since}"


def test_this_proof_can_fail():
    assert not fits("yes", bool)
    assert not fits(("a", 1), tuple[str, ...])
    assert not fits("config.json", Literal["config", "flag"])
    assert fits((("a", "b"),), tuple[tuple[str, str], ...])


@pytest.mark.parametrize("line", ["reads_residul = true\n", 'like = ["NoSuchClass", "1"]\n'])
def test_a_key_that_is_not_a_field_and_a_set_that_is_not_there_are_found_at_once(tmp_path: Path, line: str):
    (tmp_path / "rules.toml").write_text(f'[[rules]]\ndraft_class = "A"\nsince = "1"\n{line}')

    with pytest.raises((TypeError, KeyError)):
        read_rules("x", tmp_path)


def test_every_reason_in_words_is_one_that_the_code_finds():
    import tomllib

    import eyas.contract.engines.loading as room

    folder = Path(room.__file__).parent
    listed = tomllib.loads((folder / "reasons.toml").read_text())
    code = "".join(path.read_text() for path in folder.glob("*.py"))

    assert [name for name in listed if f'"{name}"' not in code] == []
    assert {row["severity"] for row in listed.values()} <= {"mild", "severe", "fatal", "crash"}


def test_every_bad_launch_in_words_is_one_that_the_code_finds():
    import tomllib

    import eyas.contract.engines as engines

    root = Path(engines.__file__).parent
    tables = sorted(root.rglob("combinations.toml"))
    assert len(tables) >= 3
    for table in tables:
        shared = table.parent.name == "launching"  # whose launches every engine's folder can find
        code = "".join(path.read_text() for path in (root.rglob("*.py") if shared else table.parent.glob("*.py")))
        assert [name for name in tomllib.loads(table.read_text()) if f'"{name}"' not in code] == []


@pytest.mark.parametrize(
    ("engine", "kind", "is_refused"),
    [
        ("sglang==0.5.9", "proportional", True),
        ("sglang==0.5.10", "proportional", True),
        ("sglang==0.5.11", "proportional", False),
        ("sglang==0.5.23", "ntk", True),
        ("sglang==0.5.23", "yarn", False),
        ("vllm==0.33.0", "ntk", False),
        ("vllm==0.33.0", "dual_chunk", True),
    ],
)
def test_a_kind_of_rope_that_an_engine_does_not_compute_is_a_crash_there(
    engine: str, kind: str, is_refused: bool, tmp_path: Path
):
    target = read_target_checkpoint(write_target(tmp_path / "t"))
    scaling = {"rope_type": kind, "factor": 2.0, "original_max_position_embeddings": 64}
    draft = read_checkpoint(write_draft(tmp_path / "d", extra_config={"rope_scaling": scaling}))

    ledger = check(draft, target, [parse_engine(engine)]).ledgers[engine]

    assert ("rope-type-refused" in {reason.code for reason in ledger.reasons}) == is_refused
