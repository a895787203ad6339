"""A server asked for texts that a pack has recorded: an answer that leaves its text is asked again, up to there.

A pack holds the target's states over its own texts only, and a server of another precision leaves a text at a near-tie.
Greedy answers come again, so the part before is worth as much as a whole answer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from eyas.decode.accept_length import pooled
from eyas.errors import ExitCode, EyasError
from eyas.parity.ask import Served
from eyas.records.eval_rows import EvalRow, require_rounds

_PASSES = 3


class AnswersLeavePack(EyasError):
    """The server's answers do not come again, and it counts all of them together: none can be left out."""

    code = "answers-leave-pack"
    exit_code = ExitCode.FINDINGS


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAnswers:
    """What a server answered within the recorded texts.

    Attributes:
        served: the answers that are compared.
        numbers: of their prompts.
        left_out: number of a prompt -> why it is not compared.
        num_cut: answers that were cut where they leave their text.
    """

    served: Served
    numbers: tuple[int, ...]
    left_out: Mapping[int, str]
    num_cut: int


def ask_recorded(
    prompts: Sequence[EvalRow], ask: Callable[[Sequence[EvalRow], Sequence[int]], Served], longest: int, where: str
) -> RecordedAnswers:
    """Ask until every answer is the beginning of its recorded text.

    Args:
        prompts: with their recorded answers.
        ask: prompts and the longest answer of each to what was served.
        longest: answer, in tokens.
        where: the server, for a message.

    Raises:
        AnswersLeavePack: answers leave other places each time, and their counts cannot be taken apart.
        EvalDataEmpty: no answer holds a round of its recorded text. What `ask` raises.
    """
    limits, left_out = [longest] * len(prompts), dict[int, str]()
    numbers, leaving = tuple(range(len(prompts))), dict[int, int]()
    for passed in range(_PASSES):
        numbers = tuple(number for number in numbers if number not in left_out)
        require_rounds([prompts[number] for number in numbers], "eyas parity")
        served = ask([prompts[number] for number in numbers], [limits[number] for number in numbers])
        found = (_leaves(prompts[number], row) for number, row in zip(numbers, served.rows, strict=True))
        leaving = {number: at for number, at in zip(numbers, found, strict=True) if at is not None}
        if not leaving:
            break
        for number, at in leaving.items():
            limits[number] = at
            if at < 2 or passed == _PASSES - 1:
                left_out[number] = f"the answer leaves the recorded text at token {at}"
    if leaving and served.by_row is None:
        raise AnswersLeavePack(
            "the server's answers leave the recorded texts at other places each time",
            where,
            f"{len(leaving)} of {len(numbers)} did at last, and its counters hold all answers together",
            "give --target T in place of --probe",
        )
    num_cut = sum(limits[number] < longest for number in numbers if number not in left_out)
    kept = [place for place, number in enumerate(numbers) if number not in leaving]
    return RecordedAnswers(
        served=_some(served, kept),
        numbers=tuple(numbers[place] for place in kept),
        left_out=left_out,
        num_cut=num_cut,
    )


def _some(served: Served, kept: Sequence[int]) -> Served:
    """Some of the answers; of a server that counts all together, all of them."""
    if served.by_row is None or len(kept) == len(served.rows):
        return served
    counts = tuple(served.by_row[place] for place in kept)
    total = pooled(counts, len(served.pooled.accepted_at))
    return Served(rows=tuple(served.rows[place] for place in kept), by_row=counts, pooled=total)


def _leaves(prompt: EvalRow, row: EvalRow) -> int | None:
    """Index of the first token that is not the recorded one; None if there is none."""
    known = prompt.response_ids[: len(row.response_ids)]
    if known == row.response_ids:
        return None
    pairs = zip(known, row.response_ids, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(known))
