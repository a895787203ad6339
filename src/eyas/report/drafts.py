"""Which draft each document of a page is about, and a warning if there are several."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eyas.report.documents import Document, RunDocuments
from eyas.report.section_check import CHECK
from eyas.talk import counted


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
