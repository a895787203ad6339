"""Drafts that can be converted, what each format holds of them, and `convert` in one call."""

from pathlib import Path

from drafts import DraftBuild
from eyas.contract.convert.conversion import ConversionPlan, Fix
from eyas.contract.convert.conversion_apply import Converted, apply_conversion
from eyas.contract.convert.conversion_plan import plan_conversion
from eyas.contract.dialects.registry import DIALECTS, dialect_named
from eyas.contract.files.read_checkpoint import read_checkpoint
from eyas.contract.reading.read_draft import read_draft
from eyas.contract.spec.draft_spec import DraftSpec
from eyas.contract.spec.target_spec import read_target
from eyas.talk import Silent

WRITABLE = tuple(dialect.name for dialect in DIALECTS if dialect.write is not None)
BUILDS = {
    "plain": DraftBuild(),
    "own embedding, fp32": DraftBuild(own_embedding=True, dtype="F32"),
    "fp16, no t2d, yarn": DraftBuild(
        dtype="F16", t2d=False, scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    ),
    "3.1": DraftBuild(fc_norm=True, norm_output=True),
    "speculators 0.9": DraftBuild(
        residual=True, norm_before_fc=True, norm_output=True, qk_norm=True, sliding_window=32, own_embedding=True
    ),
    "one aux": DraftBuild(aux=(6,)),
    "two aux": DraftBuild(aux=(3, 8)),
    "four aux": DraftBuild(aux=(2, 5, 8, 11)),
    "five aux": DraftBuild(aux=(1, 3, 6, 9, 12), norm_before_fc=True),
    "three layers": DraftBuild(layers=3),
    "biases": DraftBuild(attention_bias=True, mlp_bias=True),
    "fc bias": DraftBuild(fc_bias=True),
    "mla": DraftBuild(mla=True, fc_norm=True, norm_output=True, own_embedding=True),
    "full vocabulary": DraftBuild(draft_vocab=64),
    "narrow draft": DraftBuild(hidden=16, target_hidden=32, own_embedding=True),
}
# which formats hold which draft, taken from the formats' own sources
HOLDS = {
    "plain": set(WRITABLE),
    "own embedding, fp32": set(WRITABLE) - {"modelopt"},
    "fp16, no t2d, yarn": set(WRITABLE) - {"eagle"},
    "3.1": {"sglang", "speculators", "vllm", "torchspec", "trtllm"},
    "speculators 0.9": {"speculators", "vllm"},
    "one aux": {"speculators", "vllm", "modelopt", "torchspec", "trtllm"},
    "two aux": {"sglang", "speculators", "vllm", "modelopt", "torchspec", "trtllm"},
    "four aux": {"sglang", "speculators", "vllm", "modelopt", "torchspec", "trtllm"},
    "five aux": {"sglang", "speculators", "vllm", "trtllm"},
    "three layers": {"sglang", "speculators", "vllm", "modelopt", "trtllm"},
    "biases": {"speculators", "vllm", "trtllm"},
    "fc bias": {"eagle", "sglang", "angelslim", "trtllm"},
    "mla": {"sglang", "vllm", "torchspec", "trtllm"},
    "full vocabulary": set(WRITABLE),
    "narrow draft": set(WRITABLE) - {"modelopt"},
}


def convert(source: Path, to: str, out: Path, target: Path | None = None, allow: tuple[str, ...] = ()) -> Converted:
    return apply_conversion(planned(source, to, target, allow), out, Silent())


def planned(
    source: Path, to: str, target: Path | None = None, allow: tuple[str, ...] = (), fix: tuple[Fix, ...] = ()
) -> ConversionPlan:
    spec = read_target(target) if target else None
    return plan_conversion(read_draft(read_checkpoint(source), spec), dialect_named(to), spec, allow, fix)


def content(folder: Path, target: Path | None = None) -> tuple[DraftSpec, dict[str, bytes]]:
    """The spec, and canonical name -> bytes."""
    spec = read_draft(read_checkpoint(folder), read_target(target) if target else None).spec
    found = {}
    for name, info in spec.tensors.items():
        with open(folder / str(info.file), "rb") as file:
            file.seek(info.begin or 0)
            found[name] = file.read(info.num_bytes)
    return spec, found
