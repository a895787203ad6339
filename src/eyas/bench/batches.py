"""Many sequences at a time: aggregate tokens per second of plain and speculative decoding. Imports torch when used.

A speed is the new tokens of all requests over the whole time, prompts included. Arms take turns in each repeat, and
each repeat begins with another arm. A whole turn of each arm warms up beforehand and is not counted.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from statistics import median
from typing import TYPE_CHECKING

from eyas.bench.bench_config import BenchConfig
from eyas.bench.compare import BaselineHandicapped
from eyas.bench.measure import Answer, BenchPrompt, Oracle, judge, spread
from eyas.decode.accept_length import Acceptance, pooled
from eyas.records.bench_record import MAX_SPEEDUP_PER_ACCEPT_LENGTH, BatchArm, BatchFigures, Divergence
from eyas.talk import Silent, Talk

if TYPE_CHECKING:
    from eyas.engine.batches.batch_plan import BatchPlan
    from eyas.engine.batches.batch_runner import BatchRunner
    from eyas.engine.batches.generator import Completion, Request
    from eyas.engine.batches.speculate import BatchPair

PLAIN = 0  # the arm without drafts
_MAX_PREFILL_TOKENS = 16384


@dataclass(slots=True)
class BatchJudge:
    """Compares every text of a run with the plain one, each different pair once.

    Attributes:
        oracle: the target, alone.
        max_gap: two logits closer than this are a tie.
        num_compared: pairs of texts; divergences: those that part at a near-tie.
    """

    oracle: Oracle
    max_gap: float
    num_compared: int = 0
    divergences: list[Divergence] = field(default_factory=list)
    _known: dict[tuple[tuple[int, ...], ...], Divergence | None] = field(default_factory=dict)

    def is_same(self, prompt: BenchPrompt, plain: "Completion", other: "Completion", depth: int, batch: int) -> bool:
        """Whether the texts are the same; raises `TextsDiffer` if no near-tie excuses a difference."""
        self.num_compared += 1
        key = (prompt.prompt_ids, plain.ids, other.ids)
        if key not in self._known:
            self._known[key] = judge(prompt, _answer(plain), _answer(other), depth, self.oracle, self.max_gap)
        found = self._known[key]
        if found is not None:
            place = Divergence(
                id=prompt.id, num_draft_tokens=depth, at=found.at, logit_gap=found.logit_gap, batch=batch
            )
            self.divergences.append(place)
        return found is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One arm's answers to all requests, once.

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


def run_batches(
    pair: "BatchPair",
    prompts: Sequence[BenchPrompt],
    config: BenchConfig,
    judge_of: BatchJudge,
    *,
    captures: bool,
    talk: Talk,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[list[BatchFigures], list["Completion"]]:
    """Measure every number of sequences at a time; all of them are planned before the first one runs.

    Args:
        pair: target and draft.
        prompts: at least one.
        config: how to measure, with batches.
        judge_of: counts texts that are the same.
        captures: whether steps and rounds are CUDA graphs.
        talk: the plan, and figures as they come.
        clock: seconds.

    Returns:
        Figures, and the plain texts of the first batch: one per prompt.

    Raises:
        BatchMemoryTooSmall: one of the batches does not fit.
        FastPathUnsupported: texts outgrow the target's attention window.
        TextsDiffer: speculation changed a text.
    """
    from eyas.engine.batches.speculate import plan_pair

    depths = (PLAIN, *config.depths)
    budget = None if config.max_cache_mib is None else config.max_cache_mib << 20
    planned = []
    for batch in config.batches:
        asked = list(islice(cycle(prompts), max(len(prompts), 2 * batch)))
        requests = requests_for(asked, config.max_new_tokens, pair.stop_ids)
        plan = plan_pair(pair, requests, depths, least=batch, most=batch, budget_bytes=budget)
        talk.line(f"batch {batch}: {len(asked)} requests, {plan.num_bytes / 2**20:.1f} MiB of cache")
        planned.append((asked, requests, plan))
    found: list[BatchFigures] = []
    first: list[Completion] = []
    for asked, requests, plan in planned:
        turns = take_turns(pair, requests, plan, config, captures, talk, clock)
        found.append(_figures(plan, asked, turns, judge_of))
        first = first or list(turns[PLAIN][0].texts[: len(prompts)])
        for arm in found[-1].arms:
            talk.line(f"batch {plan.num_slots}, {arm.arm}: {arm.tokens_per_s.median:.1f} tok/s, {arm.verdict}")
    return found, first


def requests_for(asked: Sequence[BenchPrompt], max_new_tokens: int, stop_ids: frozenset[int]) -> list["Request"]:
    """Greedy requests, named by their positions, because a prompt may be asked several times."""
    from eyas.engine.batches.generator import Request

    return [
        Request(id=str(place), prompt_ids=prompt.prompt_ids, max_new_tokens=max_new_tokens, stop_ids=stop_ids)
        for place, prompt in enumerate(asked)
    ]


def take_turns(
    pair: "BatchPair",
    requests: Sequence["Request"],
    plan: "BatchPlan",
    config: BenchConfig,
    captures: bool,
    talk: Talk,
    clock: Callable[[], float],
) -> dict[int, list[Turn]]:
    """The counted turns of each K."""
    from eyas.engine.batches.speculate import runners_for

    depths = (PLAIN, *config.depths)
    runners = runners_for(pair, plan, depths, captures=captures)
    turns: dict[int, list[Turn]] = {depth: [] for depth in depths}
    num_turns = float((config.repeats + 1) * len(depths))
    with talk.progress(f"batch {plan.num_slots}", num_turns, "turns") as progress:
        for repeat in range(config.repeats + 1):
            begin = repeat % len(depths)
            for depth in (*depths[begin:], *depths[:begin]):
                turn = _turn(runners[depth], requests, clock)
                progress.advance()
                progress.say(f"{name_of(depth)}: {turn.speed:.1f} tok/s{'' if repeat else ' (warm-up)'}")
                if repeat:
                    turns[depth].append(turn)
    return turns


def _turn(runner: "BatchRunner", requests: Sequence["Request"], clock: Callable[[], float]) -> Turn:
    from eyas.engine.batches.generator import BatchGenerator

    before, started = runner.num_steps, clock()
    found = {
        c.id: c
        for c in BatchGenerator(runner, lambda ids: "", max_prefill_tokens=_MAX_PREFILL_TOKENS).run(requests, Silent())
    }
    seconds = clock() - started
    return Turn(seconds=seconds, steps=runner.num_steps - before, texts=tuple(found[r.id] for r in requests))


def _figures(
    plan: "BatchPlan", asked: Sequence[BenchPrompt], turns: dict[int, list[Turn]], judge_of: BatchJudge
) -> BatchFigures:
    plain = turns[PLAIN]
    arms = []
    for depth, own in turns.items():
        same = [True] * len(asked)
        for turn in own:
            if turn is plain[0]:
                continue
            for place, prompt in enumerate(asked):
                texts = plain[0].texts[place], turn.texts[place]
                same[place] &= judge_of.is_same(prompt, *texts, depth, plan.num_slots)
        arms.append(arm_figures(depth, own, plain, sum(same)))
    return BatchFigures(batch=plan.num_slots, num_requests=len(asked), cache_bytes=plan.num_bytes, arms=tuple(arms))


def _answer(text: "Completion") -> Answer:
    return Answer(ids=text.ids, prefill_s=0.0, decode_s=0.0)


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
        verdict=_verdict(speedup, low, high) if depth else "the baseline",
    )


def _verdict(speedup: float, low: float, high: float) -> str:
    words = "faster" if low > 1 else "slower" if high < 1 else "no difference can be shown"
    return f"{words}: {speedup:.2f} times plain ({low:.2f} to {high:.2f} over repeats)"


def name_of(depth: int) -> str:
    """Name of the arm with this K."""
    return f"k={depth}" if depth else "plain"


def impossible_in_batches(batches: Sequence[BatchFigures]) -> BaselineHandicapped | None:
    """An error for the first speedup that exceeds 1.02 times its limit in every repeat; None without one."""
    for figures in batches:
        for arm in figures.arms[1:]:
            if arm.speedup_low > MAX_SPEEDUP_PER_ACCEPT_LENGTH * arm.speedup_limit:
                return BaselineHandicapped(
                    f"a speedup of at least {arm.speedup_low:.2f} at an accept length of {arm.accept_length:.2f}"
                    " is impossible",
                    f"batch {figures.batch}, {arm.arm}",
                    "a verify pass costs at least as much as a plain step of as many sequences, so a speedup cannot"
                    f" exceed the accept length (here {arm.speedup_limit:.2f}): the plain arm was slowed down",
                    "run it again on an idle machine; if it stays, report it with the output of `eyas bench --json`",
                )
    return None


def where_it_pays(batches: Sequence[BatchFigures]) -> list[str]:
    """One sentence per K: the batch sizes at which speculation pays, with every speedup."""
    sentences = []
    for index, arm in enumerate(batches[0].arms[1:], start=1):
        arms = [(figures.batch, figures.arms[index]) for figures in batches]
        pays = [f"{batch} ({a.speedup:.2f} times plain)" for batch, a in arms if a.speedup_low > 1]
        loses = [f"{batch} ({a.speedup:.2f})" for batch, a in arms if a.speedup_high < 1]
        open_ = [f"{batch} ({a.speedup:.2f})" for batch, a in arms if a.speedup_low <= 1 <= a.speedup_high]
        parts = [
            f"speculation pays with {_list(pays)} at a time" if pays else "speculation pays at none of the batch sizes"
        ]
        parts += [f"it loses with {_list(loses)}"] if loses else []
        parts += [f"no difference can be shown with {_list(open_)}"] if open_ else []
        lengths = sorted({f"{a.accept_length:.2f}" for _, a in arms})
        parts.append(f"accept length {' - '.join(dict.fromkeys((lengths[0], lengths[-1])))}")
        sentences.append(f"K = {arm.num_draft_tokens}: {'; '.join(parts)}")
    return sentences


def _list(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
