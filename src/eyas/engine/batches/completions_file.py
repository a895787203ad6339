"""Answers on disk, one JSON line each, appended as they come: a killed run resumes where it stopped."""

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, Any

from eyas.engine.batches.generator import Completion, Request
from eyas.errors import EyasError
from eyas.records import fingerprint
from eyas.talk import Talk

SCHEMA = "eyas.completions/1"
_SYNC_EVERY = 64  # answers between two fsyncs: the most that a power cut can lose


class CompletionsOfAnotherRun(EyasError):
    """The file holds answers of other requests or of another target."""

    code = "completions-of-another-run"


class CompletionsDamaged(EyasError):
    """A complete line of the file is not an answer."""

    code = "completions-damaged"


class CompletionsInUse(EyasError):
    """Another process is writing the file."""

    code = "completions-in-use"


def run_fingerprint(target: str, requests: Sequence[Request]) -> str:
    """Fingerprint of everything that decides the answers: the target and all requests."""

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
        CompletionsDamaged: a line is not one that eyas writes.
        CompletionsInUse: another process is at it.
    """
    assert len({r.id for r in requests}) == len(requests), "requests are told apart by their ids"
    print_ = run_fingerprint(target, requests)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as file:
        _take(file, path)
        done = _read(path, print_)
        if done:
            talk.line(f"{path}: {len(done)} of {len(requests)} answers are there; resuming with the rest")
        file.seek(0, os.SEEK_END)
        if file.tell() == 0:
            file.write(_line({"schema": SCHEMA, "run": print_, "num_requests": len(requests)}))
        for number, completion in enumerate(run([r for r in requests if r.id not in done]), start=1):
            file.write(_line(_record(completion)))
            file.flush()
            if number % _SYNC_EVERY == 0:
                os.fsync(file.fileno())
            done[completion.id] = completion
        file.flush()
        os.fsync(file.fileno())
    return done


def _take(file: IO[bytes], path: Path) -> None:
    """Keep other processes out until `file` is closed: two of them would write two heads and every answer twice."""
    with contextlib.suppress(OSError):  # a file system without locks
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CompletionsInUse(
                f"{path} is being written",
                str(path),
                "another process holds it: the same command runs already",
                "wait until it is done, or choose another output",
            ) from None


def _read(path: Path, print_: str) -> dict[str, Completion]:
    """Whole lines of an earlier run; a line cut short by a kill is removed from the file."""
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        os.truncate(path, len(whole))
    lines = whole.splitlines()
    if not lines:
        return {}
    head = _parsed(lines[0], path, 1)
    if head.get("schema") != SCHEMA or head.get("run") != print_:
        raise CompletionsOfAnotherRun(
            f"{path} holds answers of another run",
            str(path),
            "its requests, their settings or the target differ from the present ones: mixing them would be silent",
            "choose another file, or delete this one",
        )
    found = [_completion(_parsed(line, path, number), path, number) for number, line in enumerate(lines[1:], start=2)]
    return {completion.id: completion for completion in found}


def _parsed(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, number, f"{type(error).__name__}: {error}") from error
    if not isinstance(record, dict):
        raise _damaged(path, number, f"a JSON {type(record).__name__}, not an object")
    return record


def _record(completion: Completion) -> dict[str, Any]:
    text = {} if completion.text is None else {"text": completion.text}
    return {"id": completion.id, "ids": list(completion.ids), "finish": completion.finish, **text}


def _completion(record: dict[str, Any], path: Path, number: int) -> Completion:
    name, ids, finish, text = (record.get(key) for key in ("id", "ids", "finish", "text"))
    are_ids = isinstance(ids, list) and all(type(i) is int and 0 <= i < 2**31 for i in ids)
    is_known = finish == "refused" or (bool(ids) and finish in ("stop", "length"))
    if not (isinstance(name, str) and are_ids and is_known and isinstance(text, str | None)):
        raise _damaged(path, number, "it wants an `id`, `ids` (one token id or more) and a `finish` of stop or length")
    return Completion(id=name, ids=tuple(ids or ()), finish=record["finish"], text=text)


def _damaged(path: Path, number: int, why: str) -> CompletionsDamaged:
    return CompletionsDamaged(
        f"line {number} of {path.name} is not an answer",
        f"{path}:{number}",
        why,
        "delete the file to write all answers again, or delete this line and those after it to keep the earlier ones",
    )


def _line(document: dict[str, Any]) -> bytes:
    return (json.dumps(document, ensure_ascii=False) + "\n").encode()
