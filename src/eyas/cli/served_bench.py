"""`eyas bench URL` and `--engine NAME`: options to measured servers, and their record as tables."""

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eyas import shipped
from eyas.bench.bench_config import BenchConfig, BenchConfigInvalid
from eyas.bench.served.config import ServedBenchConfig, StartOptions
from eyas.cli.output import emit, files_of_checkpoint, require_outputs, save_document
from eyas.cli.terminal import Terminal
from eyas.contract.engines.registry import EngineName
from eyas.records import fingerprint

if TYPE_CHECKING:
    from eyas.bench.served.load import Arm
    from eyas.bench.served.run import Workload

# what a URL takes of the options of eyas' own engine
_SHARED = ("num_draft_tokens", "repeats", "max_new_tokens", "max_prompts", "seed")
_NUM_RANDOM = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRequest:
    """What `eyas bench` of a server was given, beside the servers."""

    data: list[Path] | None
    config: BenchConfig
    served: ServedBenchConfig
    out: Path | None
    json: bool


def bench_url(url: str, baseline: str | None, request: ServedRequest) -> int:
    """Measure servers that run already; the exit code."""
    from eyas.bench.served.load import Arm
    from eyas.bench.served.run import BASELINE, SERVER
    from eyas.contract.engines.server_at import server_at

    talk, work = _prepared(request, [])
    key = os.environ.get("EYAS_API_KEY")
    urls = [_url(one) for one in (url, *([] if baseline is None else [baseline]))]
    arms = [Arm(name, server_at(one, key)) for name, one in zip((SERVER, BASELINE), urls, strict=False)]
    return _measured([nullcontext(arms[::-1])], work, {"urls": urls}, request, talk)  # the baseline first


def bench_engine_arms(
    engine: EngineName, target: str, draft: Path, request: ServedRequest, options: StartOptions
) -> int:
    """Start an engine with the draft, then without, and measure both; the exit code."""
    from eyas.bench.served.run import BASELINE, SERVER
    from eyas.cli.served_arms import plans_of, started
    from eyas.cli.target_option import target_folder

    talk, work = _prepared(request, [*files_of_checkpoint(draft)])
    folder = target_folder(target, talk).resolve()
    plans = plans_of(engine, folder, draft, work.depth, options, talk)
    for note in (*plans[SERVER].notes, *plans[SERVER].command.notes):
        talk.note(note)
    groups = [started(name, plans[name], options.runs, talk) for name in (SERVER, BASELINE)]
    return _measured(groups, work, {name: plan.shell() for name, plan in plans.items()}, request, talk)


def _url(text: str) -> str:
    """A server's URL; a process or a log, which `eyas watch` takes too, could be another's."""
    from eyas.serve.look.subject import SubjectUnknown, parse

    found = parse(text)
    if found.url is None or found.pid is not None or found.log is not None:
        why = "a benchmark fills a server with requests, so it is not guessed which one is meant"
        raise SubjectUnknown(f"{text!r} is not the URL of a server", text, why, "give it as http://host:port")
    return found.url


def _prepared(request: ServedRequest, read: list[Path]) -> "tuple[Terminal, Workload]":
    """What is asked; every refusal that needs no server comes here."""
    from eyas.bench.served.questions import random_questions, read_questions
    from eyas.bench.served.run import Workload

    config, served, talk = request.config, request.served, Terminal()
    _require_fitting(config, request.data, served)
    files = request.data or [shipped.conversations_path()]
    require_outputs([request.out, _journal(request)], read=[*files, *read])
    if served.random_tokens is not None:
        number = config.max_prompts or _NUM_RANDOM
        questions, files = random_questions(served.random_tokens, number, config.seed), []
    else:
        questions = read_questions(files, config.max_prompts, talk)
        if request.data is None:
            talk.note(f"no --data: using the prompts that ship with eyas, {files[0]}")
    asked = fingerprint.of_json([[q.id, q.ids, list(q.begin), q.turns] for q in questions])
    return talk, Workload(
        questions=questions,
        repeats=config.repeats,
        max_new_tokens=config.max_new_tokens,
        depth=config.depths[0],
        seed=config.seed,
        is_meaningless=served.random_tokens is not None,
        about={"files": [file.name for file in files], "num_questions": len(questions), "fingerprint": asked},
    )


def _journal(request: ServedRequest) -> Path | None:
    return None if request.out is None else request.out.with_name(f"{request.out.name}.turns.jsonl")


def _measured(
    groups: "Sequence[AbstractContextManager[Sequence[Arm]]]",
    work: "Workload",
    subject: Mapping[str, Any],
    request: ServedRequest,
    talk: Terminal,
) -> int:
    from eyas.bench.served.run import bench_served

    record, turns = bench_served(
        groups, work, request.served, subject=subject, journal_path=_journal(request), talk=talk
    )
    document = record.as_document()
    save_document(document, request.out)
    turns.remove()
    if record.problem is not None:
        talk.line(render(document))
        raise record.problem
    return emit(document, render(document), json=request.json)


def require_no_url_options(served: ServedBenchConfig, baseline: str | None) -> None:
    """Refuse what only a URL takes."""
    given = [] if baseline is None else ["--baseline"]
    given += [_flag(f.name) for f in fields(served) if getattr(served, f.name) != f.default]
    if given:
        _refuse(given, "eyas bench --engine eyas", "they are for a server", "give the server's URL, or leave them out")


def _require_fitting(config: BenchConfig, data: list[Path] | None, served: ServedBenchConfig) -> None:
    other = [_flag(f.name) for f in fields(config) if f.name not in _SHARED and getattr(config, f.name) != f.default]
    if other:
        do = "leave them out; the server was started with its own"
        _refuse(other, "eyas bench URL", "they are for eyas' own engine in this process", do)
    if len(config.depths) != 1 or config.is_adaptive:
        do = "give one number, or leave it out"
        _refuse(["-k"], "eyas bench URL", "a server has one number of draft tokens, set when it was started", do)
    if data and served.random_tokens is not None:
        _refuse(["--data", "--random-tokens"], "eyas bench URL", "one of them is what is asked", "leave one out")


def _refuse(flags: list[str], where: str, why: str, do: str) -> None:
    raise BenchConfigInvalid(f"{', '.join(flags)} cannot be used here", where, why, do)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def render(document: Mapping[str, Any]) -> str:
    """The record as tables, verdict and notes."""
    head = f"{'at a time':>9}  {'temp':>4}  {'tokens':>6}  {'server':<8}  {'tok/s (min - max)':<26}  {'per user':>8}"
    lines = [f"{head}  {'TTFT ms':>8}  {'TPOT ms':>8}  {'p99':>8}  {'ITL p99':>8}  {'accept length (95 %)':<22}"]
    for measured in document["points"]:
        lines += [_row(measured["point"], name, figures) for name, figures in measured["figures"].items()]
    speedups = [_speedup(measured) for measured in document["points"] if measured["comparison"]]
    if speedups:
        lines += [
            "",
            f"{'at a time':>9}  {'temp':>4}  {'tokens':>6}  speedup in total        per user (95 %)",
            *speedups,
        ]
    accepted = document["points"][-1]["figures"]["server"]
    lines += _acceptance(accepted)
    return "\n".join([*lines, "", document["verdict"], *(f"note: {note}" for note in document["notes"])])


def _row(point: Mapping[str, Any], name: str, figures: Mapping[str, Any]) -> str:
    low, high = figures["tokens_per_s_low"], figures["tokens_per_s_high"]
    speed = f"{figures['tokens_per_s']:.1f} ({low:.1f} - {high:.1f})"
    accepted = figures["accepted"]
    length = "–"
    if accepted is not None:
        length = f"{accepted['accept_length']:.3f} ({accepted['low']:.2f} - {accepted['high']:.2f})"
    times = (
        _ms(figures["ttft"]), _ms(figures["tpot"]), _ms(figures["tpot"], 99), _ms(figures["itl"], 99),
    )  # fmt: skip
    latencies = "  ".join(f"{time:>8}" for time in times)
    user = f"{figures['tokens_per_s_per_user']:>8.1f}"
    return f"{_place(point)}  {name:<8}  {speed:<26}  {user}  {latencies}  {length:<22}".rstrip()


def _speedup(measured: Mapping[str, Any]) -> str:
    c = measured["comparison"]
    total = f"{c['speedup']:.2f} ({c['speedup_low']:.2f} - {c['speedup_high']:.2f})"
    user = f"{c['per_user']:.2f} ({c['per_user_low']:.2f} - {c['per_user_high']:.2f})"
    return f"{_place(measured['point'])}  {total:<22}  {user}"


def _place(point: Mapping[str, Any]) -> str:
    return f"{point['concurrency']:>9}  {point['temperature']:>4g}  {point['max_new_tokens']:>6}"


def _ms(latency: Mapping[str, Any] | None, share: int | None = None) -> str:
    if latency is None:
        return "–"
    return f"{1e3 * (latency['mean'] if share is None else latency['percentiles'][share]):.2f}"


def _acceptance(figures: Mapping[str, Any]) -> list[str]:
    accepted = figures["accepted"]
    if accepted is None:
        return []
    shares = ", ".join(f"{share:.0%}" for share in accepted["per_position"])
    mean = "" if accepted["request_mean"] is None else f"; mean over requests {accepted['request_mean']:.3f}"
    lines = ["", f"accepted at draft 1, 2 …: {shares} of {accepted['rounds']} rounds{mean}"]
    for title, parts in (("by set", figures["by_set"]), ("by prompt tokens", figures["by_context"])):
        if parts:
            told = [f"{name} {part['accept_length']:.2f}" for name, part in parts.items()]
            lines.append(f"{title}: {', '.join(told)}")
    return lines
