"""llama.cpp: eyas does not write GGUF; it prints the command of llama.cpp's own converter and its requirements.

Source: llama.cpp PR 18039 (`convert_hf_to_gguf.py --target-model-dir`), issues 24541, 25604, 25733. Grade: read.
"""

from dataclasses import dataclass

from eyas.contract.spec.draft_spec import DraftReading
from eyas.contract.spec.layer_ids import default_boundaries
from eyas.contract.spec.target_spec import TargetSpec

NAMES = ("llama.cpp", "llama-cpp", "llamacpp", "gguf")


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCppRecipe:
    """Commands to type and what to know before."""

    commands: tuple[str, ...]
    needs: tuple[str, ...]


def llama_cpp_recipe(reading: DraftReading, target: TargetSpec | None, draft: str, out: str) -> LlamaCppRecipe:
    """How to turn the draft into a GGUF and serve it.

    Args:
        draft, out: the draft's folder and the wanted GGUF, as the user gave them.
    """
    spec, out = reading.spec, out if out.endswith(".gguf") else f"{out}.gguf"
    folder = target.where if target else "TARGET"
    needs = ["a llama.cpp with EAGLE-3 (PR 18039 or later)", "the target's Hugging Face folder, for its tokenizer"]
    if reading.dialect == "speculators":
        needs.append("its converter looks for one-level configs: convert to sglang first (eyas convert --to sglang)")
    if any(info.file and info.file.endswith(".bin") for info in spec.tensors.values()):
        needs.append("safetensors: convert to sglang first (eyas convert --to sglang)")
    if spec.draft_class == "mla":
        needs.append("MLA drafts: none of its EAGLE-3 graphs has MLA; it will refuse or compute something else")
    if spec.feedback == "post-norm" or spec.aux_norm != "none" or spec.num_aux != 3:
        needs.append("EAGLE 3.1 switches or other than 3 aux states: only newer versions; check its release notes")
    if spec.residual == "post-norm":
        needs.append("norm_before_residual is true: it has no such switch, drafts will be worse")
    if target is not None and spec.aux_boundaries not in (None, default_boundaries(target.num_layers)):
        needs.append(
            f"aux boundaries {list(spec.aux_boundaries or ())} are not its default: check that it reads the ids"
        )
    needs.append("hybrid or new targets need input hooks in llama.cpp (null layer-input tensor otherwise)")
    return LlamaCppRecipe(
        commands=(
            f"python convert_hf_to_gguf.py {draft} --target-model-dir {folder} --outfile {out}",
            f"llama-server -m TARGET.gguf --spec-draft-model {out} --spec-type draft-eagle3 --spec-draft-n-max 5",
        ),
        needs=tuple(needs),
    )
