"""Answers on disk, one JSON line each, appended as they come: a run that was killed goes on where it stopped."""

import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from eyas.engine.batch import Completion, Request
from eyas.errors import EyasError
from eyas.records import fingerprint
from eyas.talk import Talk

SCHEMA = "eyas.completions/1"
_SYNC_EVERY = 64  # answers between two fsyncs: at most so many are lost to a power cut


class CompletionsOfAnotherRun(EyasError):
    """The file holds answers of other requests or of another target."""

    code = "completions-of-another-run"


def run_fingerprint(target: str, requests: Sequence[Request]) -> str:
    """Of everything that decides the answers: the target and all requests."""

    def described(request: Request) -> list[Any]:
        s = request.sampling
        settings = [s.temperature, s.top_k, s.top_p, s.min_p, s.seed, request.max_new_tokens]
        return [request.id, list(request.prompt_ids), settings, sorted(request.stop_ids), list(request.stop_strings)]

    return fingerprint.of_json([target, [described(request) for request in requests]])


def complete_to_file(
    path: Path,
    requests: Sequence[Request],
    run: Callable[[Sequence[Request]], Iterable[Completion]],
    *,
    target: str,
    talk: Talk,
) -> dict[str, Completion]:
    """Answer what `path` does not hold yet, appending to it; all answers by request id.

    Args:
        path: JSONL; made if it is not there.
        requests: with different ids.
        run: answers requests, in any order.
        target: fingerprint of the target.
        talk: told of answers that were there.

    Raises:
        CompletionsOfAnotherRun: the file was begun for other requests, settings or another target.
    """
    assert len({r.id for r in requests}) == len(requests), "requests are told apart by their ids"
    print_ = run_fingerprint(target, requests)
    done = _read(path, print_)
    if done:
        talk.line(f"{path}: {len(done)} of {len(requests)} answers are there, going on with the others")
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as file:
        if file.tell() == 0:
            file.write(_line({"schema": SCHEMA, "run": print_, "num_requests": len(requests)}))
        for number, completion in enumerate(run([r for r in requests if r.id not in done]), start=1):
            file.write(_line({"id": completion.id, "ids": list(completion.ids), "finish": completion.finish}))
            file.flush()
            if number % _SYNC_EVERY == 0:
                os.fsync(file.fileno())
            done[completion.id] = completion
        file.flush()
        os.fsync(file.fileno())
    return done


def _read(path: Path, print_: str) -> dict[str, Completion]:
    """Whole lines of an earlier run; a line cut short by a kill is removed from the file."""
    if not path.exists():
        return {}
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        os.truncate(path, len(whole))
    lines = [json.loads(line) for line in whole.splitlines()]
    if not lines:
        return {}
    if lines[0].get("schema") != SCHEMA or lines[0].get("run") != print_:
        raise CompletionsOfAnotherRun(
            f"{path} holds answers of another run",
            str(path),
            "its requests, their settings or the target differ from the present ones: mixing them would be silent",
            "choose another file, or delete this one",
        )
    return {r["id"]: Completion(id=r["id"], ids=tuple(r["ids"]), finish=r["finish"]) for r in lines[1:]}


def _line(document: dict[str, Any]) -> bytes:
    return (json.dumps(document, ensure_ascii=False) + "\n").encode()
