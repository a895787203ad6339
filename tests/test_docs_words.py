"""Our pages keep to the plain English of CONTRIBUTING.md, as far as a pattern can tell."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# errors.md is written from the code; log.md is a diary.
PAGES = [p for p in sorted((ROOT / "docs").rglob("*.md")) if p.stem not in ("errors", "log")] + [ROOT / "README.md"]
AVOIDED = re.compile(
    r"\b(is no [a-z]|are no [a-z]|nobody|somebody|whoever|gone on|goes on with|go on with|so many|anew|by hand|"
    r"is of nobody|none is|at hand|all the same|held against)\b"
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_none_of_the_phrases_that_readers_read_twice(page: Path):
    prose = re.sub(r"```.*?```|^ {4}.*?$|`[^`\n]+`", "", page.read_text(), flags=re.S | re.M)

    assert [match[0] for match in AVOIDED.finditer(prose)] == []
