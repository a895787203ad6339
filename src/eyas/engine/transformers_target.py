"""Any `transformers` model as an engine's target: what is outside the fast path. Right, not fast."""

from collections.abc import Sequence

import torch

from eyas.engine.runner import TargetOutput
from eyas.models.target import Target as ModelTarget


class TransformersTarget:
    """A `Target` over `models.Target` and transformers' own cache."""

    def __init__(self, target: ModelTarget) -> None:
        self._target, self._cache = target, target.new_cache()
        self._length = 0
        self._aux_boundaries: tuple[int, ...] = ()

    @property
    def vocab_size(self) -> int:
        """V."""
        return self._target.vocab_size

    @property
    def length(self) -> int:
        """Positions in the cache."""
        return self._length

    def start(self, capacity: int, aux_boundaries: Sequence[int]) -> None:
        """See `Target.start`; the cache grows by itself."""
        self._cache = self._target.new_cache()
        self._length, self._aux_boundaries = 0, tuple(aux_boundaries)

    def prefill(self, ids: Sequence[int]) -> TargetOutput:
        """See `Target.prefill`."""
        assert self._length == 0, "start first"
        return self._run(ids, last_only=True)

    def forward(self, ids: Sequence[int]) -> TargetOutput:
        """See `Target.forward`."""
        return self._run(ids, last_only=False)

    def truncate(self, length: int) -> None:
        """See `Target.truncate`."""
        assert 0 <= length <= self._length, f"cannot keep {length} of {self._length} positions"
        if length < self._length:
            self._cache.crop(length - self._length)  # negative: so many to remove, in transformers 4 and 5 alike
        self._length = length

    def _run(self, ids: Sequence[int], *, last_only: bool) -> TargetOutput:
        tokens = torch.tensor([ids], device=self._target.device)
        states = self._target.forward(tokens, self._aux_boundaries, cache=self._cache)
        self._length += len(ids)
        last = states.last[0, -1:] if last_only else states.last[0]
        return TargetOutput(logits=self._target.logits(last), aux_states=states.aux[0])
