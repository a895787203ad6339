"""What the rows of a tree see in a `transformers` model: masks in the form that its layers take."""

from typing import Any

import torch
from torch import Tensor

from eyas.decode.tree_rows import TreeRows
from eyas.decode.tree_shape import TreeUnsupported

_FULL, _SLIDING = "full_attention", "sliding_attention"


def tree_masks(text_config: Any, tree: TreeRows, like: Tensor) -> Tensor | dict[str, Tensor]:
    """Additive masks [1, 1, R, C] for `attention_mask`, one per kind of layer where there are several.

    transformers takes a prepared four-dimensional mask as it is (`masking_utils`), and models whose layers differ take
    a mapping from kind to mask.

    Args:
        text_config: of the text model.
        tree: the rows; the cache must hold every position, also for layers with a window.
        like: gives dtype and device.

    Raises:
        TreeUnsupported: a kind of layer whose mask is not known here (chunks, recurrent states).
    """
    window = getattr(text_config, "sliding_window", None)
    kinds = set(getattr(text_config, "layer_types", None) or ())
    if unknown := sorted(kinds - {_FULL, _SLIDING}):
        what = getattr(text_config, "model_type", "the target")
        raise TreeUnsupported.of(what, f"its layers of kind {', '.join(unknown)} see what no tree mask can say")
    if len(kinds) > 1:
        return {_FULL: _additive(tree, None, like), _SLIDING: _additive(tree, window, like)}
    return _additive(tree, None if kinds == {_FULL} else window, like)


def _additive(tree: TreeRows, window: int | None, like: Tensor) -> Tensor:
    seen = tree.mask(window, like.device)[None, None]
    return torch.zeros(seen.shape, dtype=like.dtype, device=like.device).masked_fill(~seen, torch.finfo(like.dtype).min)
