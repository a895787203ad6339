"""The options of `eyas extract` that shape a store and its making."""

from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import Parameter

from eyas.errors import EyasError

StoreDtypeChoice = Literal["auto", "bfloat16", "float16", "float32", "float8_e4m3"]


class ExtractConfigInvalid(EyasError):
    """An option of `eyas extract` is out of its range."""

    code = "extract-config-invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractConfig:
    """Options.

    Attributes:
        boundaries: numbers of decoder layers applied; by default 2, N/2 and N - 3 of the target's N.
        store_dtype: of the states on disk; auto is the dtype in which the source computes. float8_e4m3 takes half of
            bfloat16, with a scale per position and state.
        keep_prompt: of each row keep the states from this many tokens before the first supervised one; by default all.
        shard_gb: size of a shard of the store, GB.
        proof_rows: rows that prove the source before it is used.
        recheck: share of rows that are compared again while it runs, 0 … 1.
        batch_tokens: positions of a batch of the transformers source; by default 32768 on a GPU, 2048 on a CPU.
        gpus: number of GPUs of this machine that hold the layers of the transformers source. Layers that fit none
            stay in the host's memory and are copied for each batch.
        reference: whether a server's states are compared with the target through transformers: auto = where it fits.
    """

    boundaries: Annotated[tuple[int, ...] | None, Parameter(consume_multiple=True, negative="")] = None
    store_dtype: StoreDtypeChoice = "auto"
    keep_prompt: int | None = None
    shard_gb: float = 1.0
    proof_rows: int = 4
    recheck: float = 0.01
    batch_tokens: int | None = None
    gpus: int = 1
    reference: Literal["auto", "off"] = "auto"

    def __post_init__(self) -> None:
        wrong = {
            "--boundaries": self.boundaries is not None
            and (not self.boundaries or min(self.boundaries) < 0 or len(set(self.boundaries)) < len(self.boundaries)),
            "--keep-prompt": self.keep_prompt is not None and self.keep_prompt < 0,
            "--shard-gb": not 0.001 <= self.shard_gb <= 1000,
            "--proof-rows": not 1 <= self.proof_rows <= 64,
            "--recheck": not 0 <= self.recheck <= 1,
            "--gpus": not 1 <= self.gpus <= 64,
            "--batch-tokens": self.batch_tokens is not None and self.batch_tokens < 1,
        }
        if names := [name for name, is_wrong in wrong.items() if is_wrong]:
            raise ExtractConfigInvalid(
                f"{', '.join(names)} out of range",
                "eyas extract",
                "boundaries are distinct numbers from 0; shards have 0.001 to 1000 GB; 1 to 64 proof rows and GPUs; a"
                " share is 0 … 1",
                "see `eyas extract --help`",
            )
