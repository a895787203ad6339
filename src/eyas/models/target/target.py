"""`Target`: any `transformers` causal model as a draft sees it: states at the boundaries, last state, logits.

Boundary n is the hidden state after n decoder layers: 0 the embedding, N the state *before* the final norm. (The last
entry of transformers' `output_hidden_states` is after the norm; hooks on the layers are not misled by that.)

Shapes: B sequences, T positions, Ht target hidden, A aux states, V target vocabulary.
"""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from eyas.contract.spec.target_parts import TargetPartMissing
from eyas.decode.tree_rows import TreeRows
from eyas.decode.tree_shape import TreeUnsupported
from eyas.errors import EyasError
from eyas.models.placement import Placement
from eyas.models.states import States
from eyas.models.target.frozen_parts import FrozenParts, LogitScaling
from eyas.models.target.loading import find_target_parts, load_target_model


class AuxBoundaryMissing(EyasError):
    """A boundary that the target does not have, or whose state is not one vector per position."""

    code = "aux-boundary-missing"


class TargetCacheUnsupported(EyasError):
    """The target works only with its own kind of cache, so eyas cannot decode with it."""

    code = "target-cache-unsupported"


class Target:
    """A target in memory. Eval mode, no gradients wanted of it.

    Args:
        model: a `transformers` model with a language-model head.

    Attributes:
        parts: the pieces of the model.
        frozen: those that training reads.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model.eval().requires_grad_(False)
        self.parts = find_target_parts(model)
        self.text_config = model.config.get_text_config(decoder=True)
        self.frozen = FrozenParts(
            name=self.name,
            num_layers=self.num_layers,
            embedding=self.parts.embedding,
            head=self.parts.head,
            final_norm=self.parts.final_norm,
            scaling=LogitScaling.of(self.text_config),
        )
        # transformers 5.24 renamed the argument; the old name goes in 5.40.
        parameters = inspect.signature(self.parts.text_model.forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"

    @classmethod
    def load(cls, folder: Path, placement: Placement) -> "Target":
        """The model in `folder`, all on one device.

        Raises:
            TargetUnloadable: transformers says no, or weights are missing.
            TargetPartMissing: it has no part that a draft needs, or what was found is not what the model uses.
            TargetNotFinite: it computes NaN or infinities.
        """
        target = cls(load_target_model(folder, placement))
        require_own_states(target, folder)
        return target

    @property
    def name(self) -> str:
        """Its folder, or the class of a model that comes from none; for messages."""
        return str(self.model.name_or_path or type(self.model).__name__)

    @property
    def num_layers(self) -> int:
        """Number of decoder layers, N."""
        return len(self.parts.layers)

    @property
    def hidden_size(self) -> int:
        """Width of a state, Ht."""
        return int(self.parts.embedding.shape[1])

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding, padding included, V."""
        return int(self.parts.embedding.shape[0])

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.parts.embedding.device

    def new_cache(self) -> DynamicCache:
        """An empty key/value cache for `forward`, whose attention layers can be cut back to any length.

        Layers with a sliding or chunked window keep all positions too: transformers' own window layers throw away what
        a rejected draft would have to bring back. The window itself is the mask's business. Recurrent layers (linear
        attention, state spaces) cannot be cut at all: `engine.transformers_target` replays them.
        """
        cache = DynamicCache(config=self.text_config)
        cache.layers = [DynamicLayer() if _forgets(layer) else layer for layer in cache.layers]
        return cache

    @torch.no_grad()
    def forward(
        self,
        input_ids: Tensor,
        aux_boundaries: Sequence[int] = (),
        *,
        cache: DynamicCache | None = None,
        mask: Tensor | None = None,
        tree: TreeRows | None = None,
    ) -> States:
        """One pass over `input_ids` [B, T], causal; rows are padded on the right, if at all and without a mask.

        Args:
            input_ids: token ids; with a cache, those after the cached ones.
            aux_boundaries: which states to give, in `fc` order, each 0 … N.
            cache: read and extended; None to keep nothing.
            mask: [B, cached + T] 1 for tokens, 0 for padding, which then may stand on the left.
            tree: the T rows are nodes of a tree after the cached ones (B = 1).

        Raises:
            TreeUnsupported: the model has layers that cannot be masked as a tree.
            AuxBoundaryMissing: a boundary outside 0 … N, or a layer that gives no [B, T, Ht] state.
            TargetCacheUnsupported: the model does not work with transformers' common cache.
        """
        self._check_boundaries(aux_boundaries)
        with self._captured(set(aux_boundaries)) as by_boundary:
            options: dict[str, Any] = {self._cache_argument: cache, "use_cache": cache is not None}
            if mask is not None:
                positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -input_ids.shape[1] :]
                options |= {"attention_mask": mask, "position_ids": positions}
            if tree is not None:
                options["attention_mask"] = tree_masks(self.text_config, tree, self.parts.embedding)
                options["position_ids"] = torch.tensor([tree.positions], device=self.device)
            try:
                out = self.parts.text_model(input_ids=input_ids, **options)
            except ValueError as error:
                if cache is None or "cache" not in str(error).lower():
                    raise
                raise self._no_cache(error) from error
        return States(aux=self._concat(by_boundary, aux_boundaries, input_ids), last=out.last_hidden_state)

    @torch.no_grad()
    def own_logits(self, ids: Sequence[int]) -> Tensor:
        """[n, V] as the model itself computes them over `ids`."""
        logits: Tensor = self.model(input_ids=torch.tensor([ids], device=self.device), use_cache=False).logits[0]
        return logits

    def logits(self, last: Tensor) -> Tensor:
        """[..., V] from states after the final norm, with the model's own scaling or soft cap."""
        return self.frozen.logits(last)

    def _no_cache(self, error: ValueError) -> TargetCacheUnsupported:
        return TargetCacheUnsupported(
            "the target does not work with a cache that eyas can cut back",
            type(self.model).__name__,
            f"it refuses transformers' DynamicCache: {str(error).splitlines()[0]}",
            "train and evaluate drafts with eyas; to decode, serve it with SGLang or vLLM",
        )

    def _check_boundaries(self, aux_boundaries: Sequence[int]) -> None:
        for boundary in aux_boundaries:
            if not 0 <= boundary <= self.num_layers:
                raise AuxBoundaryMissing(
                    f"no hidden states for aux boundary {boundary}",
                    f"{type(self.model).__name__} with {self.num_layers} layers, wanted {list(aux_boundaries)}",
                    f"boundaries count the decoder layers applied: 0 … {self.num_layers}",
                    "give the boundaries the draft was trained on, or the target it was trained for",
                )

    @contextmanager
    def _captured(self, boundaries: set[int]) -> Iterator[dict[int, Any]]:
        """Hooks that fill boundary -> state during one pass, and are gone after it."""
        by_boundary: dict[int, Any] = {}
        handles = []

        def keep_output(boundary: int) -> Any:
            def hook(module: Any, args: Any, output: Any) -> None:
                by_boundary[boundary] = output[0] if isinstance(output, tuple) else output

            return hook

        def keep_input(module: Any, args: Any, kwargs: Any) -> None:
            by_boundary[0] = args[0] if args else kwargs.get("hidden_states")

        for boundary in boundaries:
            if boundary == 0:
                handles.append(self.parts.layers[0].register_forward_pre_hook(keep_input, with_kwargs=True))
            else:
                handles.append(self.parts.layers[boundary - 1].register_forward_hook(keep_output(boundary)))
        try:
            yield by_boundary
        finally:
            for handle in handles:
                handle.remove()

    def _concat(self, by_boundary: dict[int, Any], aux_boundaries: Sequence[int], input_ids: Tensor) -> Tensor:
        wanted = (*input_ids.shape, self.hidden_size)
        for boundary in aux_boundaries:
            state = by_boundary.get(boundary)
            if not isinstance(state, Tensor) or tuple(state.shape) != wanted:
                got = tuple(state.shape) if isinstance(state, Tensor) else type(state).__name__
                raise AuxBoundaryMissing(
                    f"no hidden states for aux boundary {boundary}",
                    f"{type(self.model).__name__}: layer {boundary - 1} gave {got}, wanted {wanted}",
                    "a draft reads one state of the target's width per position",
                    "report the model class: this version cannot evaluate or train drafts for it",
                )
        if not aux_boundaries:
            return torch.empty(*input_ids.shape, 0, device=input_ids.device)
        return torch.cat([by_boundary[boundary].to(self.device) for boundary in aux_boundaries], -1)


def _forgets(layer: Any) -> bool:
    """A plain attention layer that keeps only its window; one that also carries a recurrent state is unchanged."""
    return getattr(layer, "is_sliding", False) and not hasattr(layer, "recurrent_states")


@torch.no_grad()
def require_own_states(target: Target, folder: Path) -> None:
    """Read a few tokens and raise where what eyas found in the model is not what the model computes with.

    Raises:
        TargetPartMissing: the last layer's state does not lead to the final norm's output, or head and scaling do not
            give the model's own logits.
        TargetNotFinite: they are NaN or infinite.
    """
    ids = torch.arange(1, min(5, target.vocab_size), device=target.device)[None]
    states = target.forward(ids, [target.num_layers])
    require_finite(target.logits(states.last), str(folder))
    pairs = [("the state after its last layer", target.parts.final_norm(states.aux), states.last)]
    try:
        own = target.model(input_ids=ids, use_cache=False).logits
    except (AttributeError, TypeError, ValueError):  # some wrappers do not read text without pictures
        own = None
    if own is not None:
        pairs.append(("the model's own logits", target.logits(states.last), own))
    for what, found, wanted in pairs:
        # bf16 sums in another order differ by a few thousandths of the largest.
        if (found.float() - wanted.float()).abs().max() > 0.05 * wanted.float().abs().max():
            raise TargetPartMissing(
                f"{what} cannot be computed from the parts that were found",
                str(folder),
                f"{type(target.model).__name__} puts something between its layers, its final norm and its head",
                "report the model class: this version cannot evaluate or train drafts for it",
            )


class TargetNotFinite(EyasError):
    """What the target computes over a text is NaN or infinite."""

    code = "target-not-finite"


def require_finite(rows: Tensor, name: str) -> None:
    """Raise `TargetNotFinite` where rows [..., N], logits or states of the target `name`, have no finite maximum.

    A logit of minus infinity is a token that the model rules out. Waits for the device.
    """
    if torch.isfinite(rows.amax(-1)).all():
        return
    dtype = str(rows.dtype).removeprefix("torch.")
    raise TargetNotFinite(
        f"the target's logits are not finite in {dtype}",
        name,
        "its logits over a text are NaN or infinite: its weights hold such values, or its states overflow"
        + (" float16, which ends at 65504" if dtype == "float16" else ""),
        "compute in bfloat16 or float32 (--dtype)" if dtype == "float16" else "download or export the weights again",
    )


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
        raise TreeUnsupported.of(what, f"its layers of kind {', '.join(unknown)} cannot be masked as a tree")
    if len(kinds) > 1:
        return {_FULL: _additive(tree, None, like), _SLIDING: _additive(tree, window, like)}
    return _additive(tree, None if kinds == {_FULL} else window, like)


def _additive(tree: TreeRows, window: int | None, like: Tensor) -> Tensor:
    seen = tree.mask(window, like.device)[None, None]
    return torch.zeros(seen.shape, dtype=like.dtype, device=like.device).masked_fill(~seen, torch.finfo(like.dtype).min)
