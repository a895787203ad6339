"""Code outside an engine's folder never compares with its name: it asks the registry. Read from the syntax tree."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import eyas
from eyas.contract.engines.registry import ENGINES, all_engines

SOURCE = Path(eyas.__file__).parent
NAMES = {*ENGINES, *(d for engine in all_engines() for d in engine.releases.distributions)}
# file -> why names are there; a format of drafts is called as the engine that reads it: no engine is asked
ALLOWED = {
    "contract/engines/registry.py": "the registry itself",
    "contract/dialects/": "names of formats",
    "contract/reading/": "names of formats",
    "train/preflight/train_plan.py": "the format that a draft is written in",
    "cli/commands/demo.py": "the format that a draft is written in",
}


def names_in(text: str) -> Iterator[tuple[int, str]]:
    """(line, name) of each string constant that is an engine's name; docstrings are no constants of the program."""
    tree = ast.parse(text)
    prose = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in NAMES and id(node) not in prose:
            yield node.lineno, node.value


def faults() -> list[str]:
    homes = tuple(f"contract/engines/{name.replace('-', '_')}/" for name in ENGINES)
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        place = path.relative_to(SOURCE).as_posix()
        if not place.startswith((*homes, *ALLOWED)):
            found += [f"{place}:{line} {name!r}" for line, name in names_in(path.read_text(encoding="utf-8"))]
    return found


def test_no_code_outside_an_engines_folder_knows_its_name():
    assert faults() == []


@pytest.mark.parametrize(
    "planted",
    [
        'if engine.engine == "vllm":\n    pass\n',
        'kind = "sglang" if x else "vllm"\n',
        'TABLE = {"sglang": 1}\n',
        'match name:\n    case "vllm-cpu":\n        pass\n',
        'def f(engine: str = "sglang") -> None:\n    """vllm"""\n',
    ],
)
def test_this_proof_finds_a_planted_line(planted: str):
    assert list(names_in(planted))


def test_a_name_in_a_docstring_or_in_a_sentence_is_prose():
    assert list(names_in('def f():\n    """sglang"""\n    return "sglang drops them"\n')) == []


@pytest.mark.parametrize("engine", all_engines(), ids=lambda e: e.name)
def test_every_engine_has_all_its_parts(engine):
    assert engine.releases.title
    assert engine.releases.distributions[0]
    assert engine.loading.rules
    assert engine.launching.flags.versions
    assert engine.serving.owners
    assert (engine.folder / "markers.toml").is_file()
