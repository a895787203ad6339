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
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas.errors import ExitCode, EyasError
from eyas.records.atomic import write_failed, write_text

REDACTED = "(redacted)"
_SECRET_NAME = re.compile(r"(^|_)(API_?KEYS?|KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|AUTH)(_|$)", re.IGNORECASE)
_SECRET_FLAG = re.compile(r"^--[a-z-]*(api-key|token|secret|password)$")
_URL_LOGIN = re.compile(r"(?<=://)[^/@\s]+(?=@)")


class RunFolderUnreadable(EyasError):
    """A folder given as a run is none."""

    code = "run-folder-unreadable"
    exit_code = ExitCode.USAGE


def redact_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with every secret's value replaced: names like *_TOKEN, *_KEY; logins inside URLs."""
    return {
        name: REDACTED if _SECRET_NAME.search(name) and value else _URL_LOGIN.sub(REDACTED, value)
        for name, value in sorted(environment.items())
    }


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
            out.append(_URL_LOGIN.sub(REDACTED, word))
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
        write_text(self.launch_path, json.dumps(document, indent=1, ensure_ascii=False) + "\n")

    def read_launch(self) -> dict[str, Any]:
        """launch.json, or an object without command if it was never written."""
        try:
            document = json.loads(self.launch_path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {"schema": "eyas.launch/1", "command": [], "environment": {}}
        return document if isinstance(document, dict) else {}

    def write_document(self, name: str, document: Mapping[str, Any]) -> None:
        """A JSON object as `name` (e.g. "timeline.json"), atomically.

        Raises:
            WriteFailed: the disk is full.
        """
        write_text(self.path / name, json.dumps(document, ensure_ascii=False) + "\n")

    def append_event(self, document: Mapping[str, Any]) -> None:
        """One line more in events.jsonl.

        Raises:
            WriteFailed: the disk is full.
        """
        line = json.dumps(document, ensure_ascii=False) + "\n"
        try:
            descriptor = os.open(self.events_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
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
        write_text(path, text)
        return path
