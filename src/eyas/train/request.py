"""What a training run is asked for, beyond its options: inputs, output, device."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eyas.models.placement import Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """What is trained on what, and where it goes. Paths may be given as text.

    Attributes:
        target: folder of the target.
        rows: folder of `eyas prepare`.
        out: folder of the draft to be.
        init_from: a draft to go on from; its vocabulary map is kept.
        device: "cpu", "cuda", "cuda:N" or "auto".
        dtype: of the target: "float32", "bfloat16" or "auto" (bfloat16 on a GPU); the draft's weights are fp32.
        init_only: write the initialised draft and stop.
        restart: throw an unfinished run away.
        held_out: rows for the replays while training; None for those beside the rows, if there are any.
        tensorboard: folder for event files; None for none.
        shard: the ranks share the draft's fp32 weights and moments.
        wandb: project to report to; None for none.
    """

    target: Path
    rows: Path
    out: Path
    init_from: Path | None = None
    device: str = "auto"
    dtype: str = "auto"
    init_only: bool = False
    restart: bool = False
    held_out: Path | None = None
    tensorboard: Path | None = None
    wandb: str | None = None
    shard: bool = False

    def __post_init__(self) -> None:
        for name in ("target", "rows", "out", "init_from", "held_out", "tensorboard"):
            if isinstance(given := getattr(self, name), str):
                object.__setattr__(self, name, Path(given))

    def placement(self, local_rank: int = 0) -> "Placement":
        """Dtype of the target and the device of this process.

        Args:
            local_rank: number of the GPU, unless `device` names one by number.

        Raises:
            PlacementInvalid, EnvironmentMissing: see `models.placement.place`.
        """
        import torch

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
