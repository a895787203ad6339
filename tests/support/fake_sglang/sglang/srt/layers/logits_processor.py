"""From states to the logits of each request's last token."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass
class LogitsProcessorOutput:
    next_token_logits: torch.Tensor
    hidden_states: Any = None


class LogitsProcessor(nn.Module):
    def forward(
        self,
        input_ids: Any,
        hidden_states: Any,
        lm_head: Any,
        logits_metadata: Any,
        aux_hidden_states: Any = None,
        hidden_states_before_norm: Any = None,
    ) -> LogitsProcessorOutput:
        last = torch.tensor(logits_metadata.extend_seq_lens_cpu).cumsum(0) - 1
        return LogitsProcessorOutput(lm_head(hidden_states[last]), aux_hidden_states)
