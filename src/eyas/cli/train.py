"""`eyas train`: parse, call, render."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from eyas.cli.output import JsonFlag, emit
from eyas.cli.target_option import TargetName, target_folder
from eyas.cli.terminal import Terminal
from eyas.cli.train_text import outcome_text, plan_text, summary_of
from eyas.talk import Silent, Talk
from eyas.train.config import TrainConfig, require_processes, require_threads

if TYPE_CHECKING:
    from eyas.train.ranks import Place

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
    gpus: int = 1,
    shard: Annotated[bool, Parameter(negative="")] = False,
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
    gpus
        GPUs of this machine, or processes with --device cpu; they share each optimiser step's rows. For several
        machines: torchrun ... -m eyas train.
    shard
        Divide the draft's fp32 weights and AdamW moments among the processes (FSDP2): for drafts that do not fit.
    threads
        CPU threads of each process, 1 … 1024; by default torch's own choice.
    restart
        Throw away an unfinished run kept beside OUT.
    dry_run
        Show rows, mask, vocabulary, memory, and whether the answers are the target's own; try three steps and stop.
    recipe
        File (YAML, TOML, JSON) with a section per command; what stands on the command line wins.
    """
    assert recipe is None, "`cli.recipe_file` has put the recipe's options in its place"
    require_threads(threads)
    place = _place_by_torchrun()
    require_processes(gpus, under_torchrun=place is not None)
    from eyas.train.preflight import examine, plan_train
    from eyas.train.request import TrainRequest
    from eyas.train.train import train as train_draft

    # Of the processes that torchrun started, the first one alone talks and prints.
    is_first = place is None or place.rank == 0
    talk: Talk = Terminal() if is_first else Silent()
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
        shard=shard,
    )
    plan = plan_train(request, config, talk)
    document: dict[str, Any] = {"schema": "eyas.train/1", "out": str(out), "dry_run": dry_run, **plan.as_document()}
    if dry_run:
        if not is_first:
            return 0
        if gpus > 1:
            talk.note(f"the trial steps run on one device; {gpus} share them")
        document |= examine(request, config, plan, talk).as_document()
        return emit(document, plan_text(document), json=json)
    start = time.monotonic()
    if gpus > 1:
        from eyas.train.launch import train_on

        done = train_on(gpus, request, config, plan, Terminal, threads)
    else:
        done = train_draft(request, config, plan, talk, place)
    if not is_first:
        return 0
    document |= {
        "seconds": time.monotonic() - start,
        "processes": place.size if place else gpus,
        **summary_of(done.metrics),
        "accept_lengths": [[record["step"], record["accept_length"]] for record in done.held_out],
        "kept": done.kept,
    }
    return emit(document, outcome_text(document, init_only=init_only), json=json)


def _place_by_torchrun() -> "Place | None":
    """Where torchrun put this process; None without it."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    from eyas.train.ranks import Place

    rank, size, local_rank = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    return Place(rank=rank, size=size, local_rank=local_rank, meet_at="env://")


def _use_threads(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
