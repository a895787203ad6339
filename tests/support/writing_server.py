"""A server that writes as SGLang, vLLM or a plain OpenAI server does, with a byte tokenizer and scripted faults.

Its bodies and answers have the engines' names (read in SGLang 0.5.23 and vLLM 0.33.0); nothing is streamed.
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from byte_tokenizer import CHATML, byte_tokenizer

Fault = Callable[[int, list[int]], str | None]


@dataclass
class Writer:
    """What the server does.

    Attributes:
        engine: "sglang", "vllm" or "openai" (text only).
        text: decoded prompt -> answer; one that ends with … is cut off there.
        fault: (number of the generation, prompt ids) -> "500", "400", "drop", "half", "ids", "many", "count", "abort",
            "huge", "slow", "prompt", "no-end" or None.
        template: of its tokenizer.
        pause_s: before each answer.
        asked: prompts that were answered well -> how often.
    """

    engine: str = "sglang"
    version: str = "0.5.15.post1"
    model: str = "tiny"
    text: Callable[[str], str] = lambda prompt: f"re: {prompt.split('user')[-1].split('<')[0].strip()}"
    fault: Fault = lambda number, ids: None
    template: str = CHATML
    max_model_len: int = 8192
    pause_s: float = 0.0
    asked: Counter[tuple[int, ...]] = field(default_factory=Counter)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    most_at_once: int = 0


class WritingServer:
    """The server, in threads of this process while the block lasts; `die` and `rise` in between."""

    def __init__(self, writer: Writer, port: int = 0) -> None:
        self.writer, self.tokenizer = writer, byte_tokenizer(writer.template)
        self.end = self.tokenizer.convert_tokens_to_ids("<|im_end|>")
        self._lock, self._number, self._running = threading.Lock(), 0, 0
        self._port = port
        self._server: ThreadingHTTPServer | None = None
        self._connections: list[Any] = []
        self.keys: set[str | None] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> "WritingServer":
        self.rise()
        return self

    def __exit__(self, *_: object) -> None:
        self.die()

    def rise(self) -> None:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                outer._connections.append(self.connection)

            def log_message(self, *_: object) -> None:
                return

            def do_GET(self) -> None:
                outer._get(self)

            def do_POST(self) -> None:
                outer._post(self)

        class Server(ThreadingHTTPServer):
            allow_reuse_address = True
            request_queue_size = 256

            def handle_error(self, *_: object) -> None:
                return  # dropped connections are meant

        self._server = Server(("127.0.0.1", self._port), Handler)
        self._server.daemon_threads = True
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def die(self) -> None:
        """As by kill -9: nothing listens, and open connections break."""
        if self._server is None:
            return
        self._server.shutdown()
        self._server.server_close()
        self._server = None
        for connection in self._connections:
            try:
                connection.shutdown(2)
            except OSError:
                continue
        self._connections.clear()

    def _get(self, handler: BaseHTTPRequestHandler) -> None:
        writer = self.writer
        if handler.path == "/v1/models":
            owner = {"openai": "someone"}.get(writer.engine, writer.engine)
            row = {"id": writer.model, "owned_by": owner, "max_model_len": writer.max_model_len}
            return _json(handler, 200, {"data": [row]})
        if handler.path == "/version" and writer.engine == "vllm":
            return _json(handler, 200, {"version": writer.version})
        if handler.path == "/server_info" and writer.engine == "sglang":
            return _json(handler, 200, {"version": writer.version})
        return _json(handler, 404, {"error": "no such route"})

    def _post(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        route = {"/tokenize": self._tokenize, "/detokenize": self._detokenize}.get(handler.path)
        if route is not None and self.writer.engine != "openai":
            return route(handler, body)
        if handler.path != ("/generate" if self.writer.engine == "sglang" else "/v1/completions"):
            return _json(handler, 404, {"error": "no such route"})
        with self._lock:
            self.keys.add(handler.headers.get("Authorization"))
            self._number += 1
            number = self._number
            self._running += 1
            self.writer.most_at_once = max(self.writer.most_at_once, self._running)
            self.writer.bodies.append(body)
        try:
            return self._generate(handler, body, number)
        finally:
            with self._lock:
                self._running -= 1

    def _tokenize(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        if "messages" in body:
            text = self.tokenizer.apply_chat_template(
                body["messages"], tokenize=False, add_generation_prompt=True, **body.get("chat_template_kwargs", {})
            )
        else:
            text = body["prompt"]
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        _json(handler, 200, {"tokens": ids, "count": len(ids), "max_model_len": self.writer.max_model_len})

    def _detokenize(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        keeps = self.writer.engine == "vllm" or body.get("skip_special_tokens") is False
        text = self.tokenizer.decode(body["tokens"], skip_special_tokens=not keeps)
        _json(handler, 200, {"prompt" if self.writer.engine == "vllm" else "text": text})

    def _generate(self, handler: BaseHTTPRequestHandler, body: dict[str, Any], number: int) -> None:
        writer = self.writer
        assert body["stream"] is False
        prompt = body["input_ids"] if writer.engine == "sglang" else body["prompt"]
        sampling = body["sampling_params"] if writer.engine == "sglang" else body
        fault = writer.fault(number, prompt)
        time.sleep(writer.pause_s + (1.5 if fault == "slow" else 0.0))
        if fault in ("500", "400", "429"):
            return _json(handler, int(fault), {"error": {"message": "told to fail"}})
        if fault == "drop":
            return handler.connection.shutdown(2)
        text = writer.text(self.tokenizer.decode(prompt))
        is_cut = text.endswith("…")
        ids = self.tokenizer(text.removesuffix("…"), add_special_tokens=False)["input_ids"]
        ids = ids if is_cut else [*ids, self.end]
        limit = sampling["max_new_tokens"] if writer.engine == "sglang" else sampling["max_tokens"]
        is_cut, ids = is_cut or len(ids) > limit, ids[:limit]
        words = ids if is_cut else ids[:-1]
        answer = self._answer(prompt, ids, self.tokenizer.decode(words), "length" if is_cut else "stop", fault)
        data = json.dumps(answer).encode()
        if fault == "half":
            handler.send_response(200)
            handler.send_header("Content-Length", str(len(data)))
            handler.end_headers()
            handler.wfile.write(data[: len(data) // 2])
            return handler.connection.shutdown(2)
        if fault in (None, "slow", "no-end"):
            with self._lock:
                writer.asked[tuple(prompt)] += 1
        return _reply(handler, 200, data)

    def _answer(self, prompt: list[int], ids: list[int], text: str, finish: str, fault: str | None) -> dict[str, Any]:
        told, read = len(ids), len(prompt) + (fault == "prompt")
        if fault == "ids":
            ids = [10**6, *ids[1:]]
        if fault == "many":
            ids = ids * 4000
        if fault == "count":
            told += 1
        if fault == "abort":
            finish = "abort"
        if fault == "huge":
            text = "x" * (5 << 20)
        if fault == "no-end" and finish == "stop":
            ids, told = ids[:-1], told - 1
        if self.writer.engine == "sglang":
            matched = {"matched": self.end} if finish == "stop" else {}
            meta = {"prompt_tokens": read, "completion_tokens": told, "finish_reason": {"type": finish, **matched}}
            return {"text": text, "output_ids": ids, "meta_info": meta}
        choice: dict[str, Any] = {"text": text, "finish_reason": finish}
        if self.writer.engine == "vllm":
            choice |= {"token_ids": ids, "stop_reason": None}
        return {"choices": [choice], "usage": {"prompt_tokens": read, "completion_tokens": told}}


def _json(handler: BaseHTTPRequestHandler, status: int, value: object) -> None:
    _reply(handler, status, json.dumps(value).encode())


def _reply(handler: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)
