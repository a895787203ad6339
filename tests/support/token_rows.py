"""Rows of random tokens, of which four in five are supervised."""

import torch

from eyas.data.text.tokenise import TokenRow
from tiny_draft import VOCAB


def rows_of(*lengths: int, seed: int = 0) -> list[TokenRow]:
    generator = torch.Generator().manual_seed(seed)
    return [
        TokenRow(
            tuple(torch.randint(3, VOCAB, (length,), generator=generator).tolist()),
            tuple((torch.arange(length) % 5 >= 1).tolist()),
        )
        for length in lengths
    ]
