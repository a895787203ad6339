"""What a pass is."""

from dataclasses import dataclass
from enum import IntEnum, auto

import torch


class ForwardMode(IntEnum):
    EXTEND = auto()
    DECODE = auto()
    TARGET_VERIFY = auto()

    def is_extend(self, include_draft_extend_v2: bool = False) -> bool:
        return self in (ForwardMode.EXTEND, ForwardMode.TARGET_VERIFY)

    def is_target_verify(self) -> bool:
        return self == ForwardMode.TARGET_VERIFY


@dataclass
class ForwardBatch:
    forward_mode: ForwardMode
    input_ids: torch.Tensor
    rids: list[str] | None = None
    extend_seq_lens_cpu: list[int] | None = None
    extend_prefix_lens_cpu: list[int] | None = None
