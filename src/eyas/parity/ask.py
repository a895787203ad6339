"""Prompts to a server, and what it says back: the token ids that it emitted and what it accepted on the way."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from eyas.client import counters
from eyas.client.address import ServerAddress
from eyas.client.counters import difference
from eyas.client.generate import generate
from eyas.client.server_api import Counters, GenerationOptions, ServerAnswer
from eyas.decode.accept_length import Acceptance, pooled
from eyas.errors import ExitCode, EyasError
from eyas.records.eval_rows import EvalRow
from eyas.talk import Talk

if TYPE_CHECKING:
    import httpx


class ServerGivesNoIds(EyasError):
    """The server answers with text only: what it emitted cannot be replayed exactly."""

    code = "server-gives-no-ids"
    exit_code = ExitCode.ENVIRONMENT


class ServerGivesNoCounts(EyasError):
    """The server does not say what it accepted."""

    code = "server-gives-no-counts"
    exit_code = ExitCode.FINDINGS


class ServerNotIdle(EyasError):
    """Other requests ran while the server's counters were read: its counts are not those of the prompts asked."""

    code = "server-not-idle"
    exit_code = ExitCode.FINDINGS


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What a server answered.

    Attributes:
        rows: each prompt with the ids that the server emitted.
        by_row: its own counts of each; None where it counts all answers together (`pooled`).
        pooled: its own counts over all of them.
    """

    rows: tuple[EvalRow, ...]
    by_row: tuple[Acceptance, ...] | None
    pooled: Acceptance


def ask(
    http: "httpx.Client",
    address: ServerAddress,
    prompts: Sequence[EvalRow],
    options: GenerationOptions,
    talk: Talk,
    *,
    concurrency: int = 1,
    limits: Sequence[int] | None = None,
) -> Served:
    """Ask every prompt once.

    Args:
        prompts: rows whose prompt is asked; their recorded answers are not used.
        options: with `depth` = K, for servers that do not say it.
        concurrency: requests at once; more than one lets batching move near-ties.
        limits: longest answer to each prompt, in tokens; None = as in `options`.

    Raises:
        ServerGivesNoIds, ServerGivesNoCounts: an answer lacks token ids or acceptance counts.
        ServerNotIdle: it counts all answers together, and answered others meanwhile.
        ServerUnreachable, ServerRefused.
    """
    assert options.depth is not None, "K is needed to count per position"
    before = counters.read(address, http=http)

    def one(row: EvalRow, limit: int) -> ServerAnswer:
        return generate(http, address, list(row.prompt_ids), replace(options, max_new_tokens=limit))

    answers: list[ServerAnswer] = []
    with talk.progress("asked", len(prompts), "prompts") as bar, ThreadPoolExecutor(concurrency) as pool:
        for answer in pool.map(one, prompts, limits or [options.max_new_tokens] * len(prompts)):
            answers.append(answer)
            bar.advance()
    rows = [_row(row, answer, address) for row, answer in zip(prompts, answers, strict=True)]
    counted = [answer.counts.acceptance for answer in answers]
    if any(found is not None for found in counted):
        by_row = tuple(found or Acceptance.none(options.depth) for found in counted)
        return Served(rows=tuple(rows), by_row=by_row, pooled=pooled(by_row, options.depth))
    after = counters.read(address, http=http)
    _require_alone(address, before, after, rows, options.depth)
    total = Acceptance.none(options.depth)
    for rank, reading in after.acceptance.items():
        total += difference(reading, before.acceptance.get(rank, Acceptance.none(len(reading.accepted_at))))
    if not total.rounds:
        raise ServerGivesNoCounts(
            "the server does not say what it accepted",
            address.url,
            f"no answer of {len(answers)} carries counts, and its counters of verify passes did not move",
            "start it with speculation and its metrics on; `eyas serve` prints the flags",
        )
    return Served(rows=tuple(rows), by_row=None, pooled=total)


def _require_alone(
    address: ServerAddress, before: Counters, after: Counters, rows: Sequence[EvalRow], depth: int
) -> None:
    ours = sum(len(row.response_ids) for row in rows)
    # What an answer accepts beyond its end may be counted as generated.
    counted = (after.generated_tokens or 0) - (before.generated_tokens or 0)
    if counted > ours + (depth + 1) * len(rows) or (after.running or 0) > 0:
        raise ServerNotIdle(
            "other requests ran on the server",
            address.url,
            f"it generated {counted:.0f} tokens, {ours} of them for eyas, and it counts all requests together",
            "ask when it is idle",
        )


def _row(prompt: EvalRow, answer: ServerAnswer, address: ServerAddress) -> EvalRow:
    if not answer.output_ids:
        raise ServerGivesNoIds(
            "the server gives text, no token ids",
            address.url,
            "text that is tokenised again can give other ids than the server emitted: its rounds would not be replayed",
            "use a server that returns ids (SGLang's /generate; vLLM's `return_token_ids`)",
        )
    return replace(prompt, response_ids=answer.output_ids)
