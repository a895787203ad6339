"""How an engine hands over a target's states while it serves: what an engine's `capturing.py` says, as `CAPTURING`.

The module that runs inside the engine stands in the folder `site` of the engine's own folder, with what engines share
in `capture_site`; `serve --capture` puts both on the engine's PYTHONPATH.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from eyas.contract.engines.launching.known_flags import told
from eyas.contract.engines.launching.recipe import EngineCommand, Recipe
from eyas.diagnostic import Diagnostic

_HERE = Path(__file__).parent
SHARED_SITE = _HERE / "capture_site"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureWish:
    """What is to be handed over, and where.

    Attributes:
        boundaries: numbers of decoder layers applied, ascending.
        num_layers: of the target.
        spool: folder that rows are put into.
        limit_bytes: that rows may take there before the engine waits.
    """

    boundaries: tuple[int, ...]
    num_layers: int
    spool: str
    limit_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRequest:
    """The HTTP request that makes the engine compute one row and one greedy token after it."""

    route: str
    body: Mapping[str, Any]


class Capturing(Protocol):
    """How one engine hands over states.

    Attributes:
        first: oldest version that can.
        last: which last state comes: after the final norm, or before it.
    """

    @property
    def first(self) -> str: ...
    @property
    def last(self) -> Literal["post-norm", "pre-norm"]: ...

    def command(self, recipe: Recipe, wish: CaptureWish) -> EngineCommand:
        """The command of a server that hands over states; its findings say why it cannot."""

    def row_request(self, row_id: str, token_ids: Sequence[int], model: str) -> RowRequest:
        """What to ask. `row_id` as `eyas_spool.row_of` reads it."""

    def greedy_token(self, answer: Mapping[str, Any]) -> int:
        """The token after the row, from the answer. KeyError, IndexError, TypeError: it is not in there."""


def refused(code: str, recipe: Recipe, **facts: object) -> Diagnostic:
    """A finding that this server cannot hand over states."""
    return told(code, _HERE / "launching", recipe.known.label, {"label": recipe.known.label, **facts})


def odd_options(recipe: Recipe, unwanted: Mapping[str, str]) -> Iterator[Diagnostic]:
    """Options and extra flags under which rows would be missing or wrong.

    Args:
        unwanted: flag -> why.
    """
    options = recipe.options
    if options.nodes > 1:
        yield refused(
            "capture-flag", recipe, flag="--nodes", why="rows are handed over within one machine", do="leave it out"
        )
    given = {word.partition("=")[0] for word in recipe.extra}
    for flag, why in unwanted.items():
        if flag in given:
            yield refused("capture-flag", recipe, flag=flag, why=why, do=f"leave {flag} out")


def python_path(engine_folder: Path) -> tuple[str, ...]:
    """Folders for the engine's PYTHONPATH."""
    return str(engine_folder / "site"), str(SHARED_SITE)


def spool_folders(port: int) -> tuple[Path, ...]:
    """Where a server on this port of this machine puts its rows: in memory, or where that has no room on the disk."""
    return tuple(Path(base) / f"eyas-capture-{port}" for base in ("/dev/shm", tempfile.gettempdir()))
