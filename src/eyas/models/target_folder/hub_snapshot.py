"""A model of the Hugging Face hub as a local folder: from the local cache, else from the hub."""

from collections.abc import Sequence
from pathlib import Path

import httpx

from eyas.contract.files.weight_files import find_weight_files
from eyas.errors import EnvironmentMissing
from eyas.talk import Talk

_SMALL_FILES = ["*.json", "*.model", "*.jinja", "*.txt"]
_ALL_FILES = [*_SMALL_FILES, "*.safetensors"]


def hub_snapshot(name: str, talk: Talk) -> Path:
    """The folder with all that eyas reads of `name`, weights included (fetched where they are not cached).

    Raises:
        EnvironmentMissing: no huggingface_hub, no network, no such model, or no access to it.
    """
    cached = _cached(name)
    if cached is not None and _has_weights(cached):
        return cached
    talk.line(f"there is no folder {name} here, and no such model in the local Hugging Face cache: asking the hub")
    folder = _fetch(name, _ALL_FILES)
    if not _has_weights(folder):  # offline, the hub's library gives what it has
        raise _unavailable(name, _ALL_FILES, f"safetensors weights are missing in {folder}, which the hub gave")
    return folder


def hub_headers(name: str, talk: Talk, *, ask_hub: bool = True) -> Path | None:
    """Config and tokenizer of `name`; its weights are never fetched here.

    Args:
        ask_hub: fetch config and tokenizer files where the cache has none; otherwise the answer is None.

    Returns:
        the cached folder where its weights are there too, else the config.json beside the tokenizer files.

    Raises:
        EnvironmentMissing: as above; with `ask_hub` only.
    """
    try:
        folder = _cached(name)
    except EnvironmentMissing:
        if ask_hub:
            raise
        return None
    if folder is None and not ask_hub:
        return None
    if folder is None:
        talk.line(f"there is no folder {name} here: asking the hub for its config and tokenizer (no weights)")
        folder = _fetch(name, _SMALL_FILES)
    return folder if _has_weights(folder) else folder / "config.json"


def download_command(name: str, folder: str, patterns: Sequence[str] = _ALL_FILES) -> str:
    """What brings the files that eyas reads of the hub's model `name` into `folder`, for a shell."""
    wanted = " ".join(f"--include '{pattern}'" for pattern in patterns)
    return f"hf download {name} {wanted} --local-dir {folder}"


def _cached(name: str) -> Path | None:
    """The newest snapshot in the local cache that has a config.json; a part of it may have been fetched only."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise EnvironmentMissing(
            f"{name} would be a model of the Hugging Face hub, and huggingface_hub is not installed",
            f"--target {name}",
            "there is no such folder here, and the light installation does not talk to the hub",
            "pip install huggingface_hub, or give the target's folder (check and convert: its config.json is enough)",
        ) from error
    try:
        folder = Path(snapshot_download(name, allow_patterns=_SMALL_FILES, local_files_only=True))
    except (OSError, ValueError):
        return None
    return folder if (folder / "config.json").exists() else None


def _has_weights(folder: Path) -> bool:
    files = find_weight_files(folder).files
    return bool(files) and all((folder / name).exists() for name in files)


def _fetch(name: str, patterns: Sequence[str]) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=list(patterns)))
    except (OSError, ValueError, httpx.HTTPError) as error:
        first = (str(error).strip().splitlines() or [""])[0]
        raise _unavailable(
            name, patterns, f"there is no such folder here, and {type(error).__name__}: {first}"
        ) from error


def _unavailable(name: str, patterns: Sequence[str], why: str) -> EnvironmentMissing:
    return EnvironmentMissing(
        f"cannot get the target {name} from the Hugging Face hub",
        f"--target {name}",
        why,
        f"where there is a network: {download_command(name, 'FOLDER', patterns)} (if it is gated: hf auth login first);"
        " then --target FOLDER",
    )
