"""What several dialects are recognised by in a checkpoint's content. Never looks at a path."""

from collections.abc import Mapping
from typing import Any

from eyas.contract.files.checkpoint import Checkpoint


def architecture(checkpoint: Checkpoint) -> str:
    """First of `architectures`, "" if there is none."""
    names = checkpoint.config.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else ""


def has_tensor(checkpoint: Checkpoint, prefix: str) -> bool:
    """Some tensor's name begins with `prefix`, after an optional `model.`."""
    return any(name.removeprefix("model.").startswith(prefix) for name in checkpoint.tensors)


def has_fc(checkpoint: Checkpoint) -> bool:
    """There is an `fc`: what tells EAGLE-3 from EAGLE-1/2 and from a plain model is its width, or a map."""
    return has_tensor(checkpoint, "fc.")


def is_eagle3(checkpoint: Checkpoint) -> bool:
    """Something says EAGLE-3, whatever the format; true also for a draft that lost its fc."""
    config = checkpoint.config
    return (
        has_tensor(checkpoint, "midlayer.")
        or has_tensor(checkpoint, "layers.0.hidden_norm.")
        or has_tensor(checkpoint, "d2t")
        or has_fc(checkpoint)
        or "Eagle3" in architecture(checkpoint)
        or config.get("speculators_model_type") == "eagle3"
    )


def eagle_config(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """The `eagle_config` object, {} if there is none."""
    value = checkpoint.config.get("eagle_config")
    return value if isinstance(value, Mapping) else {}


def is_bin(checkpoint: Checkpoint) -> bool:
    """The weights are in `.bin` files."""
    return bool(checkpoint.files) and all(name.endswith((".bin", ".pt", ".pth")) for name in checkpoint.files)


def sidecar_dialect(checkpoint: Checkpoint) -> str | None:
    """The dialect that eyas wrote this folder in, as its sidecar says."""
    sidecar = checkpoint.extra.get("eyas.json")
    value = sidecar.get("dialect") if isinstance(sidecar, Mapping) else None
    return value if isinstance(value, str) else None
