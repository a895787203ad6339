"""Links between our pages lead somewhere: to a file that is there, and to a heading that it has."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


def anchors_of(page: Path) -> set[str]:
    """The anchors that GitHub makes of the headings."""
    headings = re.findall(r"^#+ +(.+)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path):
    wrong = []
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.S)):
        if re.match(r"https?:|mailto:", link):
            continue
        name, _, anchor = link.partition("#")
        there = (page.parent / name).resolve() if name else page
        if not there.exists() or (anchor and anchor not in anchors_of(there)):
            wrong.append(link)
    assert wrong == []


def test_the_map_leads_to_every_page():
    linked = set(re.findall(r"\]\(([\w/.-]+\.md)", (ROOT / "docs" / "README.md").read_text()))

    assert {str(page.relative_to(ROOT / "docs")) for page in PAGES[:-2]} - {"README.md"} <= linked


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem != "log"], ids=lambda page: page.stem)
def test_every_source_file_that_a_page_names_is_there(page: Path):
    files = [
        f"/{path.relative_to(ROOT)}" for name in ("src", "tests", "benchmarks") for path in (ROOT / name).rglob("*")
    ]
    named = set(re.findall(r"`((?:[\w-]+/)+[\w-]+\.(?:py|toml|txt|c))`", page.read_text()))
    foreign = {"_torch/speculative/eagle3.py", "eagle/model/cnets.py"}  # TensorRT-LLM's, EAGLE's
    known = {name for name in named if any(path.endswith(f"/{name}") for path in files) or (ROOT / name).is_file()}

    assert named - known - foreign == set()
