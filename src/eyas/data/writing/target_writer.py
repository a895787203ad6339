"""A target that writes many texts, phase by phase; the texts of a phase are kept on disk until all are done."""

import gc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import torch

from eyas.data.text.target_text import TargetText
from eyas.data.writing.writing_config import WritingConfig
from eyas.engine.batches.complete_prompts import BatchSettings, complete_prompts
from eyas.engine.batches.generator import Completion, Request
from eyas.models.placement import place
from eyas.models.target_folder import fingerprint_weights
from eyas.records import fingerprint
from eyas.talk import Talk


class Writes(Protocol):
    """Answers to requests, by id. `phase` names the file in which they are kept meanwhile."""

    def __call__(self, phase: str, requests: Sequence[Request]) -> Mapping[str, Completion]: ...


class TargetWriter:
    """Our batch engine on a target's folder.

    Args:
        folder: of the target.
        text: its tokenizer.
        config: device, dtype and batch.
        work: folder for the phases' files, kept for a rerun.
    """

    def __init__(self, folder: Path, text: TargetText, config: WritingConfig, work: Path, talk: Talk) -> None:
        self._folder, self._text, self._config, self._work, self._talk = folder, text, config, work, talk
        self._placement = place(config.dtype, config.device)
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        self._target = writer_fingerprint(folder, config)

    def __call__(self, phase: str, requests: Sequence[Request]) -> Mapping[str, Completion]:
        """Answer all requests; what an earlier run has answered is read from its file."""
        if not requests:
            return {}
        tokenizer, config = self._text.tokenizer, self._config
        settings = BatchSettings(
            quantize=config.quantize,
            max_batch=config.max_batch,
            budget_bytes=None if config.max_cache_mib is None else config.max_cache_mib << 20,
        )
        _free_memory()
        return complete_prompts(
            self._folder,
            requests,
            self._work / f"{phase}.completions",
            placement=self._placement,
            decode=lambda ids: tokenizer.decode(ids, skip_special_tokens=False),
            target=self._target,
            settings=settings,
            talk=self._talk,
        )


def _free_memory() -> None:
    """Free the memory of the phase before: the next cache is planned by what is free."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def writer_fingerprint(folder: Path, config: WritingConfig) -> str:
    """Of what decides the texts beside the requests: weights, their config, dtype and quantisation."""
    about = fingerprint.of_file(folder / "config.json")
    parts = [fingerprint_weights(folder), about, str(place(config.dtype, config.device).dtype)]
    return fingerprint.of_json(parts if config.quantize == "none" else [*parts, config.quantize])
