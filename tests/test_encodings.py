"""Text files are UTF-8 whatever the locale says: a manifest written here is read on a machine with another one."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCES = sorted((Path(__file__).resolve().parents[1] / "src").rglob("*.py"))


def calls_without_encoding(source: str) -> Iterator[str]:
    """Calls that open or read a text file in the locale's encoding."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or any(keyword.arg == "encoding" for keyword in node.keywords):
            continue
        name, text = ast.unparse(node.func), ast.unparse(node)
        num_without = {"read_text": 0, "write_text": 1}.get(name.rpartition(".")[2], -1)
        is_bare = name != "write_text" and len(node.args) <= num_without  # the function of that name writes UTF-8
        is_text = name in ("open", "os.fdopen") and not any("b" in ast.unparse(mode) for mode in node.args[1:2])
        if is_bare or is_text:
            yield text


def test_every_text_file_of_the_package_is_opened_as_utf8():
    assert SOURCES
    assert {path.name: found for path in SOURCES if (found := [*calls_without_encoding(path.read_text("utf-8"))])} == {}


@pytest.mark.parametrize(
    "call", ["p.read_text()", "p.write_text('x')", "(a / b).read_text(errors='replace')", "open(p)", "open(p, 'w')"]
)
def test_a_call_that_leaves_it_to_the_locale_is_seen(call: str):
    assert [*calls_without_encoding(call)] == [call]
