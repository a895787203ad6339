"""Drafts that are not EAGLE-3 drafts of one dense layer kind: named, with the flags that serve them, and not judged.

Source: vLLM 0.25-0.33 `config/speculative.py` (methods), SGLang 0.5.9-0.5.23 `--speculative-algorithm`, the drafts
that z-lab, SafeAILab, DeepSeek, FasterDecoding and SpecForge publish. Grade: read.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from eyas.contract.dialects.evidence import architecture, has_fc, has_tensor, is_eagle3
from eyas.contract.files.checkpoint import Checkpoint
from eyas.diagnostic import Diagnostic, Flag, Remedy, Severity, finding
from eyas.errors import ExitCode, EyasError

_MEDUSA_HEAD = re.compile(r"^(?:medusa_heads?\.)?\d+\.\d+\.(?:linear\.)?(?:weight|bias)$")
_EXPERTS = re.compile(r"^(?:model\.)?(?:midlayer|layers\.\d+)\.mlp\.(?:experts|gate|shared_expert)\.")
_MTP_PARTS = (".mtp.", ".eh_proj.", ".enorm.", ".hnorm.")


class OtherMethod(EyasError):
    """The draft is of another speculative method than EAGLE-3. The message names the method and the flags for it."""

    code = "other-method"
    exit_code = ExitCode.FINDINGS


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """Another method.

    Attributes:
        name: short, as the format of a checkpoint is called.
        title: the kind of draft, after "this is".
        shown_by: what in a checkpoint shows it; "" = it is something else.
        serve: which engine serves it, with which flags.
    """

    name: str
    title: str
    shown_by: Callable[[Checkpoint], str]
    serve: tuple[Remedy, ...]

    def finding(self, checkpoint: Checkpoint, *, algorithm: str = "") -> Diagnostic:
        """The one thing to say of a checkpoint of this method.

        Args:
            algorithm: of the launch in question; "" for no launch.
        """
        launched = [flag for flag in self.serve if isinstance(flag, Flag) and flag.value == algorithm]
        what = f"this is {self.title}, which eyas does not judge: it judges EAGLE-3 drafts of dense layers"
        why = f"{self.shown_by(checkpoint)}; as a plain EAGLE-3 draft it crashes or accepts nothing"
        weight: Severity = "warning" if launched else "error"
        return finding("other-method", weight, what, checkpoint.where, why, self.serve, items=(self.name,))


def other_method(checkpoint: Checkpoint) -> Method | None:
    """The method of a draft that is not an EAGLE-3 draft; None for one that is, and for an unknown one."""
    return next((method for method in METHODS if method.shown_by(checkpoint)), None)


def refuse_other_method(checkpoint: Checkpoint) -> None:
    """Raise `OtherMethod` where `checkpoint` is of one."""
    if (method := other_method(checkpoint)) is not None:
        found = method.finding(checkpoint)
        raise OtherMethod(found.what, found.where, found.why, found.do)


def _flags(sglang: str, vllm: str) -> tuple[Remedy, ...]:
    """The launch flags: SGLang's algorithm and vLLM's method, "" where it has none."""
    on_sglang = (Flag("--speculative-algorithm", sglang, "on SGLang"),) if sglang else ()
    config = f'\'{{"method": "{vllm}", "model": "DRAFT", "num_speculative_tokens": 3}}\''
    return (*on_sglang, *((Flag("--speculative-config", config, "on vLLM"),) if vllm else ()))


def _named(checkpoint: Checkpoint, *starts: str, kinds: tuple[str, ...] = (), keys: tuple[str, ...] = ()) -> str:
    """Class name, speculators' kind or config key that names the method."""
    name, kind = architecture(checkpoint), checkpoint.config.get("speculators_model_type")
    if name.startswith(starts):
        return f"architectures names {name}"
    if kind in kinds:
        return f"speculators_model_type is {kind}"
    return next((f"config.json has {key}" for key in keys if key in checkpoint.config), "")


def _mtp(checkpoint: Checkpoint) -> str:
    name = architecture(checkpoint)
    if "MTP" in name or "NextN" in name or checkpoint.config.get("speculators_model_type") == "mtp":
        return f"{name or 'speculators_model_type'} is a next-token-prediction module"
    found = next((name for name in checkpoint.tensors if any(part in f".{name}" for part in _MTP_PARTS)), "")
    return f"it has the tensor {found}" if found else ""


def _medusa(checkpoint: Checkpoint) -> str:
    said = _named(checkpoint, "Medusa", keys=("medusa_num_heads", "medusa_num_layers"))
    found = next((name for name in checkpoint.tensors if _MEDUSA_HEAD.match(name)), "")
    return said or (f"it has the tensor {found}" if found and not is_eagle3(checkpoint) else "")


def _eagle1(checkpoint: Checkpoint) -> str:
    """An fc that takes 2H before a layer that takes H (in EAGLE-3 the first layer takes 2H)."""
    bare = {name.removeprefix("model."): info.shape for name, info in checkpoint.tensors.items()}
    fc, query = bare.get("fc.weight", ()), bare.get("layers.0.self_attn.q_proj.weight", ())
    if len(fc) != 2 or fc[1] != 2 * fc[0] or query[1:] != fc[:1] or has_tensor(checkpoint, "layers.0.hidden_norm."):
        return ""
    return f"fc.weight is {list(fc)} and layers.0 takes states of width {fc[0]}: embedding and one hidden state"


def _experts(checkpoint: Checkpoint) -> str:
    found = next((name for name in checkpoint.tensors if _EXPERTS.match(name)), "")
    return f"it has the tensor {found}" if found and is_eagle3(checkpoint) else ""


def _plain(checkpoint: Checkpoint) -> str:
    is_whole = has_tensor(checkpoint, "embed_tokens.") and has_tensor(checkpoint, "layers.0.self_attn.")
    if not is_whole or is_eagle3(checkpoint) or has_fc(checkpoint):
        return ""
    layers = {name.split("layers.")[1].split(".")[0] for name in checkpoint.tensors if "layers." in name}
    return f"{architecture(checkpoint) or 'it'} has an embedding and {len(layers)} layers of its own, and no fc"


_PLUGIN = (
    "serve it with the engine plug-in of its trainer (SpecForge has one for SGLang): no stock engine has the class"
)
METHODS = (
    Method(
        name="dflash",
        title="a DFlash draft",
        shown_by=lambda c: _named(c, "DFlash", kinds=("dflash", "dflash2"), keys=("dflash_config",)),
        serve=_flags("DFLASH", "dflash"),
    ),
    Method(
        name="dspark",
        title="a DSpark draft",
        shown_by=lambda c: _named(c, "DSpark", kinds=("dspark",), keys=("dspark_config",)),
        serve=_flags("DSPARK", "dspark"),
    ),
    Method(name="medusa", title="a set of Medusa heads", shown_by=_medusa, serve=_flags("", "medusa")),
    Method(
        name="mlp-speculator",
        title="an MLP speculator",
        shown_by=lambda c: _named(c, "MLPSpeculator", "ArcticMLP", "ArcticLSTM", keys=("speculator_config",)),
        serve=_flags("", "mlp_speculator"),
    ),
    Method(name="mtp", title="an MTP (NextN) module", shown_by=_mtp, serve=_flags("NEXTN", "mtp")),
    Method(name="eagle1", title="an EAGLE-1 or EAGLE-2 draft", shown_by=_eagle1, serve=_flags("EAGLE", "eagle")),
    Method(name="moe", title="an EAGLE-3 draft with a mixture of experts", shown_by=_experts, serve=(_PLUGIN,)),
    Method(
        name="plain",
        title="a plain language model",
        shown_by=_plain,
        serve=(*_flags("STANDALONE", "draft_model"), "give the draft's folder, if this is the target's"),
    ),
)  # fmt: skip
