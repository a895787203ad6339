"""Largest differences between the kernels of a batched pass and their eager twin, as one line of JSON.

Needs TRITON_INTERPRET=1.
"""

import json
from typing import Any

import torch
from torch import Tensor
from triton.runtime import interpreter

from eyas.decode.sampling import Sampling, SamplingBatch
from eyas.engine.batches.batch_llama import BatchLlama, Pieces
from eyas.engine.batches.batch_ops import BatchOps, ReferenceBatchOps
from eyas.engine.batches.triton_batch_ops import TritonBatchOps
from eyas.engine.llama.llama_weights import fuse_llama
from tiny_target import tiny_target
from triton_interpreter import largest_difference

CAPACITY = 128
LENGTHS = (0, 5, 70, 126)  # 126: the last of three new rows does not fit its slot any more
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
    batch = random_batch(kind, ops)
    tokens = torch.randint(0, 64, (len(LENGTHS), num_new))
    aux_states = torch.zeros(tokens.numel(), 3 * 32)
    logits = batch.forward(tokens, torch.tensor(LENGTHS), (1, 0, 2), aux_states)
    return {"logits": logits, "cache": batch.cache, "aux": aux_states}


def pieces(kind: str, ops: BatchOps) -> dict[str, Tensor]:
    """One prompt in two pieces, and one behind 60 positions; 18 query rows of a group: more than a tile's least 16."""
    batch = random_batch(kind, ops)
    tokens = torch.randint(0, 64, (3, 9))
    read = Pieces(tokens=tokens, slots=torch.tensor([2, 2, 4]), starts=torch.tensor([0, 9, 60]))
    return {"pieces": batch.read(read, torch.tensor([17, 26, 3])), "cache behind pieces": batch.cache}


def random_batch(kind: str, ops: BatchOps) -> BatchLlama:
    """With five slots of random content."""
    model = tiny_target(kind, num_hidden_layers=2)
    batch = BatchLlama(fuse_llama(model.config.to_dict(), model.state_dict().get), len(LENGTHS) + 1, CAPACITY, ops)
    torch.manual_seed(1)
    batch.cache.copy_(torch.randn(batch.cache.shape))
    return batch


def drawn(ops: BatchOps, logits: Tensor) -> Tensor:
    """A token of each row, each row with settings of its own."""
    uniform = torch.rand(len(logits), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    settings = [SETTINGS[row % len(SETTINGS)] for row in range(len(logits))]
    return ops.draw(logits, SamplingBatch.of(settings, logits.device), uniform)


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
    eager, unsplit = ReferenceBatchOps(), TritonBatchOps(1, split_capacity=0)
    # Of many multiprocessors each sequence gets several: attention in parts.
    split = TritonBatchOps(16, split_capacity=0)
    pairs = [
        (passed("llama", eager, 1), passed("llama", unsplit, 1)),
        (passed("llama", eager, 3), passed("llama", split, 3)),
        (passed("qwen3", eager, 3), passed("qwen3", unsplit, 3)),
        (pieces("qwen3", eager), pieces("qwen3", unsplit)),
    ]
    for expected, found in pairs:
        for name, value in expected.items():
            errors[name] = max(errors.get(name, 0.0), largest_difference(value, found[name]))
    torch.manual_seed(2)
    rows = len(SETTINGS)
    logits_of = {
        "drawn": 2 * torch.randn(rows, 200),
        "drawn among ties": torch.randint(-2, 3, (2 * rows, 61)).float(),
        # More than one block of ids: ties, and what is kept, are counted from block to block.
        "drawn in bf16": (2 * torch.randn(rows, 8000)).bfloat16(),
    }
    for name, logits in logits_of.items():
        tokens = [drawn(ops, logits) for ops in (ReferenceBatchOps(), TritonBatchOps())]
        errors[name] = float((tokens[0] != tokens[1]).sum())
    print(json.dumps(errors))


if __name__ == "__main__":
    main()
