"""One generation over HTTP: text, token ids or chat messages in; text, ids, per-chunk times and acceptance out.

Messages go to `/v1/chat/completions` everywhere; token ids and raw text to the server's own route where it has one,
else to `/v1/completions`. `generate` streams, so that every token has a time; `complete` gets the answer in one piece,
which costs server and client a fraction of that.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from eyas.client.address import (
    UNREADABLE,
    AnswerEndless,
    ServerAddress,
    ServerRefused,
    bounded_text,
    get_json,
    post_json,
    require_plain,
    translated_errors,
)
from eyas.client.server_api import AnswerStream, GenerationOptions, Prompt, ServerAnswer, ServerApi

if TYPE_CHECKING:
    import httpx

_MAX_LINE_BYTES, _MAX_STREAM_BYTES = 4 << 20, 256 << 20  # an event may hold all text so far


def generate(
    http: "httpx.Client",
    address: ServerAddress,
    prompt: Prompt,
    options: GenerationOptions,
    *,
    dp_rank: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> ServerAnswer:
    """Generate once.

    Args:
        http: from `open_http`.
        prompt: text as it is, token ids, or chat messages ({"role", "content"}).
        dp_rank: ask this data-parallel rank.

    Raises:
        ServerUnreachable: no server there, or silent for longer than the client's timeout.
        ServerRefused: an HTTP error, or an error object in the stream.
    """
    route, body, stream = request_of(address, prompt, options)
    headers: dict[str, str] = {}
    if dp_rank is not None:
        fields, headers = address.api.choose_rank(dp_rank, address.version)
        body |= fields
    start = clock()
    with (
        translated_errors(address, route),
        http.stream("POST", route, json=body, headers=headers) as response,
    ):
        if not response.is_success:
            bounded_text(response, address, route)
        try:
            require_plain(response, address, route)
            end = None if options.max_seconds is None else start + options.max_seconds
            for event in events(_lines(response, address, route, end, clock)):
                require_no_error(event, address, route)
                stream.take(event, clock() - start)
            return stream.result(clock() - start)
        except UNREADABLE as error:
            raise unreadable(address, route, error) from error


def complete(
    http: "httpx.Client",
    address: ServerAddress,
    prompt: Prompt,
    options: GenerationOptions,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> ServerAnswer:
    """Generate once, not streamed: nothing arrives before the answer is whole, and chunk times say nothing.

    Raises:
        ServerUnreachable: no server there, or no answer within the client's timeout.
        ServerRefused: an HTTP error, or something that is not an answer.
    """
    route, body, stream = request_of(address, prompt, options)
    body.pop("stream_options", None)
    start = clock()
    try:
        event = post_json(http, address, route, {**body, "stream": False})
        require_no_error(event, address, route)
        stream.take(event, clock() - start)
        return stream.result(clock() - start)
    except UNREADABLE as error:
        raise unreadable(address, route, error) from error


def request_of(
    address: ServerAddress, prompt: Prompt, options: GenerationOptions
) -> tuple[str, dict[str, Any], AnswerStream]:
    """Route, body, and what takes the answer."""
    native = None if _is_chat(prompt) else address.api.native
    if native is not None:
        return native.path, native.body(prompt, options), native.stream(options.depth)
    route = "/v1/chat/completions" if _is_chat(prompt) else "/v1/completions"
    return route, _openai_body(address, prompt, options), OpenAIStream(address.api, options.depth)


def require_no_error(event: Mapping[str, Any], address: ServerAddress, route: str) -> None:
    """Raise `ServerRefused` for an error object."""
    if event.get("error"):
        raise ServerRefused(
            f"{route} ended with an error",
            address.url,
            json.dumps(event["error"])[:400],
            "see the server's log around this time",
        )


def unreadable(address: ServerAddress, route: str, error: Exception) -> ServerRefused:
    """The error for an answer of another shape than its server's."""
    return ServerRefused(
        f"the answer of {route} cannot be read",
        address.url,
        f"{type(error).__name__}: {error}"[:400],
        f"check that this is {address.api.name}, and of a version that eyas knows",
    )


def model_name(http: "httpx.Client", address: ServerAddress) -> str | None:
    """The first name under /v1/models; None if there is none.

    Raises:
        ServerUnreachable, ServerRefused.
    """
    listing = get_json(http, address, "/v1/models") or {}
    rows = listing.get("data")
    names = [m.get("id") for m in rows if isinstance(m, dict)] if isinstance(rows, list) else []
    return next((n for n in names if isinstance(n, str)), None)


class OpenAIStream:
    """`/v1/completions` and `/v1/chat/completions`: each event holds the new text, some servers' also the new ids."""

    def __init__(self, api: ServerApi, depth: int | None) -> None:
        self._api, self._depth = api, depth
        self._text: list[str] = []
        self._ids: list[int] = []
        self._times: list[float] = []
        self._tokens: list[int] = []
        self._usage: Mapping[str, Any] = {}
        self._extras: Mapping[str, Any] = {}
        self._finish: str | None = None
        self._stopped_by: int | str | None = None

    def take(self, event: Mapping[str, Any], at_s: float) -> None:
        """Add one event that came `at_s` after the request."""
        self._usage = event.get("usage") or self._usage
        self._extras = self._api.extras_of(event) or self._extras
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or choice.get("message") or {}
            text = choice.get("text") or delta.get("content") or delta.get("reasoning_content") or ""
            ids = [int(i) for i in choice.get("token_ids") or ()]
            self._finish = choice.get("finish_reason") or self._finish
            self._stopped_by = choice.get("stop_reason", self._stopped_by)
            if text or ids:
                self._text.append(text)
                self._ids += ids
                self._times.append(at_s)
                self._tokens.append(len(ids) or 1)

    def result(self, total_s: float) -> ServerAnswer:
        """The answer, after the stream ended."""
        return ServerAnswer(
            text="".join(self._text),
            output_ids=tuple(self._ids) or None,
            num_prompt_tokens=self._usage.get("prompt_tokens"),
            num_output_tokens=self._usage.get("completion_tokens"),
            chunk_times_s=tuple(self._times),
            chunk_tokens=tuple(self._tokens),
            total_s=total_s,
            finish_reason=self._finish,
            counts=self._api.counts_of(self._extras, self._depth),
            stopped_by=self._stopped_by,
        )


def _is_chat(prompt: Prompt) -> bool:
    return not isinstance(prompt, str) and len(prompt) > 0 and isinstance(prompt[0], Mapping)


def _openai_body(address: ServerAddress, prompt: Prompt, options: GenerationOptions) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": address.model or "default",
        "temperature": options.temperature,
        "max_tokens": options.max_new_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if _is_chat(prompt):
        body["messages"] = [dict(m) for m in prompt if isinstance(m, Mapping)]
    else:
        body["prompt"] = prompt if isinstance(prompt, str) else list(prompt)
    optional = {"top_p": options.top_p, "top_k": options.top_k, "seed": options.seed}
    body |= {name: value for name, value in optional.items() if value is not None}
    if options.ignore_eos:
        body["ignore_eos"] = True
    if options.stop_strings:
        body["stop"] = list(options.stop_strings)
    if options.stop_ids and address.api.takes_stop_ids:
        body["stop_token_ids"] = list(options.stop_ids)
    if options.is_exact:
        body |= address.api.exact_fields
    return body | dict(address.api.extra_body) | dict(options.extra)


def _lines(
    response: "httpx.Response", address: ServerAddress, route: str, end: float | None, clock: Callable[[], float]
) -> Iterator[str]:
    """The lines of a streamed body, bounded in length, in all and, with `end`, in time."""
    rest, num_bytes = b"", 0
    for piece in response.iter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        num_bytes += len(piece)
        late = end is not None and clock() > end
        if late or len(rest) > _MAX_LINE_BYTES or num_bytes > _MAX_STREAM_BYTES:
            size = f"{num_bytes} bytes" + (f", {len(rest)} of them in one line" if len(rest) > _MAX_LINE_BYTES else "")
            why = "it had not ended when the time was up" if late else f"{size} arrived without an end"
            raise endless(address, route, why)
        yield from (line.decode(errors="replace") for line in lines)
    yield rest.decode(errors="replace")


def endless(address: ServerAddress, route: str, why: str) -> AnswerEndless:
    """The error for an answer that is too long, or takes too long."""
    return AnswerEndless(f"the answer of {route} has no end", address.url, why, "see what it is doing: eyas watch URL")


def events(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The JSON objects of a server-sent event stream, up to [DONE]."""
    for line in lines:
        if not line.startswith("data:"):
            continue
        payload = line[5:].strip()
        if payload == "[DONE]":
            return
        event = json.loads(payload)
        if isinstance(event, dict):
            yield event
