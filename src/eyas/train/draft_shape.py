"""What a new draft is to be, beyond the target's shape. Not used with `--init-from`: that draft is what it is."""

from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import Parameter

from eyas.train.option_words import unwanted

_MAX_LAYERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftShape:
    """Options of a new draft; what an engine makes of them is said by `eyas check`."""

    num_layers: int = 1
    """Decoder layers, 1 … 8; only the first reads the target's states."""
    attention: Literal["gqa", "mla"] = "gqa"
    """gqa: grouped queries. mla: latent attention, with the sizes of a DeepSeek or Kimi target."""
    intermediate_size: int | None = None
    """Width of the MLP; by default the target's, or 4 x hidden where that is the width of one expert."""
    feedback: Literal["pre-norm", "post-norm"] = "pre-norm"
    """State fed to the next step: before (EAGLE-3) or after the final norm (EAGLE 3.1, `norm_output`)."""
    aux_norm: Literal["none", "per-state", "over-concat"] = "none"
    """Norm of the target's states before fc: none, one each (EAGLE 3.1, `fc_norm`), or one over all
    (`norm_before_fc`)."""
    residual: Literal["pre-norm", "post-norm"] = "pre-norm"
    """Residual of the first layer: the fused state before or after its norm (`norm_before_residual`)."""
    qk_norm: Annotated[bool, Parameter(negative="")] = False
    """Norms of queries and keys, as in Qwen3."""
    embedding: Literal["target", "own"] = "target"
    """target: the target's, not trained. own: a copy of it that is trained; SGLang would overwrite it."""

    def problems(self) -> list[str]:
        """What is out of range or excludes each other."""
        width = self.intermediate_size
        wanted = [
            (1 <= self.num_layers <= _MAX_LAYERS, unwanted("num_layers", self.num_layers, f"1 … {_MAX_LAYERS}")),
            (width is None or width >= 1, unwanted("intermediate_size", width, "1 or more")),
            (not self.qk_norm or self.attention == "gqa", f"--qk-norm beside --attention {self.attention}: only gqa"),
        ]
        return [text for is_fine, text in wanted if not is_fine]
