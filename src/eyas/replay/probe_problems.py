"""What can be wrong with a probe pack's parts: types, shapes, ranges. Knows the format, does nothing with it."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from eyas.records.probe_pack import ProbeAbout

_MAX_VOCAB = 1 << 24


def about_problem(about: ProbeAbout) -> str | None:
    """The first field of the pack's description that is not what the format says; None when all are."""
    target = about.target
    checks = {
        "target": isinstance(target, Mapping) and _is_count(target.get("hidden_size"), 1 << 20),
        "target.architectures": isinstance(target, Mapping) and _is_list(target.get("architectures"), str),
        "num_layers": _is_count(about.num_layers, 1 << 16),
        "vocab_size": _is_count(about.vocab_size, _MAX_VOCAB),
        "boundaries": _is_list(about.boundaries, int),
        "row_ids": _is_list(about.row_ids, str),
        "row_sets": _is_list(about.row_sets, str),
        "dtype": isinstance(about.dtype, str),
        "fingerprint": isinstance(about.fingerprint, str),
    }
    wrong = [name for name, is_right in checks.items() if not is_right]
    if wrong:
        return f"{wrong[0]} is missing or of another type or size"
    for key in ("model_type", "text_model_type"):
        if not isinstance(target.get(key, 0), str | None):
            return f"target.{key} is missing or no name"
    return None


def tensor_problem(about: ProbeAbout, tensors: Mapping[str, Tensor]) -> str | None:
    """The first tensor that does not fit the description or the others; None when all do."""
    for name in ("token_ids", "row_starts", "num_prompt", "embedding_ids"):
        if tensors[name].ndim != 1 or tensors[name].dtype not in (torch.int32, torch.int64):
            return f"{name} is {tensors[name].dtype} {list(tensors[name].shape)}, wanted a list of integers"
    return _rows_problem(about, tensors) or _states_problem(about, tensors)


def _rows_problem(about: ProbeAbout, tensors: Mapping[str, Tensor]) -> str | None:
    ids, starts, num_prompt = tensors["token_ids"], tensors["row_starts"], tensors["num_prompt"]
    if not len(about.row_ids) == len(about.row_sets) == len(num_prompt) == len(starts) - 1 >= 1:
        return "row_ids, row_sets, num_prompt and row_starts are not of one number of rows"
    lengths = starts.diff()
    if int(starts[0]) != 0 or int(starts[-1]) != len(ids) or not bool((lengths > num_prompt).all()):
        return "row_starts and num_prompt do not cut token_ids into prompts and responses"
    if not bool((num_prompt >= 1).all()):
        return "a row has no prompt"
    if int(ids.min()) < 0 or int(ids.max()) >= about.vocab_size:
        return f"token_ids go from {int(ids.min())} to {int(ids.max())}, the target has {about.vocab_size} ids"
    if not torch.equal(tensors["embedding_ids"].long(), torch.unique(ids.long())):
        return "embedding_ids are not the distinct ids of token_ids"
    return None


def _states_problem(about: ProbeAbout, tensors: Mapping[str, Tensor]) -> str | None:
    width = about.target["hidden_size"]
    shapes = {name: (len(tensors["token_ids"]), width) for name in tensors if name.startswith("state.")}
    for name in shapes:
        if not name.removeprefix("state.").isdecimal() or int(name.removeprefix("state.")) > about.num_layers:
            return f"{name[:40]} names no boundary of the target"
    shapes |= {"last": (len(tensors["token_ids"]), width), "embedding_rows": (len(tensors["embedding_ids"]), width)}
    for name, shape in shapes.items():
        if tuple(tensors[name].shape) != shape or not tensors[name].is_floating_point():
            return f"{name} is {tensors[name].dtype} {list(tensors[name].shape)}, wanted floats {list(shape)}"
        if bool(tensors[name].isnan().any()):
            return f"{name} holds NaN"
    return None


def _is_count(value: Any, largest: int) -> bool:
    return type(value) is int and 1 <= value <= largest


def _is_list(value: Any, kind: type) -> bool:
    return isinstance(value, list) and all(type(item) is kind for item in value)
