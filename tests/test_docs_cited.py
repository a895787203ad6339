"""What our sources cite is in the repository: no section sign of a document that the reader does not have."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


def test_no_text_cites_a_document_that_is_not_here():
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in SOURCES
        for match in re.finditer(
            r"knowledge/[\w-]+\.md|\(design\b|\bdesign §|[Tt]he design (has|says|wants)", path.read_text()
        )
    ]
    assert found == []


def test_every_page_of_ours_that_a_source_names_is_there():
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in SOURCES
        if path.suffix == ".py"
        for name in re.findall(r"(?<![/\w])docs/[\w./-]+\.md", path.read_text())
        if not (ROOT / name).is_file()
    ]
    assert missing == []
