"""The page: sections made of blocks, rendered by one template. Everything from a run is escaped; only our SVG is not.

Knows blocks, not records: `sections.py` and `section_bench.py` turn a run's documents into blocks. A page stays below
`MOST_BYTES` whatever it is given: long blocks are cut, the largest sections are left out, and the page says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Any

from eyas import __version__
from eyas.talk import counted

MOST_BYTES = 950_000
_MOST_SECTIONS, _MOST_ROWS, _MOST_COLUMNS, _MOST_TOKENS, _MOST_BLOCKS = 40, 60, 12, 1_000, 40
_MOST_CELL, _MOST_TEXT, _MOST_TITLE = 400, 30_000, 200  # letters


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart made by `svg.py` (the only markup that is inserted as it is)."""

    svg: str
    caption: str = ""
    kind: str = "chart"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of text or numbers."""

    head: Sequence[str]
    rows: Sequence[Sequence[str | int | float]]
    caption: str = ""
    kind: str = "table"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSpan:
    """One generated token: its text, a CSS class (`d1` … `d5`, `bonus`, `prefill`) and what hovering says."""

    text: str
    css: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Generated text in which each token is coloured by its origin; `legend`: (CSS class, what its colour means)."""

    prompt: str
    tokens: Sequence[TokenSpan]
    legend: Sequence[tuple[str, str]]
    caption: str = ""
    kind: str = "tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A paragraph, or with a `summary` a text that opens on a click."""

    text: str
    summary: str = ""
    kind: str = "text"


Block = Chart | Table | Tokens | Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One card of the page; `source` names the file that it shows."""

    id: str
    title: str
    source: str = ""
    lead: str = ""
    blocks: Sequence[Block] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """The result at the top: one figure and one sentence; `tone` is good, bad or plain; `draft` is what it is about."""

    figure: str
    sentence: str
    draft: str = ""
    tone: str = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What is shown, in order; `warning` stands below the headlines."""

    title: str
    headlines: Sequence[Headline] = ()
    warning: str = ""
    sections: Sequence[Section] = field(default_factory=tuple)


def render(page: Page) -> str:
    """The whole page as one HTML text that needs no network.

    Generated text, file names and config values are escaped by the template; a Content-Security-Policy forbids scripts
    and remote loads even if something slipped through.
    """
    sections = [_cut_section(section) for section in page.sections[:_MOST_SECTIONS]]
    left_out = [section.title for section in page.sections[_MOST_SECTIONS:]]
    headlines = [
        replace(h, figure=_cut(h.figure, 40), sentence=_cut(h.sentence), draft=_cut(h.draft))
        for h in page.headlines[:6]
    ]
    page = replace(page, title=_cut(page.title, _MOST_TITLE), headlines=headlines, warning=_cut(page.warning, 2_000))
    text = _filled(replace(page, sections=sections))
    if len(text.encode()) > MOST_BYTES or left_out:
        sizes = {section.id: len(_filled(replace(page, sections=[section])).encode()) for section in sections}
        while sections and sum(sizes[section.id] for section in sections) > MOST_BYTES:
            largest = max(sections, key=lambda section: sizes[section.id])
            sections.remove(largest)
            left_out.append(largest.title)
        lead = f"The page would be too large with {counted(len(left_out), 'more section')}: {', '.join(left_out)}."
        sections.append(Section(id="left-out", title="Left out", lead=_cut(lead)))
        text = _filled(replace(page, sections=sections))
    return text


def _filled(page: Page) -> str:
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    source = files("eyas.report")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["markup"] = Markup
    template = environment.from_string((source / "page.html.j2").read_text(encoding="utf-8"))
    text = template.render(page=page, css=(source / "page.css").read_text(encoding="utf-8"), version=__version__)
    return text.encode(errors="backslashreplace").decode()  # names that are not valid UTF-8 stay names


def _cut_section(section: Section) -> Section:
    blocks, num_more = section.blocks[:_MOST_BLOCKS], len(section.blocks) - _MOST_BLOCKS
    cut = [_cut_block(block) for block in blocks]
    cut += [Text(text=f"{num_more} more blocks are left out.")] if num_more > 0 else []
    title, source = _cut(section.title, _MOST_TITLE), _cut(section.source)
    return replace(section, title=title, source=source, lead=_cut(section.lead, 2_000), blocks=cut)


def _cut_block(block: Block) -> Block:
    match block:
        case Table():
            more = [counted(num, one) for num, one in _excess(block) if num > 0]
            note = f" ({', '.join(more)} left out)" if more else ""
            rows = [[_cut_cell(cell) for cell in row[:_MOST_COLUMNS]] for row in block.rows[:_MOST_ROWS]]
            head = [_cut(cell, _MOST_TITLE) for cell in block.head[:_MOST_COLUMNS]]
            return replace(block, head=head, rows=rows, caption=_cut(block.caption) + note)
        case Tokens():
            num_more = len(block.tokens) - _MOST_TOKENS
            note = f" ({num_more} more tokens left out)" if num_more > 0 else ""
            tokens = [replace(t, text=_cut(t.text, _MOST_TITLE)) for t in block.tokens[:_MOST_TOKENS]]
            prompt, legend = _cut(block.prompt), block.legend[:12]
            return replace(block, prompt=prompt, tokens=tokens, legend=legend, caption=_cut(block.caption) + note)
        case Text():
            return replace(block, text=_cut(block.text, _MOST_TEXT), summary=_cut(block.summary))
    return block


def _excess(table: Table) -> list[tuple[int, str]]:
    widest = max((len(row) for row in table.rows), default=0)
    return [(len(table.rows) - _MOST_ROWS, "more row"), (widest - _MOST_COLUMNS, "more column")]


def _cut_cell(cell: Any) -> Any:
    return _cut(cell) if isinstance(cell, str) else cell


def _cut(text: str, most: int = _MOST_CELL) -> str:
    return text if len(text) <= most else f"{text[:most]} … ({len(text) - most} more characters)"
