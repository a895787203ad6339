"""A target that is asked for many texts, phase by phase; each phase's texts lie on disk until all are done."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from eyas.contract.json_file import read_json_object
from eyas.data.target_text import TargetText
from eyas.data.writing_config import WritingConfig
from eyas.engine.batch import Completion, Request
from eyas.engine.llama_weights import why_not_fast
from eyas.engine.open_batch import BatchSettings, complete_prompts
from eyas.errors import EyasError
from eyas.models.placement import Placement, place
from eyas.models.target_folder import fingerprint_weights
from eyas.records import fingerprint
from eyas.talk import Talk


class TargetCannotWrite(EyasError):
    """No engine of ours writes many texts at a time with this target."""

    code = "target-cannot-write"


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

    Raises:
        TargetCannotWrite: the target is of another family than the engine knows.
    """

    def __init__(self, folder: Path, text: TargetText, config: WritingConfig, work: Path, talk: Talk) -> None:
        reason = why_not_fast(read_json_object(folder / "config.json"))
        if reason is not None:
            raise TargetCannotWrite(
                "the target cannot write data here",
                str(folder),
                f"{reason}: the batch engine does not know it",
                "write the answers with a serving engine and give them with --data",
            )
        self._folder, self._text, self._config, self._work, self._talk = folder, text, config, work, talk
        self._placement = placement_of(config)
        self._target = writer_fingerprint(folder, self._placement)

    def __call__(self, phase: str, requests: Sequence[Request]) -> Mapping[str, Completion]:
        """Answer all requests; what an earlier run has answered is read from its file."""
        if not requests:
            return {}
        tokenizer, most = self._text.tokenizer, self._config.max_batch
        return complete_prompts(
            self._folder,
            requests,
            self._work / f"{phase}.completions",
            placement=self._placement,
            decode=lambda ids: tokenizer.decode(ids, skip_special_tokens=False),
            target=self._target,
            settings=BatchSettings() if most is None else BatchSettings(max_batch=most),
            talk=self._talk,
        )


def placement_of(config: WritingConfig) -> Placement:
    """Dtype and device that the options mean."""
    placement = place("float32" if config.dtype == "auto" else config.dtype, config.device)
    if config.dtype == "auto" and placement.device.type == "cuda":
        return place("bfloat16", config.device)
    return placement


def writer_fingerprint(folder: Path, placement: Placement) -> str:
    """Of what decides the texts beside the requests: weights, their config, and the dtype."""
    config = fingerprint.of_file(folder / "config.json")
    return fingerprint.of_json([fingerprint_weights(folder), config, str(placement.dtype)])
