"""The turns of an unfinished run, one a line beside its output: a run that was interrupted resumes after the last."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eyas.bench.served.load import Asked, ClientLoad, ServedTurn
from eyas.client.server_api import RequestCounts, ServerAnswer
from eyas.decode.accept_length import Acceptance
from eyas.records import fingerprint
from eyas.records.atomic import write_failed
from eyas.talk import Talk, counted

_BROKEN = (ValueError, TypeError, KeyError, AttributeError, AssertionError, RecursionError)
_MOST_BYTES = 4 << 30


class Journal:
    """Turns by name. `path` None = nothing is kept."""

    def __init__(self, path: Path | None, fingerprint: str, talk: Talk) -> None:
        """Read what an earlier run with the same `fingerprint` left; another run's is written over, and said."""
        self._path = path
        self._turns: dict[str, tuple[ServedTurn, Acceptance | None]] = {}
        if path is None:
            return
        lines = _lines(path)
        if lines and lines[0].get("fingerprint") == fingerprint:
            for line in lines[1:]:
                self._turns[str(line["name"])] = (_turn(line["turn"]), _acceptance(line["counted"]))
            talk.note(f"resuming after {counted(len(self._turns), 'turn')} of an earlier run: {path}")
            return
        if lines:
            talk.note(f"{path} is of another run: its turns are measured again")
        self._append({"fingerprint": fingerprint}, mode="w")

    def get(self, name: str) -> tuple[ServedTurn, Acceptance | None] | None:
        """A turn that was measured before."""
        return self._turns.get(name)

    def add(self, name: str, turn: ServedTurn, counted: Acceptance | None) -> None:
        """Keep a turn.

        Raises:
            WriteFailed.
        """
        self._turns[name] = (turn, counted)
        line = {"name": name, "turn": asdict(turn), "counted": None if counted is None else asdict(counted)}
        self._append({**line, "content": _content(line)})

    def remove(self) -> None:
        """After the record was written."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _append(self, line: Mapping[str, Any], mode: str = "a") -> None:
        if self._path is None:
            return
        try:
            with open(self._path, mode, encoding="utf-8", errors="backslashreplace") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise write_failed(self._path, error) from error


def _lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines; one that a kill has torn, or that is not as it was written, ends the list and is cut off."""
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return []
        data = path.read_bytes()
    except OSError:
        return []
    found, end = [], 0
    for line in data.splitlines(keepends=True):
        try:
            value = json.loads(line)
            if "name" in value:
                if value.pop("content", None) != _content(value):
                    break
                _turn(value["turn"]), _acceptance(value["counted"])
        except _BROKEN:
            break
        if not line.endswith(b"\n") or not isinstance(value, dict):
            break
        found.append(value)
        end += len(line)
    if end < len(data) and found:
        with open(path, "r+b") as file:
            file.truncate(end)
    return found


def _content(line: Mapping[str, Any]) -> str:
    return fingerprint.of_bytes(json.dumps(line, sort_keys=True).encode())


def _turn(fields: Mapping[str, Any]) -> ServedTurn:
    asked = tuple(Asked(**{**one, "answer": _answer(one["answer"])}) for one in fields["asked"])
    return ServedTurn(seconds=float(fields["seconds"]), asked=asked, client=ClientLoad(**fields["client"]))


def _answer(fields: Mapping[str, Any]) -> ServerAnswer:
    counts = fields["counts"]
    made = RequestCounts(
        acceptance=_acceptance(counts["acceptance"]), notes=tuple(counts["notes"]), dp_rank=counts["dp_rank"]
    )
    ids = fields["output_ids"]
    times, tokens = tuple(fields["chunk_times_s"]), tuple(fields["chunk_tokens"])
    rest = {"output_ids": None if ids is None else tuple(ids), "chunk_times_s": times, "chunk_tokens": tokens}
    return ServerAnswer(**{**fields, **rest, "counts": made})


def _acceptance(fields: Mapping[str, Any] | None) -> Acceptance | None:
    if fields is None:
        return None
    return Acceptance(fields["rounds"], tuple(fields["accepted_at"]), tuple(fields["proposed_at"]))
