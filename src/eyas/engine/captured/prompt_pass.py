"""Reads prompts into the captured rounds' cache, and keeps the states that a draft reads.

The rounds' own kernels take eight rows at most. By plain operators a prompt is some hundred launches, many times what
the device needs for it: 13 ms of SmolLM2's 14 (H200, 100 tokens). The batched pass takes any number of rows, in
captured pieces, and its cache with one slot is the rounds'.

Shapes: A aux states, E hidden, G key/value heads, L cache length, D head width.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from eyas.engine.batches.batch_llama import BatchLlama, Pieces, upload
from eyas.engine.batches.batch_ops import BatchOps, ReferenceBatchOps
from eyas.engine.batches.complete_prompts import batch_ops
from eyas.engine.batches.prefill import PIECE
from eyas.engine.captured.captured_round import target_pass
from eyas.engine.captured.captured_weights import FastTarget
from eyas.engine.captured.round_ops import ReferenceOps
from eyas.engine.captured.workspace import target_workspace
from eyas.engine.cuda_graphs import Graphs
from eyas.engine.llama.llama_weights import LlamaWeights

_SIZES = (2, 4, 8, 16, 32, 64)  # pieces of a pass; a longer prompt takes several


class PromptPass(Protocol):
    """The target's pass over a prompt."""

    def read(self, prompt_ids: Sequence[int], aux_states: Tensor | None) -> Tensor:
        """Fill the cache from position 0 on; positions after the prompt's end may be written too.

        Args:
            prompt_ids: at least one, fewer than L.
            aux_states: [prompt's length, A * E], written; None if they are not needed.

        Returns:
            [1], the token after the prompt; valid until the next prompt.
        """


def prompt_pass(weights: LlamaWeights, cache: Tensor, aux_boundaries: tuple[int, ...], *, captures: bool) -> PromptPass:
    """Pieces by Triton kernels where they are captured, else by the reference operators."""
    ops = batch_ops(cache.device, captures) or ReferenceBatchOps()
    return PiecewisePrompt(weights, cache, aux_boundaries, ops, captures=captures)


class ReferencePrompt:
    """By plain operators: any device.

    Args:
        target: as the rounds have it.
        cache: [layers, 2, G, L, D].
    """

    def __init__(self, target: FastTarget, cache: Tensor) -> None:
        self._target, self._cache, self._zero = target, cache, cache.new_zeros(1, dtype=torch.int32)

    def read(self, prompt_ids: Sequence[int], aux_states: Tensor | None) -> Tensor:
        """See `PromptPass.read`."""
        target = self._target if aux_states is not None else self._target.untapped()
        ops, ids = ReferenceOps(position=0), torch.tensor(prompt_ids, dtype=torch.int32, device=self._cache.device)
        rows = target_workspace(target, len(ids), 1)
        last = target_pass(ops, target, self._cache, rows, ids, self._zero, 0)[-1:]
        ops.best_tokens(target.head, last, None, target.norm, target.eps, rows.best[:1], rows.best_ids[:1])
        if aux_states is not None:
            assert rows.aux is not None, "a target with a draft has aux boundaries"
            aux_states.copy_(rows.aux)
        return rows.best_ids[0, :1]


class PiecewisePrompt:
    """By the batched pass, in pieces of 16 tokens.

    Args:
        weights: of the target, in the order of `LlamaWeights`.
        cache: [layers, 2, G, L, D].
        aux_boundaries: whose states are kept, in `fc` order.
        ops: of a batched pass.
        captures: passes are CUDA graphs, made when their size is first needed.
    """

    def __init__(
        self, weights: LlamaWeights, cache: Tensor, aux_boundaries: tuple[int, ...], ops: BatchOps, *, captures: bool
    ) -> None:
        most, device = _SIZES[-1], cache.device
        self._model = BatchLlama(weights, 1, cache.shape[3], ops, cache=cache[:, :, None])
        self._boundaries, self._captures = aux_boundaries, captures
        self._ids = torch.zeros(most, PIECE, dtype=torch.int64, device=device)
        self._slots = torch.zeros(most, dtype=torch.int64, device=device)
        self._steps = torch.arange(most, device=device) * PIECE
        self._numbers = torch.zeros(2, dtype=torch.int64, device=device)  # of the pass: its start, the row of its end
        self._first = torch.zeros(1, dtype=torch.int64, device=device)
        self._aux_states = weights.head.new_zeros(most * PIECE, len(aux_boundaries) * weights.shape.hidden)
        self._graphs, self._ready = Graphs(), dict[tuple[int, bool], Callable[[], None]]()

    @torch.inference_mode()
    def read(self, prompt_ids: Sequence[int], aux_states: Tensor | None) -> Tensor:
        """See `PromptPass.read`."""
        most = _SIZES[-1] * PIECE
        for start in range(0, len(prompt_ids), most):
            ids = prompt_ids[start : start + most]
            size = next(size for size in _SIZES if size * PIECE >= len(ids))
            padding = [0] * (size * PIECE - len(ids))
            sent = upload([*ids, *padding, start, len(ids) - 1], self._ids.device)
            self._ids[:size] = sent[:-2].view(size, PIECE)
            self._numbers.copy_(sent[-2:])
            self._pass_of(size, aux_states is not None)()
            if aux_states is not None:
                aux_states[start : start + len(ids)] = self._aux_states[: len(ids)]
        return self._first

    def _pass_of(self, size: int, keeps_states: bool) -> Callable[[], None]:
        key = (size, keeps_states)
        if key not in self._ready:
            function = partial(self._pass, *key)
            self._ready[key] = self._graphs.captured(function, []) if self._captures else function
        return self._ready[key]

    @torch.inference_mode()
    def _pass(self, size: int, keeps_states: bool) -> None:
        starts = self._numbers[0] + self._steps[:size]
        pieces = Pieces(tokens=self._ids[:size], slots=self._slots[:size], starts=starts)
        kept = (self._boundaries, self._aux_states[: size * PIECE]) if keeps_states else ()
        self._first.copy_(self._model.read(pieces, self._numbers[1:], *kept).argmax(-1))
