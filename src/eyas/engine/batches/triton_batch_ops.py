"""The operations of a batched pass as Triton kernels: nothing is read on the host, so that a pass can be captured.

Importing this needs Triton. Under TRITON_INTERPRET=1 the same kernels run on the CPU (slowly), for tests.
"""

from math import sqrt

import torch
import triton
from torch import Tensor

from eyas.decode.sampling import SamplingBatch
from eyas.engine.batches.batch_ops import CachePlace
from eyas.engine.kernels.batch import add_norm_kernel, attend_kernel, swiglu_kernel, turn_kernel
from eyas.engine.kernels.draw import draw_kernel
from eyas.engine.llama.llama_weights import BlockWeights, LlamaShape


class TritonBatchOps:
    """See `batches.batch_ops.ReferenceBatchOps`.

    Args:
        num_multiprocessors: of the device; where sequences are too few to give all of them work, attention is split
            over positions. 0 = never.
        split_capacity: positions that a slot must have for that.
    """

    def __init__(self, num_multiprocessors: int = 0, *, split_capacity: int = 1024) -> None:
        self._num_multiprocessors, self._split_capacity = num_multiprocessors, split_capacity
        self._scratch: dict[tuple[int, ...], tuple[Tensor, ...]] = {}

    def place(
        self, lengths: Tensor, num_new: int, rope: tuple[Tensor, Tensor], slots: Tensor | None = None
    ) -> CachePlace:
        """See `ReferenceBatchOps.place`."""
        assert lengths.is_contiguous(), "kernels read lengths one after the other"
        assert slots is None or slots.is_contiguous(), "kernels read slots one after the other"
        return CachePlace(lengths=lengths, num_new=num_new, cos=rope[0], sin=rope[1], slots=slots)

    def norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See `ReferenceBatchOps.norm`."""
        return self._norm(x, x, weight, eps, adds=False)

    def add_norm(self, residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See `ReferenceBatchOps.add_norm`."""
        return self._norm(residual, x, weight, eps, adds=True)

    def _norm(self, residual: Tensor, x: Tensor, weight: Tensor, eps: float, *, adds: bool) -> Tensor:
        num_rows, width = residual.shape
        out, block = torch.empty_like(residual), triton.next_power_of_2(width)
        add_norm_kernel[(num_rows,)](
            residual, x, weight, eps, out, E=width, BE=block, ADD=adds, num_warps=4 if block <= 2048 else 8
        )
        return out

    def turn(self, qkv: Tensor, shape: LlamaShape, block: BlockWeights, cache: Tensor, place: CachePlace) -> Tensor:
        """See `ReferenceBatchOps.turn`."""
        heads, groups, width = shape.num_heads, shape.num_kv_heads, shape.head_dim
        query = qkv.new_empty(qkv.shape[0], heads * width)
        has_norm = block.q_norm is not None and block.k_norm is not None
        turn_kernel[(qkv.shape[0],)](
            qkv,
            place.lengths,
            place.lengths if place.slots is None else place.slots,
            block.q_norm if has_norm else qkv,
            block.k_norm if has_norm else qkv,
            shape.eps,
            place.cos,
            place.sin,
            query,
            cache[0],
            cache[1],
            cache.shape[3],
            N=heads,
            G=groups,
            D=width,
            M=place.num_new,
            BN=triton.next_power_of_2(heads + groups),
            BG=triton.next_power_of_2(groups),
            BD=triton.next_power_of_2(width // 2),
            NORM=has_norm,
            INDIRECT=place.slots is not None,
            num_warps=4,
        )
        return query

    def attend(self, query: Tensor, shape: LlamaShape, cache: Tensor, place: CachePlace) -> Tensor:
        """See `ReferenceBatchOps.attend`."""
        heads, groups, width = shape.num_heads, shape.num_kv_heads, shape.head_dim
        out, padded = torch.empty_like(query), max(16, triton.next_power_of_2(width))
        rows = max(16, triton.next_power_of_2(place.num_new * heads // groups))
        splits = self._splits(len(place.lengths) * groups, cache.shape[3]) if place.slots is None else 1
        parts = self._parts(len(place.lengths) * groups, splits, rows, padded, query.device)
        attend_kernel[(len(place.lengths), groups, splits)](
            query,
            cache[0],
            cache[1],
            place.lengths,
            place.lengths if place.slots is None else place.slots,
            1 / sqrt(width),
            out,
            *parts,
            cache.shape[3],
            N=heads,
            G=groups,
            D=width,
            M=place.num_new,
            BR=rows,
            BD=padded,
            BL=64,
            SPLITS=splits,
            INDIRECT=place.slots is not None,
            num_warps=4 if rows * padded <= 8192 else 8,
            num_stages=3 if query.element_size() == 2 else 1,
        )
        return out

    def _splits(self, num_programs: int, capacity: int) -> int:
        """8 where some multiprocessors would have nothing to do and sequences may be long; else 1.

        SmolLM2 on an H200, 1 and 32 sequences: at 200 positions it makes a step 5 and 7 % longer, at 500 7 % shorter
        and 4 % longer, at 1500 26 and 5 % shorter, at 7000 61 and 28 % shorter.
        Nothing between: every number is a kernel that is compiled for seconds.
        """
        return 8 if num_programs <= self._num_multiprocessors and capacity >= self._split_capacity else 1

    def _parts(self, num: int, splits: int, rows: int, width: int, device: torch.device) -> tuple[Tensor, ...]:
        """Parts, peaks, totals and arrival counters; shared by all layers, which run one after the other."""
        key = (num, splits, rows, width) if splits > 1 else (0, 0, 0, 0)
        if key not in self._scratch:
            num, splits = max(1, key[0]), max(1, key[1])
            self._scratch[key] = (
                torch.zeros(num, splits, key[2], key[3], device=device),
                torch.zeros(num, splits, key[2], device=device),
                torch.zeros(num, splits, key[2], device=device),
                torch.zeros(num, dtype=torch.int32, device=device),
            )
        return self._scratch[key]

    def swiglu(self, gate_up: Tensor) -> Tensor:
        """See `ReferenceBatchOps.swiglu`."""
        num_rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty(num_rows, width)
        block = min(1024, triton.next_power_of_2(width))
        swiglu_kernel[(num_rows, triton.cdiv(width, block))](gate_up, out, width, BI=block, num_warps=4)
        return out

    def draw(self, logits: Tensor, settings: SamplingBatch, uniform: Tensor) -> Tensor:
        """See `ReferenceBatchOps.draw`."""
        num_rows, vocab = logits.shape
        columns = (settings.temperature, settings.top_k, settings.top_p, settings.min_p, uniform)
        assert all(column.is_contiguous() for column in (logits, *columns)), "kernels read rows one after the other"
        out = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
        draw_kernel[(num_rows,)](
            logits,
            settings.temperature,
            settings.top_k,
            settings.top_p,
            settings.min_p,
            uniform,
            out,
            vocab,
            BV=min(4096, triton.next_power_of_2(vocab)),
            num_warps=8,
        )
        return out
