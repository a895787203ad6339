"""A server of known speed and acceptance, in a process of its own: every figure of a benchmark of it can be computed.

    python timed_server.py '{"ttft_s": 0.2, "round_s": 0.01, "accepted": [2, 0, 1], "depth": 3}'

It speaks vLLM's HTTP and prints its port. An answer's first token comes after `ttft_s`, then a round every `round_s`,
by a fixed timetable that does not drift: its accepted drafts and one bonus token in one event.
"""

import asyncio
import json
import sys
import time
from collections.abc import Mapping
from typing import Any

DEFAULTS: dict[str, Any] = {
    "ttft_s": 0.05,
    "round_s": 0.01,
    "accepted": [],  # of each round of an answer, from the start again at its end; [] = no speculation
    "depth": 3,
    "stop_after": None,  # tokens after which every answer ends by itself
    "shift": 0,  # added to every id: a server with other texts
    "strangers": 0,  # tokens counted for others with every answer
    "version": "0.33.0",
    "in_answers": True,  # counts come with answers, not in /metrics only
    "break_after": None,  # answers after which every request is refused
    "piece": None,  # bytes of one write: events arrive torn
}


class TimedServer:
    """Counts what it does."""

    def __init__(self, script: Mapping[str, Any]) -> None:
        self.script = {**DEFAULTS, **script}
        self.generated, self.answers, self.running = 0, 0, 0
        depth = self.script["depth"]
        self.rounds, self.accepted_at = 0, [0] * depth
        self.asked: list[Any] = []
        self.sent: list[list[float]] = []  # of each answer: when it was asked, and when each event with tokens was sent

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                _, path, _ = head.split(b" ", 2)
                length = next((int(h[15:]) for h in head.split(b"\r\n") if h.lower().startswith(b"content-length:")), 0)
                body = json.loads(await reader.readexactly(length)) if length else None
                if path == b"/v1/completions" or path == b"/v1/chat/completions":
                    await self.answer(body, writer)
                else:
                    self.tell(path.decode(), body, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def tell(self, path: str, body: Any, writer: asyncio.StreamWriter) -> None:
        found: Any = {
            "/v1/models": {"data": [{"id": "timed", "owned_by": "vllm", "max_model_len": 4096}]},
            "/version": {"version": self.script["version"]},
            "/metrics": self.metrics(),
            "/asked": self.asked,
            "/sent": self.sent,
        }.get(path)
        if path == "/tokenize":
            text = json.dumps(body.get("messages") or body.get("prompt"))
            found = {"tokens": [3 + ord(c) % 90 for c in text[:64]]}
        text = found if isinstance(found, str) else json.dumps(found)
        status = "200 OK" if found is not None else "404 Not Found"
        data = text.encode()
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)

    def metrics(self) -> str:
        lines = [
            f'vllm:generation_tokens_total{{engine="0"}} {self.generated}',
            f'vllm:num_requests_running{{engine="0"}} {self.running}',
        ]
        if self.script["accepted"]:
            prefix = "vllm:spec_decode_num_"
            lines += [
                f'{prefix}drafts_total{{engine="0"}} {self.rounds}',
                f'{prefix}draft_tokens_total{{engine="0"}} {self.rounds * self.script["depth"]}',
                *(
                    f'{prefix}accepted_tokens_per_pos_total{{engine="0",position="{k}"}} {count}'
                    for k, count in enumerate(self.accepted_at)
                ),
            ]
        return "\n".join(lines) + "\n"

    async def answer(self, body: Mapping[str, Any], writer: asyncio.StreamWriter) -> None:
        script, loop = self.script, asyncio.get_running_loop()
        if script["break_after"] is not None and self.answers >= script["break_after"]:
            writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nfull")
            return
        self.asked.append(body.get("prompt") or body.get("messages"))
        limit = min(body["max_tokens"], script["stop_after"] or body["max_tokens"])
        self.running += 1
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/event-stream\r\n\r\n")
        due, made, number = loop.time() + script["ttft_s"], 0, 0
        times = [time.perf_counter()]
        histogram = [0] * (script["depth"] + 1)
        while made < limit:
            if (wait := due - loop.time()) > 0:
                await asyncio.sleep(wait)
            drafts = 0
            if made and script["accepted"]:
                drafts = script["accepted"][number % len(script["accepted"])]
                histogram[drafts] += 1
                number += 1
                self.rounds += 1
                for k in range(drafts):
                    self.accepted_at[k] += 1
            new = min(drafts + 1, limit - made)
            ids = [(7 * (made + n)) % 1000 + script["shift"] for n in range(new)]
            made += new
            finish = None if made < limit else ("stop" if limit < body["max_tokens"] else "length")
            choice = {"index": 0, "text": " w" * new, "token_ids": ids, "finish_reason": finish}
            times.append(time.perf_counter())
            self.write(writer, {"choices": [choice]})
            due += script["round_s"]
        last: dict[str, Any] = {"choices": [], "usage": {"prompt_tokens": self.length(body), "completion_tokens": made}}
        if script["accepted"] and script["in_answers"]:
            details = {"acceptance_histogram": histogram, "num_draft_tokens": number * script["depth"]}
            last["metrics"] = {"speculative_decoding": details}
        self.sent.append(times)
        self.generated += made + script["strangers"]
        self.running, self.answers = self.running - 1, self.answers + 1
        self.write(writer, last)
        self.send(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")

    @staticmethod
    def length(body: Mapping[str, Any]) -> int:
        prompt = body.get("prompt")
        return len(prompt) if isinstance(prompt, list) else len(json.dumps(body.get("messages")))

    def write(self, writer: asyncio.StreamWriter, event: Mapping[str, Any]) -> None:
        self.send(writer, b"data: " + json.dumps(event).encode() + b"\n\n")

    def send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        size = self.script["piece"] or len(data)
        for begin in range(0, len(data), size):
            piece = data[begin : begin + size]
            writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")


async def main(script: Mapping[str, Any]) -> None:
    timed = TimedServer(script)
    server = await asyncio.start_server(timed.serve, "127.0.0.1", 0, limit=1 << 22)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
