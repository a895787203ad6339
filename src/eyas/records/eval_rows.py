"""The rows that `eyas eval` reads: recorded continuations of a target as token ids, or prompts still to be answered.

One object a line, of one of these kinds:
    {"prompt_ids": [...], "response_ids": [...]}   the target's own greedy continuation
    {"messages": [{"role": ..., "content": ...}]}  a conversation; what follows its last user turn is left out
    {"turns": ["...", ...]}                        a benchmark prompt; only its first turn is asked
Conversations may have every form that `eyas prepare` reads (`record_forms`); their `tools` go to the chat template.
`id` names a row (default: file and line), `set` what it is counted under (default: the file's name without suffix).
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eyas.errors import EyasError
from eyas.records.atomic import write_text
from eyas.records.conversation import why_no_prompt
from eyas.records.data_files import file_records
from eyas.records.json_lines import RecordBroken
from eyas.records.record_forms import FormUnknown, conversation_of
from eyas.records.rows import HELD_OUT, MANIFEST
from eyas.talk import Talk

_FORM = '{"prompt_ids": [...], "response_ids": [...]}, {"messages": [...]} or {"turns": [...]}'


class EvalDataMissing(EyasError):
    """A file with evaluation rows is not there."""

    code = "eval-data-missing"


class EvalRowMalformed(EyasError):
    """A line is not a row of a known kind."""

    code = "eval-row-malformed"


class EvalDataEmpty(EyasError):
    """The files hold no rows."""

    code = "eval-data-empty"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRow:
    """A recorded continuation.

    Attributes:
        id: of the row, unique enough to find it again.
        set: benchmark or kind of text that it is counted under.
        prompt_ids: target token ids, chat template applied; at least one.
        response_ids: the target's own continuation, at most with its end-of-text id last; at least one.
    """

    id: str
    set: str
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]

    def as_document(self) -> dict[str, Any]:
        """The row as a JSON object."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalPrompt:
    """A prompt to be answered by the target.

    Attributes:
        id, set: as in `EvalRow`.
        messages: ends with a user turn.
        tools: descriptions of tools for the chat template; None for none.
        had_answer: the source's own answer follows, of unknown origin; ignored.
    """

    id: str
    set: str
    messages: tuple[Mapping[str, Any], ...]
    tools: Any = None
    had_answer: bool = False


def read_eval_rows(
    paths: Sequence[Path], max_rows: int | None = None, *, flag: str = "--data", talk: Talk | None = None
) -> list[EvalRow | EvalPrompt]:
    """The first `max_rows` rows of all files together, in order.

    Args:
        paths: files (`files_of` makes them of what a user names).
        flag: the option that names them.
        talk: told of records left out because they cannot be asked (no user turn, content that is not text).

    Raises:
        EvalDataMissing: a path is not a file.
        EvalRowMalformed: a line is of no known kind, or cannot be asked and there is no `talk` to tell of it; the
            message says file and line.
        EvalDataEmpty: no row is left.
    """
    _require_files(paths, flag)
    rows: list[EvalRow | EvalPrompt] = []
    left_out, first = Counter[str](), dict[str, str]()
    for path in paths:
        try:
            for line, record in file_records(path):
                if max_rows is not None and len(rows) >= max_rows:
                    break
                row = _row(record, path, line)
                if not isinstance(row, str):
                    rows.append(row)
                elif talk is None:
                    raise _malformed(path, line, row)
                else:
                    left_out[row] += 1
                    first.setdefault(row, f"{path}:{line}")
        except RecordBroken as error:
            raise _malformed(path, error.line, str(error)) from error
    reasons = [f"{count} × {reason} (first: {first[reason]})" for reason, count in left_out.items()]
    if reasons and talk is not None:
        talk.note(f"rows left out: {', '.join(reasons)}")
    if not rows:
        why = ", ".join(reasons) or "every line is blank"
        raise EvalDataEmpty("there are no rows to evaluate", ", ".join(map(str, paths)), why, f"give JSONL: {_FORM}")
    return rows


def require_rounds(rows: Sequence[EvalRow], where: str) -> None:
    """Raise `EvalDataEmpty` where no row has a second answer token: the prefill gives the first, rounds the others."""
    if all(len(row.response_ids) < 2 for row in rows):
        raise EvalDataEmpty(
            "there is no round to replay",
            where,
            f"none of {len(rows)} answers has a second token, and the first one is the prefill's",
            "give answers of two tokens or more",
        )


def files_of(paths: Sequence[Path], *, flag: str = "--data") -> list[Path]:
    """`paths` with each folder of `eyas prepare` replaced by its held-out rows.

    Args:
        flag: the option that names them.

    Raises:
        EvalDataMissing: a folder has none, or a path is not a file.
    """
    files = [path / HELD_OUT if path.is_dir() else path for path in paths]
    for path, file in zip(paths, files, strict=True):
        if path != file and not file.is_file():
            is_prepared = (path / MANIFEST).is_file()
            raise EvalDataMissing(
                f"{path} is a folder without {HELD_OUT}",
                f"{flag} {path}",
                "its rows were all meant for training" if is_prepared else "`eyas prepare` did not write it",
                "make the rows with `eyas prepare --held-out N`, or give a JSONL file",
            )
    _require_files(files, flag)
    return files


def _require_files(paths: Sequence[Path], flag: str) -> None:
    for path in paths:
        if not path.is_file():
            raise EvalDataMissing(
                f"there is no file {path}",
                f"{flag} {path}",
                "it does not exist or is not a regular file",
                f"give JSONL: {_FORM}",
            )


def write_eval_rows(rows: Sequence[EvalRow], path: Path) -> None:
    """Write rows as JSONL, atomically."""
    write_text(path, "".join(json.dumps(row.as_document(), ensure_ascii=False) + "\n" for row in rows))


def _row(record: Any, path: Path, line: int) -> EvalRow | EvalPrompt | str:
    """A row of the file, or the reason to leave it out if it is readable but cannot be asked."""
    if not isinstance(record, dict):
        raise _malformed(path, line, f"the line holds a JSON {type(record).__name__}, not an object")
    stem = path.name.split(".")[0]
    names = {"id": _name(record, "id", path, line) or f"{stem}:{line}", "set": _name(record, "set", path, line) or stem}
    if "prompt_ids" in record or "response_ids" in record:
        prompt, response = (_ids(record, key, path, line) for key in ("prompt_ids", "response_ids"))
        return EvalRow(**names, prompt_ids=prompt, response_ids=response)
    try:
        conversation = conversation_of(record, 0, line)
    except FormUnknown as error:
        raise _malformed(path, line, str(error)) from error
    messages = conversation.messages
    asked = [number for number, message in enumerate(messages) if message.get("role") == "user"]
    if not asked:
        return "no user turn" if messages else "no messages"
    # Of a benchmark's `turns` the first is asked: the others refer to its answer.
    prompt_turns = messages[: (asked[0] if conversation.is_prompt else asked[-1]) + 1]
    if (reason := why_no_prompt(prompt_turns)) is not None:
        return reason
    had_answer = any(message.get("role") == "assistant" for message in messages[len(prompt_turns) :])
    return EvalPrompt(**names, messages=tuple(prompt_turns), tools=conversation.tools, had_answer=had_answer)


def _name(record: Mapping[str, Any], key: str, path: Path, line: int) -> str | None:
    """The row's own `id` or `set`; None where it has none."""
    name = record.get(key)
    if name is not None and type(name) not in (str, int, float):
        raise _malformed(path, line, f"`{key}` is neither a text nor a number")
    return None if name is None else str(name)


def _ids(record: Mapping[str, Any], key: str, path: Path, line: int) -> tuple[int, ...]:
    ids = record.get(key)
    if not isinstance(ids, list) or not ids or not all(type(i) is int and i >= 0 for i in ids):
        raise _malformed(path, line, f"`{key}` is not a list of at least one token id")
    return tuple(ids)


def _malformed(path: Path, line: int, why: str) -> EvalRowMalformed:
    return EvalRowMalformed(
        f"line {line} of {path.name} is not a row to evaluate",
        f"{path}:{line}",
        why,
        f"correct the line; one JSON object a line: {_FORM}",
    )
