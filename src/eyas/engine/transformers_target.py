"""Any `transformers` model as an engine's target, for what is outside the fast path. Exact, not fast."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import DynamicLayer

from eyas.decode.tree_rows import TreeRows, paths_of
from eyas.decode.tree_shape import TreeUnsupported
from eyas.engine.sequence_protocols import TargetOutput
from eyas.models.target import Target as ModelTarget
from eyas.models.target import require_finite


class TransformersTarget:
    """A `TargetSequence` over `models.Target` and transformers' own cache.

    Attention layers are cut back. Recurrent layers (linear attention, state spaces) have one state and no positions:
    before a pass it is kept aside, and what a rejected draft leaves of the pass is read again from there.
    """

    def __init__(self, target: ModelTarget) -> None:
        self._target, self._cache = target, target.new_cache()
        self._length = 0
        self._reads_trees = False
        self._aux_boundaries: tuple[int, ...] = ()
        self._is_recurrent = any(map(_is_recurrent, self._cache.layers))
        self._before: tuple[int, tuple[int, ...], list[dict[str, Any]]] = (0, (), [])

    @property
    def vocab_size(self) -> int:
        """V."""
        return self._target.vocab_size

    @property
    def length(self) -> int:
        """Positions in the cache."""
        return self._length

    def start(self, capacity: int, aux_boundaries: Sequence[int]) -> None:
        """See `TargetSequence.start`; the cache grows by itself."""
        self._cache = self._target.new_cache()
        self._length, self._aux_boundaries = 0, tuple(aux_boundaries)

    def prefill(self, ids: Sequence[int]) -> TargetOutput:
        """See `TargetSequence.prefill`."""
        assert self._length == 0, "start first"
        output = self._run(ids, last_only=True)
        require_finite(output.logits, self._target.name)
        return output

    def forward(self, ids: Sequence[int]) -> TargetOutput:
        """See `TargetSequence.forward`."""
        return self._run(ids, last_only=False)

    def truncate(self, length: int) -> None:
        """See `TargetSequence.truncate`; with recurrent layers not further back than the last pass."""
        assert 0 <= length <= self._length, f"cannot keep {length} of {self._length} positions"
        if length == self._length:
            return
        if self._is_recurrent:
            self._read_again(length)
        else:
            self._cache.crop(length - self._length)  # negative: the number to remove, in transformers 4 and 5 alike
        self._length = length

    def forward_tree(self, ids: Sequence[int], parents: Sequence[int]) -> TargetOutput:
        """See `TreeTarget.forward_tree`; the first tree is held against a chain, since some models ignore a mask.

        Raises:
            TreeUnsupported: recurrent layers, a cache of an unusual kind, or a model that ignores the mask.
        """
        if not self._reads_trees:
            require_trees_heeded(self._target)
            self._reads_trees = True
        tree = TreeRows(base=self._length, paths=tuple(paths_of(parents, self._length)))
        tokens = torch.tensor([ids], device=self._target.device)
        states = self._target.forward(tokens, self._aux_boundaries, cache=self._cache, tree=tree)
        self._length += len(ids)
        return TargetOutput(logits=self._target.logits(states.last[0]), aux_states=states.aux[0])

    def keep(self, rows: Sequence[int], num_rows: int) -> None:
        """See `TreeTarget.keep`."""
        base = self._length - num_rows
        slots = torch.tensor([*range(base), *(base + row for row in rows)], device=self._target.device)
        for layer in self._cache.layers:
            if layer.is_initialized:  # a layer that shares another's keys has none
                layer.keys, layer.values = layer.keys.index_select(2, slots), layer.values.index_select(2, slots)
        self._length = base + len(rows)

    def _run(self, ids: Sequence[int], *, last_only: bool) -> TargetOutput:
        # Plain decoding never goes back, so it needs no copies.
        if self._is_recurrent and (len(ids) > 1 or self._aux_boundaries):
            kept = [copy.deepcopy(vars(layer)) for layer in self._cache.layers if _is_recurrent(layer)]
            self._before = (self._length, tuple(ids), kept)
        tokens = torch.tensor([ids], device=self._target.device)
        states = self._target.forward(tokens, self._aux_boundaries, cache=self._cache)
        self._length += len(ids)
        last = states.last[0, -1:] if last_only else states.last[0]
        return TargetOutput(logits=self._target.logits(last), aux_states=states.aux[0])

    def _read_again(self, length: int) -> None:
        """Go back before the last pass, and read as much of it as is to stay."""
        begin, ids, states = self._before
        assert begin <= length < begin + len(ids) == self._length, "recurrent layers go back within the last pass only"
        kept = iter(states)
        for layer in self._cache.layers:
            if _is_recurrent(layer):
                vars(layer).update(copy.deepcopy(next(kept)))
            else:
                layer.crop(begin - self._length)
        if length > begin:
            tokens = torch.tensor([ids[: length - begin]], device=self._target.device)
            self._target.forward(tokens, cache=self._cache)


def _is_recurrent(layer: Any) -> bool:
    return hasattr(layer, "recurrent_states")


def require_trees_heeded(target: ModelTarget) -> None:
    """Raise unless a node of a small tree gets the logits of the text that its path is.

    Raises:
        TreeUnsupported: it does not, or the cache has layers that cannot keep one path.
    """
    name, cache = type(target.model).__name__, target.new_cache()
    if unusual := sorted({type(layer).__name__ for layer in cache.layers if type(layer) is not DynamicLayer}):
        raise TreeUnsupported.of(name, f"its cache has {', '.join(unusual)}, which cannot keep one path of a tree")
    text, (left, right, last) = [1, 2, 3, 1, 2], (4, 5, 3)
    target.forward(torch.tensor([text], device=target.device), cache=cache)
    tree = TreeRows(base=len(text), paths=tuple(paths_of((-1, -1, 1), len(text))))
    rows = target.forward(torch.tensor([[left, right, last]], device=target.device), cache=cache, tree=tree)
    chain = target.forward(torch.tensor([[*text, right, last]], device=target.device))
    found, wanted = (target.logits(states.last[0, -1]).float() for states in (rows, chain))
    # bf16 sums in another order differ by a few thousandths of the largest.
    if (found - wanted).abs().max() > 0.05 * wanted.abs().max():
        raise TreeUnsupported.of(name, "it ignores the mask that it is given")
