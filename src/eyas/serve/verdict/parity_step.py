"""The verdict's last step: `eyas parity` against the server that has just started, in a process of its own.

Replay needs torch and some seconds of a CPU; `serve` stays light, and nothing that fails there reaches the server.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from eyas.records.atomic import write_text
from eyas.serve.verdict.canary import QUESTIONS

NOT_MADE = "not-made"
_SMALL_TARGET_BYTES = 2 << 30  # of weight files: what a CPU replays in the first minute
_MEMORY_OF_WEIGHTS = 3  # bytes of memory for each byte of weights: float32 from two bytes, and room for states
_LEAST_S = 10.0  # torch alone takes as long to import
_POLL_S = 0.2
_MAX_ANSWER_BYTES = 64 << 20
_MAX_ROWS = 8
_DOCUMENT = "parity.json"
_STOPPED = "the server was stopped"
_WORDS = {
    "equal": "the server accepts what the draft's replay accepts",
    "within-near-ties": "equal within near-ties to what the draft's replay accepts",
    "within-noise": "equal within the noise of sampled drafts",
    "different": "the server does not accept what the draft's replay accepts",
    "too-few-rounds": "too few rounds to compare with the draft's replay",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityFound:
    """What the replay of the server's own answers says.

    Attributes:
        verdict: as `eyas parity` gives it, or "not-made".
        words: one sentence, without the verdict.
        served, replayed: accept lengths; None where nothing was compared.
        document: its `eyas.parity/1` without the texts; {} where nothing was compared.
    """

    verdict: str
    words: str
    served: float | None = None
    replayed: float | None = None
    document: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"replay: {'not made: ' if self.verdict == NOT_MADE else ''}{self.words}"


@dataclass(slots=True, kw_only=True)
class ParityStep:
    """What to replay on, and the process that does it.

    Attributes:
        url, api_key: of the server.
        draft, num_draft_tokens: what it was started with.
        source: words for `eyas parity`: --probe PACK, or --target FOLDER.
        refusal: why there is nothing to run; "" if there is.
        folder: of the run; gets the prompts and the document.
    """

    url: str
    api_key: str | None
    draft: Path
    num_draft_tokens: int
    source: tuple[str, ...] = ()
    refusal: str = ""
    folder: Path
    _process: "subprocess.Popen[bytes] | None" = None
    _is_over: threading.Event = field(default_factory=threading.Event)

    def run(self, seconds: float) -> ParityFound:
        """Run `eyas parity` for at most `seconds`; what keeps it from an answer is in the words."""
        if self.refusal:
            return _not_made(self.refusal)
        if seconds < _LEAST_S:
            return _not_made(f"{seconds:.0f} s of --verdict-seconds are left and it wants at least {_LEAST_S:.0f}")
        out = self.folder / _DOCUMENT
        answer = self.folder / "parity.out"
        with answer.open("wb") as sink, (self.folder / "parity.log").open("wb") as errors:
            # The engine holds the GPUs, so the replay must not even look at them.
            variables = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "EYAS_API_KEY": self.api_key or ""}
            command = self._command(out)
            if self._is_over.is_set():
                return _not_made(_STOPPED)
            nothing = subprocess.DEVNULL
            self._process = subprocess.Popen(command, stdin=nothing, stdout=sink, stderr=errors, env=variables)
        code = self._await(time.monotonic() + seconds)
        if code is None:
            late = f"no answer within {seconds:.0f} s: raise --verdict-seconds"
            return _not_made(_STOPPED if self._is_over.is_set() else late)
        return _read(out if out.exists() else answer, code, errors=self.folder / "parity.log")

    def stop(self) -> None:
        """End it, from whichever thread: the server is going."""
        self._is_over.set()
        process = self._process
        if process is not None and process.poll() is None:
            with suppress(OSError):
                process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(1.0)

    def _command(self, out: Path) -> list[str]:
        words = [sys.executable, "-m", "eyas", "parity", self.url, "--draft", str(self.draft), *self.source]
        if "--target" in self.source:
            prompts = self.folder / "parity-prompts.jsonl"
            rows = [{"messages": [{"role": "user", "content": question}]} for question in QUESTIONS]
            write_text(prompts, "".join(json.dumps(row) + "\n" for row in rows))
            words += ["--data", str(prompts)]
        words += ["-k", str(self.num_draft_tokens), "--max-rows", str(_MAX_ROWS), "--device", "cpu"]
        return [*words, "--out", str(out), "--json"]

    def _await(self, deadline: float) -> int | None:
        """Exit code; None if it was ended."""
        process = self._process
        assert process is not None, "started before"
        while (code := process.poll()) is None:
            if self._is_over.is_set() or time.monotonic() > deadline:
                process.kill()
                process.wait()
                return None
            self._is_over.wait(_POLL_S)
        return code


def source_of(
    probe: Path | None, target_folder: Path | None, *, is_tree: bool, is_quantised: bool
) -> tuple[tuple[str, ...], str]:
    """Words for `eyas parity`, or why it is not run; both empty where neither a pack nor a small target is at hand.

    Args:
        is_tree: the rounds are those of trees.
        is_quantised: the engine quantises the target, so that its states are not those of the folder or the pack.
    """
    if is_tree or is_quantised:
        why = "with --topk above 1 the rounds are those of trees" if is_tree else "the engine quantises the target"
        return (), why if probe is not None else ""
    if probe is not None:
        return ("--probe", str(probe.resolve())), ""
    num_bytes = _weight_bytes(target_folder)
    if not 0 < num_bytes <= _SMALL_TARGET_BYTES:
        return (), ""
    if psutil.virtual_memory().available < _MEMORY_OF_WEIGHTS * num_bytes:
        return (), "there is not enough free memory to run the target once more beside the engine"
    return ("--target", str(target_folder)), ""


def _weight_bytes(folder: Path | None) -> int:
    try:
        return sum(file.stat().st_size for file in folder.glob("*.safetensors")) if folder is not None else 0
    except OSError:
        return 0


def _read(path: Path, code: int, *, errors: Path) -> ParityFound:
    try:
        if path.stat().st_size > _MAX_ANSWER_BYTES:
            raise ValueError(f"{path.name} is larger than {_MAX_ANSWER_BYTES >> 20} MiB")
        found = json.loads(path.read_text(encoding="utf-8"))
        if found.get("schema") == "eyas.error/1":
            return _not_made(f"{found['what']}: {found['why']}")
        return _of_document(found)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        return _not_made(f"`eyas parity` ended with exit code {code} ({type(error).__name__}); see {errors}")


def _of_document(found: Mapping[str, Any]) -> ParityFound:
    served, replayed = float(found["served"]["accept_length"]), float(found["replayed"]["accept_length"])
    words = f"{_WORDS[found['verdict']]}: {served:.3f} served, {replayed:.3f} replayed"
    words += f" over {int(found['replayed']['rounds'])} rounds of its own answers"
    if found["verdict"] == "different":
        position = found["first_different_position"]
        words += f"; the counts part at position {position}" if position else "; the number of rounds differs"
        names = list(dict.fromkeys(str(suspect["name"]) for suspect in found["suspects"]))
        words += f"; as with: {'; '.join(names[:3])}" if names else "; no known fault gives these counts"
    shown = {name: value for name, value in found.items() if name != "rows"}
    return ParityFound(verdict=found["verdict"], words=words, served=served, replayed=replayed, document=shown)


def _not_made(why: str) -> ParityFound:
    return ParityFound(verdict=NOT_MADE, words=why)
