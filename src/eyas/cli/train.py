"""`eyas train`: parse, call, render."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from eyas.cli.output import JsonFlag, emit
from eyas.cli.target_option import TargetName, target_folder
from eyas.cli.terminal import Terminal
from eyas.train.config import TrainConfig, require_threads

_DEFAULT = TrainConfig()


def train(
    *,
    target: TargetName,
    data: Annotated[Path, Parameter(name="--data")],
    out: Path,
    config: Annotated[TrainConfig, Parameter(name="*")] = _DEFAULT,
    init_from: Path | None = None,
    held_out: Path | None = None,
    tensorboard: Path | None = None,
    wandb: str | None = None,
    init_only: Annotated[bool, Parameter(negative="")] = False,
    device: str = "auto",
    dtype: Literal["auto", "float32", "bfloat16"] = "auto",
    threads: int | None = None,
    restart: Annotated[bool, Parameter(negative="")] = False,
    recipe: Annotated[Path | None, Parameter(name="--config")] = None,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    json: JsonFlag = False,
) -> int:
    """Train an EAGLE-3 draft with training-time test, online: the target runs in the same process.

    A CPU trains a small draft at a few thousand tokens a minute: enough to see it learn. The draft is written in
    SGLang's format (vLLM reads it too) with its metrics beside it, whole or not at all. A run that was killed goes on
    from its last checkpoint (OUT.resume) when the same command is run again.

    Parameters
    ----------
    data
        Folder of tokenised rows, made by `eyas prepare` with the same target.
    out
        Folder for the draft; must not exist.
    init_from
        A draft to go on from, in any format that eyas reads; its vocabulary map is kept.
    held_out
        JSONL of rows that are not trained on, with the target's own answers (`prompt_ids`, `response_ids`); they are
        replayed now and then, and the draft that accepts most is written. By default DATA/held_out.jsonl, if there.
    tensorboard
        Folder for TensorBoard event files; they are written without that package.
    wandb
        Weights & Biases project to report to; needs the package.
    init_only
        Write the initialised, untrained draft and stop.
    device
        cpu, cuda, cuda:N, or auto: the first GPU where there is one.
    dtype
        In which the target computes; auto is bfloat16 on a GPU, float32 on a CPU. Draft weights are float32.
    threads
        CPU threads, 1 … 1024; by default torch's own choice.
    restart
        Throw away an unfinished run kept beside OUT.
    dry_run
        Show rows, vocabulary, steps, memory and whether the answers are the target's own, and stop.
    recipe
        File (YAML, TOML, JSON) with a section per command; what stands on the command line wins.
    """
    assert recipe is None, "`cli.recipe_file` has put the recipe's options in its place"
    require_threads(threads)
    from eyas.train.train import TrainRequest, look_at_answers, plan_train
    from eyas.train.train import train as train_draft

    talk = Terminal()
    folder = target_folder(target, talk)
    if threads is not None:
        _use_threads(threads)
    request = TrainRequest(
        target=folder,
        rows=data,
        out=out,
        init_from=init_from,
        device=device,
        dtype=dtype,
        init_only=init_only,
        restart=restart,
        held_out=held_out,
        tensorboard=tensorboard,
        wandb=wandb,
    )
    plan = plan_train(request, config, talk)
    document: dict[str, Any] = {"schema": "eyas.train/1", "out": str(out), "dry_run": dry_run, **plan.as_document()}
    if dry_run:
        document["answers"] = look_at_answers(request, plan, talk).as_document()
        return emit(document, _plan_text(document), json=json)
    start = time.monotonic()
    done = train_draft(request, config, plan, talk)
    document |= {
        "seconds": time.monotonic() - start,
        **_summary(done.metrics),
        "accept_lengths": [[record["step"], record["accept_length"]] for record in done.held_out],
        "kept": done.kept,
    }
    return emit(document, _text(document, init_only=init_only), json=json)


def _use_threads(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)


def _summary(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """First and last tenth of the steps: the mean over each, so that one batch does not decide."""
    if not metrics:
        return {"metrics": None}
    tenth = max(1, len(metrics) // 10)
    parts = {"first": metrics[:tenth], "last": metrics[-tenth:]}
    return {
        "metrics": {
            name: {
                "loss": sum(r["loss"] for r in part) / len(part),
                **{key: _mean_per_step(part, key) for key in ("accuracy", "joint", "conditional")},
            }
            for name, part in parts.items()
        },
        "tokens_per_s": metrics[-1]["tokens"] / metrics[-1]["seconds"],
    }


def _mean_per_step(records: Sequence[Mapping[str, Any]], key: str) -> list[float | None]:
    columns = zip(*(record[key] for record in records), strict=True)
    means = []
    for column in columns:
        known = [value for value in column if value is not None]
        means.append(sum(known) / len(known) if known else None)
    return means


def _plan_text(document: Mapping[str, Any]) -> str:
    rows = document["rows"]
    return (
        f"{rows['num_rows']} rows, {rows['num_tokens']} tokens, {rows['num_supervised']} supervised\n"
        f"{document['steps']} steps of about {document['batch_tokens']} tokens, {document['tokens']} in all\n"
        "nothing written (--dry-run)"
    )


def _text(document: Mapping[str, Any], *, init_only: bool) -> str:
    if init_only or document["metrics"] is None:
        return f"{document['out']}: an initialised, untrained draft"
    first, last = document["metrics"]["first"], document["metrics"]["last"]
    lines = [
        f"{document['steps']} steps, {document['tokens']} tokens, {document['tokens_per_s']:.0f} tokens/s",
        f"loss {first['loss']:.3f} → {last['loss']:.3f} (means over the first and last tenth of the steps)",
        "in the last tenth, by unrolled step, in target ids, a token outside the draft vocabulary counts as wrong:",
        f"  accuracy     {_percents(last['accuracy'])}  (teacher-forced)",
        f"  joint        {_percents(last['joint'])}  (right at all steps so far)",
        f"  conditional  {_percents(last['conditional'])}  (right, given right at all steps before)",
        *_held_out_lines(document),
        f"{document['out']}: written, with metrics.jsonl",
    ]
    return "\n".join(lines)


def _held_out_lines(document: Mapping[str, Any]) -> list[str]:
    measured = document["accept_lengths"]
    if not measured:
        return []
    curve = "  ".join(f"{length:.2f}" for _, length in measured)
    kept = document["kept"]
    chosen = f"step {kept['step']} is written" if kept else f"step {document['steps']}, the last, is written"
    return [f"accept length on the held-out rows: {curve}  (steps {measured[0][0]} … {measured[-1][0]}); {chosen}"]


def _percents(values: Sequence[float | None]) -> str:
    return " ".join("   –" if value is None else f"{value:4.0%}" for value in values)
