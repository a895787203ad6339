"""The server: HTTP in front, one scheduler process behind it."""

import argparse
import json
import multiprocessing
import os
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CHUNK = int(os.environ.get("FAKE_CHUNK", "16"))


def scheduler(folder: str, asked: Any, answered: Any) -> None:
    """Prefill what was asked in chunks, several requests a pass, the newest cut where the pass is full."""
    import torch

    torch.set_num_threads(1)
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode
    from sglang.srt.model_executor.model_runner import ModelRunner

    runner = ModelRunner(folder)
    runner.load_model()
    answered.put(("ready", 0))
    waiting: list[list[Any]] = []  # [rid, ids, tokens done]
    while True:
        try:
            while True:
                waiting.append([*asked.get(timeout=None if not waiting else 0), 0])
        except queue.Empty:
            pass
        room, batch = CHUNK, []
        for entry in waiting:
            count = min(room, len(entry[1]) - entry[2])
            if count:
                batch.append((entry, count))
                room -= count
        made = ForwardBatch(
            forward_mode=ForwardMode.EXTEND,
            input_ids=torch.tensor([i for e, n in batch for i in e[1][e[2] : e[2] + n]]),
            rids=[entry[0] for entry, _ in batch],
            extend_seq_lens_cpu=[count for _, count in batch],
            extend_prefix_lens_cpu=[entry[2] for entry, _ in batch],
        )
        output = runner.forward_extend(made)
        assert output.hidden_states is None, "a reply would hold states"
        for (entry, count), logits in zip(batch, output.next_token_logits, strict=True):
            entry[2] += count
            if entry[2] == len(entry[1]):
                waiting.remove(entry)
                runner.model.caches.pop(entry[0])
                answered.put((entry[0], int(logits.argmax())))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=30000)
    arguments, _ = parser.parse_known_args()
    context = multiprocessing.get_context("spawn")
    asked, answered = context.Queue(), context.Queue()
    child = context.Process(target=scheduler, args=(arguments.model_path, asked, answered), daemon=True)
    child.start()
    assert answered.get(timeout=120)[0] == "ready"
    results: dict[str, int] = {}
    changed = threading.Condition()

    def listen() -> None:
        while True:
            rid, token = answered.get()
            with changed:
                results[rid] = token
                changed.notify_all()

    def watch() -> None:
        child.join()
        os._exit(1)

    threading.Thread(target=listen, daemon=True).start()
    threading.Thread(target=watch, daemon=True).start()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            owner = {"data": [{"id": arguments.model_path, "owned_by": "sglang"}]}
            self.reply(owner if self.path == "/v1/models" else {"version": "0.5.15.post1"})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.put((body["rid"], body["input_ids"]))
            with changed:
                changed.wait_for(lambda: body["rid"] in results)
            self.reply({"output_ids": [results.pop(body["rid"])]})

        def reply(self, document: dict[str, Any]) -> None:
            data = json.dumps(document).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            return

    print("The server is fired up and ready to roll!", flush=True)
    ThreadingHTTPServer.request_queue_size = 128
    ThreadingHTTPServer((arguments.host, arguments.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
