"""From the documents of a run to the page: its cards, their order, and the headlines."""

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eyas import __version__
from eyas.report.documents import CHECK, Document, RunDocuments, mixed_drafts, read_runs
from eyas.report.page import Headline, Page, Section, Table, render
from eyas.report.section_bench import BENCH, bench_headlines, bench_sections
from eyas.report.section_lengths import ACCEPT, PARITY, VERDICT, lengths_sections
from eyas.report.sections import (
    EVAL,
    HELD_OUT,
    METRICS,
    ROWS,
    TIMELINE,
    check_sections,
    eval_headlines,
    eval_sections,
    timeline_sections,
    training_sections,
)
from eyas.talk import Talk

# Schemas whose content is on a card.
_SHOWN = {BENCH, CHECK, EVAL, TIMELINE, METRICS, HELD_OUT, ROWS, ACCEPT, PARITY, VERDICT}
_TERMS = (
    ("K", "drafts per verify pass: tokens that the draft proposes before the target checks them in one pass"),
    ("bonus token", "the target's own token in each verify pass, after the last accepted draft"),
    (
        "accept length",
        "tokens gained per verify pass, bonus token included: 1.00 means that nothing was accepted, K + 1 is the most",
    ),
    (
        "ceiling",
        "the speedup that the parts of a round allow, by their own times in the same run; no speedup can exceed it by"
        " more than noise",
    ),
    ("95 % interval", "where the speedup lies in 95 of 100 resamplings of the prompts"),
)


def build_report(paths: Sequence[Path], title: str | None = None, talk: Talk | None = None) -> str:
    """The page of one or more runs as HTML.

    Args:
        paths: run folders or single documents.
        title: by default named after the paths.
        talk: notes if the page shows more than one draft.

    Raises:
        RunFolderMissing, NothingToReport: see `read_runs`.
    """
    name = title or "Run " + ", ".join(path.resolve().name for path in paths)
    runs = _without_malformed(read_runs(paths))
    if talk is not None and (mixed := mixed_drafts(runs)):
        talk.note(mixed)
    return render(_page(runs, name))


def _page(runs: RunDocuments, name: str) -> Page:
    sections = [
        *bench_sections(runs),
        *lengths_sections(runs),
        *eval_sections(runs),
        *training_sections(runs),
        *check_sections(runs),
        *timeline_sections(runs),
    ]
    if runs.of(BENCH) or runs.of(EVAL):
        sections.append(Section(id="terms", title="Terms", blocks=[Table(head=["term", "meaning"], rows=_TERMS)]))
    sections.append(_provenance(runs))
    nothing = Headline(figure="–", sentence="neither a speed nor an accept length was measured in this run.")
    headlines = bench_headlines(runs) or eval_headlines(runs) or [nothing]
    return Page(title=name, headlines=headlines, warning=mixed_drafts(runs), sections=sections)


def _without_malformed(runs: RunDocuments) -> RunDocuments:
    """The documents that can be shown; the others are listed as unreadable, each with its reason.

    Each document is tried by showing it alone: the sections are the only description of what they need.
    """
    good, bad = list[Document](), list(runs.unreadable)
    for document in runs.documents:
        try:
            render(_page(RunDocuments(documents=(document,), unreadable=()), ""))
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            bad.append((document.path, f"it does not follow {document.schema}: {type(error).__name__}: {error}"))
        else:
            good.append(document)
    return RunDocuments(documents=tuple(good), unreadable=tuple(bad))


def _provenance(runs: RunDocuments) -> Section:
    rows: list[list[str]] = []
    for document in runs.documents:
        shown = "yes" if document.schema.split("/")[0] in _SHOWN else "no"
        rows.append([document.path, document.schema, _identity(document.content), shown])
    rows += [[path, "unreadable", why, "no"] for path, why in runs.unreadable]
    here = f"eyas {__version__}, Python {platform.python_version()}, {platform.platform()}"
    table = Table(head=["file", "schema", "made from", "shown"], rows=rows)
    return Section(id="provenance", title="What was run", lead=f"Page made by {here}.", blocks=[table])


def _identity(content: Mapping[str, Any]) -> str:
    """Fingerprints, versions and hardware that a document names."""
    parts: list[str] = []
    for key in ("target", "draft", "data", "settings", "machine", "versions", "fingerprint"):
        value = content.get(key)
        if isinstance(value, Mapping):
            inside = ", ".join(f"{k} {v}" for k, v in value.items() if isinstance(v, str | int | float))
            parts.append(f"{key}: {inside}")
        elif isinstance(value, str | int | float):
            parts.append(f"{key} {value}")
    return "; ".join(part for part in parts if part) or "–"
