"""A Llama-family target with one sequence in its cache, on the fast path.

Shapes: R rows, H hidden, V vocabulary, A tapped states.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from eyas.decode.tree_rows import TreeRows, paths_of
from eyas.engine.llama.block_stack import BlockStack, TorchStack
from eyas.engine.llama.llama_weights import LlamaWeights
from eyas.engine.llama.native import MAX_ROWS, NativeKernels
from eyas.engine.llama.native_stack import stack_for
from eyas.engine.sequence_protocols import TargetOutput
from eyas.models.target import require_finite


class LlamaTarget:
    """A `TargetSequence` over fused weights.

    Args:
        weights: device and dtype are theirs.
        kernels: our own CPU kernels, if there are any.
        num_threads: for these kernels.
    """

    def __init__(self, weights: LlamaWeights, *, kernels: NativeKernels | None = None, num_threads: int = 1) -> None:
        self.weights, self._length = weights, 0
        self._tapped: dict[int, tuple[int, ...]] = {}
        self._num_aux = 0
        self._logits = weights.head.new_empty(MAX_ROWS, weights.head.shape[0])
        shapes = [weights.shape] * len(weights.blocks)
        stack = TorchStack(shapes, weights.blocks, weights.inverse_frequencies, weights.rope_scale)
        self.stack: BlockStack = stack_for(stack, kernels, num_threads)

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.weights.head.shape[0]

    @property
    def length(self) -> int:
        """Positions in the cache."""
        return self._length

    def start(self, capacity: int, aux_boundaries: Sequence[int]) -> None:
        """See `TargetSequence.start`."""
        self.stack.reserve(capacity)
        self._length, self._num_aux = 0, len(aux_boundaries)
        at = sorted(set(aux_boundaries))
        self._tapped = {b: tuple(i for i, a in enumerate(aux_boundaries) if a == b) for b in at}

    @torch.inference_mode()
    def prefill(self, ids: Sequence[int]) -> TargetOutput:
        """See `TargetSequence.prefill`."""
        assert self._length == 0, "start first"
        residual, aux_states = self._run(ids)
        logits = self._head(residual[-1:])
        require_finite(logits, self.weights.name)
        return TargetOutput(logits=logits, aux_states=aux_states)

    @torch.inference_mode()
    def forward(self, ids: Sequence[int]) -> TargetOutput:
        """See `TargetSequence.forward`."""
        residual, aux_states = self._run(ids)
        return TargetOutput(logits=self._head(residual), aux_states=aux_states)

    def truncate(self, length: int) -> None:
        """See `TargetSequence.truncate`."""
        assert 0 <= length <= self._length, f"cannot keep {length} of {self._length} positions"
        self._length = length

    @torch.inference_mode()
    def forward_tree(self, ids: Sequence[int], parents: Sequence[int]) -> TargetOutput:
        """See `TreeTarget.forward_tree`."""
        tree = TreeRows(base=self._length, paths=tuple(paths_of(parents, self._length)))
        residual, aux_states = self._run(ids, tree)
        return TargetOutput(logits=self._head(residual), aux_states=aux_states)

    def keep(self, rows: Sequence[int], num_rows: int) -> None:
        """See `TreeTarget.keep`."""
        base = self._length - num_rows
        self.stack.keep([base + row for row in rows], base)
        self._length = base + len(rows)

    def _run(self, ids: Sequence[int], tree: TreeRows | None = None) -> tuple[Tensor, Tensor]:
        embedding, hidden = self.weights.embedding, self.weights.shape.hidden
        residual = embedding.index_select(0, torch.tensor(ids, device=embedding.device))
        aux_states = residual.new_empty(len(ids), self._num_aux * hidden)
        num_blocks, done = len(self.weights.blocks), 0
        for boundary in (*self._tapped, num_blocks):
            residual = self.stack.run(range(done, boundary), residual, self._length, tree=tree)
            self._tap(boundary, residual, aux_states)
            done = boundary
        self._length += len(ids)
        return residual, aux_states

    def _tap(self, boundary: int, residual: Tensor, aux_states: Tensor) -> None:
        hidden = self.weights.shape.hidden
        for slot in self._tapped.get(boundary, ()):
            aux_states[:, slot * hidden : (slot + 1) * hidden] = residual

    def _head(self, residual: Tensor) -> Tensor:
        shape = self.weights.shape
        normed = torch.rms_norm(residual, (shape.hidden,), self.weights.norm, shape.eps)
        return self.stack.linear(normed, self.weights.head, self._logits)
