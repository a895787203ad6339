"""Each error code and finding code has one heading in docs/errors.md."""

import ast
import re
from collections import Counter
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
SOURCE = REPO / "src" / "eyas"


def codes_of(source: str) -> set[str]:
    """Codes of error classes (`code = "..."` in a class body) and of findings (`Diagnostic(code="...")`)."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            for item in node.body:
                targets = item.targets if isinstance(item, ast.Assign) else []
                if any(isinstance(t, ast.Name) and t.id == "code" for t in targets):
                    found |= {item.value.value} if isinstance(item.value, ast.Constant) else set()
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Diagnostic":
            found |= {k.value.value for k in node.keywords if k.arg == "code" and isinstance(k.value, ast.Constant)}
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("finding", "loss"):
            found |= {a.value for a in node.args[:1] if isinstance(a, ast.Constant)}
    return found


def all_codes() -> set[str]:
    return set().union(*(codes_of(path.read_text()) for path in SOURCE.rglob("*.py")))


def headings() -> list[str]:
    return re.findall(r"^## `?([a-z0-9-]+)`?\s*$", (REPO / "docs" / "errors.md").read_text(), re.M)


def test_every_code_has_a_heading():
    assert sorted(all_codes() - set(headings())) == []


def test_no_heading_stands_twice():
    assert [name for name, count in Counter(headings()).items() if count > 1] == []


def test_the_search_for_codes_finds_both_kinds():
    source = 'class A(EyasError):\n    code = "one"\nDiagnostic(code="two", severity="note")\n'
    assert codes_of(source) == {"one", "two"}
