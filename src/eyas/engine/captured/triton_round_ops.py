"""The operations of the captured round as Triton kernels: one launch each, nothing read on the host.

Importing this needs Triton. Under TRITON_INTERPRET=1 the same kernels run on the CPU (slowly), for tests."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import torch
import triton
from torch import Tensor

from eyas.engine.captured.captured_weights import HeadDims, HeadExtras
from eyas.engine.captured.kernel_launcher import Launcher
from eyas.engine.captured.tiles import Tile, TileChoice, Way
from eyas.engine.kernels.attention import attention_kernel
from eyas.engine.kernels.heads import heads_kernel
from eyas.engine.kernels.linear import gate_up_kernel, head_kernel, linear_kernel, qkv_kernel
from eyas.engine.kernels.round_state import (
    accept_kernel,
    advance_kernel,
    embed_kernel,
    fetch_kernel,
    pick_kernel,
    store_kernel,
)
from eyas.engine.kernels.rows import norm_kernel
from eyas.talk import Talk

_STATE_BLOCK = 1024


@dataclass(slots=True)
class TritonRoundOps:
    """See `captured.round_ops.ReferenceOps`.

    Attributes:
        tiles: block sizes by shape.
        overlaps: programmatic dependent launch: a kernel loads its weights while the one before it still runs
            (compute capability 9 and up).
        num_multiprocessors: of the device.
    """

    tiles: TileChoice
    overlaps: bool = False
    num_multiprocessors: int = 1
    _scratch: dict[tuple[int, ...], tuple[Tensor, ...]] = field(default_factory=dict)
    _launch: Launcher = field(default_factory=Launcher)

    def compile_ahead(self, functions: Sequence[Callable[[], None]], talk: Talk) -> None:
        """See `ReferenceOps.compile_ahead`."""
        self._launch.compile_ahead(functions, talk)

    def _grid(self, tile: Tile, num_out: int) -> tuple[int]:
        num_tiles = triton.cdiv(num_out, tile.block_out)
        if tile.way != Way.WALK:
            return (num_tiles,)
        return (min(num_tiles, tile.programs * self.num_multiprocessors),)

    def _flags(self, tile: Tile, num_in: int, num_rows: int) -> dict[str, Any]:
        first, rest = tile.columns(num_in)
        flags: dict[str, Any] = {
            "C": num_in,
            "M": num_rows,
            "MP": tile.padded(num_rows),
            "BN": tile.block_out,
            "BK": first,
            "BK2": rest,
            "S": tile.num_warps,
            "WAY": int(tile.way),
            "STAGES": tile.stages,
            "num_warps": tile.num_warps,
        }
        return flags | self._overlap()

    def _overlap(self) -> dict[str, Any]:
        return {"PDL": True, "launch_pdl": True} if self.overlaps else {"PDL": False}

    def _normed(self, x: Tensor, index: Tensor | None, norm: Tensor, eps: float, out: Tensor) -> None:
        """out [M, E] = rmsnorm of rows of x, as its own launch."""
        width = x.shape[1]
        self._launch(norm_kernel, (out.shape[0],))(
            x,
            x.stride(0),
            norm if index is None else index,
            norm,
            eps,
            out,
            out.stride(0),
            C=width,
            BK=triton.next_power_of_2(width),
            INDIRECT=index is not None,
            **self._overlap(),
        )

    def _normed_rows(self, num_rows: int, width: int, like: Tensor, use: int = 0) -> Tensor:
        key = (num_rows, width, use)
        if key not in self._scratch:
            self._scratch[key] = (torch.zeros(num_rows, width, dtype=like.dtype, device=like.device),)
        return self._scratch[key][0]

    def num_parts(self, head: Tensor, num_rows: int) -> int:
        """See `ReferenceOps.num_parts`."""
        tile = self.tiles.pick("head", head, num_rows)
        return -(-head.shape[0] // tile.block_out)

    def embed(self, table: Tensor, ids: Tensor, out: Tensor) -> None:
        """See `ReferenceOps.embed`."""
        width = table.shape[1]
        self._launch(embed_kernel, (out.shape[0],))(
            table, ids, out, out.stride(0), C=width, BK=triton.next_power_of_2(width), **self._overlap()
        )

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
        """See `ReferenceOps.project_qkv`; with extras as three launches, since a head norm needs a whole head."""
        num_rows = query.shape[0]
        if extras is not None:
            assert second is None, "a draft has no head norms here"
            inputs = self._normed_rows(num_rows, weight.shape[1], query)
            self._normed(x, ids, norm, eps, inputs)
            self._project_heads(weight, heads, inputs, extras, eps, position, offset, rope, query, cache)
            return
        tile = self.tiles.pick("qkv", weight, num_rows)
        has_norm = tile.way != Way.PIPE
        if not has_norm:
            inputs = self._normed_rows(num_rows, weight.shape[1], query)
            self._normed(x, ids, norm, eps, inputs[:, : norm.shape[0]])
            if second is not None:
                self._normed(second[0], None, second[1], eps, inputs[:, norm.shape[0] :])
            x, ids, second = inputs, None, None
        other, other_norm = (x, norm) if second is None else second
        self._launch(qkv_kernel, self._grid(tile, weight.shape[0]))(
            weight,
            weight.stride(0),
            x,
            x.stride(0),
            position if ids is None else ids,
            norm,
            other,
            other.stride(0),
            other_norm,
            eps,
            position,
            offset,
            rope[0],
            rope[1],
            query,
            cache[0],
            cache[1],
            H=heads.num_query,
            G=heads.num_kv,
            D=heads.width,
            L=cache.shape[2],
            NORM=has_norm,
            TWO=second is not None,
            INDIRECT=ids is not None,
            **self._flags(tile, x.shape[1], num_rows),
        )

    def _project_heads(
        self,
        weight: Tensor,
        heads: HeadDims,
        inputs: Tensor,
        extras: HeadExtras,
        eps: float,
        position: Tensor,
        offset: int,
        rope: tuple[Tensor, Tensor],
        query: Tensor,
        cache: Tensor,
    ) -> None:
        num_rows, num_heads = query.shape[0], heads.num_query + 2 * heads.num_kv
        raw = self._normed_rows(num_rows, weight.shape[0], query, 1)
        self.linear(weight, inputs, raw, residual=None)
        self._launch(heads_kernel, (num_rows, num_heads))(
            raw,
            raw if extras.bias is None else extras.bias,
            raw if extras.norms is None else extras.norms,
            eps,
            position,
            offset,
            rope[0],
            rope[1],
            query,
            cache[0],
            cache[1],
            H=heads.num_query,
            G=heads.num_kv,
            D=heads.width,
            BH=triton.next_power_of_2(heads.width // 2),
            L=cache.shape[2],
            BIAS=extras.bias is not None,
            NORM=extras.norms is not None,
            num_warps=1,
            **self._overlap(),
        )

    def attend(self, query: Tensor, heads: HeadDims, cache: Tensor, position: Tensor, offset: int, out: Tensor) -> None:
        """See `ReferenceOps.attend`."""
        num_rows, length, width = query.shape[0], cache.shape[2], heads.width
        block = self.tiles.attention_block
        splits = triton.cdiv(length, block)
        rows = max(16, triton.next_power_of_2(num_rows * heads.num_query // heads.num_kv))
        scratch = self._attention_scratch(heads, splits, rows, query.device)
        self._launch(attention_kernel, (heads.num_kv, splits))(
            query,
            cache[0],
            cache[1],
            position,
            offset,
            1 / sqrt(width),
            out,
            *scratch,
            H=heads.num_query,
            G=heads.num_kv,
            D=width,
            L=length,
            M=num_rows,
            R=rows,
            BL=block,
            SPLITS=splits,
            AT_ONCE=4 if width > 64 else 8,
            num_warps=self.tiles.warps_of_attention(width, num_rows),
            **self._overlap(),
        )

    def _attention_scratch(self, heads: HeadDims, splits: int, rows: int, device: torch.device) -> tuple[Tensor, ...]:
        """Parts, peaks, totals and arrival counters; shared by all layers, which run one after the other."""
        key = (heads.num_kv, splits, rows, heads.width)
        if key not in self._scratch:
            cells = torch.zeros(heads.num_kv, splits, rows, heads.width, device=device)
            self._scratch[key] = (
                cells,
                torch.zeros(heads.num_kv, splits, rows, device=device),
                torch.zeros(heads.num_kv, splits, rows, device=device),
                torch.zeros(heads.num_kv, dtype=torch.int32, device=device),
            )
        return self._scratch[key]

    def linear(self, weight: Tensor, x: Tensor, out: Tensor, *, residual: Tensor | None) -> None:
        """See `ReferenceOps.linear`."""
        num_rows, (num_out, num_in) = x.shape[0], weight.shape
        tile = self.tiles.pick("linear", weight, num_rows)
        added = out if residual is None else residual
        self._launch(linear_kernel, self._grid(tile, num_out))(
            weight,
            x,
            x.stride(0),
            added,
            added.stride(0),
            out,
            out.stride(0),
            num_out,
            ADD=residual is not None,
            **self._flags(tile, num_in, num_rows),
        )

    def gate_up(self, weight: Tensor, x: Tensor, norm: Tensor, eps: float, out: Tensor) -> None:
        """See `ReferenceOps.gate_up`."""
        num_rows, (num_out, num_in) = x.shape[0], weight.shape
        tile = self.tiles.pick("gate_up", weight, num_rows)
        has_norm = tile.way != Way.PIPE
        if not has_norm:
            inputs = self._normed_rows(num_rows, num_in, x)
            self._normed(x, None, norm, eps, inputs)
            x = inputs
        self._launch(gate_up_kernel, self._grid(tile, num_out))(
            weight,
            x,
            x.stride(0),
            norm,
            eps,
            out,
            num_out,
            NORM=has_norm,
            **self._flags(tile, num_in, num_rows),
        )

    def best_tokens(
        self, head: Tensor, x: Tensor, index: Tensor | None, norm: Tensor, eps: float, best: Tensor, best_ids: Tensor
    ) -> None:
        """See `ReferenceOps.best_tokens`."""
        num_rows, (num_out, num_in) = best.shape[0], head.shape
        tile = self.tiles.pick("head", head, num_rows)
        num_parts = triton.cdiv(num_out, tile.block_out)
        assert best.shape[1] == num_parts, "the workspace was made for other tiles"
        has_norm = tile.way != Way.PIPE
        if not has_norm:
            inputs = self._normed_rows(num_rows, num_in, x)
            self._normed(x, index, norm, eps, inputs)
            x, index = inputs, None
        self._launch(head_kernel, self._grid(tile, num_out))(
            head,
            x,
            x.stride(0),
            best_ids if index is None else index,
            norm,
            eps,
            best,
            best_ids,
            num_out,
            num_parts,
            NORM=has_norm,
            INDIRECT=index is not None,
            **self._flags(tile, num_in, num_rows),
        )

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
        """See `ReferenceOps.accept`."""
        num_parts = best.shape[1]
        self._launch(accept_kernel, (1,))(
            best,
            best_ids,
            num_parts,
            tokens,
            chosen,
            numbers,
            records,
            records.stride(0),
            records.shape[0],
            numbers if simulated is None else simulated,
            K=tokens.shape[0] - 1,
            BP=triton.next_power_of_2(num_parts),
            SIMULATE=simulated is not None,
            num_warps=8,
            **self._overlap(),
        )

    def pick(
        self,
        best: Tensor,
        best_ids: Tensor,
        offsets: Tensor | None,
        token: Tensor,
        copy: tuple[Tensor, Tensor, Tensor] | None,
    ) -> None:
        """See `ReferenceOps.pick`."""
        num_parts = best.shape[1]
        rows, index, out = (best, token, best) if copy is None else copy
        width = rows.shape[1] if copy is not None else 1
        self._launch(pick_kernel, (1,))(
            best,
            best_ids,
            num_parts,
            best if offsets is None else offsets,
            token,
            rows,
            rows.stride(0),
            index,
            out,
            C=width,
            BP=triton.next_power_of_2(num_parts),
            BK=triton.next_power_of_2(width),
            HAS_MAP=offsets is not None,
            COPY=copy is not None,
            num_warps=8,
            **self._overlap(),
        )

    def store_states(
        self, states: Tensor, chosen: Tensor, numbers: Tensor, stored: Tensor, stored_ids: Tensor, *, is_drafted: bool
    ) -> None:
        """See `ReferenceOps.store_states`."""
        num_rows, width = states.shape
        self._launch(store_kernel, (num_rows, triton.cdiv(width, _STATE_BLOCK)))(
            states, chosen, numbers, stored, stored_ids, C=width, BK=_STATE_BLOCK, DRAFTED=is_drafted, **self._overlap()
        )

    def fetch_states(self, stored: Tensor, stored_ids: Tensor, numbers: Tensor, states: Tensor, ids: Tensor) -> None:
        """See `ReferenceOps.fetch_states`."""
        num_rows, width = states.shape
        self._launch(fetch_kernel, (num_rows, triton.cdiv(width, _STATE_BLOCK)))(
            stored, stored_ids, numbers, states, ids, stored.shape[0], C=width, BK=_STATE_BLOCK, **self._overlap()
        )

    def advance(self, numbers: Tensor, num_rows: int) -> None:
        """See `ReferenceOps.advance`."""
        self._launch(advance_kernel, (1,))(numbers, M=num_rows, num_warps=1, **self._overlap())
