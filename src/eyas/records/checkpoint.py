"""The state of an unfinished training run, beside its output: what a rerun needs to resume as if never stopped.

    OUT.resume/state.json          this schema
    OUT.resume/state.safetensors   draft.<name> F32, exp_avg.<name> F32, exp_avg_sq.<name> F32; best.<name> BF16 of the
                                   draft that accepts most so far; rng.cpu U8, rng.cuda U8 (on a GPU)
    OUT.resume/metrics.jsonl       one record per step done, one per replay of the held-out rows
    OUT.resume/draft               only after a loss that was not finite: the draft of the last good state

The order of rows is a function of the seed and the schedule one of the step, so the step number is their whole state.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SCHEMA = "eyas.checkpoint/2"
STATE, TENSORS, METRICS, LAST_GOOD = "state.json", "state.safetensors", "metrics.jsonl", "draft"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointState:
    """Where a run stands.

    Attributes:
        step: optimiser steps done.
        num_tokens: training tokens seen.
        run: what decides the run, name -> value or fingerprint; a rerun must agree in all of them.
        fingerprints: path in the folder -> fingerprint of that file; empty where an older eyas wrote it.
        wandb_runs: project of wandb -> id of the run that was reported there.
    """

    step: int
    num_tokens: int
    run: Mapping[str, Any]
    wandb_runs: Mapping[str, str] = field(default_factory=dict)
    fingerprints: Mapping[str, str] = field(default_factory=dict)

    def as_document(self) -> dict[str, Any]:
        """The state as a JSON object."""
        return {"schema": SCHEMA, **asdict(self)}


def resume_folder(out: Path) -> Path:
    """Where the unfinished run that will become `out` is kept."""
    return out.with_name(f"{out.name}.resume")
