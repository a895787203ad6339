"""TorchSpec: `midlayer.*` (or `layers.0.*` with its --vllm), embedding included, GQA or MLA, one layer.

Source: lightseekorg/TorchSpec 6f21829 `tools/convert_to_hf.py`.
"""

from eyas.contract.dialects.dialect import Dialect, Written
from eyas.contract.dialects.evidence import is_eagle3
from eyas.contract.dialects.flat_config import FlatStyle, write_flat
from eyas.contract.dialects.limits import Limits
from eyas.contract.dialects.reading import assemble, flat_source
from eyas.contract.files.checkpoint import Checkpoint
from eyas.contract.spec.draft_reading import DraftReading
from eyas.contract.spec.draft_spec import DraftSpec
from eyas.contract.spec.target_spec import TargetSpec
from eyas.contract.spec.tensor_names import SINGLE_MIDLAYER_NAMES

_STYLE = FlatStyle(
    limits=Limits(
        format="TorchSpec",
        residual_post=False,
        qk_norm=False,
        attention_bias=False,
        mlp_bias=False,
        fc_bias=False,
        sliding_window=False,
        max_layers=1,
        aux_norms=frozenset({"none", "per-state"}),
        mla_aux_norms=frozenset({"none", "per-state"}),
        quantization=False,
    ),
    names=SINGLE_MIDLAYER_NAMES,
    gqa_architecture="LlamaForCausalLMEagle3",
    embedding="want",
)


def _detect(checkpoint: Checkpoint) -> tuple[str, ...]:
    if not is_eagle3(checkpoint):
        return ()
    return tuple(
        f"{key} in config.json" for key in ("_torchspec_version", "torchspec_version") if key in checkpoint.config
    )


def _read(checkpoint: Checkpoint, target: TargetSpec | None, evidence: tuple[str, ...]) -> DraftReading:
    return assemble(checkpoint, target, flat_source(checkpoint), "torchspec", evidence)


def _write(spec: DraftSpec, target: TargetSpec | None) -> Written:
    return write_flat(spec, target, _STYLE, {"_torchspec_version": "eyas"})


TORCHSPEC = Dialect(
    name="torchspec", title="TorchSpec (midlayer.*, with embedding)", detect=_detect, read=_read, write=_write
)
