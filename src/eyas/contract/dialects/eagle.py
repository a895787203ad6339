"""The EAGLE repository: `pytorch_model.bin`, `midlayer.*`, no embedding, one Llama layer, three aux states, no ids.

Source: SafeAILab/EAGLE cb7e0841 `eagle/model/cnets.py` (`_init_rope`: linear and dynamic scaling only), `ea_model.py`.
"""

from dataclasses import replace

from eyas.contract.dialects.dialect import Dialect, Written, loss
from eyas.contract.dialects.evidence import architecture, has_tensor, is_bin, is_eagle3
from eyas.contract.dialects.flat_config import FlatStyle, write_flat
from eyas.contract.dialects.limits import Limits
from eyas.contract.dialects.reading import assemble, flat_source
from eyas.contract.files.checkpoint import Checkpoint
from eyas.contract.spec.draft_reading import DraftReading
from eyas.contract.spec.draft_spec import DraftSpec
from eyas.contract.spec.layer_ids import default_boundaries
from eyas.contract.spec.target_spec import TargetSpec
from eyas.contract.spec.tensor_names import SINGLE_MIDLAYER_NAMES
from eyas.diagnostic import Diagnostic

_STYLE = FlatStyle(
    limits=Limits(
        format="the EAGLE repository",
        residual_post=False,
        feedback_post=False,
        qk_norm=False,
        attention_bias=False,
        mlp_bias=False,
        sliding_window=False,
        mla=False,
        max_layers=1,
        aux_norms=frozenset({"none"}),
        rope_types=frozenset({"default", "linear", "dynamic"}),
        quantization=False,
        fixed_aux=True,
    ),
    names=SINGLE_MIDLAYER_NAMES,
    gqa_architecture="LlamaForCausalLM",
    nested_ids=None,
    top_ids=False,
    container="bin",
)


def _detect(checkpoint: Checkpoint) -> tuple[str, ...]:
    if not is_eagle3(checkpoint) or not has_tensor(checkpoint, "midlayer."):
        return ()
    found = []
    if is_bin(checkpoint):
        found.append("weights in a .bin")
    if architecture(checkpoint) == "LlamaForCausalLM":
        found.append("architectures LlamaForCausalLM with midlayer.* tensors (the training config's)")
    return tuple(found)


def _read(checkpoint: Checkpoint, target: TargetSpec | None, evidence: tuple[str, ...]) -> DraftReading:
    return assemble(checkpoint, target, flat_source(checkpoint), "eagle", evidence)


def _write(spec: DraftSpec, target: TargetSpec | None) -> Written:
    written = write_flat(spec, target, _STYLE, {})
    return replace(written, losses=(*written.losses, *fixed_boundaries(spec, target, "the EAGLE repository")))


def fixed_boundaries(spec: DraftSpec, target: TargetSpec | None, format_name: str) -> tuple[Diagnostic, ...]:
    """The loss of a format without layer ids, whose reader always taps the default boundaries."""
    layers = target.num_layers if target else (spec.target or {}).get("num_layers")
    if spec.aux_boundaries is None or (isinstance(layers, int) and spec.aux_boundaries == default_boundaries(layers)):
        return ()
    why = (
        f"those of this target are {list(default_boundaries(layers))}"
        if isinstance(layers, int)
        else "those of its target are not known"
    )
    return (
        loss(
            "loss-aux-boundaries",
            "aux_boundaries",
            f"{format_name} has no layer ids and taps the default boundaries; the draft's are"
            f" {list(spec.aux_boundaries)}, {why}",
            needs_target=target is None and not isinstance(layers, int),
        ),
    )


EAGLE = Dialect(name="eagle", title="EAGLE repository (pytorch_model.bin)", detect=_detect, read=_read, write=_write)
