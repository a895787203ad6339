"""Prompts read in pieces of 16 tokens, so that passes have few different sizes and can be captured.

A pass takes pieces of many prompts side by side, several of one prompt, too: within a layer all keys are written before
any row attends, so that later pieces see earlier ones. Nothing is padded to the longest prompt, and a joining sequence
costs the host a few launches instead of some hundreds.

Shapes: B pieces, M = 16 tokens of each, S slots, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from eyas.decode.sampling import Sampling
from eyas.engine.batches.batch_llama import BatchLlama, Pieces, upload
from eyas.engine.batches.batch_round import BatchSpeculation
from eyas.engine.batches.batch_state import BatchState, NewRow
from eyas.engine.cuda_graphs import Graphs

PIECE = 16
PIECE_SIZES = (16, 64, 256, 1024)  # pieces of a pass, where passes are captured


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt, read into the slot of the first of the texts that begin after it."""

    ids: tuple[int, ...]
    texts: list[NewRow]


@dataclass(slots=True)
class Pass:
    """What one pass reads.

    Attributes:
        pieces: each M ids, M next ids, slot, start.
        wanted: rows of the pass after which texts begin, and the texts' rows in the batch.
        samplings: of these texts.
    """

    pieces: list[list[int]] = field(default_factory=list)
    wanted: list[tuple[int, int]] = field(default_factory=list)
    samplings: list[Sampling] = field(default_factory=list)


def prompts_of(new: Sequence[NewRow], prompts: Sequence[Sequence[int]], *, share: bool) -> list[Prompt]:
    """The prompts to read; equal ones once, if they may `share`."""
    if not share:
        return [Prompt(tuple(ids), [row]) for row, ids in zip(new, prompts, strict=True)]
    texts: dict[tuple[int, ...], list[NewRow]] = {}
    for row, ids in zip(new, prompts, strict=True):
        texts.setdefault(tuple(ids), []).append(row)
    return [Prompt(ids, rows) for ids, rows in texts.items()]


def passes_over(prompts: Sequence[Prompt], most: int) -> Iterator[Pass]:
    """All prompts in passes of at most `most` pieces; a long prompt continues in the next pass."""
    now, padding = Pass(), [0] * PIECE
    for prompt in prompts:
        ids, next_ids, slot = [*prompt.ids, *padding], [*prompt.ids[1:], 0, *padding], prompt.texts[0].row
        for start in range(0, len(prompt.ids), PIECE):
            if len(now.pieces) == most:
                yield now
                now = Pass()
            now.pieces.append([*ids[start : start + PIECE], *next_ids[start : start + PIECE], slot, start])
        end = (len(now.pieces) - 1) * PIECE + (len(prompt.ids) - 1) % PIECE
        now.wanted += [(end, text.row) for text in prompt.texts]
        now.samplings += [text.sampling for text in prompt.texts]
    yield now


class PiecewisePrefill:
    """Reads prompts of joining sequences, and chooses their first tokens.

    Args:
        model: the target.
        state: of the rows; knows the joining ones.
        speculation: a draft that reads the prompts, too; None without one.
        sizes: B, ascending: numbers of pieces that a pass may have, one of them padding.
        graphs: captures passes; None to run them as they are.
    """

    def __init__(
        self,
        model: BatchLlama,
        state: BatchState,
        speculation: BatchSpeculation | None,
        sizes: Sequence[int],
        graphs: Graphs | None,
    ) -> None:
        assert sizes[0] >= 2, "the last piece of a pass is padding"
        self._model, self._state, self._speculation = model, state, speculation
        self._sizes, self._graphs = tuple(sizes), graphs
        head, width = model.weights.head, len(speculation.aux_boundaries) if speculation else 0
        self._pieces = torch.zeros(sizes[-1], 2 * PIECE + 2, dtype=torch.int64, device=model.device)
        self._wanted = torch.zeros(model.num_slots, 2, dtype=torch.int64, device=model.device)
        self._aux_states = head.new_empty(sizes[-1] * PIECE if width else 0, width * model.weights.shape.hidden)
        self._samplings: Sequence[Sampling] = ()
        self._ready: dict[tuple[int, bool], Callable[[], None]] = {}

    @torch.inference_mode()
    def read(self, new: Sequence[NewRow], prompts: Sequence[Sequence[int]]) -> None:
        """Read prompts into the sequences' slots; the state gets their first tokens."""
        # With a draft the last key of a prompt depends on the text's first token: nothing can be shared.
        different = prompts_of(new, prompts, share=self._speculation is None)
        for one in passes_over(different, self._sizes[-1] - 1):
            self._run(one)
        copies = [(p.texts[0].row, text.row) for p in different for text in p.texts[1:]]
        if copies:
            sources, to = zip(*copies, strict=True)
            self._model.move(sources, to, max(len(p.ids) for p in different if len(p.texts) > 1))

    def _run(self, one: Pass) -> None:
        size = next(size for size in self._sizes if size > len(one.pieces))
        spare = self._model.num_slots
        padding = [[0] * (2 * PIECE) + [spare, 0]] * (size - len(one.pieces))
        unused = [(size * PIECE - 1, spare)] * (len(self._wanted) - len(one.wanted))
        self._pieces[:size].copy_(upload(one.pieces + padding, self._model.device), non_blocking=True)
        self._wanted.copy_(upload(one.wanted + unused, self._model.device), non_blocking=True)
        self._samplings = one.samplings
        key = (size, all(sampling.is_greedy for sampling in one.samplings))
        if self._graphs is None:
            self._pass(*key)
            return
        if key not in self._ready:
            changed = [self._state.tokens]
            if self._speculation is not None:
                changed += [self._speculation.first_draft, self._speculation.states]
            self._ready[key] = self._graphs.captured(lambda: self._pass(*key), changed)
        self._ready[key]()

    @torch.inference_mode()
    def _pass(self, size: int, all_greedy: bool) -> None:
        state, speculation, num_rows = self._state, self._speculation, size * PIECE
        ids, next_ids, slots, starts = torch.split(self._pieces[:size], [PIECE, PIECE, 1, 1], 1)
        slots, starts = slots.flatten().contiguous(), starts.flatten().contiguous()
        ends, rows = self._wanted.t().contiguous()
        pieces = Pieces(tokens=ids, slots=slots, starts=starts)
        if speculation is None:
            logits = self._model.read(pieces, ends)
        else:
            logits = self._model.read(pieces, ends, speculation.aux_boundaries, self._aux_states[:num_rows])
        if all_greedy:
            chosen = logits.argmax(-1)
        else:
            uniform = state.uniforms[:, 0].index_select(0, rows)
            chosen = self._model.ops.draw(logits, state.settings_at(rows, self._samplings), uniform)
        state.tokens.index_copy_(0, rows, chosen)
        if speculation is not None:
            following = next_ids.flatten().index_copy(0, ends, chosen).view(size, PIECE)
            pieces = Pieces(tokens=following, slots=slots, starts=starts)
            offered, states = speculation.draft.read_pieces(pieces, self._aux_states[:num_rows], ends)
            speculation.first_draft.index_copy_(0, rows, offered)
            speculation.states.index_copy_(0, rows, states)
