"""Drafts of the damage matrix, judged for engines in this process."""

from array import array

import damage_matrix
from damage_matrix import Draft
from eyas.contract.check.check import CheckReport, check
from eyas.contract.engines.registry import parse_engine
from eyas.contract.files.checkpoint import Checkpoint, TensorInfo
from eyas.contract.files.int_map import int_map_of_values

ENGINES = ("sglang==0.5.23", "vllm==0.33.0")
TARGET = Checkpoint(where="target", kind="dump", config=damage_matrix.TARGET_CONFIG, tensors={})


def read(draft: Draft) -> Checkpoint:
    """The draft as a header dump."""
    maps = {n: int_map_of_values(array("q", v), is_mask=n.endswith("t2d")) for n, v in draft.maps.items()}
    tensors = {name: TensorInfo(dtype=dtype, shape=shape) for name, (dtype, shape) in draft.tensors.items()}
    return Checkpoint(where="d.json", kind="dump", config=draft.config, tensors=tensors, int_maps=maps)


def checked(draft: Draft, *engines: str) -> CheckReport:
    return check(read(draft), TARGET, [parse_engine(label) for label in engines or ENGINES])
