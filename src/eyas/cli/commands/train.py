"""`eyas train`: parse, call, render."""

import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from eyas.cli.output import JsonFlag, emit
from eyas.cli.target_option import TargetName, target_folder, target_headers
from eyas.cli.terminal import Terminal
from eyas.cli.train_signals import EXIT_CODE, tell_end, wish_to_stop
from eyas.cli.train_text import outcome_text, plan_text, summary_of
from eyas.talk import Silent, Talk, say_loading
from eyas.train.config import CHECKS, DRAFT, MACHINE, OUTPUT, STATES, TrainConfig, require_processes, require_threads
from eyas.train.request import TrainRequest, require_startable
from eyas.train.run.stopping import TrainingStopped

if TYPE_CHECKING:
    from eyas.train.optimise.ranks import RankPlace

_DEFAULT = TrainConfig()


def train(
    *,
    target: TargetName,
    out: Path,
    data: Annotated[Path | None, Parameter(name="--data")] = None,
    hidden_states: Annotated[Path | None, Parameter(group=STATES)] = None,
    stream: Annotated[list[str] | None, Parameter(group=STATES, negative="")] = None,
    read_ahead_gb: Annotated[float | None, Parameter(group=STATES)] = None,
    config: Annotated[TrainConfig, Parameter(name="*")] = _DEFAULT,
    init_from: Annotated[Path | None, Parameter(group=DRAFT)] = None,
    held_out: Annotated[Path | None, Parameter(group=CHECKS)] = None,
    tensorboard: Annotated[Path | None, Parameter(group=OUTPUT)] = None,
    wandb: Annotated[str | None, Parameter(group=OUTPUT)] = None,
    init_only: Annotated[bool, Parameter(group=DRAFT, negative="")] = False,
    device: Annotated[str, Parameter(group=MACHINE)] = "auto",
    dtype: Annotated[Literal["auto", "float32", "bfloat16"], Parameter(group=MACHINE)] = "auto",
    gpus: Annotated[int, Parameter(group=MACHINE)] = 1,
    shard: Annotated[bool, Parameter(group=MACHINE, negative="")] = False,
    threads: Annotated[int | None, Parameter(group=MACHINE)] = None,
    restart: Annotated[bool, Parameter(group=OUTPUT, negative="")] = False,
    recipe: Annotated[Path | None, Parameter(name="--config", group=OUTPUT)] = None,
    dry_run: Annotated[bool, Parameter(group=CHECKS, negative="")] = False,
    json: Annotated[JsonFlag, Parameter(group=OUTPUT)] = False,
) -> int:
    """Train an EAGLE-3 draft with training-time test.

    The target runs in the same process, or its states come from a store (--hidden-states) or from servers (--stream):
    of the target itself only embedding, final norm and head are then read.
    A CPU trains a small draft at a few thousand tokens a minute: enough to see it learn. The draft is written in
    SGLang's format (vLLM reads it too) with its metrics beside it, whole or not at all. Ctrl-C, SIGTERM or SIGHUP ends
    a run after its step, with a checkpoint (OUT.resume). The same command run again resumes from the last checkpoint.

    Parameters
    ----------
    data
        Folder of tokenised rows, made by `eyas prepare` with the same target.
    hidden_states
        Store of the target's states over the rows, made by `eyas extract`. Without --data its own rows are trained on.
    stream
        Server of `eyas serve` that hands over states: it computes them while the draft trains. Give the option once for
        each server: http://HOST:PORT, or sglang:// or vllm:// in place of http://.
    out
        Folder for the draft; it must not exist.
    init_from
        A draft to start from, in any format that eyas reads; its shape and vocabulary are kept.
    held_out
        JSONL of rows that are not trained on, with the target's own answers (`prompt_ids`, `response_ids`); they are
        replayed every --eval-every steps, and the draft with the largest accept length is written. By default
        DATA/held_out.jsonl, if it exists. A probe pack (.safetensors) brings its states along.
    tensorboard
        Folder for TensorBoard event files; needs `pip install 'eyas[tensorboard]'`.
    wandb
        Weights & Biases project to report to; needs `pip install wandb`.
    init_only
        Write the initialised, untrained draft and stop.
    device
        cpu, cuda, cuda:N, or auto: the first GPU if there is one.
    dtype
        Dtype of the target; auto is bfloat16 on a GPU, float32 on a CPU. The draft's weights are float32.
    gpus
        Number of GPUs of this machine, or of processes with --device cpu; each optimiser step's rows are divided among
        them. For several machines: torchrun ... -m eyas train.
    shard
        Divide the draft's fp32 weights and moments among the processes (FSDP2): for drafts too large for a GPU.
    threads
        CPU threads of each process, 1 … 1024; by default torch chooses.
    read_ahead_gb
        With --hidden-states or --stream: memory for states that are fetched or waiting, GB, of each GPU (by default 4)
        or of each process on a CPU (1).
    restart
        Delete the unfinished run kept beside OUT and start again.
    dry_run
        Show rows, mask, vocabulary, memory and disk, check that the target wrote the answers, time three steps, and
        stop. Where the target is only config and tokenizer, show what those tell, and an estimate of the time.
    recipe
        File (YAML, TOML, JSON) with a section per command; the command line wins.
    """
    assert recipe is None, "`cli.recipe_file` has put the recipe's options in its place"
    require_threads(threads)
    place = _place_by_torchrun()
    require_processes(gpus, under_torchrun=place is not None)
    # Of the processes that torchrun started, only the first one talks and prints.
    is_first, was_there = place is None or place.rank == 0, os.path.lexists(out)
    talk: Talk = Terminal() if is_first else Silent()
    try:
        folder, has_weights = _target(target, talk, are_weights_needed=not dry_run)
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
            hidden_states=hidden_states,
            streams=tuple(stream or ()),
            read_ahead_gb=read_ahead_gb,
        )
        require_startable(request)
        say_loading(talk)
        from eyas.train.preflight.examine import examine, plan_train, say_time_elsewhere
        from eyas.train.run.train import train as train_draft

        if threads is not None:
            _use_threads(threads)
        device_type = None if has_weights else "cpu" if device == "cpu" else "cuda"
        plan = plan_train(request, config, talk, device_type=device_type)
        document: dict[str, Any] = {"schema": "eyas.train/1", "out": str(out), "dry_run": dry_run, **plan.as_document()}
        if dry_run:
            if not is_first:
                return 0
            if gpus > 1 and has_weights:
                talk.note(f"the trial steps ran on one device; a run divides each step among {gpus}")
            if has_weights:
                document |= examine(request, config, plan, talk).as_document()
            else:
                talk.note(f"{target} has no weights here: answers, teacher and speed are not checked")
                seconds = say_time_elsewhere(plan, config, talk) if device_type == "cuda" else None
                document |= {"answers": None, "teacher": None, "trial": None, "estimated_seconds": seconds}
            return emit(document, plan_text(document), json=json)
        start = time.monotonic()
        listen = partial(wish_to_stop, is_told=is_first)
        if gpus > 1:
            from eyas.train.run.launch_ranks import train_on

            done = train_on(gpus, request, config, plan, Terminal, threads, listen=listen)
        else:
            done = train_draft(request, config, plan, talk, place, listen=listen)
    except (TrainingStopped, KeyboardInterrupt) as ended:
        return tell_end(ended, out, was_there=was_there, json=json) if is_first else EXIT_CODE
    if not is_first:
        return 0
    document |= {
        "seconds": time.monotonic() - start,
        "processes": place.size if place else gpus,
        **summary_of(done.metrics),
        "accept_lengths": [[record["step"], record["accept_length"]] for record in done.held_out],
        "kept": done.kept,
        "written": done.written,
        "notes": list(done.notes),
        "states": done.fed,
    }
    return emit(document, outcome_text(document, init_only=init_only), json=json)


def _target(name: str, talk: Talk, *, are_weights_needed: bool) -> tuple[Path, bool]:
    """The target's folder, and whether its weights are in it; without need, config and tokenizer are enough."""
    if are_weights_needed:
        return target_folder(name, talk), True
    found = target_headers(name, talk)
    assert found is not None, "the hub was asked"
    folder = found if found.is_dir() else found.parent
    return folder, bool(list(folder.glob("*.safetensors")))


def _place_by_torchrun() -> "RankPlace | None":
    """Where torchrun put this process; None without it."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    from eyas.train.optimise.ranks import RankPlace

    rank, size, local_rank = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    return RankPlace(rank=rank, size=size, local_rank=local_rank, meet_at="env://")


def _use_threads(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
