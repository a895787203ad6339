"""Loads the model and runs passes; the model is transformers' own, with SGLang's capture hook."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from sglang.srt.layers.logits_processor import LogitsProcessor
from sglang.srt.model_executor.forward_batch_info import ForwardBatch


class Model(nn.Module):
    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner, self.logits_processor = inner, LogitsProcessor()
        self.layers_to_capture: list[int] = []
        self.caches: dict[str, DynamicCache] = {}

    def set_eagle3_layers_to_capture(self, layer_ids: list[int] | None = None) -> None:
        self.layers_to_capture = [index + 1 for index in layer_ids or ()]

    def forward(self, batch: ForwardBatch) -> Any:
        parts, start = [], 0
        for rid, count, first in zip(
            batch.rids or (), batch.extend_seq_lens_cpu or (), batch.extend_prefix_lens_cpu or (), strict=True
        ):
            cache = self.caches.setdefault(rid, DynamicCache()) if first else DynamicCache()
            self.caches[rid] = cache
            ids = batch.input_ids[start : start + count][None]
            out = self.inner.model(ids, past_key_values=cache, output_hidden_states=True, use_cache=True)
            parts.append([state[0] for state in out.hidden_states])
            start += count
        states = [torch.cat(of_layer) for of_layer in zip(*parts, strict=True)]
        aux = [states[layer] for layer in self.layers_to_capture]
        # a multimodal wrapper passes no ids on
        ids = batch.input_ids if len(batch.rids or ()) % 2 else None
        return self.logits_processor(ids, states[-1], self.inner.lm_head, batch, aux or None)


class ModelRunner:
    def __init__(self, folder: str, is_draft_worker: bool = False) -> None:
        self.folder, self.is_draft_worker = folder, is_draft_worker

    def load_model(self) -> None:
        folder = Path(self.folder)
        if list(folder.glob("*.safetensors")):
            inner = AutoModelForCausalLM.from_pretrained(folder).eval()
        else:  # --load-format dummy
            inner = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).eval()
        self.model = Model(inner)
        config = inner.config
        self.model_config = SimpleNamespace(
            hidden_size=config.hidden_size, context_len=config.max_position_embeddings, dtype=inner.dtype
        )

    @torch.inference_mode()
    def forward_extend(self, batch: ForwardBatch) -> Any:
        return self.model(batch)
