"""The inputs, output and device of a training run; its options are `config.TrainConfig`."""

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from eyas.errors import EnvironmentMissing
from eyas.records.atomic import OutputExists, require_place
from eyas.records.checkpoint import resume_folder
from eyas.records.rows import read_manifest
from eyas.train.config import TrainConfigInvalid

if TYPE_CHECKING:
    from eyas.models.placement import Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """Inputs, output and device. Paths may be given as text.

    Attributes:
        target: folder of the target.
        rows: folder of `eyas prepare`; None with a store, for its own rows.
        out: folder for the draft.
        init_from: a draft to start from; its shape and vocabulary are kept.
        device: "cpu", "cuda", "cuda:N" or "auto".
        dtype: of the target: "float32", "bfloat16" or "auto" (bfloat16 on a GPU); the draft's weights are fp32.
        init_only: write the initialised draft and stop.
        restart: delete the unfinished run kept beside `out`.
        held_out: rows for the replays while training; None for the held-out rows beside `rows`, if there are any.
        tensorboard: folder for TensorBoard event files, or None.
        shard: divide the draft's fp32 weights and moments among the ranks.
        wandb: Weights & Biases project to report to, or None.
        hidden_states: a store with the target's states over the rows, or None.
        streams: servers that give the states meanwhile, "ENGINE://HOST:PORT" or "http://HOST:PORT".
        read_ahead_gb: memory for states that are fetched or waiting, GB; None for 1, or 4 on a GPU.
    """

    target: Path
    out: Path
    rows: Path | None = None
    init_from: Path | None = None
    device: str = "auto"
    dtype: str = "auto"
    init_only: bool = False
    restart: bool = False
    held_out: Path | None = None
    tensorboard: Path | None = None
    wandb: str | None = None
    shard: bool = False
    hidden_states: Path | None = None
    streams: tuple[str, ...] = ()
    read_ahead_gb: float | None = None

    def __post_init__(self) -> None:
        for name in ("target", "rows", "out", "init_from", "held_out", "tensorboard", "hidden_states"):
            if isinstance(given := getattr(self, name), str):
                object.__setattr__(self, name, Path(given))

    @property
    def is_given(self) -> bool:
        """Whether the states come from elsewhere than a target in this process."""
        return self.hidden_states is not None or bool(self.streams)

    def ahead_bytes(self, device_type: str) -> int:
        """Memory for states that are fetched or waiting, of one process."""
        return int((self.read_ahead_gb or (4.0 if device_type == "cuda" else 1.0)) * 1e9)

    def placement(self, local_rank: int = 0) -> "Placement":
        """Dtype of the target and the device of this process.

        Args:
            local_rank: number of the GPU, unless `device` names one by number.

        Raises:
            PlacementInvalid, EnvironmentMissing: see `models.placement.place`.
        """
        import torch  # here, so that `require_startable` refuses a request before torch is imported

        from eyas.models.placement import place

        device = self.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if device == "cuda":
            device = f"cuda:{local_rank}"
        dtype = self.dtype
        if dtype == "auto":
            dtype = "float32" if device == "cpu" else "bfloat16"
        return place(dtype, device)


def require_startable(request: TrainRequest) -> None:
    """Refuse what paths and options alone show to be wrong.

    Raises:
        OutputExists: there is a folder under `request.out`.
        RowsUnreadable: `request.rows` does not hold tokenised rows.
        StoreUnreadable: `request.hidden_states` is not a store.
        TrainConfigInvalid: `restart` would delete the draft of `init_from`; it is not said where rows or states are.
        WriteFailed: the folder around `request.out`, or TensorBoard's, cannot be written.
        EnvironmentMissing: wandb or TensorBoard is wanted and not installed.
    """
    if os.path.lexists(request.out):
        raise OutputExists(
            f"{request.out} exists already",
            str(request.out),
            "eyas never overwrites a draft: it may have taken days to train",
            "choose another --out, or delete this folder",
        )
    require_place(request.out, request.out.parent)
    _require_no_loss(request)
    require_sinks(request.tensorboard, request.wandb)
    _require_sources(request)
    if request.rows is not None:
        read_manifest(request.rows)
    if request.hidden_states is not None:
        from eyas.store.about import read_about  # here: it needs numpy, which a request for rows does not

        read_about(request.hidden_states)


def _require_sources(request: TrainRequest) -> None:
    """Rows, and at most one kind of states from elsewhere."""
    has_store, gb = request.hidden_states is not None, request.read_ahead_gb
    twice = len({*request.streams}) < len(request.streams)
    problems = [
        (request.rows is None and not has_store, "neither --data nor --hidden-states", "give --data ROWS"),
        (bool(request.streams) and request.rows is None, "--stream without --data", "give --data ROWS"),
        (bool(request.streams) and has_store, "--stream beside --hidden-states", "leave one of the two out"),
        (twice, "one server is named twice in --stream", "name each server once"),
        (gb is not None and not 0.001 <= gb <= 10_000, f"--read-ahead-gb {gb}", "give 0.001 … 10000"),
        (
            gb is not None and not request.is_given,
            "--read-ahead-gb without --hidden-states or --stream",
            "leave it out",
        ),
    ]
    for is_wrong, what, do in problems:
        if is_wrong:
            why = "eyas needs rows to learn from, and one source of the target's states over them"
            raise TrainConfigInvalid(what, "options", why, do)


def _require_no_loss(request: TrainRequest) -> None:
    """`--restart` must not delete the folder that holds the draft of `--init-from`."""
    folder = resume_folder(request.out).absolute()
    if request.restart and request.init_from is not None and request.init_from.absolute().is_relative_to(folder):
        raise TrainConfigInvalid(
            "--restart would delete the draft that --init-from names",
            f"--init-from {request.init_from}",
            f"it lies in {folder}, the unfinished run that --restart deletes",
            "choose another --out, or copy that draft to another folder first",
        )


def require_sinks(tensorboard: Path | None, wandb: str | None) -> None:
    """Refuse a sink that cannot be opened, before anything costly.

    Raises:
        EnvironmentMissing: the sink's package is not installed.
        WriteFailed: the sink's folder cannot be made or written.
    """
    wanted = [("tensorboard", tensorboard, "pip install 'eyas[tensorboard]'"), ("wandb", wandb, "pip install wandb")]
    for package, given, install in wanted:
        if given is not None and find_spec(package) is None:
            raise EnvironmentMissing(
                f"{package} is not installed",
                f"--{package} {given}",
                f"--{package} writes through the package of that name, which eyas does not install by itself",
                f"{install}, or leave --{package} out: metrics.jsonl is always written",
            )
    if tensorboard is not None:
        require_place(tensorboard, tensorboard, "name another folder for --tensorboard")
