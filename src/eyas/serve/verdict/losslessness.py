"""Are a server's greedy answers the target's own? Compared by token; a divergence is weighed by the target itself.

Lower precision and other batch shapes flip near-ties (M = 1 against M = K + 1 rows: vllm#54506), so a first difference
alone proves nothing. At each first difference the server is asked for the target's own next-token log-probabilities
after the agreed prefix (one token, so no draft is involved): a small gap is a near-tie, a large one a wrong answer.
"""

import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eyas.client.address import UNREADABLE, ServerAddress, ServerRefused, post_json
from eyas.client.generate import generate
from eyas.client.server_api import GenerationOptions
from eyas.errors import EyasError

if TYPE_CHECKING:
    import httpx

NEAR_TIE_NATS = 0.5
_TOP = 5


class ExpectFileInvalid(EyasError):
    """The file given with --expect does not have rows of token ids."""

    code = "expect-file-invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedAnswer:
    """The target's own greedy answer to one prompt, as token ids."""

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerDivergence:
    """The first token in which an answer differs from the expected one.

    Attributes:
        row: index in the file, from 0. position: index in the answer, from 0.
        expected, got: token ids; None = the answer had ended.
        gap_nats: log-probability of `got` minus that of `expected`, by the served target after the agreed prefix.
        regret_nats: log-probability of its best token minus that of `got`, >= 0. Both None = could not be asked; tokens
            outside the listed ones count as the least of them.
    """

    row: int
    position: int
    expected: int | None
    got: int | None
    gap_nats: float | None
    regret_nats: float | None

    @property
    def is_wrong(self) -> bool:
        """The served target itself would not have chosen `got`: speculation changed the answer."""
        return self.regret_nats is not None and self.regret_nats >= NEAR_TIE_NATS

    @property
    def is_near_tie(self) -> bool:
        """The served target finds both tokens nearly as good: numerics."""
        return self.gap_nats is not None and abs(self.gap_nats) < NEAR_TIE_NATS and not self.is_wrong

    @property
    def is_targets_choice(self) -> bool:
        """The served target says `got` and not `expected`: the expectation comes from another target or precision."""
        return self.gap_nats is not None and self.gap_nats >= NEAR_TIE_NATS and not self.is_wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Losslessness:
    """How the answers compare.

    Attributes:
        num_compared: answers; num_tokens: tokens compared (up to each first difference).
        divergences: one per answer that differs.
        note: why something was not compared.
    """

    num_compared: int
    num_equal: int
    num_tokens: int
    divergences: tuple[AnswerDivergence, ...] = ()
    note: str = ""

    @property
    def is_broken(self) -> bool:
        """Whether an answer differs from what the served target itself would generate."""
        return any(d.is_wrong for d in self.divergences)

    def __str__(self) -> str:
        if not self.num_compared:
            return f"answers not compared: {self.note}"
        head = (
            f"{self.num_equal} of {self.num_compared} answers equal the target's own ({self.num_tokens} tokens agreed)"
        )
        if not self.divergences:
            return head
        kinds = {
            "near-ties of the target (numerics, no fault)": [d for d in self.divergences if d.is_near_tie],
            "that the served target itself would not give": [d for d in self.divergences if d.is_wrong],
            "where the expectation is another target's": [d for d in self.divergences if d.is_targets_choice],
            "that could not be weighed": [d for d in self.divergences if d.regret_nats is None],
        }
        counted = ", ".join(f"{len(found)} {words}" for words, found in kinds.items() if found)
        worst = min(self.divergences, key=lambda d: (not d.is_wrong, d.position))
        return f"{head}; differences: {counted}; e.g. {_describe(worst)}"


def read_expected(path: Path, *, limit: int = 8) -> tuple[ExpectedAnswer, ...]:
    """The first `limit` rows of a JSON-lines file with `prompt_ids` and `response_ids`.

    Raises:
        ExpectFileInvalid: unreadable, no such rows, or ids that are not integers.
    """
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        rows = [_row(json.loads(line)) for line in lines[:limit]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _invalid(path, f"{type(error).__name__}: {error}") from error
    if not rows:
        raise _invalid(path, "it is empty")
    return tuple(rows)


def compare_answers(
    http: "httpx.Client",
    address: ServerAddress,
    expected: Sequence[ExpectedAnswer],
    *,
    max_tokens: int = 128,
    max_seconds: float = 120.0,
    concurrency: int = 4,
) -> Losslessness:
    """Ask for each answer greedily and compare.

    Args:
        max_tokens: of each answer. max_seconds: no further answers are asked for after this long.
        concurrency: answers at once.

    Raises:
        ServerUnreachable, ServerRefused: the server does not answer.
    """
    end = time.monotonic() + max_seconds
    divergences: list[AnswerDivergence] = []
    compared = agreed = 0
    with ThreadPoolExecutor(concurrency) as pool:
        for start in range(0, len(expected), concurrency):
            if compared and time.monotonic() >= end:
                break
            batch = expected[start : start + concurrency]
            answers = list(pool.map(lambda want: _ask(http, address, want, max_tokens), batch))
            for row, (want, answer) in enumerate(zip(batch, answers, strict=True), start):
                if answer is None:
                    return Losslessness(num_compared=0, num_equal=0, num_tokens=0, note="the server gives no token ids")
                compared += 1
                length = min(len(want.response_ids), max_tokens)
                place = first_difference(want.response_ids[:length], answer)
                agreed += length if place is None else place
                if place is not None:
                    divergences.append(_divergence(http, address, row, want, answer, place))
    return Losslessness(
        num_compared=compared,
        num_equal=compared - len(divergences),
        num_tokens=agreed,
        divergences=tuple(divergences),
        note="" if compared == len(expected) else f"{len(expected) - compared} not asked for: the time was up",
    )


def _ask(http: "httpx.Client", address: ServerAddress, want: ExpectedAnswer, max_tokens: int) -> tuple[int, ...] | None:
    length = min(len(want.response_ids), max_tokens)
    return generate(http, address, want.prompt_ids, GenerationOptions(max_new_tokens=length)).output_ids


def _divergence(
    http: "httpx.Client",
    address: ServerAddress,
    row: int,
    want: ExpectedAnswer,
    answer: Sequence[int],
    place: int,
) -> AnswerDivergence:
    wanted = want.response_ids[place] if place < len(want.response_ids) else None
    got = answer[place] if place < len(answer) else None
    prefix = (*want.prompt_ids, *want.response_ids[:place])
    gap, regret = _weigh(http, address, prefix, wanted, got)
    return AnswerDivergence(row=row, position=place, expected=wanted, got=got, gap_nats=gap, regret_nats=regret)


def first_difference(expected: Sequence[int], got: Sequence[int]) -> int | None:
    """Index of the first token that differs or is missing on one side; None if equal."""
    for index, (a, b) in enumerate(zip(expected, got, strict=False)):
        if a != b:
            return index
    return None if len(expected) == len(got) else min(len(expected), len(got))


def next_token_logprobs(http: "httpx.Client", address: ServerAddress, prefix: Sequence[int]) -> dict[int, float]:
    """The target's most likely next tokens after a prefix: token id -> log-probability; {} if the server won't say.

    Raises:
        ServerUnreachable: the server does not answer.
    """
    native = address.api.native
    try:
        if native is not None:
            return native.next_token_logprobs(
                post_json(http, address, native.path, native.next_token_body(prefix, _TOP))
            )
        body = {"model": address.model or "default", "prompt": list(prefix), "max_tokens": 1, "temperature": 0.0}
        body |= {"logprobs": _TOP, "return_tokens_as_token_ids": True}
        return _openai_logprobs(post_json(http, address, "/v1/completions", body))
    except (ServerRefused, *UNREADABLE):
        return {}


def _weigh(
    http: "httpx.Client", address: ServerAddress, prefix: Sequence[int], expected: int | None, got: int | None
) -> tuple[float | None, float | None]:
    """Gap and regret of a divergence; None where an answer ended or the server gives no log-probabilities."""
    if expected is None or got is None:
        return None, None
    top = next_token_logprobs(http, address, prefix)
    if not top:
        return None, None
    floor = min(top.values())
    return top.get(got, floor) - top.get(expected, floor), max(top.values()) - top.get(got, floor)


def _openai_logprobs(answer: Mapping[str, Any]) -> dict[int, float]:
    choice = (answer.get("choices") or [{}])[0]
    top = ((choice.get("logprobs") or {}).get("top_logprobs") or [{}])[0] or {}
    named = {name.removeprefix("token_id:"): value for name, value in top.items()}
    return {int(name): float(value) for name, value in named.items() if name.isascii() and name.isdigit()}


def _describe(divergence: AnswerDivergence) -> str:
    place = f"row {divergence.row}, token {divergence.position}"
    words = f"{place}: {divergence.expected} expected, {divergence.got} got"
    if divergence.gap_nats is None or divergence.regret_nats is None:
        return words
    return f"{words} (gap {divergence.gap_nats:+.2f} nats, {divergence.regret_nats:.2f} below the target's best)"


def _row(value: Any) -> ExpectedAnswer:
    ids = {name: tuple(int(i) for i in value[name]) for name in ("prompt_ids", "response_ids")}
    return ExpectedAnswer(**ids)


def _invalid(path: Path, why: str) -> ExpectFileInvalid:
    return ExpectFileInvalid(
        f"{path} gives no expected answers",
        f"--expect {path}",
        why,
        'give JSON lines with "prompt_ids" and "response_ids": the target\'s own greedy answers as token ids',
    )
