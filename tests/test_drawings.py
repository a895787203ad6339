"""The drawings: small, described in words, shown by a page, and legible in dark and light."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from eyas.serve.facts.state import StateName

DOCS = Path(__file__).resolve().parents[1] / "docs"
DRAWINGS = sorted((DOCS / "drawings").glob("*.svg"))
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("path", DRAWINGS, ids=lambda path: path.stem)
def test_a_drawing_is_small_and_says_in_words_what_it_shows(path: Path):
    root = ElementTree.fromstring(path.read_text())

    assert path.stat().st_size < 15_000
    for name in ("title", "desc"):
        element = root.find(f"{SVG}{name}")
        assert element is not None
        assert element.text


@pytest.mark.parametrize("path", DRAWINGS, ids=lambda path: path.stem)
def test_every_colour_of_a_drawing_stands_in_its_styles_and_has_a_dark_twin(path: Path):
    light, dark = re.search(
        r"<style>(.*?)@media \(prefers-color-scheme: dark\) \{(.*?)</style>", path.read_text(), re.S
    ).groups()  # type: ignore[union-attr]
    coloured = {name for name, rules in re.findall(r"(\.?[\w-]+) \{([^}]*)\}", light) if "#" in rules}
    drawn = path.read_text().split("</style>")[1]

    assert coloured <= set(re.findall(r"(\.?[\w-]+) \{", dark))
    assert not re.search(r'(?:fill|stroke)="(?!none)', drawn)


@pytest.mark.parametrize("path", DRAWINGS, ids=lambda path: path.stem)
def test_a_page_shows_the_drawing_with_a_text_for_those_who_cannot_see_it(path: Path):
    pages = [*DOCS.rglob("*.md"), DOCS.parent / "README.md"]

    assert any(re.search(rf"!\[[^\]]{{20,}}\]\([\w./]*{path.name}\)", page.read_text()) for page in pages)


def test_the_drawing_of_states_has_every_state():
    drawn = re.findall(r'class="name"[^>]*>([^<]+)<', (DOCS / "drawings" / "server-states.svg").read_text())

    assert sorted(drawn) == sorted(StateName)
