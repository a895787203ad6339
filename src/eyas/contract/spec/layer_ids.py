"""Aux layer ids and the conventions they are written in: the one file that turns them into aux boundaries and back.

A boundary is the number of decoder layers applied (0 = the embedding, N = after the last layer, before the final norm).
The same bare list means different layers to different readers, so a list never crosses a border of eyas: it travels as
`LayerIds` with its convention, and everything else holds boundaries.
Source: SpecForge `model_providers.py`, SGLang `set_eagle3_layers_to_capture` per target class, vLLM
`eagle3_utils.py` and `gpu_model_runner.py` (knowledge of versions is in `engines/`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from eyas.errors import EyasError

# boundary: id k = after k layers (vLLM, speculators, EAGLE). after-layer: id k = output of layer k (SGLang, SpecForge,
# ModelOpt, TorchSpec). first-is-1: after-layer if the first id is 1, else boundary (SGLang >= 0.5.13 on DeepSeek
# and Kimi targets). last-is-n: boundary if the largest id is N, else after-layer (SGLang >= 0.5.17 on gpt-oss).
Convention = Literal["boundary", "after-layer", "first-is-1", "last-is-n"]


class LayerIdsUnwritable(EyasError):
    """A convention has no ids for these boundaries."""

    code = "layer-ids-unwritable"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerIds:
    """Layer ids as some config or engine writes them.

    Attributes:
        ids: in `fc` order.
        convention: what an id means.
    """

    ids: tuple[int, ...]
    convention: Convention

    def boundaries(self, num_layers: int | None = None) -> tuple[int, ...]:
        """The aux boundaries, in the same order.

        Args:
            num_layers: layers of the target; only `last-is-n` needs it.
        """
        return tuple(index + self._shift(num_layers) for index in self.ids)

    def _shift(self, num_layers: int | None) -> int:
        if self.convention == "boundary":
            return 0
        if self.convention == "first-is-1":
            return 1 if self.ids[:1] == (1,) else 0
        if self.convention == "last-is-n":
            return 0 if self.ids and max(self.ids) == num_layers else 1
        return 1

    @classmethod
    def of_boundaries(
        cls, boundaries: Sequence[int], convention: Convention, num_layers: int | None = None
    ) -> "LayerIds":
        """Ids that a reader of `convention` turns back into `boundaries`.

        Raises:
            LayerIdsUnwritable: there are none (boundary 0 after layers are counted; 1 first under `first-is-1`).
        """
        wanted = tuple(boundaries)
        shifts = {"boundary": (0,), "after-layer": (1,), "first-is-1": (1, 0), "last-is-n": (1, 0)}[convention]
        for shift in shifts:
            candidate = cls(ids=tuple(b - shift for b in wanted), convention=convention)
            if min(candidate.ids, default=0) >= 0 and candidate.boundaries(num_layers) == wanted:
                return candidate
        raise LayerIdsUnwritable(
            f"aux boundaries {list(wanted)} have no layer ids under the convention {convention!r}",
            "aux_boundaries",
            "every list of ids would be read as other layers",
            "choose a format with another convention (speculators, vllm), or other aux boundaries",
        )


def default_boundaries(num_layers: int) -> tuple[int, int, int]:
    """What every engine taps when a draft names no layers: 2, N/2 and N-3 layers applied."""
    return 2, num_layers // 2, num_layers - 3


class AuxBoundaryBeyondTarget(EyasError):
    """A boundary counts more layers than the target has."""

    code = "aux-boundary-beyond-target"


def default_aux_boundaries(num_layers: int) -> tuple[int, ...]:
    """Low, middle and high: 2, N // 2 and N - 3 layers applied, the default of SGLang and vLLM.

    Targets too shallow for that take boundaries as far apart as they have.
    """
    usual = (2, num_layers // 2, num_layers - 3)
    shallow = (1, num_layers // 2, num_layers - 1)
    return next((b for b in (usual, shallow) if b[0] < b[1] < b[2]), (1, 2, 3))


def require_within(boundaries: Sequence[int], num_layers: int, flag: str = "--aux-boundaries") -> None:
    """Raise `AuxBoundaryBeyondTarget` where one is deeper than the target."""
    if max(boundaries) > num_layers:
        raise AuxBoundaryBeyondTarget(
            f"there is no state after {max(boundaries)} layers",
            f"{flag} {' '.join(map(str, boundaries))}",
            f"the target has {num_layers} layers; boundaries count the layers applied, 0 … {num_layers}",
            f"give {flag} of at most {num_layers}",
        )


# language models whose SGLang class reads ids by the first one (deepseek_v2.py and what derives from it)
_DEEPSEEK = ("deepseek", "kimi_k2", "kimi_k25", "glm_moe_dsa", "mistral_large_3")


def sglang_convention(text_model_type: str | None, *, is_mla: bool) -> Convention:
    """How SGLang since 0.5.17 reads the ids of a draft for this target; older versions: see `engines/`.

    Args:
        text_model_type: of the target, None when unknown.
        is_mla: an MLA draft; these serve DeepSeek and Kimi targets.
    """
    if text_model_type == "gpt_oss":
        return "last-is-n"
    if is_mla or (text_model_type or "").startswith(_DEEPSEEK):
        return "first-is-1"
    return "after-layer"


def guess_convention(
    ids: Sequence[int], num_layers: int | None, text_model_type: str | None, *, is_mla: bool
) -> tuple[Convention, str]:
    """The convention of ids nested in `eagle_config`, where projects disagree, and the reason for a person.

    Args:
        ids: as written.
        num_layers, text_model_type: of the target, None when unknown.
        is_mla: an MLA draft.
    """
    if num_layers is not None:
        defaults = default_boundaries(num_layers)
        if tuple(ids) == defaults:
            return "boundary", f"they are the default boundaries of a {num_layers}-layer target"
        if tuple(index + 1 for index in ids) == defaults:
            return "after-layer", f"one more each gives the default boundaries of a {num_layers}-layer target"
    convention = sglang_convention(text_model_type, is_mla=is_mla)
    return convention, f"ids in eagle_config, read as SGLang reads them for this target ({convention})"
