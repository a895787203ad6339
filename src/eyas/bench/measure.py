"""What a benchmark compares, and how: arms answer prompts in turns, and every answer must be the plain one.

An `Arm` answers one prompt and says how long it took. `measure` lets all arms answer all prompts, repeatedly. `judge`
compares two answers token by token; the target decides whether the token at which they part was a near-tie.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol

from eyas.errors import ExitCode, EyasError
from eyas.records.bench_record import ArmFigures, Divergence, Spread
from eyas.talk import Talk

ALL = "all"
# A lower precision rounds logits of some 20 to steps of 1/8 (bfloat16) or 1/64 (float16); a few steps are a near-tie.
MAX_LOGIT_GAP = {"float32": 1e-4, "float16": 0.125, "bfloat16": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPrompt:
    """One prompt of the workload.

    Attributes:
        id, set: name, and the kind of text that it is reported under.
        prompt_ids: target token ids, chat template applied.
    """

    id: str
    set: str
    prompt_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer and its cost.

    Attributes:
        ids: new token ids.
        origins: per id, see `records.bench_record.Passage`; empty if the arm cannot tell.
        accepted: per round, accepted drafts inside the text; None if the arm does not speculate or cannot tell.
        drafted: per round, drafts verified; None if it is always K.
        prefill_s, decode_s: until the first token, and from there to the last.
    """

    ids: tuple[int, ...]
    origins: tuple[int, ...] = ()
    accepted: tuple[int, ...] | None = None
    drafted: tuple[int, ...] | None = None
    prefill_s: float
    decode_s: float


class Arm(Protocol):
    """One way to decode."""

    @property
    def name(self) -> str:
        """`plain`, `k=3`, `k=auto`, `transformers` …"""

    @property
    def num_draft_tokens(self) -> int:
        """K; 0 for plain decoding; the largest K if depth adapts."""

    def answer(self, prompt: BenchPrompt) -> Answer:
        """Decode one prompt, greedily, alone."""


class Oracle(Protocol):
    """What the target says about the token at which two texts part."""

    def logit_gap(self, ids: Sequence[int], tokens: Sequence[int]) -> float:
        """How far, at most, the logits of `tokens` after `ids` lie below the best logit: 0 = all are the best."""


@dataclass(slots=True)
class Measurements:
    """All answers of a run.

    Attributes:
        prompts: the workload, in order.
        answers: arm name -> [prompt][repeat].
    """

    prompts: Sequence[BenchPrompt]
    answers: dict[str, list[list[Answer]]] = field(default_factory=dict)

    @property
    def sets(self) -> list[str]:
        """Kinds of text in order of appearance, then `all`."""
        return [*dict.fromkeys(p.set for p in self.prompts if p.set != ALL), ALL]

    def of(self, arm: str, set_name: str) -> list[list[Answer]]:
        """[prompt][repeat] of one arm on one set."""
        rows = zip(self.prompts, self.answers[arm], strict=True)
        return [answers for prompt, answers in rows if set_name in (ALL, prompt.set)]

    def seconds(self, arm: str, set_name: str, *, with_prefill: bool = False) -> list[list[float]]:
        """[prompt][repeat] seconds of decoding, or of prompt and decoding."""
        return [[a.decode_s + a.prefill_s * with_prefill for a in answers] for answers in self.of(arm, set_name)]


def measure(arms: Sequence[Arm], prompts: Sequence[BenchPrompt], num_repeats: int, talk: Talk) -> Measurements:
    """Answer every prompt `num_repeats` times by every arm.

    Arms take turns on each prompt, and each turn begins with another arm, so that a slow minute of the machine or a
    warm cache affects all of them alike. One prompt by each arm warms up beforehand and is not counted.
    """
    result = Measurements(prompts, {arm.name: [[] for _ in prompts] for arm in arms})
    for arm in arms:
        arm.answer(prompts[0])
    num_turns = 0
    with talk.progress("bench", float(num_repeats * len(prompts) * len(arms)), "answers") as progress:
        for _ in range(num_repeats):
            for index, prompt in enumerate(prompts):
                first = num_turns % len(arms)
                num_turns += 1
                for arm in (*arms[first:], *arms[:first]):
                    answer = arm.answer(prompt)
                    result.answers[arm.name][index].append(answer)
                    progress.advance()
                    progress.say(f"{arm.name}: {_speed(len(answer.ids) - 1, answer.decode_s):.1f} tok/s")
    return result


def figures(measured: Measurements, arms: Sequence[Arm]) -> list[ArmFigures]:
    """Speeds of every arm on every set; the spread is over repeats of the whole set."""
    found = []
    for arm in arms:
        for name in measured.sets:
            answers = measured.of(arm.name, name)
            num_tokens = sum(len(per_prompt[0].ids) for per_prompt in answers)
            decode = _per_repeat(measured.seconds(arm.name, name))
            whole = _per_repeat(measured.seconds(arm.name, name, with_prefill=True))
            found.append(
                ArmFigures(
                    arm=arm.name,
                    set=name,
                    num_draft_tokens=arm.num_draft_tokens,
                    tokens_per_s=spread([_speed(num_tokens - len(answers), s) for s in decode]),
                    tokens_per_s_with_prefill=spread([_speed(num_tokens, s) for s in whole]),
                    num_tokens=num_tokens,
                )
            )
    return found


def spread(values: Sequence[float]) -> Spread:
    """Median, minimum and maximum of at least one value."""
    return Spread(median=median(values), minimum=min(values), maximum=max(values))


def _per_repeat(seconds: Sequence[Sequence[float]]) -> list[float]:
    return [sum(repeat) for repeat in zip(*seconds, strict=True)]


def _speed(num_tokens: int, seconds: float) -> float:
    return num_tokens / seconds if seconds > 0 else 0.0


class TextsDiffer(EyasError):
    """A speculative text differs from the plain one, and no near-tie excuses it."""

    code = "bench-texts-differ"
    exit_code = ExitCode.FINDINGS


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Index of the first different token (the shorter length if one ends early); None if they are the same."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return None if len(a) == len(b) else min(len(a), len(b))


def judge(
    prompt: BenchPrompt,
    plain: Answer,
    other: Answer,
    num_draft_tokens: int,
    oracle: Oracle,
    max_gap: float = MAX_LOGIT_GAP["float32"],
) -> Divergence | None:
    """None when the texts are the same, or the near-tie at which they part.

    Raises:
        TextsDiffer: one of the two tokens at the first difference lies `max_gap` or more below the target's best logit.
    """
    at = first_difference(plain.ids, other.ids)
    if at is None:
        return None
    tokens = [answer.ids[at] for answer in (plain, other) if at < len(answer.ids)]
    gap = oracle.logit_gap([*prompt.prompt_ids, *plain.ids[:at]], tokens)
    if gap >= max_gap or len(tokens) < 2:
        raise TextsDiffer(
            f"speculative decoding changed the text of prompt {prompt.id}",
            f"prompt {prompt.id}, K = {num_draft_tokens}, token {at}",
            f"plain has {_at(plain.ids, at)}, speculative has {_at(other.ids, at)}, and one of them lies {gap:.2e}"
            f" below the target's best logit (a near-tie is < {max_gap:g}): speed with another text is not a speedup",
            "report this with the prompt: it is a bug in the engine or its kernels",
        )
    return Divergence(id=prompt.id, num_draft_tokens=num_draft_tokens, at=at, logit_gap=gap)


def _at(ids: Sequence[int], index: int) -> str:
    return str(ids[index]) if index < len(ids) else "ended"
