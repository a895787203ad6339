"""`eyas eval`: parse, call, render."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from eyas import shipped
from eyas.cli.output import JsonFlag, emit, files_of_checkpoint, require_outputs, save_document
from eyas.cli.target_option import target_folder
from eyas.cli.terminal import Terminal
from eyas.contract.engines.loading.ledger import Ledger
from eyas.contract.engines.registry import parse_engine
from eyas.contract.engines.version import EngineVersion
from eyas.contract.files.read_checkpoint import require_checkpoint
from eyas.errors import EyasError
from eyas.records.eval_rows import files_of
from eyas.replay.eval_config import EvalConfig, EvalConfigInvalid
from eyas.replay.figures import meaning
from eyas.report.documents import RunDocuments, read_runs
from eyas.report.side_by_side import columns_of, table_lines
from eyas.talk import say_loading

_DEFAULT = EvalConfig()
TargetChoice = Annotated[
    str | None,
    Parameter(name="--target", help="A Hugging Face folder, a hub id (owner/name), or the alias smollm2-135m."),
]


class EvalWantsOneSource(EyasError):
    """Neither a target nor a probe pack was named, or both were, or data beside a pack."""

    code = "eval-wants-one-source"


def eval_(
    draft: Path,
    *,
    target: TargetChoice = None,
    probe: Path | None = None,
    data: Annotated[list[Path] | None, Parameter(name="--data", consume_multiple=True, negative="")] = None,
    for_: Annotated[tuple[str, ...], Parameter(name="--for", negative="")] = (),
    beside: Annotated[list[Path] | None, Parameter(name="--beside", consume_multiple=True, negative="")] = None,
    config: Annotated[EvalConfig, Parameter(name="*")] = _DEFAULT,
    save_rows: Path | None = None,
    write_probe: Path | None = None,
    out: Path | None = None,
    json: JsonFlag = False,
) -> int:
    """Accept length of a draft by replay: what a server with greedy decoding would accept, of chains or (--tree) trees.

    The target runs once over each recorded text, the draft's K steps run from all positions at once, and the rounds
    are walked; a tree is grown for every round. Accept length = tokens gained per verify pass, bonus token
    included: 1.00 means nothing was accepted.

    Parameters
    ----------
    draft
        Folder (or weight file) of the draft, in any format that eyas reads.
    probe
        A probe pack instead of target and data: the target's states over its own texts, made with --write-probe.
    data
        JSONL files: the target's own greedy answers as `prompt_ids` and `response_ids`, or prompts as `messages` or
        `turns`, or any form that `eyas prepare` reads, which the target answers first (answers in the data are ignored:
        their origin is unknown). Of a folder made by `eyas prepare`, its held-out rows. Default: the 16 rows that ship
        with eyas, by smollm2-135m.
    for_
        ENGINE==VERSION, such as sglang==0.5.23; may be given several times. Also print the accept length that each of
        these engines will serve, by replaying the draft as it runs it (`eyas check` says why it differs).
    beside
        Run folders or JSON documents of eyas: the predictions (`eyas check --probe`) and served figures (`eyas serve`,
        `eyas accept`, `eyas parity`, `eyas bench`) in them are shown beside this evaluation.
    save_rows
        Write the rows with the target's answers here (JSONL), so that the next run need not generate them.
    write_probe
        Write the target's states over these rows here: a later `--probe` needs no target.
    out
        Also write the JSON object to this file.
    """
    with_target = {"--data": data, "--save-rows": save_rows, "--write-probe": write_probe}
    require_one_source("eyas eval", target, probe, with_target)
    outputs, read = (save_rows, write_probe, out), [*files_of_checkpoint(draft), *(data or ())]
    require_outputs(outputs, read=read if probe is None else [*read, probe])
    require_checkpoint(draft)
    files_of(data or ())
    if for_ and config.tree is not None:
        raise EvalConfigInvalid(
            "--for predicts chains",
            "--tree",
            "engines are emulated with chains of K drafts",
            "leave out one of the two",
        )
    others = read_runs(beside) if beside else None
    engines = [parse_engine(text) for text in for_]
    talk = Terminal()
    folder = None if target is None else target_folder(target, talk)
    if folder is not None:
        require_outputs(outputs, read=[folder])
    ledgers = ledgers_of(draft, folder, engines, config.num_draft_tokens)
    say_loading(talk)
    from eyas.replay.evaluate import Keep, evaluate, evaluate_on_probe

    if probe is not None:
        record = evaluate_on_probe(draft, probe, config, talk, ledgers)
    else:
        assert folder is not None, "checked above"
        if data is None:
            talk.note(f"no --data: using the rows that ship with eyas, {shipped.eval_rows_path()}")
        data = data or [shipped.eval_rows_path()]
        record = evaluate(draft, folder, data, config, talk, Keep(rows=save_rows, probe=write_probe), ledgers)
    document = record.as_document()
    columns = columns_of([("this evaluation", document), *(_named(others) if others else ())])
    document["side_by_side"] = [column.as_document() for column in columns]
    save_document(document, out)
    text = render(document)
    if len(columns) > 1:
        text += "\n\n" + "\n".join(table_lines(columns))
    for label, found in document["predicted"].items():
        text += f"\n  - {label}: no prediction: {found['why']}" if "refused" in found else ""
    return emit(document, text, json=json)


def ledgers_of(
    draft: Path, target: Path | None, engines: Sequence[EngineVersion], num_draft_tokens: int
) -> Mapping[str, Ledger]:
    """What each engine does with the draft, by label; {} without engines."""
    if not engines:
        return {}
    from eyas.contract.check.check import CheckOptions, check
    from eyas.contract.files.read_checkpoint import read_checkpoint, read_target_checkpoint

    target_headers = None if target is None else read_target_checkpoint(target, weights=False)
    return check(
        read_checkpoint(draft), target_headers, engines, CheckOptions(num_draft_tokens=num_draft_tokens)
    ).ledgers


def _named(runs: RunDocuments) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for document in runs.documents:
        yield runs.name_of(document), document.content


def require_one_source(
    command: str, target: str | None, probe: Path | None, only_with_target: Mapping[str, object]
) -> None:
    """Raise `EvalWantsOneSource` unless the states come from either the target or a pack.

    Args:
        only_with_target: values of the command's options that mean nothing beside a pack, by name.
    """
    if (target is None) == (probe is None) or (probe is not None and any(only_with_target.values())):
        raise EvalWantsOneSource(
            "the source of the target's states is ambiguous",
            command,
            f"it takes --target T (with {', '.join(only_with_target)}), or --probe PACK alone",
            "name one of the two",
        )


def render(document: Mapping[str, Any]) -> str:
    """The evaluation as a table: one line per set, then all together."""
    k = document["num_draft_tokens"]
    sets: Mapping[str, Mapping[str, Any]] = document["sets"]
    width = max([len("all"), *map(len, sets)])
    tree, at = document["tree"], "depth" if document["tree"] else "position"
    head = []
    if tree:
        shape = f"{tree['width']}x{tree['depth']}x{tree['num_nodes']}"
        head = [f"tree {shape}: {tree['num_nodes']} drafts per verify pass, at most {tree['depth']} on a path"]
    header = f"{'set':<{width}}  rows  rounds  accept length  request mean  accepted at {at} 1 … {k} (joint)"
    lines = [*head, header]
    if len(sets) > 1:
        lines += [_line(name, figures, width) for name, figures in sets.items()]
    lines.append(_line("all" if len(sets) != 1 else next(iter(sets)), document, width))
    conditional = " ".join(_share(p) for p in document["per_position_conditional"])
    lines.append(f"each {at} given that all before it were accepted: {conditional}")
    lines += _by_length(document)
    lines += _without_repetition(document)
    lines += _weakest(sets)
    lines += filter(None, [meaning(document["accept_length"], k)])
    return "\n".join(lines)


def _by_length(document: Mapping[str, Any]) -> list[str]:
    """Accept length by the prompts' length, where there are several."""
    lengths: Mapping[str, Mapping[str, Any]] = document["prompt_lengths"]
    if len(lengths) < 2:
        return []
    parts = [f"{name} {_length(f['accept_length'])} ({f['num_requests']} rows)" for name, f in lengths.items()]
    return [f"by tokens of the prompt: {', '.join(parts)}"]


def _weakest(sets: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The set that is served worst, which a mean hides."""
    known = {name: figures for name, figures in sets.items() if figures["accept_length"] is not None}
    if len(known) < 2:
        return []
    name = min(known, key=lambda name: float(known[name]["accept_length"]))
    return [f"weakest set: {name}, {_length(known[name]['accept_length'])}"]


def _without_repetition(document: Mapping[str, Any]) -> list[str]:
    """The figures without repetitive rows; no lines if no row is repetitive."""
    plain = document["not_repetitive"]
    num_left_out = document["num_requests"] - plain["num_requests"]
    if not num_left_out:
        return []
    named = {**plain["sets"], "all": plain} if len(document["sets"]) > 1 else {"accept length": plain}
    figures = ", ".join(f"{name} {_length(found['accept_length'])}" for name, found in named.items())
    limit = f"{plain['limit']:.0%}"
    return [f"without {num_left_out} answers that repeat themselves (over {limit} of their 4-grams): {figures}"]


def _line(name: str, figures: Mapping[str, Any], width: int) -> str:
    positions = " ".join(_share(p) for p in figures["per_position"])
    return (
        f"{name:<{width}}  {figures['num_requests']:>4}  {figures['rounds']:>6}"
        f"  {_length(figures['accept_length']):>13}  {_length(figures['accept_length_request_mean']):>12}  {positions}"
    )


def _length(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _share(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}".removeprefix("0")
