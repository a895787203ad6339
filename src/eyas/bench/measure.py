"""Runs the arms: every arm answers every prompt, and the whole is repeated."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from eyas.bench.arm import Answer, Arm, BenchPrompt
from eyas.records.bench_record import ArmFigures, Spread
from eyas.talk import Talk

ALL = "all"


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
