"""`eyas accept`: parse, call, render."""

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from eyas.cli.output import JsonFlag, emit, require_outputs, save_document
from eyas.errors import ExitCode
from eyas.serve.accept import AcceptConfig, Accepted, accepted_of_log, accepted_of_server
from eyas.serve.launch.stop import Interrupts
from eyas.serve.look import subject as subject_module
from eyas.serve.look.endpoints import require_sendable
from eyas.serve.look.subject import SubjectUnknown

_DEFAULT = AcceptConfig()


def accept(
    subject: str,
    *,
    config: Annotated[AcceptConfig, Parameter(name="*")] = _DEFAULT,
    out: Path | None = None,
    json: JsonFlag = False,
) -> int:
    """What a server accepts: accept length, accept rate and acceptance per position, from its log or its counters.

    One definition for every engine and version: tokens per verify pass, bonus included, 1.00 = nothing accepted. The
    output explains the engine's own words in its version. Each data-parallel rank has a line. Exit code 1 when
    nothing is accepted, or too little for a draft that is served as it was trained.
    An API key is read from the environment variable EYAS_API_KEY.

    Parameters
    ----------
    subject
        URL (http://host:port), log file or pipe (`-` = standard input), PID, or a run folder of `eyas serve`.
    out
        Also write the JSON object to this file.
    """
    require_outputs([out], read=[Path(subject)] if Path(subject).exists() else [])
    found = subject_module.parse(subject)
    api_key = os.environ.get("EYAS_API_KEY")
    require_sendable(api_key, "EYAS_API_KEY")
    if found.url is not None:
        with Interrupts(grace_s=1.0) as interrupts:
            told = accepted_of_server(found.url, config, api_key, interrupted=interrupts.asked)
    elif found.log is not None:
        told = accepted_of_log(found.log, config)
    else:
        raise SubjectUnknown(
            f"neither a URL nor a log of process {found.pid} was found",
            subject,
            "acceptance is read from one of them",
            "give its URL or its log",
        )
    document = told.as_document()
    save_document(document, out)
    return emit(document, render(told), json=json, exit_code=int(ExitCode.GOOD if told.proof.ok else ExitCode.FINDINGS))


def render(told: Accepted) -> str:
    """The figures, rank by rank where there are several, the verdict, and what the engine's own words mean."""
    whole, k = told.pooled, told.num_draft_tokens
    rows = [whole, *told.ranks] if told.ranks else [whole]
    width = max(len("all ranks"), *(len(row.rank) for row in rows))
    engine = f"{told.engine} {told.version}" if told.version else told.engine
    lines = [
        f"{engine}: {told.source}" + (f"; K = {k} drafts per verify pass" if k else "; K is unknown: give -k"),
        f"{'':<{width}}  accept length  rounds  accepted up to position 1 … {len(whole.per_position) or 'K'}",
    ]
    for row in rows:
        name = row.rank or ("all ranks" if told.ranks else "")
        shares = " ".join(f"{share:.3f}".removeprefix("0") for share in row.per_position) or "unknown"
        rounds = "–" if row.rounds is None else row.rounds
        lines.append(f"{name:<{width}}  {row.accept_length:>13.3f}  {rounds:>6}  {shares}")
    if (rate := told.accept_rate) is not None:
        lines.append(f"accept rate {rate:.3f}: accepted drafts / proposed drafts" + _shown(told))
    lines.append(f"verdict: {'good' if told.proof.ok else 'BAD'}: {told.proof.text}")
    lines += [f"  - {text}" for text in (*told.words, *told.notes)]
    if told.promql:
        lines.append(f"Prometheus: {told.promql}")
    return "\n".join(lines)


def _shown(told: Accepted) -> str:
    return "" if told.shown_rate is None else f" (its log shows {told.shown_rate:.2f} in its own words, below)"
