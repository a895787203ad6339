"""Streamed answers put together: each server's events into one `Generation`. Pure: no network, no clock."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eyas.client import sglang_counts, vllm_counts
from eyas.client.address import ServerAddress
from eyas.client.request_counts import RequestCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One answer.

    Attributes:
        text: what was generated.
        output_ids: its token ids; None where the server does not give them.
        num_prompt_tokens, num_output_tokens: as the server counts them; None if it does not.
        chunk_times_s: arrival of each chunk with tokens, seconds after the request was sent.
        chunk_tokens: tokens in each of those chunks (1 each is assumed where the server gives no ids).
        total_s: from sending to the end of the stream.
        finish_reason: "stop", "length", ... as the server says.
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


class SglangStream:
    """`/generate`: an event holds all text and ids so far, or with --incremental-streaming-output the new ones only."""

    def __init__(self, depth: int | None) -> None:
        self._depth = depth
        self._text, self._ids, self._meta = "", [], {}  # type: tuple[str, list[int], dict[str, Any]]
        self._times: list[float] = []
        self._tokens: list[int] = []

    def take(self, event: Mapping[str, Any], at_s: float) -> None:
        """Add one event that came `at_s` after the request."""
        self._meta = dict(event.get("meta_info") or self._meta)
        ids = [int(i) for i in event.get("output_ids") or ()]
        text = event.get("text") or ""
        completed = self._meta.get("completion_tokens")
        cumulative = completed is None or len(ids) >= int(completed) or len(self._ids) + len(ids) != int(completed)
        before = len(self._ids)
        if ids:
            self._ids = ids if cumulative else self._ids + ids
        if text:
            self._text = text if text.startswith(self._text) and cumulative else self._text + text
        if len(self._ids) > before:
            self._times.append(at_s)
            self._tokens.append(len(self._ids) - before)

    def result(self, total_s: float) -> Generation:
        """The answer, after the stream ended."""
        reason = self._meta.get("finish_reason")
        return Generation(
            text=self._text,
            output_ids=tuple(self._ids) if self._ids else None,
            num_prompt_tokens=self._meta.get("prompt_tokens"),
            num_output_tokens=self._meta.get("completion_tokens"),
            chunk_times_s=tuple(self._times),
            chunk_tokens=tuple(self._tokens),
            total_s=total_s,
            finish_reason=reason.get("type") if isinstance(reason, Mapping) else reason,
            counts=sglang_counts.of_meta_info(self._meta, depth=self._depth),
        )


class OpenAIStream:
    """`/v1/completions` and `/v1/chat/completions`: each event holds the new text, vLLM's also the new ids."""

    def __init__(self, address: ServerAddress, depth: int | None) -> None:
        self._address, self._depth = address, depth
        self._text: list[str] = []
        self._ids: list[int] = []
        self._times: list[float] = []
        self._tokens: list[int] = []
        self._usage: Mapping[str, Any] = {}
        self._metrics: Mapping[str, Any] | None = None
        self._meta: Mapping[str, Any] = {}
        self._finish: str | None = None

    def take(self, event: Mapping[str, Any], at_s: float) -> None:
        """Add one event that came `at_s` after the request."""
        self._usage = event.get("usage") or self._usage
        self._metrics = event.get("metrics") or self._metrics
        details = (event.get("sglext") or {}).get("spec_tokens_details")
        self._meta = (details[0] if isinstance(details, list) and details else details) or self._meta
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            text = choice.get("text") or delta.get("content") or delta.get("reasoning_content") or ""
            ids = [int(i) for i in choice.get("token_ids") or ()]
            self._finish = choice.get("finish_reason") or self._finish
            if isinstance(choice.get("meta_info"), Mapping):
                self._meta = choice["meta_info"]
            if text or ids:
                self._text.append(text)
                self._ids += ids
                self._times.append(at_s)
                self._tokens.append(len(ids) or 1)

    def result(self, total_s: float) -> Generation:
        """The answer, after the stream ended."""
        if self._address.kind == "sglang":
            counts = sglang_counts.of_meta_info(self._meta, depth=self._depth)
        else:
            counts = vllm_counts.of_answer(self._metrics)
        return Generation(
            text="".join(self._text),
            output_ids=tuple(self._ids) or None,
            num_prompt_tokens=self._usage.get("prompt_tokens"),
            num_output_tokens=self._usage.get("completion_tokens"),
            chunk_times_s=tuple(self._times),
            chunk_tokens=tuple(self._tokens),
            total_s=total_s,
            finish_reason=self._finish,
            counts=counts,
        )
