"""The folder of one launch: command, redacted environment, raw log, events, stacks, timeline. Never overwritten.

RUNS/20261129-140301-sglang-1/
  launch.json      schema eyas.launch/1: command, environment (secrets redacted), engine, version, notes
  engine.log       stdout and stderr of the engine as they came, \\r included
  events.jsonl     one event a line (state.Event)
  stacks-1.txt     stacks of every rank, first and second sample
  timeline.json    schema eyas.timeline/1, written at the end (and on every change of state)
  last.json        the last snapshot
  verdict.json     schema eyas.verdict/1, once the first minute is judged
  outcome.json     schema eyas.serve/1, written at the end
"""

import json
import os
import re
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas.errors import ExitCode, EyasError
from eyas.records.atomic import write_failed, write_text
from eyas.talk import printable

REDACTED = "(redacted)"
_SECRET_NAME = re.compile(
    r"(^|_)(KEYS?|API_?KEYS?|TOKENS?|PASSWD|PASS|AUTH)(_|$)|_PWD(_|$)"
    r"|PASSWORD|PASSPHRASE|SECRET|CREDENTIAL|AUTHORIZATION|COOKIE|ACCESS_?KEY|BEARER",
    re.IGNORECASE,
)
_SECRET_FLAG = re.compile(r"^--[a-z-]*(key|token|secret|password|passphrase|authorization|cookie)$")
_LOGIN = re.compile(r"(?<=://)[^/@\s]{1,500}(?=@)")
_QUERY = re.compile(r"(?i)([?&][\w-]{0,40}(?:token|key|secret|password|signature|auth)=)[^&\s#]+")
_BEARER = re.compile(r"(?i)\b((?:bearer|basic)\s+)\S+")
_MAX_BYTES = 64 << 20  # of a file that is read back


class RunFolderUnreadable(EyasError):
    """A folder given as a run is not a run folder."""

    code = "run-folder-unreadable"
    exit_code = ExitCode.USAGE


def redact_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with its secrets replaced: values of names like *_TOKEN, *_KEY, and those inside other values."""
    return {
        name: REDACTED if _SECRET_NAME.search(name) and value else redact_text(value)
        for name, value in sorted(environment.items())
    }


def redact_text(text: str) -> str:
    """`text` without logins in URLs, `?token=` and its like, and what follows "Bearer"."""
    text = _QUERY.sub(rf"\1{REDACTED}", _LOGIN.sub(REDACTED, text))
    return _BEARER.sub(rf"\1{REDACTED}", text)


def redact_command(command: Sequence[str]) -> list[str]:
    """The command with the values of --api-key and the like replaced."""
    out: list[str] = []
    hide_next = False
    for word in command:
        flag, equals, _ = word.partition("=")
        if hide_next and not word.startswith("--"):
            out.append(REDACTED)
        elif equals and _SECRET_FLAG.match(flag):
            out.append(f"{flag}={REDACTED}")
        else:
            out.append(redact_text(word))
        hide_next = bool(_SECRET_FLAG.match(word))
    return out


@dataclass(frozen=True, slots=True)
class RunFolder:
    """One launch's folder; `create` makes a fresh one, `open` reads one."""

    path: Path

    @classmethod
    def create(cls, runs: Path, *, engine: str, now: float | None = None) -> "RunFolder":
        """A new folder below `runs`, named by UTC time, engine and a number that makes it unique.

        Raises:
            WriteFailed: `runs` cannot be written or the disk is full.
        """
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(time.time() if now is None else now))
        number = 1
        try:
            runs.mkdir(parents=True, exist_ok=True)
            while True:
                path = runs / f"{stamp}-{engine}-{number}"
                try:
                    path.mkdir()
                    return cls(path)
                except FileExistsError:
                    number += 1
        except OSError as error:
            raise write_failed(runs, error) from error

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """An existing run.

        Raises:
            RunFolderUnreadable: no launch.json and no engine.log in it.
        """
        folder = cls(path)
        if not folder.launch_path.exists() and not folder.log_path.exists():
            raise RunFolderUnreadable(
                f"{path} is not the folder of a run",
                str(path),
                "it holds neither launch.json nor engine.log",
                "give a folder that `eyas serve` made (it prints its name first), or a log file",
            )
        return folder

    @property
    def launch_path(self) -> Path:
        """launch.json."""
        return self.path / "launch.json"

    @property
    def log_path(self) -> Path:
        """engine.log: raw bytes of stdout and stderr."""
        return self.path / "engine.log"

    @property
    def events_path(self) -> Path:
        """events.jsonl."""
        return self.path / "events.jsonl"

    def write_launch(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        engine: str,
        version: str | None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Write launch.json, secrets redacted. `environment` is only what was set or passed on purpose.

        Raises:
            WriteFailed: the disk is full.
        """
        document = {
            "schema": "eyas.launch/1",
            "at": time.time(),
            "engine": engine,
            "version": version,
            "command": redact_command(command),
            "environment": redact_environment(environment),
            **(extra or {}),
        }
        write_text(self.launch_path, printable(json.dumps(document, indent=1, ensure_ascii=False)) + "\n")

    def read_launch(self) -> dict[str, Any]:
        """launch.json, or an object without command if it was never written."""
        return read_document(self.launch_path) or {"schema": "eyas.launch/1", "command": [], "environment": {}}

    def write_document(self, name: str, document: Mapping[str, Any]) -> None:
        """A JSON object as `name` (e.g. "timeline.json"), atomically.

        Raises:
            WriteFailed: the disk is full.
        """
        write_text(self.path / name, printable(json.dumps(document, ensure_ascii=False)) + "\n")

    def append_event(self, document: Mapping[str, Any]) -> None:
        """One line more in events.jsonl.

        Raises:
            WriteFailed: the disk is full.
        """
        line = printable(json.dumps(document, ensure_ascii=False)) + "\n"
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK
            descriptor = os.open(self.events_path, flags, 0o644)
            try:
                os.write(descriptor, line.encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            raise write_failed(self.events_path, error) from error

    def write_stacks(self, text: str) -> Path:
        """A new stacks-N.txt.

        Raises:
            WriteFailed: the disk is full.
        """
        number = 1
        while (path := self.path / f"stacks-{number}.txt").exists():
            number += 1
        write_text(path, printable(text))
        return path


def read_document(path: Path) -> dict[str, Any]:
    """The JSON object of a file; {} where there is none, or something else is in its place (a pipe is not awaited)."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            is_ordinary = stat.S_ISREG(status.st_mode) and status.st_size <= _MAX_BYTES
            document = json.loads(file.read()) if is_ordinary else None
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
