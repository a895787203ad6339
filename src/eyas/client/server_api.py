"""What differs between servers' HTTP, as data: bodies, routes, counters; and the records that answers are read into.

An engine's folder holds its `ServerApi`; those of any OpenAI-compatible server and of ours are here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from eyas.decode.accept_length import Acceptance

if TYPE_CHECKING:
    import httpx

    from eyas.client.address import ServerAddress

MOST_POSITIONS = 128  # draft positions that a server may count; more are left out

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions:
    """How to generate.

    Attributes:
        max_new_tokens: at most this many tokens.
        temperature: 0 = greedy.
        top_p, top_k: nucleus and top-k limits; None = the server's default (its generation config may set one).
        seed: sampling seed; None = the server's.
        ignore_eos: continue after the end of the answer (fixed length; bad for acceptance figures).
        depth: drafts per verify pass along one path, for servers that do not say; None = unknown.
        max_seconds: give up an answer that has not ended by then; None = only silence is limited.
        stop_ids, stop_strings: end the answer, besides the server's own ends.
        is_exact: the text of the target alone: no sampling defaults of the server's, special tokens kept in the text.
        extra: further fields of the request body, as they are.
    """

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    ignore_eos: bool = False
    depth: int | None = None
    max_seconds: float | None = None
    stop_ids: Sequence[int] = ()
    stop_strings: Sequence[str] = ()
    is_exact: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCounts:
    """What one answered request says of speculation.

    Attributes:
        acceptance: the counts; None when the server does not speculate (or the answer needed no verify pass).
        notes: what did not add up, or what was guessed; empty when all agreed.
        dp_rank: which data-parallel rank answered; None if it does not say.
    """

    acceptance: Acceptance | None
    notes: tuple[str, ...] = ()
    dp_rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAnswer:
    """One answer.

    Attributes:
        text: what was generated.
        output_ids: its token ids; None where the server does not give them.
        num_prompt_tokens, num_output_tokens: as the server counts them; None if it does not.
        chunk_times_s: arrival of each chunk with tokens, seconds after the request was sent.
        chunk_tokens: tokens in each of those chunks (1 each is assumed where the server gives no ids).
        total_s: from sending to the end of the stream.
        finish_reason: "stop", "length", ... as the server says.
        stopped_by: the token id or string that ended it; None where the server does not say.
        counts: acceptance of this request, where the server tells.
    """

    text: str
    output_ids: tuple[int, ...] | None
    num_prompt_tokens: int | None
    num_output_tokens: int | None
    chunk_times_s: tuple[float, ...]
    chunk_tokens: tuple[int, ...]
    total_s: float
    finish_reason: str | None
    counts: RequestCounts
    stopped_by: int | str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """One reading of a server's own counters.

    Attributes:
        generated_tokens: since start, all ranks; None if not told. SGLang adds an answer's tokens when it ends.
        running, waiting: requests now; None if not told.
        speculates: whether the server says that it does; None if it does not say.
        acceptance: rank -> lifetime counts; {} where the engine has none.
        accept_lengths: rank -> lifetime average as the engine gives it, bonus included; for a look only.
        recent_lengths: rank -> the same of its last reporting interval.
        num_ranks: data-parallel ranks; None if not told.
        progress_mark: numbers of which at least one changes when the engine does anything; () if there are none.
        notes: what could not be read, and why.
    """

    generated_tokens: float | None = None
    running: int | None = None
    waiting: int | None = None
    speculates: bool | None = None
    acceptance: Mapping[str, Acceptance] = field(default_factory=dict)
    accept_lengths: Mapping[str, float] = field(default_factory=dict)
    recent_lengths: Mapping[str, float] = field(default_factory=dict)
    num_ranks: int | None = None
    progress_mark: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """What a server says of itself that decides whether a measurement means something.

    Attributes:
        most_requests: it runs at most so many at once, all ranks together; None if it does not say.
        remark: where that number comes from, for a person.
        simulates: how it pretends to accept drafts, in its own words; "" if it does not, or does not say.
    """

    most_requests: int | None = None
    remark: str = ""
    simulates: str = ""


class AnswerStream(Protocol):
    """A streamed answer, put together event by event."""

    def take(self, event: Mapping[str, Any], at_s: float) -> None:
        """Add one event that came `at_s` after the request."""

    def result(self, total_s: float) -> ServerAnswer:
        """The answer, after the stream ended."""


class NativeRoute(Protocol):
    """An engine's own route for text and token ids, used instead of `/v1/completions`."""

    @property
    def path(self) -> str: ...

    def body(self, prompt: Prompt, options: GenerationOptions) -> dict[str, Any]:
        """The request."""

    def stream(self, depth: int | None) -> AnswerStream:
        """What takes its events."""

    def next_token_body(self, prefix: Sequence[int], top: int) -> dict[str, Any]:
        """A request for the `top` most likely tokens after a prefix."""

    def next_token_logprobs(self, answer: Mapping[str, Any]) -> dict[int, float]:
        """Token id -> log-probability, from the answer to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRoutes:
    """A server's `/tokenize` (answers `{"tokens": [...]}`) and `/detokenize`.

    Attributes:
        takes_messages: version -> whether `/tokenize` also takes chat messages and renders them as for an answer.
        text_field: where `/detokenize` puts the text.
        detokenize_fields: of its request, so that special tokens stay in the text.
    """

    takes_messages: Callable[[str | None], bool]
    text_field: str
    detokenize_fields: Mapping[str, Any] = field(default_factory=dict)


def header_of_rank(rank: int, version: str | None) -> tuple[dict[str, Any], dict[str, str]]:
    """The header that most servers choose a data-parallel rank by."""
    return {}, {"X-data-parallel-rank": str(rank)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerApi:
    """One kind of server.

    Attributes:
        name: "openai" for any server that is not known.
        owners: what `/v1/models` says under `owned_by`.
        has_version: `/version` tells its version.
        extra_body: fields that its OpenAI routes take besides the usual ones.
        exact_fields: of OpenAI routes, for `GenerationOptions.is_exact`.
        takes_stop_ids: its OpenAI routes know `stop_token_ids`.
        tokens: its routes between text and token ids; None = it has none that eyas knows.
        native: its own route for text and token ids; None = `/v1/completions`.
        choose_rank: (rank, version) -> fields of the body and headers that choose a data-parallel rank.
        extras_of: what an event of an OpenAI stream says of speculation, None if nothing.
        counts_of: (extras, depth) -> counts of the request.
        read_counters: (client, address, whether to ask the scheduler too) -> a reading; None = it has no counters.
        read_limits: (client, address) -> how many requests it runs at once, and whether it only simulates; None = it
            does not say.
        has_lifetime_counts: its counters hold acceptance per position, so that two readings can be compared.
        words: (version, K, accept length and accept rate as one line shows them) -> what its own figures mean.
        promql: PromQL of its accept length.
    """

    name: str
    owners: tuple[str, ...] = ()
    has_version: bool = False
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    exact_fields: Mapping[str, Any] = field(default_factory=dict)
    takes_stop_ids: bool = False
    tokens: TokenRoutes | None = None
    native: NativeRoute | None = None
    choose_rank: Callable[[int, str | None], tuple[dict[str, Any], dict[str, str]]] = header_of_rank
    extras_of: Callable[[Mapping[str, Any]], Mapping[str, Any] | None] = lambda event: None
    counts_of: Callable[[Mapping[str, Any], int | None], RequestCounts] = lambda extras, depth: RequestCounts(
        acceptance=None
    )
    read_counters: Callable[["httpx.Client", "ServerAddress", bool], Counters] | None = None
    read_limits: Callable[["httpx.Client", "ServerAddress"], ServerLimits] | None = None
    has_lifetime_counts: bool = False
    words: Callable[[str | None, int | None, float | None, float | None], tuple[str, ...]] = (
        lambda version, k, length, rate: ()
    )
    promql: str = ""


OPENAI = ServerApi(name="openai")
EYAS = ServerApi(name="eyas", extra_body={"return_token_ids": True})
