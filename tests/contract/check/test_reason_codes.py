"""Every code that a ledger or `--deep` can speak has a heading in the documentation."""

import ast
import re
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]
CONTRACT = REPO / "src" / "eyas" / "contract"
# helpers whose first argument is a code
MAKERS = {"_damage", "finding", "loss", "_note", "_refused", "_stops", "crash"}


def _codes() -> set[str]:
    found: set[str] = set()
    for path in CONTRACT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "id", "")
            values = [k.value for k in node.keywords if k.arg == "code"] if name in ("reason", "Diagnostic") else []
            values += node.args[:1] if name in MAKERS else []
            found |= {v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str)}
    return found


def test_every_code_of_a_reason_is_documented():
    pages = [REPO / "docs" / "errors.md"]
    text = "\n".join(page.read_text() for page in pages if page.exists())
    headings = set(re.findall(r"^## `?([a-z0-9-]+)`?\s*$", text, re.M))

    codes = _codes()

    assert len(codes) > 40
    assert sorted(codes - headings) == []
