"""Every finding that the rules of `serve` can make has a heading."""

import re
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]


def test_every_finding_of_serves_rules_has_a_heading():
    source = "\n".join(path.read_text() for path in (REPO / "src/eyas/serve").rglob("*.py"))
    codes = set(re.findall(r'_finding\(\s*"([a-z0-9-]+)"', source)) | {"canary-unanswered", "rank-stuck"}
    pages = [REPO / "docs/errors.md"]
    headings = {h for page in pages for h in re.findall(r"^## `?([a-z0-9-]+)`?\s*$", page.read_text(), re.M)}

    assert len(codes) > 15
    assert sorted(codes - headings) == []
