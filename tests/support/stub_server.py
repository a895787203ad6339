"""A server that answers as SGLang or vLLM does, with scripted drafts, answers and faults: no model, no engine.

Each answer is made of rounds: a scripted number of accepted drafts and one bonus token; the counters follow from that,
so a test can say what the server did and compare it with what was read.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Script:
    """What the server does.

    Attributes:
        engine, version: whose routes and names.
        accepted: accepted drafts of each round, repeated for ever.
        depth: drafts per round.
        answer: prompt (text or ids, as JSON) -> token ids of the whole answer; shorter ones end with "stop".
        play: prompt ids, limit -> the answer's ids and the accepted drafts of its rounds, in place of `answer` and
            `accepted`; None = not.
        speculates: False = no counters, no counts in answers.
        ranks: data-parallel ranks.
        stuck_ranks: ranks that never answer (until the server closes).
        top_logprobs: what a one-token request with logprobs is told: token id -> logprob; None = nothing.
        fail_with: HTTP status for every generation.
    """

    engine: str = "sglang"
    version: str = "0.5.15.post1"
    accepted: tuple[int, ...] = (2, 1, 0, 3)
    depth: int = 3
    answer: Callable[[Any], list[int]] = lambda prompt: list(range(100, 400))
    play: Callable[[list[int], int], tuple[list[int], list[int]]] | None = None
    speculates: bool = True
    ranks: int = 1
    stuck_ranks: frozenset[int] = frozenset()
    top_logprobs: dict[int, float] | None = None
    fail_with: int | None = None
    tokens_per_text: str = "w{} "
    incremental: bool = False
    requests: list[dict[str, Any]] = field(default_factory=list)


class StubServer:
    """The server, running in threads of this process while the block lasts."""

    def __init__(self, script: Script, *, port: int = 0) -> None:
        self.script = script
        self.health = 200
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self.histograms = [[0] * (script.depth + 1) for _ in range(script.ranks)]
        self.generated = 0
        self._next_rank = 0
        self._round = 0
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                return

            def do_GET(self) -> None:
                stub.get(self)

            def do_POST(self) -> None:
                stub.post(self)

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "StubServer":
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()

    def get(self, handler: BaseHTTPRequestHandler) -> None:
        script = self.script
        if handler.path == "/metrics":
            page = self._vllm_metrics() if script.engine == "vllm" else self._sglang_metrics()
            return _reply(handler, 200, page.encode(), "text/plain")
        if handler.path == "/server_info" and script.engine == "sglang":
            return _json(handler, 200, self._server_info())
        if handler.path in ("/health", "/ready"):
            return _reply(handler, self.health, b"")
        if handler.path == "/v1/models":
            return _json(handler, 200, {"data": [{"id": "stub", "owned_by": script.engine}]})
        return _json(handler, 404, {"error": "no such route"})

    def post(self, handler: BaseHTTPRequestHandler) -> None:
        script = self.script
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        with self._lock:
            script.requests.append({"path": handler.path, "body": body, "headers": dict(handler.headers)})
        if script.fail_with:
            return _json(handler, script.fail_with, {"error": {"message": "told to fail"}})
        rank = self._rank_of(body, handler)
        if rank in script.stuck_ranks:
            self._closing.wait(60)
            return None
        prompt = body.get("input_ids") or body.get("text") or body.get("prompt") or body.get("messages")
        sampling = body.get("sampling_params", body)
        limit = sampling.get("max_new_tokens") or sampling.get("max_tokens")
        wants_logprobs = body.get("return_logprob") or body.get("logprobs")
        if wants_logprobs and script.top_logprobs is not None:
            return self._reply_logprobs(handler)
        if script.play is not None:
            ids, rounds = script.play(prompt, limit)
            self._count(rounds, len(ids), rank)
            events = self._sglang_events if handler.path == "/generate" else self._openai_events
            finish = "stop" if len(ids) < limit else "length"
            return _stream(handler, events(ids, rounds, finish, prompt, rank))
        ids = script.answer(prompt)
        finish = "stop" if len(ids) < limit else "length"
        ids = ids[:limit]
        rounds = self._rounds_of(len(ids), rank)
        events = self._sglang_events if handler.path == "/generate" else self._openai_events
        return _stream(handler, events(ids, rounds, finish, prompt, rank))

    def _rank_of(self, body: dict[str, Any], handler: BaseHTTPRequestHandler) -> int:
        asked = body.get("routed_dp_rank", body.get("data_parallel_rank", handler.headers.get("X-data-parallel-rank")))
        if asked is not None:
            return int(asked)
        with self._lock:
            self._next_rank = (self._next_rank + 1) % self.script.ranks
            return self._next_rank

    def _rounds_of(self, num_tokens: int, rank: int) -> list[int]:
        rounds: list[int] = []
        made = 1  # prefill
        with self._lock:
            while self.script.speculates and made < num_tokens:
                accepted = self.script.accepted[self._round % len(self.script.accepted)]
                self._round += 1
                rounds.append(accepted)
                made += accepted + 1
                self.histograms[rank][accepted] += 1
            self.generated += num_tokens
        return rounds

    def _count(self, rounds: list[int], num_tokens: int, rank: int) -> None:
        with self._lock:
            for accepted in rounds:
                self.histograms[rank][accepted] += 1
            self.generated += num_tokens

    def _text(self, ids: list[int]) -> str:
        return "".join(self.script.tokens_per_text.format(i) for i in ids)

    def _sglang_events(self, ids: list[int], rounds: list[int], finish: str, prompt: Any, rank: int) -> Iterator[Any]:
        done, last = 0, 0
        for step in [1, *(n + 1 for n in rounds)] if rounds else [1] * len(ids):
            last, done = done, min(done + step, len(ids))
            meta: dict[str, Any] = {"completion_tokens": done, "prompt_tokens": len(prompt), "dp_rank": rank}
            meta["finish_reason"] = {"type": finish} if done == len(ids) else None
            if done == len(ids) and rounds:
                meta |= self._sglang_counts(rounds)
            part = ids[last:done] if self.script.incremental else ids[:done]
            yield {"text": self._text(part), "output_ids": part, "meta_info": meta}

    def _sglang_counts(self, rounds: list[int]) -> dict[str, Any]:
        histogram = [rounds.count(n) for n in range(max(rounds) + 1)]
        old = self.script.version == "0.5.9"
        return {
            "spec_verify_ct": len(rounds),
            "spec_accept_token_num" if old else "spec_num_correct_drafts": sum(rounds),
            "spec_draft_token_num" if old else "spec_num_proposed_drafts": len(rounds) * self.script.depth,
            "spec_accept_histogram" if old else "spec_correct_drafts_histogram": histogram,
        }

    def _openai_events(self, ids: list[int], rounds: list[int], finish: str, prompt: Any, rank: int) -> Iterator[Any]:
        done, last = 0, 0
        for step in [1, *(n + 1 for n in rounds)] if rounds else [1] * len(ids):
            last, done = done, min(done + step, len(ids))
            yield {
                "choices": [
                    {
                        "text": self._text(ids[last:done]),
                        "token_ids": ids[last:done],
                        "finish_reason": finish if done == len(ids) else None,
                    }
                ]
            }
        yield {"choices": [], "usage": {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}}

    def _reply_logprobs(self, handler: BaseHTTPRequestHandler) -> None:
        top = sorted((self.script.top_logprobs or {}).items(), key=lambda item: -item[1])
        if self.script.engine == "sglang":
            meta = {"output_top_logprobs": [[[value, token, None] for token, value in top]]}
            return _json(handler, 200, {"text": "", "output_ids": [top[0][0]], "meta_info": meta})
        logprobs = {"top_logprobs": [{f"token_id:{token}": value for token, value in top}]}
        return _json(handler, 200, {"choices": [{"text": "", "token_ids": [top[0][0]], "logprobs": logprobs}]})

    def _vllm_metrics(self) -> str:
        lines = [f'vllm:generation_tokens_total{{engine="0"}} {self.generated}']
        for rank, histogram in enumerate(self.histograms if self.script.speculates else []):
            rounds = sum(histogram)
            lines.append(f'vllm:spec_decode_num_drafts_total{{engine="{rank}"}} {rounds}')
            lines.append(f'vllm:spec_decode_num_draft_tokens_total{{engine="{rank}"}} {rounds * self.script.depth}')
            for k in range(self.script.depth):
                count = sum(histogram[k + 1 :])
                name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
                lines.append(f'{name}{{engine="{rank}",position="{k}"}} {count}')
        return "\n".join(lines) + "\n"

    def _sglang_metrics(self) -> str:
        return f"sglang:generation_tokens_total {self.generated}\nsglang:num_running_reqs 0\n"

    def _server_info(self) -> dict[str, Any]:
        most = 48 if self.script.speculates else 4096
        state = {"last_gen_throughput": 1.0, "effective_max_running_requests_per_dp": most}
        states = [dict(state) for _ in range(self.script.ranks)]
        algorithm = "EAGLE3" if self.script.speculates else None
        info = {"speculative_algorithm": algorithm, "dp_size": self.script.ranks, "internal_states": states}
        return info | {"version": self.script.version, "speculative_num_steps": self.script.depth}


def _reply(handler: BaseHTTPRequestHandler, status: int, body: bytes, kind: str = "application/json") -> None:
    handler.send_response(status)
    handler.send_header("Content-Type", kind)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def _json(handler: BaseHTTPRequestHandler, status: int, value: object) -> None:
    _reply(handler, status, json.dumps(value).encode())


def _stream(handler: BaseHTTPRequestHandler, events: Iterator[Any]) -> None:
    handler.send_response(200)
    handler.send_header("Content-Type", "text/event-stream")
    handler.send_header("Connection", "close")
    handler.end_headers()
    for event in events:
        handler.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
    handler.wfile.write(b"data: [DONE]\n\n")
    handler.close_connection = True
    time.sleep(0)
