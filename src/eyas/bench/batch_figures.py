"""What turns of batches amount to: speed, speedup and its limit, and where speculation pays. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from eyas.bench.compare import BaselineHandicapped
from eyas.bench.statistics import spread
from eyas.decode.accept_length import Acceptance, pooled
from eyas.records.bench_record import MAX_SPEEDUP_PER_ACCEPT_LENGTH, BatchArm, BatchFigures

if TYPE_CHECKING:
    from eyas.engine.batches.generator import Completion

PLAIN = 0  # the arm without drafts


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """All requests answered once by one arm.

    Attributes:
        seconds: from the first prompt to the last token.
        steps: passes of the target over new tokens, as launched.
        texts: in the requests' order.
    """

    seconds: float
    steps: int
    texts: tuple["Completion", ...]

    @property
    def num_tokens(self) -> int:
        """New tokens of all."""
        return sum(len(text.ids) for text in self.texts)

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return self.num_tokens / self.seconds


def arm_figures(depth: int, own: Sequence[Turn], plain: Sequence[Turn], equal_texts: int) -> BatchArm:
    """One arm beside plain.

    Args:
        depth: K, 0 for plain itself.
        own, plain: turns of both, by repeat.
        equal_texts: of all requests.
    """
    total = pooled([Acceptance.of_rounds(text.accepted, depth) for text in own[0].texts], depth)
    accept_length = total.accept_length if total.rounds else 1.0
    ratios = [mine.speed / other.speed for mine, other in zip(own, plain, strict=True)]
    speedup, low, high = median(ratios), min(ratios), max(ratios)
    return BatchArm(
        arm=name_of(depth),
        num_draft_tokens=depth,
        tokens_per_s=spread([turn.speed for turn in own]),
        num_tokens=own[0].num_tokens,
        steps=own[0].steps,
        rounds=total.rounds,
        accept_length=accept_length,
        per_position=total.per_position if total.rounds else (),
        speedup=speedup,
        speedup_low=low,
        speedup_high=high,
        speedup_limit=max(accept_length, plain[0].steps / max(1, own[0].steps)),
        equal_texts=equal_texts,
        verdict=_verdict(speedup, low, high) if depth else "what the others are held against",
    )


def _verdict(speedup: float, low: float, high: float) -> str:
    words = "faster" if low > 1 else "slower" if high < 1 else "no difference can be shown"
    return f"{words}: {speedup:.2f} times plain ({low:.2f} to {high:.2f} over repeats)"


def name_of(depth: int) -> str:
    """Of an arm."""
    return f"k={depth}" if depth else "plain"


def impossible_in_batches(batches: Sequence[BatchFigures]) -> BaselineHandicapped | None:
    """The first speedup that exceeds 1.02 times its limit in every repeat, as the error that it is."""
    for figures in batches:
        for arm in figures.arms[1:]:
            if arm.speedup_low > MAX_SPEEDUP_PER_ACCEPT_LENGTH * arm.speedup_limit:
                return BaselineHandicapped(
                    f"a speedup of at least {arm.speedup_low:.2f} at an accept length of {arm.accept_length:.2f}"
                    " is impossible",
                    f"batch {figures.batch}, {arm.arm}",
                    "a verify pass costs at least what a plain step of as many sequences costs, so that speedup cannot"
                    f" exceed accept length (here {arm.speedup_limit:.2f}): the plain arm was slowed down",
                    "run again on a quiet machine; if it stays, report it with `eyas bench --json`",
                )
    return None


def where_it_pays(batches: Sequence[BatchFigures]) -> list[str]:
    """One sentence per K: at which numbers of sequences at a time speculation pays, with every speedup."""
    sentences = []
    for index, arm in enumerate(batches[0].arms[1:], start=1):
        arms = [(figures.batch, figures.arms[index]) for figures in batches]
        pays = [f"{batch} ({a.speedup:.2f} times plain)" for batch, a in arms if a.speedup_low > 1]
        loses = [f"{batch} ({a.speedup:.2f})" for batch, a in arms if a.speedup_high < 1]
        open_ = [f"{batch} ({a.speedup:.2f})" for batch, a in arms if a.speedup_low <= 1 <= a.speedup_high]
        parts = [f"speculation pays with {_list(pays)} at a time" if pays else "speculation pays at no number measured"]
        parts += [f"it loses with {_list(loses)}"] if loses else []
        parts += [f"no difference can be shown with {_list(open_)}"] if open_ else []
        lengths = sorted({f"{a.accept_length:.2f}" for _, a in arms})
        parts.append(f"accept length {' - '.join(dict.fromkeys((lengths[0], lengths[-1])))}")
        sentences.append(f"K = {arm.num_draft_tokens}: {'; '.join(parts)}")
    return sentences


def _list(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
