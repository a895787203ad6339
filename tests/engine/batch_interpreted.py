"""Largest differences between the kernels of a batched pass and their eager twin, as one line of JSON.

Needs TRITON_INTERPRET=1.
"""

import json
from typing import Any

import torch
from torch import Tensor
from triton.runtime import interpreter

from eyas.decode.sampling import Sampling, SamplingBatch
from eyas.engine.batches.model import BatchLlama, Pieces
from eyas.engine.batches.ops import BatchOps, EagerBatchOps
from eyas.engine.batches.triton_ops import TritonBatchOps
from eyas.engine.llama_weights import fuse_llama
from tiny_target import tiny_target

LENGTHS = (0, 5, 70, 97)  # 97: the last new row does not fit the capacity of the slot any more
SETTINGS = [
    Sampling(),
    Sampling(temperature=1.0),
    Sampling(temperature=0.7, top_k=5),
    Sampling(temperature=1.3, top_p=0.6),
    Sampling(temperature=0.9, min_p=0.1),
    Sampling(temperature=1.0, top_k=7, top_p=0.8, min_p=0.05),
    Sampling(temperature=1.0, top_k=1),
    Sampling(temperature=2.0, top_k=1000, top_p=0.999),
]


def passed(kind: str, ops: BatchOps, num_new: int) -> dict[str, Tensor]:
    """Logits, cache and aux states of one pass over caches of random content."""
    model = tiny_target(kind)
    batch = BatchLlama(fuse_llama(model.config.to_dict(), model.state_dict().get), len(LENGTHS) + 1, 128, ops)
    torch.manual_seed(1)
    batch.cache.copy_(torch.randn(batch.cache.shape))
    tokens = torch.randint(0, 64, (len(LENGTHS), num_new))
    aux_states = torch.zeros(tokens.numel(), 3 * 32)
    logits = batch.forward(tokens, torch.tensor(LENGTHS), (3, 0, 4), aux_states)
    pieces = Pieces(
        tokens=torch.randint(0, 64, (3, 16)), slots=torch.tensor([2, 2, 4]), starts=torch.tensor([0, 16, 40])
    )
    read = batch.read(pieces, torch.tensor([31, 47, 3]))
    return {"logits": logits, "cache": batch.cache, "aux": aux_states, "pieces": read}


def drawn(ops: BatchOps, logits: Tensor) -> Tensor:
    """A token of each row under each setting."""
    uniform = torch.rand(len(logits), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    settings = [SamplingBatch.of([one] * len(logits), logits.device) for one in SETTINGS]
    return torch.stack([ops.draw(logits, batch, uniform) for batch in settings])


def allow_ranges_of_loaded_numbers() -> None:
    """Triton 3.6's interpreter takes arrays of one element for numbers, which numpy 2.4 refuses."""
    patch = interpreter._patch_lang_tensor

    def patched(tensor: type, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


def main() -> None:
    """Compare."""
    allow_ranges_of_loaded_numbers()
    errors: dict[str, float] = {}
    # Few multiprocessors: attention in one part; many: in two.
    for kind, num_new, multiprocessors in (("llama", 1, 1), ("llama", 3, 16), ("qwen3", 3, 1)):
        expected = passed(kind, EagerBatchOps(), num_new)
        found = passed(kind, TritonBatchOps(multiprocessors, split_capacity=0), num_new)
        for name, value in expected.items():
            error = float((value - found[name]).abs().max())
            errors[name] = max(errors.get(name, 0.0), error)
    torch.manual_seed(2)
    smooth, tied = 2 * torch.randn(4, 200), torch.randint(-2, 3, (4, 61)).float()
    for name, logits in (("drawn", smooth), ("drawn among ties", tied), ("drawn in bf16", smooth.bfloat16())):
        tokens = [drawn(ops, logits) for ops in (EagerBatchOps(), TritonBatchOps())]
        errors[name] = float((tokens[0] != tokens[1]).sum())
    print(json.dumps(errors))


if __name__ == "__main__":
    main()
