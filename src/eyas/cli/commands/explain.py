"""`eyas explain`: parse, call, render."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from eyas import shipped
from eyas.cli.commands.eval import TargetChoice, ledgers_of, require_one_source
from eyas.cli.output import JsonFlag, emit, files_of_checkpoint, require_outputs, save_document
from eyas.cli.target_option import draft_path, target_folder
from eyas.cli.terminal import Terminal
from eyas.contract.engines.registry import parse_engine
from eyas.contract.files.read_checkpoint import require_checkpoint
from eyas.errors import ExitCode, EyasError
from eyas.parity.likelihood import ServedFigures
from eyas.replay.eval_config import ReplayConfig
from eyas.replay.figures import meaning
from eyas.report.documents import read_runs
from eyas.report.side_by_side import columns_of
from eyas.serve.accept import AcceptConfig, accepted_of_log, accepted_of_server
from eyas.serve.log.serving_log import ServingLog, read_serving_log
from eyas.serve.look import subject as subject_module
from eyas.serve.slow import round_split, slow_causes
from eyas.talk import say_loading

if TYPE_CHECKING:
    from eyas.parity.explain import Explained, Explanation

_DEFAULT = ReplayConfig(max_rows=8)
_MOST_MEMBERS = 12
_MEMORY = " (memory holds "  # whatever it holds: one line
_CERTAINTY = {
    "certain": "CERTAIN, as far as counts can tell",
    "likely": "LIKELY, not certain",
    "open": "OPEN: what was served does not decide it",
}


class ExplainWantsFigures(EyasError):
    """What was served is not told, told twice, or impossible."""

    code = "explain-wants-figures"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldFigures:
    """What was served, where it is known only from a report."""

    accept_length: float | None = None
    """Accept length that was served, bonus included, in place of --served."""

    per_position: Annotated[tuple[float, ...], Parameter(consume_multiple=True, negative="")] = ()
    """Share of rounds that accept draft 1, 1 and 2, ... (joint), in place of --served."""

    rounds: int | None = None
    """Verify passes that these figures are of; default: 200 are assumed."""


_TOLD = ToldFigures()


def explain(
    draft: Path,
    *,
    target: TargetChoice = None,
    probe: Path | None = None,
    data: Annotated[list[Path] | None, Parameter(name="--data", consume_multiple=True, negative="")] = None,
    served: str | None = None,
    told: Annotated[ToldFigures, Parameter(name="*")] = _TOLD,
    for_: Annotated[tuple[str, ...], Parameter(name="--for", negative="")] = (),
    bench: Path | None = None,
    config: Annotated[ReplayConfig, Parameter(name="*")] = _DEFAULT,
    out: Path | None = None,
    json: JsonFlag = False,
) -> int:
    """Why a server accepts what it accepts: which known fault gives these counts, ranked, and how to make sure.

    The draft is replayed as it was trained, with every known fault planted, and as the engines of --for run it; what is
    alike on the replayed texts is one class. "Nothing wrong: a weak draft" is an answer, and so is "cannot be told".
    From a log it also says what makes the server slow although drafts are accepted. Exit code 1 where the likeliest
    class is a fault.

    Parameters
    ----------
    draft
        Folder (or weight file) of the draft that is served, as it was trained, or a hub id.
    probe
        A probe pack instead of target and data: its texts are replayed.
    data
        JSONL files of texts to replay, as for `eyas eval`. Default: the 16 rows that ship with eyas, by smollm2-135m.
    served
        What was served: the server's URL, its log, a run folder of `eyas serve`, or a JSON document of `eyas accept`,
        `eyas serve`, `eyas parity` or `eyas bench`.
    for_
        ENGINE==VERSION that serves it: what its load rules make of the draft is suspected first. May be given several
        times.
    bench
        JSON document of `eyas bench` on the same target, to split a round, and for the batch from which speculation
        loses.
    out
        Also write the JSON object to this file.
    """
    require_one_source("eyas explain", target, probe, {"--data": data})
    inputs = [*files_of_checkpoint(draft), *(data or ()), *(p for p in (probe, bench) if p is not None)]
    require_outputs([out], read=inputs)
    talk = Terminal()
    path = draft_path(draft, talk)
    require_checkpoint(path)
    engines = [parse_engine(text) for text in for_]
    figures, log = _figures(served, told, config.num_draft_tokens)
    config = replace(config, num_draft_tokens=figures.num_draft_tokens)
    benched = _bench(bench)
    folder = None if target is None else target_folder(target, talk)
    ledgers = ledgers_of(path, folder, engines, figures.num_draft_tokens)
    say_loading(talk)
    from eyas.parity.explain import Commands
    from eyas.parity.explain_stage import explain_on_probe, explain_with_target

    commands = Commands(
        draft=path,
        states=f"--probe {probe}" if probe is not None else f"--target {target}",
        engine=for_[0] if for_ else "ENGINE==VERSION",
        url=served if served is not None and served.startswith("http") else None,
    )
    if probe is not None:
        found = explain_on_probe(path, probe, figures, ledgers, commands, config, talk)
    else:
        assert folder is not None, "checked above"
        rows = data or [shipped.eval_rows_path()]
        found = explain_with_target(path, folder, rows, figures, ledgers, commands, config, talk)
    causes = slow_causes(log, benched) if log is not None else ()
    split = round_split(log.lines, figures.num_draft_tokens, benched) if log is not None else None
    document = found.as_document() | {"draft": str(draft), "slow": [_plain(cause) for cause in causes]}
    document["round"] = split.as_document() if split else None
    save_document(document, out)
    lines = [render(found)]
    lines += [f"slow[{cause.code}]: {cause.what} ({cause.evidence}); {cause.do}" for cause in causes]
    lines += [str(split)] if split else []
    is_fault = found.ranked[0].hypothesis.kind in ("fault", "engine") and found.certainty != "open"
    return emit(document, "\n".join(lines), json=json, exit_code=int(ExitCode.FINDINGS if is_fault else ExitCode.GOOD))


def render(found: "Explanation") -> str:
    """What was served beside each likely class, the verdict, and what to type next."""
    served, first = found.served, found.ranked[0]
    k = served.num_draft_tokens
    lines = [
        f"served: {served.source}",
        f"{'':<22}  accept length  accepted up to position 1 … {k}",
        _line("served", served.accept_length, served.per_position),
        _line("trained, replayed", found.trained.accept_length, found.trained.per_position),
        f"{_CERTAINTY[found.certainty]}: {_headline(found)}",
    ]
    for number, one in enumerate(found.ranked, 1):
        lines += _class_lines(number, one)
    if not first.fits:
        lines.append("none of the known faults gives these figures")
    lines += [f"next: {command}" for command in found.commands]
    return "\n".join([*lines, *(f"  - {note}" for note in found.notes)])


def _headline(found: "Explanation") -> str:
    first = found.ranked[0].hypothesis
    if found.certainty == "open":
        return "classes in order of probability"
    if first.kind == "as-trained":
        weak = meaning(found.trained.accept_length, found.served.num_draft_tokens)
        return f"the counts show no fault; the server accepts what the draft gives: {weak}"
    if first.kind == "elsewhere":
        return "nothing is wrong with the draft's tensors; the texts or the target are others"
    num = len({member.split(_MEMORY)[0] for member in first.members})
    return "one fault" if num == 1 else f"one of {num} faults; counts on other texts cannot tell them apart"


def _class_lines(number: int, one: "Explained") -> list[str]:
    counts = one.hypothesis.replayed[0]
    members = list(dict.fromkeys(member.split(_MEMORY)[0] for member in one.hypothesis.members))
    fits = "fits" if one.fits else f"{one.deviation:.0f} standard deviations off"
    name = f"{number}. {one.probability:.0%}, {fits}"
    is_open = one.hypothesis.kind in ("elsewhere", "unknown")
    lines = [name if is_open else _line(name, counts.accept_length, counts.per_position)]
    lines += [f"     {member}" for member in members[:_MOST_MEMBERS]]
    more = len(members) - _MOST_MEMBERS
    return lines + ([f"     and {more} more (--json lists them)"] if more > 0 else [])


def _line(name: str, length: float, shares: tuple[float, ...]) -> str:
    shown = " ".join(f"{share:.3f}".removeprefix("0") for share in shares) or "not told"
    return f"{name:<22}  {length:>13.3f}  {shown}"


def _figures(served: str | None, told: ToldFigures, k: int) -> tuple[ServedFigures, ServingLog | None]:
    """What was served, and the log that it is from."""
    if served is None:
        return _told_figures(told, k), None
    if told != _TOLD:
        raise _wanted("--served gives the figures: not with --accept-length, --per-position or --rounds")
    path = Path(served)
    if path.suffix == ".json" or (path.is_dir() and any(path.glob("*.json"))):
        columns = [
            c for c in columns_of([(d.path, d.content) for d in read_runs([path]).documents]) if c.kind == "served"
        ]
        if columns:
            best = max(columns, key=lambda column: column.rounds or 0)
            shares = tuple(low for low, _ in best.per_position)
            figures = ServedFigures(
                source=best.source,
                num_draft_tokens=len(shares) or k,
                accept_length=best.accept_length[0],
                rounds=best.rounds,
                per_position=shares,
            )
            return figures, read_serving_log(path / "engine.log") if (path / "engine.log").is_file() else None
    subject = subject_module.parse(served)
    if subject.url is not None:
        accepted = accepted_of_server(subject.url, AcceptConfig(), os.environ.get("EYAS_API_KEY"))
    elif subject.log is not None:
        accepted = accepted_of_log(subject.log, AcceptConfig())
    else:
        raise _wanted(f"neither a URL nor a log of process {subject.pid} was found")
    whole = accepted.pooled
    figures = ServedFigures(
        source=accepted.source,
        num_draft_tokens=accepted.num_draft_tokens or k,
        accept_length=whole.accept_length,
        rounds=whole.rounds,
        per_position=whole.per_position,
    )
    return figures, read_serving_log(subject.log) if subject.log is not None else None


def _told_figures(told: ToldFigures, k: int) -> ServedFigures:
    shares = told.per_position
    length = told.accept_length if told.accept_length is not None else 1 + sum(shares) if shares else None
    depth = len(shares) or k
    if length is None:
        raise _wanted("give --served URL, LOG, RUN or JSON; or --accept-length with -k")
    if not 1 <= length <= depth + 1:
        raise _wanted(f"an accept length with K = {depth} lies in 1 - {depth + 1}, not at {length:g}")
    is_joint = all(0 <= share <= 1 for share in shares) and list(shares) == sorted(shares, reverse=True)
    if not is_joint or (shares and abs(1 + sum(shares) - length) > 0.05 * depth):
        raise _wanted("--per-position are joint shares, 0 - 1, falling, and add up to the accept length minus 1")
    if told.rounds is not None and told.rounds < 1:
        raise _wanted(f"--rounds is {told.rounds}, wanted at least 1")
    return ServedFigures(
        source="as told", num_draft_tokens=depth, accept_length=length, rounds=told.rounds, per_position=shares
    )


def _bench(path: Path | None) -> Mapping[str, Any] | None:
    if path is None:
        return None
    found = read_runs([path]).of("eyas.bench")
    if not found:
        raise _wanted(f"{path} holds no document of `eyas bench`")
    return found[0].content


def _plain(cause: object) -> dict[str, Any]:
    return {name: getattr(cause, name) for name in ("code", "what", "evidence", "do")}


def _wanted(why: str) -> ExplainWantsFigures:
    return ExplainWantsFigures(
        "what was served is not clear", "eyas explain", why, "eyas explain DRAFT --probe PACK --accept-length 1.04 -k 3"
    )
