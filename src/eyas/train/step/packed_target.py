"""The target's states over packed rows: Llama blocks by our own fused forward, everything else through transformers.

Shapes: T positions, H hidden, Ht = H, A aux boundaries.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from eyas.engine.llama.llama_weights import BlockWeights, LlamaWeights, fuse_llama, why_not_fast
from eyas.models.states import RowLayout, States, StateSource
from eyas.models.target import LiveStates, Target
from eyas.train.step.packed_attention import attend_rows
from eyas.train.step.row_ops import Angles, HeadCounts, rows_for


def live_states(target: Target, most_tokens: int, *, is_fused: bool = True) -> StateSource:
    """The fused forward where it can compute `target`, else transformers.

    The model's weights become views of the fused ones, so that none is held twice.

    Args:
        most_tokens: positions that go through transformers at a time, padding counted.
        is_fused: False for transformers in any case.
    """
    if is_fused and _is_plain_llama(target):
        return LlamaStates(fuse_in_place(target))
    return LiveStates(target, most_tokens)


class LlamaStates:
    """Llama blocks over packed rows: one flash attention a layer, sums and norms fused."""

    pads = False

    def __init__(self, weights: LlamaWeights) -> None:
        self._weights = weights
        shape = weights.shape
        self._heads = HeadCounts(num_query=shape.num_heads, num_kv=shape.num_kv_heads, width=shape.head_dim)
        self._tables: list[Angles] = []  # a recorded step reads the one that it was recorded with

    @property
    def vocab_size(self) -> int:
        """Rows of the target's embedding."""
        return len(self._weights.embedding)

    @property
    def device(self) -> torch.device:
        """The target's."""
        return self._weights.embedding.device

    @torch.no_grad()
    def __call__(self, rows: RowLayout, boundaries: Sequence[int]) -> States:
        """See `StateSource`."""
        weights = self._weights
        state = F.embedding(rows.ids[: rows.length], weights.embedding)
        ops, eps = rows_for(state), weights.shape.eps
        aux = state.new_empty(rows.length, len(boundaries), state.shape[1])
        change: Tensor | None = None
        for depth, block in enumerate((*weights.blocks, None)):
            norm = weights.norm if block is None else block.input_norm
            assert norm is not None, "a target's blocks have an input norm"
            state, normed = ops.norm(state if change is None else change, None if change is None else state, norm, eps)
            for place, boundary in enumerate(boundaries):
                if boundary == depth:
                    aux[:, place] = state
            if block is not None:
                state, change = self._block(block, state, normed, rows)
        return States(aux=aux.flatten(1), last=normed)

    def _block(self, block: BlockWeights, state: Tensor, normed: Tensor, packed: RowLayout) -> tuple[Tensor, Tensor]:
        """The state after attention, and what the MLP adds to it."""
        rows, heads = rows_for(state), self._heads
        qkv = F.linear(normed, block.qkv, block.qkv_bias)
        if block.q_norm is not None and block.k_norm is not None:
            qkv = self._normed_heads(qkv, block.q_norm, block.k_norm)
        query, key_value = rows.rope(qkv, self._table(packed), packed.positions, 0, heads)
        key, value = key_value.chunk(2, 1)
        mixed, _ = attend_rows(query, key, value, packed, heads.width**-0.5)
        out = F.linear(mixed.flatten(1), block.o)
        state, normed = rows.norm(out, state, block.post_norm, self._weights.shape.eps)
        return state, F.linear(rows.swiglu(F.linear(normed, block.gate_up)), block.down)

    def _normed_heads(self, qkv: Tensor, q_norm: Tensor, k_norm: Tensor) -> Tensor:
        heads, eps = self._heads, self._weights.shape.eps
        split = qkv.view(len(qkv), heads.total, heads.width)
        query, key, value = torch.split(split, [heads.num_query, heads.num_kv, heads.num_kv], 1)
        query, key = F.rms_norm(query, q_norm.shape, q_norm, eps), F.rms_norm(key, k_norm.shape, k_norm, eps)
        return torch.cat((query, key, value), 1).flatten(1)

    def _table(self, packed: RowLayout) -> Angles:
        weights, longest = self._weights, packed.longest
        if not self._tables or len(self._tables[-1].cos) < longest:
            table = angle_table(weights.inverse_frequencies, weights.rope_scale, longest, packed.positions.device)
            self._tables.append(table)
        return self._tables[-1]


def angle_table(inverse_frequencies: Tensor, scale: float, longest: int, device: torch.device) -> Angles:
    """Angles of positions 0 … longest, rounded up to a multiple of 4096 so that it is seldom computed again."""
    num = -(-longest // 4096) * 4096 + 64
    angles = torch.arange(num, dtype=torch.float32)[:, None] * inverse_frequencies.float().cpu()
    return Angles(cos=(angles.cos() * scale).to(device), sin=(angles.sin() * scale).to(device))


def fuse_in_place(target: Target) -> LlamaWeights:
    """The target's weights, fused; its own become views of them."""
    named = dict(target.model.named_parameters())
    weights = fuse_llama(target.model.config.to_dict(), named.get)
    for i, block in enumerate(weights.blocks):
        prefix = f"model.layers.{i}."
        _share(named, prefix + "self_attn.", ("q_proj", "k_proj", "v_proj"), "weight", block.qkv)
        _share(named, prefix + "mlp.", ("gate_proj", "up_proj"), "weight", block.gate_up)
        if block.qkv_bias is not None:
            _share(named, prefix + "self_attn.", ("q_proj", "k_proj", "v_proj"), "bias", block.qkv_bias)
    return weights


def _share(named: dict[str, torch.nn.Parameter], prefix: str, names: Sequence[str], kind: str, fused: Tensor) -> None:
    begin = 0
    for name in names:
        parameter = named[f"{prefix}{name}.{kind}"]
        parameter.data = fused[begin : begin + len(parameter)]
        begin += len(parameter)


def _is_plain_llama(target: Target) -> bool:
    """Blocks that `LlamaStates` computes, under the names that `fuse_llama` reads, on one device."""
    config = target.model.config.to_dict()
    parameters = list(target.model.parameters())
    if why_not_fast(config) is not None or target.parts.path != "model":
        return False
    if config["model_type"] == "mistral" and config.get("sliding_window"):
        return False
    return len({(p.device, p.dtype) for p in parameters}) == 1
