"""Data that the target writes: a folder beside the rows, made once, resumed after a kill, and usable as `--data`.

ROWS.self-chat/conversations.jsonl      or  ROWS.regenerated/1-<name>.jsonl ... one per data file
ROWS.self-chat/written.json             what it was made with, counts; there when all is done
ROWS.self-chat/*.completions            texts of a run that is not done yet
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Any

from eyas.data.conversation import Conversation
from eyas.data.dialogue import Dialogue
from eyas.data.exclusion import Exclusion
from eyas.data.mixture import DataFile
from eyas.data.read_conversations import read_conversations
from eyas.data.regenerate import regenerate, why_unanswerable
from eyas.data.self_chat import SelfChat
from eyas.data.target_text import TargetText
from eyas.data.target_writer import TargetWriter, Writes, writer_fingerprint
from eyas.data.writing_config import WritingConfig
from eyas.errors import EyasError
from eyas.records import fingerprint
from eyas.records.atomic import OutputExists, atomic_file, write_text
from eyas.talk import Talk

SCHEMA = "eyas.written/1"
DONE = "written.json"
# Raise when the texts written for the same options change.
_RULES = 1
_NOT_OF_THE_TEXT = ("device", "max_batch", "max_cache_mib", "threads")


class WrittenDamaged(EyasError):
    """What an earlier run has left is not what it wrote."""

    code = "written-damaged"


@dataclass(frozen=True, slots=True, kw_only=True)
class WritingJob:
    """What is to be written.

    Attributes:
        target: folder.
        text: of the target.
        config: what and how.
        max_length: longest row.
        files: data whose answers are regenerated; their weights are kept.
        excluded: prompts that must not come out; `exclude_prints` are their files' fingerprints.
    """

    target: Path
    text: TargetText
    config: WritingConfig
    max_length: int
    files: Sequence[DataFile]
    excluded: Exclusion
    exclude_prints: Sequence[str]

    @property
    def fingerprint(self) -> str:
        """Of everything that decides the texts."""
        options = {k: v for k, v in asdict(self.config).items() if k not in _NOT_OF_THE_TEXT}
        writer = writer_fingerprint(self.target, self.config)
        prints = [fingerprint.of_file(file.path) for file in self.files]
        parts = [_RULES, writer, self.text.reader, options, self.max_length, prints, list(self.exclude_prints)]
        return fingerprint.of_json(parts)


WriterFactory = Callable[[Path], Writes]


def write_data(
    job: WritingJob, out: Path, talk: Talk, *, replace: bool = False, writer: WriterFactory | None = None
) -> list[DataFile]:
    """The data files that the target writes for `job`; those that stand there from an earlier run are taken.

    Args:
        out: the folder of rows that they are for; theirs stands beside it.
        replace: delete what another job has left there.
        writer: from the folder for its files to what answers requests; our batch engine by default.

    Raises:
        OutputExists: the folder holds data of another job.
        WrittenDamaged: it holds data of this job, and not all or other than was written.
        UserSlotUnclear, CompletionsOfAnotherRun: see there.
    """
    kind = "self-chat" if job.config.self_chat else "regenerated"
    folder = out.with_name(f"{out.name}.{kind}")
    print_ = job.fingerprint
    found = _standing(folder, print_, replace)
    if found is None:
        writes = writer(folder) if writer else TargetWriter(job.target, job.text, job.config, folder, talk)
        found = _self_chat(job, writes, talk) if job.config.self_chat else _regenerated(job, writes, talk)
        _save(folder, found, job, print_)
        talk.line(f"{folder}: {found.summary()}")
    else:
        talk.line(f"{folder}: there already, {found.summary()}")
    # Weights decide no text: those of this command count, whatever stood in the one that wrote.
    weights = [file.weight for file in job.files] if job.config.regenerate else found.weights.values()
    return [DataFile(path=folder / name, weight=weight) for name, weight in zip(found.weights, weights, strict=True)]


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


def _save(folder: Path, written: _Written, job: WritingJob, print_: str) -> None:
    """The files, then what says that they are whole, then away with what a rerun would have gone on from."""
    for name, dialogues in written.files.items():
        with atomic_file(folder / name) as file:
            for dialogue in dialogues:
                record = dialogue.as_record(job.text.reader)
                file.write((json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n").encode())
    document = {
        "schema": SCHEMA,
        "fingerprint": print_,
        "options": asdict(job.config),
        "weights": written.weights,
        "counts": written.counts,
        "dropped": written.dropped,
    }
    write_text(folder / DONE, json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    for path in folder.glob("*.completions"):
        path.unlink()


def _standing(folder: Path, print_: str, replace: bool) -> _Written | None:
    """What an earlier run of the same job has left whole; None when there is work to do."""
    path = folder / DONE
    if path.exists():
        try:
            document = _document(path)
            if document["fingerprint"] == print_:
                return _whole(document, folder)
            damage = None
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            document, damage = {}, f"{type(error).__name__}: {error}"
        if not replace and damage is not None:
            raise WrittenDamaged(
                f"{folder} is damaged",
                str(path),
                damage,
                "give --replace to write it anew, or choose another --out",
            )
        if not replace:
            raise OutputExists(
                f"{folder} holds other data",
                str(path),
                f"it was written as {document['fingerprint']}; target and options give {print_}",
                "use it with --data, choose another --out, or give --replace",
            )
    if replace and folder.is_dir():
        for old in [*folder.glob("*.completions"), *folder.glob("*.jsonl"), path]:
            old.unlink(missing_ok=True)
    return None


def _document(path: Path) -> Mapping[str, Any]:
    document = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(document, dict) or document["schema"] != SCHEMA:
        raise ValueError(f"it is no object with the schema {SCHEMA}")
    return document


def _whole(document: Mapping[str, Any], folder: Path) -> _Written:
    """What a document of `_save` says, where its files are there; ValueError, KeyError or TypeError otherwise."""
    weights, counts, dropped = (dict(document[name]) for name in ("weights", "counts", "dropped"))
    if not weights or not all(type(w) in (int, float) and 0 < w < inf for w in weights.values()):
        raise ValueError("`weights` names no files with a number above 0 each")
    if not all(type(n) is int for n in (*counts.values(), *dropped.values())):
        raise ValueError("`counts` or `dropped` holds something else than whole numbers")
    missing = [name for name in weights if "/" in name or not (folder / name).is_file()]
    if missing:
        raise ValueError(f"{', '.join(missing)}: not there")
    written = _Written(files={}, weights=weights, counts=counts, dropped=dropped)
    written.summary()  # KeyError where a count is missing
    return written
