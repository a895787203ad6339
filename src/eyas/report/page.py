"""The page: sections made of blocks, rendered by one template. Everything from a run is escaped; only our SVG is not.

Knows blocks, not records: `section_*.py` turn a run's documents into blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files

from eyas import __version__


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
class LegendKey:
    """What a colour means."""

    css: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Generated text in which each token is coloured by how it came."""

    prompt: str
    tokens: Sequence[TokenSpan]
    legend: Sequence[LegendKey]
    caption: str = ""
    kind: str = "tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """Text that opens on a click."""

    summary: str
    text: str
    kind: str = "details"


@dataclass(frozen=True, slots=True, kw_only=True)
class Paragraph:
    """Plain words."""

    text: str
    kind: str = "text"


Block = Chart | Table | Tokens | Details | Paragraph


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One card of the page."""

    id: str
    title: str
    lead: str = ""
    blocks: Sequence[Block] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A sentence at the top; `tone` is good, bad or plain; `draft` is the one that it speaks of."""

    text: str
    draft: str = ""
    tone: str = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What is shown, in order."""

    title: str
    verdicts: Sequence[Verdict] = ()
    sections: Sequence[Section] = field(default_factory=tuple)


def render(page: Page) -> str:
    """The whole page as one HTML text that needs no network.

    Generated text, file names and config values are escaped by the template; a Content-Security-Policy forbids scripts
    and remote loads even if something slipped through.
    """
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    source = files("eyas.report")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((source / "page.html.j2").read_text(encoding="utf-8"))
    sections = [
        {
            "id": section.id,
            "title": section.title,
            "lead": section.lead,
            "blocks": [_shown(block, Markup) for block in section.blocks],
        }
        for section in page.sections
    ]
    css = Markup((source / "page.css").read_text(encoding="utf-8"))
    return template.render(title=page.title, verdicts=page.verdicts, sections=sections, css=css, version=__version__)


def _shown(block: Block, markup: type) -> object:
    if isinstance(block, Chart):
        return {"kind": "chart", "caption": block.caption, "svg": markup(block.svg)}
    return block
