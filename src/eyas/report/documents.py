"""Finds the JSON documents in a run's folder, and the draft that each is about.

A document is known by its `schema`, never by its file name.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas.errors import EyasError
from eyas.records.fingerprint import of_files
from eyas.talk import counted

_MAX_DOCUMENT_BYTES = 64 << 20
_MAX_DEPTH = 3
CHECK = "eyas.check"


class NothingToReport(EyasError):
    """None of the folders contains a document of eyas."""

    code = "nothing-to-report"


class RunFolderMissing(EyasError):
    """A path given to `eyas report` does not exist."""

    code = "run-folder-missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One JSON object (or the records of one metrics.jsonl).

    Attributes:
        path: where it was found, relative to the parent of the run's folder.
        schema: such as "eyas.eval/1".
        content: the object; for a .jsonl file {"records": [...]}.
        weights: fingerprint of the draft's weights beside a .jsonl file (metrics of its training), as `eyas eval` and
            `eyas bench` record it.
    """

    path: str
    schema: str
    content: Mapping[str, Any]
    weights: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDocuments:
    """All documents of the runs, and the files that could not be read, each with its reason."""

    documents: tuple[Document, ...]
    unreadable: tuple[tuple[str, str], ...]

    def name_of(self, document: Document) -> str:
        """A short name for a legend: the file's stem, or its whole path if another document has the same stem."""
        stems = [Path(other.path).stem for other in self.documents]
        stem = Path(document.path).stem
        return stem if stems.count(stem) == 1 else document.path

    def of(self, schema: str) -> list[Document]:
        """Those of one schema, such as "eyas.eval", whatever the version after the slash."""
        return [d for d in self.documents if d.schema.split("/")[0] == schema]


def read_runs(paths: Sequence[Path]) -> RunDocuments:
    """Read the documents under each folder (three levels deep) or the single file given.

    Raises:
        RunFolderMissing: a path does not exist.
        NothingToReport: no document was found.
    """
    documents: list[Document] = []
    unreadable: list[tuple[str, str]] = []
    for path in paths:
        if not os.path.exists(path):
            raise RunFolderMissing(
                f"{path} does not exist", str(path), "a report is made from a run's files", "give the folder of a run"
            )
        for file in _files(path):
            shown = str(file.relative_to(path.parent)) if path.is_dir() else file.name
            try:
                found = _read(file)
                weights = _weights_beside(file) if found is not None else None
            except (OSError, ValueError, RecursionError) as error:
                unreadable.append((shown, f"{type(error).__name__}: {error}"))
                continue
            if found is not None:
                documents.append(Document(path=shown, schema=found[0], content=found[1], weights=weights))
    if not documents:
        raise NothingToReport(
            "there is nothing to report",
            ", ".join(map(str, paths)) or "eyas report",
            ("no file there is a JSON document of eyas" if paths else "no folder is named")
            + "".join(f"; {name}: {why}" for name, why in unreadable[:3]),
            "name a folder with the output of `eyas eval --json` or `eyas bench --json`; `eyas demo` makes one",
        )
    return RunDocuments(documents=tuple(documents), unreadable=tuple(unreadable))


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for file in sorted(path.rglob("*.json*")):
        inside = file.relative_to(path).parts
        if len(inside) <= _MAX_DEPTH and not any(part.startswith(".") for part in inside) and file.is_file():
            yield file


def _weights_beside(file: Path) -> str | None:
    files = [path for ending in ("safetensors", "bin") for path in sorted(file.parent.glob(f"*.{ending}"))]
    is_draft = file.suffix == ".jsonl" and (file.parent / "config.json").is_file()
    return of_files(files) if is_draft and files else None


def _read(file: Path) -> tuple[str, Mapping[str, Any]] | None:
    """Schema and content; None for other JSON, such as a draft's config.json."""
    if file.suffix not in (".json", ".jsonl"):
        return None
    if file.stat().st_size > _MAX_DOCUMENT_BYTES:
        raise ValueError(f"larger than {_MAX_DOCUMENT_BYTES >> 20} MiB")
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".json":
        content = json.loads(text)
        schema = content.get("schema") if isinstance(content, dict) else None
        return (schema, content) if isinstance(schema, str) and schema.startswith("eyas.") else None
    records = [json.loads(line) for line in text.splitlines() if line.strip()]
    schema = records[0].get("schema") if records and isinstance(records[0], dict) else None
    return (schema, {"records": records}) if isinstance(schema, str) and schema.startswith("eyas.") else None


def draft_words(content: Mapping[str, Any]) -> str:
    """The draft that a benchmark or an evaluation names, as path and fingerprint; "" if it names none."""
    draft = content.get("draft")
    if not isinstance(draft, Mapping):
        return ""
    path, fingerprint = draft.get("path"), draft.get("fingerprint")
    return " ".join([*([str(path)] if path else []), *([f"({fingerprint})"] if fingerprint else [])])


def mixed_drafts(runs: RunDocuments) -> str:
    """A line for each draft with its documents if there is more than one draft; else "".

    A document that names no draft counts for none. `check` names only a path: it counts for the draft to which another
    document gives this path.
    """
    names, parts = dict[str, str](), dict[str, list[str]]()
    for document in sorted(runs.documents, key=lambda document: document.schema.split("/")[0] == CHECK):
        found = _draft_of(document, names)
        if found is not None:
            names.setdefault(*found)
            parts.setdefault(found[0], []).append(document.path)
    if len(parts) < 2:
        return ""
    lines = [f"{names[fingerprint]} ({fingerprint}): {', '.join(paths)}" for fingerprint, paths in parts.items()]
    return "\n".join([f"This page shows {counted(len(parts), 'different draft')} (by their weight files):", *lines])


def _draft_of(document: Document, names: Mapping[str, str]) -> tuple[str, str] | None:
    """Fingerprint and path."""
    if document.weights is not None:
        return document.weights, str(Path(document.path).parent)
    draft = document.content.get("draft")
    if isinstance(draft, str):
        return next((known for known in names.items() if known[1] == draft), None)
    if isinstance(draft, Mapping) and isinstance(draft.get("fingerprint"), str):
        return draft["fingerprint"], str(draft.get("path", "unnamed"))
    return None
