"""The language that the stress pair's target speaks: every next word follows from a rule, without noise.

A text is `<s> user MODE s1 s2 … </s> assistant`, and its answer follows the rule: after a trigger comes the word that
the mode assigns to it; otherwise the word LAG tokens back, turned by the mode's permutation. So the next word needs a
head that looks exactly LAG back (RoPE, q, k, v, o), the token before (embedding), the mode (the target's states), and a
table of them (MLP).
"""

import random

import torch

VOCAB, SPECIAL, MODES, LAG = 256, 7, 3, 24
SYMBOLS = tuple(range(16, 240, 3))  # spread over the vocabulary: the draft's part of it has holes
TRIGGERS = SYMBOLS[::5]


class Language:
    """The rule, as tables over all token ids."""

    def __init__(self) -> None:
        draw = random.Random(11)
        self.turned = torch.zeros(MODES, VOCAB, dtype=torch.int64)
        self.after_trigger = torch.full((MODES, VOCAB), -1, dtype=torch.int64)
        plain = [s for s in SYMBOLS if s not in TRIGGERS]
        for mode in range(MODES):
            order = draw.sample(SYMBOLS, len(SYMBOLS))
            self.turned[mode] = torch.tensor([SYMBOLS[i % len(SYMBOLS)] for i in range(VOCAB)])  # of other ids
            self.turned[mode, list(SYMBOLS)] = torch.tensor(order)
            self.after_trigger[mode, list(TRIGGERS)] = torch.tensor(draw.sample(plain, len(TRIGGERS)))

    def texts(self, num: int, length: int, draw: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids [num, length] and where the rule decides the token."""
        num_words = int(torch.randint(LAG, 2 * LAG, (1,), generator=draw))
        mode = torch.randint(MODES, (num,), generator=draw)
        words = torch.tensor(SYMBOLS)[torch.randint(len(SYMBOLS), (num, num_words), generator=draw)]
        head = torch.tensor([1, 4]).expand(num, 2)
        tail = torch.tensor([2, 5]).expand(num, 2)
        ids = torch.cat([head, SPECIAL + mode[:, None], words, tail], 1)
        start = ids.shape[1]
        ids = torch.cat([ids, torch.zeros(num, length - start, dtype=torch.int64)], 1)
        for t in range(start, length):
            after = self.after_trigger[mode, ids[:, t - 1]]
            ids[:, t] = torch.where(after >= 0, after, self.turned[mode, ids[:, t - LAG]])
        is_ruled = (torch.arange(length) >= start).expand(num, length)
        return ids, is_ruled
