"""The operations that the captured round is made of, and their reference in PyTorch.

`ReferenceOps` is what the Triton kernels (`captured.triton_round_ops`) are compared with. It also runs the prompt,
whose rows are too many for the skinny kernels, and the whole round without a GPU. Each operation writes into memory
that it is given. Positions and indices are int32 tensors, which the kernels read on the device.

Shapes: M rows, E hidden, H query heads, G key/value heads, D head width, L cache length, V vocabulary rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Union

import torch
import torch.nn.functional as F
from torch import Tensor

from eyas.engine.captured.captured_weights import HeadDims, HeadExtras
from eyas.talk import Talk

if TYPE_CHECKING:
    from eyas.engine.captured.triton_round_ops import TritonRoundOps


@dataclass(frozen=True, slots=True)
class ReferenceOps:
    """By torch operators.

    Attributes:
        position: where the rows stand, if the caller knows (a prompt: 0); None reads the position on the host, which
            waits for the device.
    """

    position: int | None = None

    def compile_ahead(self, functions: Sequence[Callable[[], None]], talk: Talk) -> None:
        """Compile every kernel that these functions would launch, without running them; there is none here."""

    def num_parts(self, head: Tensor, num_rows: int) -> int:
        """One: the whole head."""
        return 1

    def embed(self, table: Tensor, ids: Tensor, out: Tensor) -> None:
        """out [M, E] = table[ids]."""
        out.copy_(table[ids.long()])

    def project_qkv(
        self,
        weight: Tensor,
        heads: HeadDims,
        *,
        x: Tensor,
        norm: Tensor,
        ids: Tensor | None,
        second: tuple[Tensor, Tensor] | None,
        eps: float,
        position: Tensor,
        offset: int,
        rope: tuple[Tensor, Tensor],
        query: Tensor,
        cache: Tensor,
        extras: HeadExtras | None = None,
    ) -> None:
        """Turned queries [M, H * D]; turned keys and values into cache [2, G, L, D] from position + offset on.

        Args:
            x: [M, E] rows, or with `ids` [M] a table [V, E] whose rows are taken.
            norm: [E] of x.
            second: a draft's other input [M, E] and its norm [E]; `weight` then is 2E wide.
            extras: a bias and head norms before the rotation.
        """
        width, half = heads.width, heads.width // 2
        inputs = rms_norm(x if ids is None else x[ids.long()], norm, eps)
        if second is not None:
            inputs = torch.cat((inputs, rms_norm(second[0], second[1], eps)), -1)
        num = inputs.shape[0]
        bias = None if extras is None else extras.bias
        pairs = F.linear(inputs, weight, bias).view(num, -1, half, 2)
        if extras is not None and extras.norms is not None:
            pairs = _normed_heads(pairs, extras.norms, heads, eps)
        start = self._start(position, offset)
        num_turned = heads.num_query + heads.num_kv
        cos = rope[0][start : start + num, None].to(pairs.dtype)
        sin = rope[1][start : start + num, None].to(pairs.dtype)
        low, high = pairs[..., 0], pairs[..., 1]
        turned = torch.cat((low * cos - high * sin, high * cos + low * sin), -1)[:, :num_turned]
        query.copy_(turned[:, : heads.num_query].reshape(num, -1))
        cache[0, :, start : start + num] = turned[:, heads.num_query :].transpose(0, 1)
        values = torch.cat((low, high), -1)[:, num_turned:].view(num, heads.num_kv, width)
        cache[1, :, start : start + num] = values.transpose(0, 1)

    def attend(self, query: Tensor, heads: HeadDims, cache: Tensor, position: Tensor, offset: int, out: Tensor) -> None:
        """out [M, H * D]; row m sees positions 0 … position + offset + m."""
        num, start = query.shape[0], self._start(position, offset)
        rows = query.view(1, num, heads.num_query, heads.width).transpose(1, 2)
        keys, values = cache[:, None, :, : start + num]
        mask = None
        if start > 0 and num > 1:
            index = torch.arange(start + num, device=query.device)
            mask = index[None, :] <= index[start:, None]
        is_causal = start == 0 and num > 1
        merged = F.scaled_dot_product_attention(
            rows, keys, values, attn_mask=mask, is_causal=is_causal, enable_gqa=True
        )
        out.copy_(merged[0].transpose(0, 1).reshape(num, -1))

    def _start(self, position: Tensor, offset: int) -> int:
        return offset + (int(position) if self.position is None else self.position)

    def linear(self, weight: Tensor, x: Tensor, out: Tensor, *, residual: Tensor | None) -> None:
        """out [M, N] = x @ weight^T (+ residual); rows of any of them may be strided."""
        y = F.linear(x, weight)
        out.copy_(y if residual is None else residual + y)

    def gate_up(self, weight: Tensor, x: Tensor, norm: Tensor, eps: float, out: Tensor) -> None:
        """out [M, I] = silu(gate) * up of the normed x."""
        y = F.linear(rms_norm(x, norm, eps), weight)
        out.copy_(F.silu(y[:, 0::2]) * y[:, 1::2])

    def best_tokens(
        self, head: Tensor, x: Tensor, index: Tensor | None, norm: Tensor, eps: float, best: Tensor, best_ids: Tensor
    ) -> None:
        """Best logit and lowest id per part, for all rows of x, or for row index[0] alone."""
        rows = x if index is None else x[index.long()]
        logits = F.linear(rms_norm(rows, norm, eps), head).float()
        values = logits.max(-1, keepdim=True).values
        best[:, :1] = values
        # argmax does not promise the lowest of equal ids on every device.
        ids = torch.arange(head.shape[0], device=head.device, dtype=torch.int32)
        best_ids[:, 0] = torch.where(logits == values, ids, head.shape[0]).min(-1).values

    def accept(
        self,
        best: Tensor,
        best_ids: Tensor,
        tokens: Tensor,
        chosen: Tensor,
        numbers: Tensor,
        records: Tensor,
        simulated: Tensor | None,
    ) -> None:
        """Count accepted drafts, write the record, move the length, put the bonus token first."""
        length, _, _, rounds = numbers.tolist()[:4]
        choices = best_ids[:, 0].tolist()
        drafts = tokens.tolist()[1:]
        matches = [d == c for d, c in zip(drafts, choices[:-1], strict=True)]
        accepted = [*matches, False].index(False)
        if simulated is not None:
            accepted = min(len(drafts), int(simulated[rounds % len(records)]))
        chosen.copy_(best_ids[:, 0])
        records[rounds % len(records), : len(choices) + 1] = torch.tensor([accepted, *choices], dtype=torch.int32)
        tokens[0] = choices[accepted]
        numbers[:4].copy_(torch.tensor([length + accepted + 1, length, accepted, rounds + 1], dtype=torch.int32))

    def pick(
        self,
        best: Tensor,
        best_ids: Tensor,
        offsets: Tensor | None,
        token: Tensor,
        copy: tuple[Tensor, Tensor, Tensor] | None,
    ) -> None:
        """The draft's token [1] in target ids; with copy = (rows, index, out) also out[0] = rows[index[0]]."""
        choice = best_ids[0, :1]
        token.copy_(choice if offsets is None else choice + offsets[choice.long()])
        if copy is not None:
            rows, index, out = copy
            out.copy_(rows[index.long()])

    def store_states(
        self, states: Tensor, chosen: Tensor, numbers: Tensor, stored: Tensor, stored_ids: Tensor, *, is_drafted: bool
    ) -> None:
        """After a verify pass: its states [M, A * E] and choices [M] to [L, A * E] and [L], from BASE on.

        The count of unread positions is brought up to date: a drafted round read all positions before its verify pass,
        an undrafted round none.
        """
        length, base, _, _, drafted, _ = numbers.tolist()
        stored[base : base + len(states)] = states
        stored_ids[base : base + len(states)] = chosen
        drafted = base if is_drafted else drafted
        numbers[4:].copy_(torch.tensor([drafted, length - 1 - drafted], dtype=torch.int32))

    def fetch_states(self, stored: Tensor, stored_ids: Tensor, numbers: Tensor, states: Tensor, ids: Tensor) -> None:
        """The draft's next: states [M, A * E] and ids [M] from DRAFTED on; rows past the text may be any."""
        at = (numbers[4] + torch.arange(len(states), device=numbers.device)).clamp(max=len(stored) - 1)
        states.copy_(stored[at])
        ids.copy_(stored_ids[at])

    def advance(self, numbers: Tensor, num_rows: int) -> None:
        """The draft has read `num_rows` positions more; the last one is left for the round that drafts."""
        length, _, _, _, drafted, _ = numbers.tolist()
        drafted = min(drafted + num_rows, length - 1)
        numbers[4:].copy_(torch.tensor([drafted, length - 1 - drafted], dtype=torch.int32))


def _normed_heads(pairs: Tensor, norms: Tensor, heads: HeadDims, eps: float) -> Tensor:
    """Pairs [M, H + 2G, D/2, 2] with their query and key heads normed, each over D in its natural order."""
    natural = pairs.transpose(-1, -2).flatten(-2)
    num_query, num_turned = heads.num_query, heads.num_query + heads.num_kv
    normed = (
        rms_norm(natural[:, :num_query], norms[0], eps),
        rms_norm(natural[:, num_query:num_turned], norms[1], eps),
        natural[:, num_turned:],
    )
    return torch.cat(normed, 1).view(*pairs.shape[:2], 2, -1).transpose(-1, -2)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The norm of the reference blocks."""
    return torch.rms_norm(x, (x.shape[-1],), weight, eps)


# Both do the same: tests hold the kernels against the reference.
RoundOps = Union["ReferenceOps", "TritonRoundOps"]  # imported for types only: it needs Triton
