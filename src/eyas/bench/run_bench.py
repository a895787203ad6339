"""`eyas bench` on an engine in process: arms, repeats, identity, ceiling, verdict, as one record."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eyas.bench.bench_config import BenchConfig
from eyas.bench.compare import best_of, compare, impossible, is_told
from eyas.bench.engine_arm import EngineArm, EngineOracle, PartTimer, TreeArm, TreePartTimer
from eyas.bench.measure import ALL, MAX_LOGIT_GAP, Answer, Arm, BenchPrompt, Measurements, figures, judge, measure
from eyas.bench.processor_wait import ProcessorWait, refused
from eyas.decode.repetition import repetition_share
from eyas.records.bench_record import ArmFigures, BenchRecord, Comparison, Divergence, Passage, arm_words
from eyas.talk import Talk

if TYPE_CHECKING:
    from eyas.engine.engine import Engine

_HIGH_REPETITION = 0.5
_PART_SAMPLES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSetup:
    """What is measured, for the record: documents with names and fingerprints."""

    target: Mapping[str, Any]
    draft: Mapping[str, Any]
    data: Mapping[str, Any]
    settings: Mapping[str, Any]


def run_bench(
    engine: "Engine",
    prompts: Sequence[BenchPrompt],
    config: BenchConfig,
    subject: BenchSetup,
    *,
    pieces: Callable[[Sequence[int]], list[str]],
    talk: Talk,
    stop_ids: frozenset[int] = frozenset(),
    peers: Sequence[Arm] = (),
) -> BenchRecord:
    """Measure plain and speculative decoding, and compare every answer with the plain one.

    Args:
        engine: with a draft.
        prompts: at least one.
        config: how to measure one stream.
        subject: copied into the record.
        pieces: the text of each token of an answer.
        talk: progress and notes.
        stop_ids: end an answer.
        peers: arms of other programs; they take turns with ours.

    Raises:
        TextsDiffer: speculation changed a text.
    """
    from eyas.engine.engine import Limits

    limits = Limits(max_new_tokens=config.max_new_tokens, stop_ids=stop_ids)
    typical = _typical_text(engine, prompts, config.max_new_tokens)
    speculative: list[EngineArm | TreeArm] = [EngineArm(engine, limits, k) for k in config.depths]
    speculative += [TreeArm(engine, limits, shape) for shape in config.trees]
    if config.is_adaptive:
        speculative.append(EngineArm(engine, limits, 0, engine.adaptive(typical, config.auto_most)))
    arms: list[Arm] = [EngineArm(engine, limits, 0), *speculative, *peers]
    chains = PartTimer(engine, typical, config.all_depths)
    trees = TreePartTimer(engine, typical, config.trees) if config.trees else None
    timers = [timer for timer in (chains, trees) if timer is not None]
    for timer in timers:
        timer.sample(_PART_SAMPLES)
    wait = ProcessorWait()
    measured = measure(arms, prompts, config.repeats, talk)
    waited = wait.share()
    for timer in timers:
        timer.sample(_PART_SAMPLES)

    max_gap = MAX_LOGIT_GAP[config.dtype]
    divergences, num_compared = _judge_all(measured, arms, EngineOracle(engine), max_gap)
    comparisons = [
        comparison
        for arm in speculative
        for comparison in compare(
            measured,
            arm.name,
            arm.num_draft_tokens,
            trees.times(arm.shape) if isinstance(arm, TreeArm) and trees is not None else chains.times,
            seed=config.seed,
        )
    ]
    best = best_of(comparisons)
    speeds = figures(measured, arms)
    repetition = {n: repetition_share([a[0].ids for a in measured.of("plain", n)]) for n in measured.sets}
    return BenchRecord(
        figures=speeds,
        comparisons=comparisons,
        best_num_draft_tokens=best.num_draft_tokens,
        best_arm=best.arm,
        num_compared=num_compared,
        num_identical=num_compared - len(divergences),
        divergences=divergences,
        repetition=repetition,
        passages=_passages(measured, best.arm, best.num_draft_tokens, pieces),
        target=subject.target,
        draft=subject.draft,
        data=subject.data,
        settings={**subject.settings, "processor_wait": waited},
        verdict=_verdict(speeds, comparisons, best.arm, divergences, num_compared, max_gap, waited),
        notes=[*repetition_notes(repetition), *_peer_notes(speeds)],
    )


def _typical_text(engine: "Engine", prompts: Sequence[BenchPrompt], max_new_tokens: int) -> list[int]:
    """A prompt of median length with half an answer: the length at which the parts are timed."""
    from eyas.engine.engine import Limits

    prompt = sorted(prompts, key=lambda p: len(p.prompt_ids))[len(prompts) // 2]
    half = engine.generate(prompt.prompt_ids, Limits(max_new_tokens=max(1, max_new_tokens // 2)))
    return [*prompt.prompt_ids, *half.ids]


def _judge_all(
    measured: Measurements, arms: Sequence[Arm], oracle: EngineOracle, max_gap: float
) -> tuple[list[Divergence], int]:
    """Compare every answer with the plain arm's first: the near-ties, and the number of comparisons."""
    found: list[Divergence] = []
    num_compared = 0
    for arm in arms:
        for prompt, plain, answers in zip(
            measured.prompts, measured.answers["plain"], measured.answers[arm.name], strict=True
        ):
            for answer in answers:
                if answer is plain[0]:
                    continue
                num_compared += 1
                divergence = judge(prompt, plain[0], answer, arm.num_draft_tokens, oracle, max_gap)
                if divergence is not None:
                    found.append(divergence)
    return found, num_compared


def _passages(
    measured: Measurements, arm: str, num_draft_tokens: int, pieces: Callable[[Sequence[int]], list[str]]
) -> list[Passage]:
    """The first answer of each set by the best arm, token by token."""
    shown: dict[str, Passage] = {}
    for prompt, answers in zip(measured.prompts, measured.answers[arm], strict=True):
        answer: Answer = answers[0]
        if prompt.set not in shown:
            texts = pieces(answer.ids)
            coloured = tuple(zip(texts, answer.origins, strict=True))
            shown[prompt.set] = Passage(
                id=prompt.id, set=prompt.set, num_draft_tokens=num_draft_tokens, pieces=coloured
            )
    return list(shown.values())


def _verdict(
    speeds: Sequence[ArmFigures],
    comparisons: Sequence[Comparison],
    best: str,
    divergences: Sequence[Divergence],
    num_compared: int,
    max_gap: float,
    waited: float | None,
) -> str:
    at_best = [c for c in comparisons if c.arm == best and is_told(c.set, [k.set for k in comparisons])]
    lines = [f"{c.set}: {c.verdict}; accept length {c.accept_length:.2f}" for c in at_best]
    same = "all" if not divergences else f"{num_compared - len(divergences)} of"
    lines.append(
        f"{same} {num_compared} answers are equal to the plain arm's first ones, token for token"
        + parting(divergences, max_gap)
    )
    if peer := _peer_share(speeds):
        lines.append(f"the plain arm runs at {peer:.2f} times the speed of transformers' generate")
    if (refusal := impossible(comparisons)) is not None:
        lines.insert(0, refused(refusal, waited))
    num_arms = len({c.arm for c in comparisons})
    name = f"best of {num_arms} arms: {arm_words(best)}" if num_arms > 1 else arm_words(best)
    return f"{name[0].upper()}{name[1:]}. " + ". ".join(lines) + "."


def parting(divergences: Sequence[Divergence], max_gap: float) -> str:
    """How many texts part at near-ties, and where the first one does."""
    if not divergences:
        return ""
    first = divergences[0]
    where = f"the first is {first.id} at token {first.at}, {first.logit_gap:.2g} below"
    return (
        f"; {len(divergences)} part where both tokens nearly tie for the target's best logit (< {max_gap:g}; {where})"
    )


def _peer_share(speeds: Sequence[ArmFigures]) -> float | None:
    """Plain speed over the peer's, on all prompts; None without a peer."""
    by_arm = {f.arm: f for f in speeds if f.set == ALL}
    if "transformers" not in by_arm:
        return None
    return by_arm["plain"].tokens_per_s.median / by_arm["transformers"].tokens_per_s.median


def repetition_notes(repetition: Mapping[str, float]) -> list[str]:
    """A note for each set whose texts repeat themselves."""
    return [
        f"{share:.0%} of the tokens of set {name} repeat a 4-gram of the same text: repetitive text flatters a draft"
        for name, share in repetition.items()
        if share > _HIGH_REPETITION and name != ALL
    ]


def _peer_notes(speeds: Sequence[ArmFigures]) -> list[str]:
    peer = _peer_share(speeds)
    if peer is None or peer >= 1:
        return []
    return [f"the plain arm is a weak baseline: it runs at {peer:.2f} times the speed of transformers' generate"]
