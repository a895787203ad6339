"""Data that the target writes: a folder beside the rows, made once, resumed after a kill, and usable as `--data`.

ROWS.self-chat/conversations.jsonl      or  ROWS.regenerated/1-<name>.jsonl ... one per data file
ROWS.self-chat/written.json             what it was made with, counts; there when all is done
ROWS.self-chat/begun.json, *.completions        what an unfinished run was started with, and its texts
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from math import inf
from pathlib import Path
from typing import Any

from eyas.client.balanced import Servers
from eyas.data.prepare_config import WritingConfig
from eyas.data.rows.exclusion import Exclusion
from eyas.data.rows.mixture import DataFile
from eyas.data.text.target_text import TargetText
from eyas.data.writing.answering import Dialogue, TargetWriter, Writes, writer_fingerprint
from eyas.data.writing.regenerate import regenerate, why_unanswerable
from eyas.data.writing.self_chat import SelfChat
from eyas.data.writing.server_writer import ServerWriter, servers_fingerprint
from eyas.errors import EyasError
from eyas.records import fingerprint
from eyas.records.atomic import OutputExists, atomic_file, write_text
from eyas.records.changes import what_changed
from eyas.records.conversation import Conversation, place_of
from eyas.records.data_files import read_conversations
from eyas.records.json_lines import read_regular
from eyas.talk import Talk

SCHEMA = "eyas.written/1"
DONE, BEGUN = "written.json", "begun.json"
# Raise when the texts written for the same options change; with --regenerate they also follow what is read of data.
_RULES, _RULES_OF_DATA = 1, 2
_NOT_OF_THE_TEXT = ("device", "max_batch", "max_cache_mib", "threads", "url", "concurrency", "answer_timeout")


class WrittenDamaged(EyasError):
    """The files of an earlier run are not as it wrote them."""

    code = "written-damaged"


class NothingWritten(EyasError):
    """No conversation that the target wrote was kept."""

    code = "nothing-written"


@dataclass(frozen=True, slots=True, kw_only=True)
class WritingJob:
    """What is to be written.

    Attributes:
        target: folder.
        servers: what writes; None: the target, loaded here.
        text: of the target.
        config: what and how.
        max_length: longest row.
        files: data whose answers are regenerated; their weights are kept.
        excluded: prompts that must not come out; `exclude_prints` are their files' fingerprints.
        today: for templates that write it; a resumed run keeps its first day.
    """

    target: Path
    servers: Servers | None = None
    text: TargetText
    config: WritingConfig
    max_length: int
    files: Sequence[DataFile]
    excluded: Exclusion
    exclude_prints: Sequence[str]
    today: date

    def made_of(self) -> dict[str, Any]:
        """Everything that decides the texts."""
        return {
            "rules": _RULES_OF_DATA if self.config.regenerate else _RULES,
            "target": self._writer_print(),
            "template": self.text.reader,
            "options": {k: v for k, v in asdict(self.config).items() if k not in _NOT_OF_THE_TEXT},
            "max_length": self.max_length,
            "data": [fingerprint.of_file(file.path) for file in self.files],
            "exclude": list(self.exclude_prints),
        }

    def _writer_print(self) -> str:
        if self.servers is not None:
            return servers_fingerprint(self.target, self.servers)
        return writer_fingerprint(self.target, self.config)

    def writes(self, folder: Path, talk: Talk) -> Writes:
        """What answers requests; `folder` is for its files."""
        if self.servers is not None:
            return ServerWriter(self.target, self.servers, self.text, folder, talk)
        return TargetWriter(self.target, self.text, self.config, folder, talk)


WriterFactory = Callable[[Path], Writes]


def write_data(
    job: WritingJob,
    out: Path,
    talk: Talk,
    *,
    replace: bool = False,
    writer: WriterFactory | None = None,
    is_all: bool = False,
) -> list[DataFile]:
    """The data files that the target writes for `job`; those of an earlier run are used again.

    Args:
        out: the folder of rows that will be made of them; they are written to a folder beside it.
        replace: delete the files of another job there.
        writer: folder for its files -> what answers the requests; `job.writes` by default.
        is_all: the rows have no other source.

    Raises:
        NothingWritten: nothing was kept, and `is_all`.
        OutputExists: the folder holds data of another job.
        WrittenDamaged: files of this job are missing or were changed since.
        UserSlotUnclear: the template does not show where a user turn goes.
        CompletionsOfAnotherRun: an unfinished run with other options left completions there.
    """
    kind = "self-chat" if job.config.self_chat else "regenerated"
    folder = out.with_name(f"{out.name}.{kind}")
    made_of = job.made_of()
    found = _standing(folder, made_of, replace)
    if found is None:
        writes = writer(folder) if writer else job.writes(folder, talk)
        day = _first_day(folder) or job.today
        job.text.template.fix_day(day)
        begun = {**_heading(made_of), "day": day.isoformat()}
        write_text(folder / BEGUN, json.dumps(begun, indent=2, ensure_ascii=False) + "\n")
        found = _self_chat(job, writes, talk) if job.config.self_chat else _regenerated(job, writes, talk)
        _save(folder, found, job, made_of)
        talk.line(f"{folder}: {found.summary()}")
    else:
        talk.line(f"{folder}: there already, {found.summary()}")
    if is_all and _is_empty(folder):
        raise _nothing_written(folder, found, job.config)
    # Weights do not change a text: those of this command count, whatever the command that wrote it had.
    weights = [file.weight for file in job.files] if job.config.regenerate else found.weights.values()
    return [DataFile(path=folder / name, weight=weight) for name, weight in zip(found.weights, weights, strict=True)]


def _is_empty(folder: Path) -> bool:
    return not any(path.stat().st_size for path in folder.glob("*.jsonl"))


def _nothing_written(folder: Path, found: "_Written", config: WritingConfig) -> NothingWritten:
    do = "look at the data: conversations need user turns, within --max-length"
    if config.self_chat:
        longer = f"a --max-user-tokens above {config.max_user_tokens}"
        fewer = f"a --min-user-words below {config.min_user_words}"
        do = f"try {longer}, {fewer}, or more --self-chat; other options may go into the same --out"
    return NothingWritten("the target wrote no conversation that can be kept", str(folder), found.summary(), do)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """Conversations by file name (none when they were there already), each file's weight, and counts."""

    files: Mapping[str, Sequence[Dialogue]]
    weights: Mapping[str, float]
    counts: Mapping[str, int]
    dropped: Mapping[str, int]

    def summary(self) -> str:
        """For a person."""
        c = self.counts
        left_out = ", ".join(f"{count} × {reason}" for reason, count in sorted(self.dropped.items()))
        return (
            f"{c['conversations']} conversations, {c['answers']} answers of {c['answer_tokens']} tokens,"
            f" {c['unfinished']} cut off; left out: {left_out or 'nothing'}"
        )


def _self_chat(job: WritingJob, writes: Writes, talk: Talk) -> _Written:
    dialogues, dropped = SelfChat(job.text, writes, job.config, job.max_length, job.excluded).run(talk)
    return _written({"conversations.jsonl": dialogues}, [1.0], dropped)


def _regenerated(job: WritingJob, writes: Writes, talk: Talk) -> _Written:
    dropped, usable = Counter[str](), list[Conversation]()
    for conversation in read_conversations([file.path for file in job.files]):
        reason = why_unanswerable(conversation)
        if reason is None and job.excluded.holds(conversation):
            reason = job.excluded.reason
        if reason is None:
            usable.append(conversation)
        else:
            dropped[reason] += 1
            if dropped[reason] == 1:
                where = place_of(conversation, job.files[conversation.source].path)
                talk.line(f"left out: {reason} (first: {where})")
    by_file, more = regenerate(usable, job.text, writes, job.config, job.max_length, talk)
    by_file += [[] for _ in range(len(job.files) - len(by_file))]
    names = [f"{i + 1}-{file.path.name.split('.')[0]}.jsonl" for i, file in enumerate(job.files)]
    files = dict(zip(names, by_file, strict=True))
    return _written(files, [file.weight for file in job.files], dropped + Counter(more))


def _written(files: Mapping[str, Sequence[Dialogue]], weights: Sequence[float], dropped: Mapping[str, int]) -> _Written:
    dialogues = [dialogue for of_file in files.values() for dialogue in of_file]
    counts = {
        "conversations": len(dialogues),
        "answers": sum(d.num_answers for d in dialogues),
        "answer_tokens": sum(end - begin for d in dialogues for row in d.rows for begin, end in row.answers),
        "unfinished": sum(not d.is_finished for d in dialogues),
    }
    return _Written(files=files, weights=dict(zip(files, weights, strict=True)), counts=counts, dropped=dict(dropped))


def _heading(made_of: Mapping[str, Any]) -> dict[str, Any]:
    return {"schema": SCHEMA, "fingerprint": fingerprint.of_json(list(made_of.values())), "made_of": dict(made_of)}


def _save(folder: Path, written: _Written, job: WritingJob, made_of: Mapping[str, Any]) -> None:
    """Write the files, then the document that says that they are whole; then delete what a rerun would resume from."""
    for name, dialogues in written.files.items():
        with atomic_file(folder / name) as file:
            for dialogue in dialogues:
                record = dialogue.as_record(job.text.reader)
                file.write((json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n").encode())
    document = {
        **_heading(made_of),
        "options": asdict(job.config),
        "weights": written.weights,
        "counts": written.counts,
        "dropped": written.dropped,
    }
    write_text(folder / DONE, json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    for path in [*folder.glob("*.completions"), folder / BEGUN]:
        path.unlink()


def _standing(folder: Path, made_of: Mapping[str, Any], replace: bool) -> _Written | None:
    """What an earlier run of the same job finished; None when there is work to do or to resume."""
    done, begun = folder / DONE, folder / BEGUN
    path, is_empty = (done, _is_empty(folder)) if done.exists() else (begun, False)
    has_texts = path == done or any(folder.glob("*.completions"))  # a run that failed at once does not block another
    if path.exists() and has_texts:
        try:
            document = _document(path)
            changed = what_changed(document.get("made_of"), made_of)
            if document["fingerprint"] == _heading(made_of)["fingerprint"]:
                return _whole(document, folder) if path == done else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if not replace:
                raise WrittenDamaged(
                    f"{folder} is damaged",
                    str(path),
                    f"{type(error).__name__}: {error}",
                    "give --replace to write it again, or choose another --out",
                ) from error
        else:
            if not replace and not is_empty:
                raise OutputExists(
                    f"{folder} holds {'other data' if path == done else 'an unfinished run of another job'}",
                    str(path),
                    changed,
                    ("use it with --data, " if path == done else "run the former command to resume it, ")
                    + "choose another --out, or give --replace",
                )
    if (replace or is_empty) and folder.is_dir():
        for old in [*folder.glob("*.completions"), *folder.glob("*.jsonl"), done, begun]:
            old.unlink(missing_ok=True)
    return None


def _first_day(folder: Path) -> date | None:
    """The day on which the run to be resumed was begun; None without one, or where its file does not say."""
    if not (folder / BEGUN).exists() or not any(folder.glob("*.completions")):
        return None
    try:
        return date.fromisoformat(_document(folder / BEGUN)["day"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _document(path: Path) -> Mapping[str, Any]:
    document = json.loads(read_regular(path))
    if not isinstance(document, dict) or document["schema"] != SCHEMA:
        raise ValueError(f"it is not an object with the schema {SCHEMA}")
    return document


def _whole(document: Mapping[str, Any], folder: Path) -> _Written:
    """What a document of `_save` says, where its files are there; ValueError, KeyError or TypeError otherwise."""
    weights, counts, dropped = (dict(document[name]) for name in ("weights", "counts", "dropped"))
    if not weights or not all(type(w) in (int, float) and 0 < w < inf for w in weights.values()):
        raise ValueError("`weights` names no files with a number above 0 each")
    if not all(type(n) is int for n in (*counts.values(), *dropped.values())):
        raise ValueError("`counts` or `dropped` holds something other than whole numbers")
    missing = [name for name in weights if "/" in name or not (folder / name).is_file()]
    if missing:
        raise ValueError(f"{', '.join(missing)}: not there")
    written = _Written(files={}, weights=weights, counts=counts, dropped=dropped)
    written.summary()  # KeyError where a count is missing
    return written
