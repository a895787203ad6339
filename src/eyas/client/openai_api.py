"""One generation over HTTP: text, token ids or chat messages in; text, ids, per-chunk times and acceptance out.

Token ids and raw text go to `/generate` (SGLang) or `/v1/completions` (vLLM and others), messages to
`/v1/chat/completions` everywhere. Always streamed, so that every token has a time.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from eyas.client.address import (
    UNREADABLE,
    ServerAddress,
    ServerRefused,
    bounded_text,
    get_json,
    translated_errors,
)
from eyas.client.answer_stream import Generation, OpenAIStream, SglangStream

if TYPE_CHECKING:
    import httpx

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions:
    """How to generate.

    Attributes:
        max_new_tokens: at most so many tokens.
        temperature: 0 = greedy.
        top_p, top_k: nucleus and top-k limits; None = the server's default (its generation config may set one).
        seed: sampling seed; None = the server's.
        ignore_eos: go on after the end of the answer (fixed length; bad for acceptance figures).
        depth: drafts per verify pass along one path, for servers that do not say; None = unknown.
        extra: further fields of the request body, as they are.
    """

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    ignore_eos: bool = False
    depth: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


def generate(
    http: "httpx.Client",
    address: ServerAddress,
    prompt: Prompt,
    options: GenerationOptions,
    *,
    dp_rank: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Generation:
    """Generate once.

    Args:
        http: from `open_http`.
        prompt: text as it is, token ids, or chat messages ({"role", "content"}).
        dp_rank: ask this data-parallel rank (SGLang: body field; vLLM: header X-data-parallel-rank).

    Raises:
        ServerUnreachable: nobody there, or silent for longer than the client's timeout.
        ServerRefused: an HTTP error, or an error object in the stream.
    """
    native = address.kind == "sglang" and not is_chat(prompt)
    route = "/generate" if native else "/v1/chat/completions" if is_chat(prompt) else "/v1/completions"
    body = _sglang_body(prompt, options) if native else _openai_body(address, prompt, options)
    headers: dict[str, str] = {}
    if dp_rank is not None:
        if address.kind == "sglang":
            body[sglang_rank_field(address.version)] = dp_rank
        else:
            headers["X-data-parallel-rank"] = str(dp_rank)
    stream = SglangStream(options.depth) if native else OpenAIStream(address, options.depth)
    start = clock()
    with (
        translated_errors(address, route),
        http.stream("POST", route, json=body, headers=headers) as response,
    ):
        if not response.is_success:
            bounded_text(response, address, route)
        try:
            for event in _events(response.iter_lines()):
                if event.get("error"):
                    raise ServerRefused(
                        f"{route} ended with an error",
                        address.url,
                        json.dumps(event["error"])[:400],
                        "see the server's log around this time",
                    )
                stream.take(event, clock() - start)
            return stream.result(clock() - start)
        except UNREADABLE as error:
            raise ServerRefused(
                f"the answer of {route} cannot be read",
                address.url,
                f"{type(error).__name__}: {error}"[:400],
                f"is this really {address.kind}, and of a version that eyas knows?",
            ) from error


def is_chat(prompt: Prompt) -> bool:
    """Whether a prompt is a list of messages."""
    return not isinstance(prompt, str) and len(prompt) > 0 and isinstance(prompt[0], Mapping)


def sglang_rank_field(version: str | None) -> str:
    """The field of `/generate` that chooses a data-parallel rank: renamed between 0.5.9 and 0.5.12."""
    from eyas.client.versions import at_least

    return "routed_dp_rank" if at_least(version, "0.5.12") else "data_parallel_rank"


def model_name(http: "httpx.Client", address: ServerAddress) -> str | None:
    """The first name under /v1/models; None if there is none.

    Raises:
        ServerUnreachable, ServerRefused.
    """
    listing = get_json(http, address, "/v1/models") or {}
    rows = listing.get("data")
    names = [m.get("id") for m in rows if isinstance(m, dict)] if isinstance(rows, list) else []
    return next((n for n in names if isinstance(n, str)), None)


def _sglang_body(prompt: Prompt, options: GenerationOptions) -> dict[str, Any]:
    sampling: dict[str, Any] = {"temperature": options.temperature, "max_new_tokens": options.max_new_tokens}
    optional = {"top_p": options.top_p, "top_k": options.top_k, "sampling_seed": options.seed}
    sampling |= {name: value for name, value in optional.items() if value is not None}
    if options.ignore_eos:
        sampling["ignore_eos"] = True
    source = {"text": prompt} if isinstance(prompt, str) else {"input_ids": list(prompt)}
    return {**source, "sampling_params": sampling, "stream": True, **options.extra}


def _openai_body(address: ServerAddress, prompt: Prompt, options: GenerationOptions) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": address.model or "default",
        "temperature": options.temperature,
        "max_tokens": options.max_new_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if is_chat(prompt):
        body["messages"] = [dict(m) for m in prompt if isinstance(m, Mapping)]
    else:
        body["prompt"] = prompt if isinstance(prompt, str) else list(prompt)
    optional = {"top_p": options.top_p, "top_k": options.top_k, "seed": options.seed}
    body |= {name: value for name, value in optional.items() if value is not None}
    if options.ignore_eos:
        body["ignore_eos"] = True
    if address.kind in ("vllm", "eyas"):
        body["return_token_ids"] = True
    return body | dict(options.extra)


def _events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
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
