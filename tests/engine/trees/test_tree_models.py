"""Real models read trees as they read chains: every node's logits are those of the text that its path is."""

from typing import Any

import pytest
import torch

from eyas.contract.spec.draft_spec import Mla
from eyas.decode.tree_shape import TreeUnsupported
from eyas.engine.eagle_draft import FusedDraft, ReferenceDraft
from eyas.engine.llama.llama_target import LlamaTarget
from eyas.engine.llama.llama_weights import FAMILIES, fuse_llama
from eyas.engine.llama.native import NativeKernels
from eyas.engine.transformers_target import TransformersTarget
from eyas.engine.trees.tree_round import TreeDraft, TreeTarget
from eyas.models.target import Target
from tiny_draft import tiny_draft, tiny_text
from tiny_target import tiny_target

TEXT = [3, 17, 5, 60, 22, 22, 9, 41, 33, 8, 2]
# Row 0 is the pending token; then three branches, one of them three deep, and a late leaf on an early node.
IDS = [7, 12, 44, 12, 30, 9, 51, 28, 6, 19, 40]
PARENTS = [-1, 0, 0, 1, 1, 2, 3, 5, 7, 0, 6]
PATH = [0, 1, 3, 6, 10]
WINDOWS: dict[str, dict[str, Any]] = {"llama": {}, "mistral": {"sliding_window": 5}, "qwen2": {}, "qwen3": {}}
BOUNDARIES = (0, 2, 3)


def path_of(row: int) -> list[int]:
    return ([] if PARENTS[row] < 0 else path_of(PARENTS[row])) + [IDS[row]]


def check_reads_trees(target: TreeTarget, *, tolerance: float = 2e-5) -> None:
    target.start(64, BOUNDARIES)
    target.prefill(TEXT)
    out = target.forward_tree(IDS, PARENTS)
    logits, aux = out.logits.clone(), out.aux_states.clone()
    target.keep(PATH, len(IDS))
    assert target.length == len(TEXT) + len(PATH)
    after = target.forward([1, 2]).logits.clone()

    def check(found: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
        torch.testing.assert_close(found, wanted, atol=tolerance, rtol=tolerance, msg=lambda m: f"{what}: {m}")

    for row in range(len(IDS)):
        target.start(64, BOUNDARIES)
        target.prefill(TEXT)
        chain = target.forward(path_of(row))
        check(logits[row], chain.logits[-1], f"logits of row {row}")
        check(aux[row], chain.aux_states[-1], f"states of row {row}")
    target.start(64, BOUNDARIES)
    target.prefill(TEXT)
    target.forward([IDS[row] for row in PATH])
    check(after, target.forward([1, 2]).logits, "after what was kept")


@pytest.mark.parametrize("path", ["torch", "native"])
@pytest.mark.parametrize("family", FAMILIES)
def test_fast_targets_read_trees_and_the_kernels_bit_by_bit(family: str, path: str, kernels: NativeKernels):
    model = tiny_target(family, **WINDOWS[family])
    weights = fuse_llama(model.config.to_dict(), {n: t.contiguous() for n, t in model.state_dict().items()}.get)
    target = LlamaTarget(weights, kernels=kernels if path == "native" else None, num_threads=2)

    check_reads_trees(target, tolerance=0.0 if path == "native" else 2e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_fast_targets_read_trees_on_a_gpu():
    model = tiny_target("llama").cuda()
    weights = fuse_llama(model.config.to_dict(), {n: t.contiguous() for n, t in model.state_dict().items()}.get)

    check_reads_trees(LlamaTarget(weights), tolerance=1e-4)


@pytest.mark.parametrize(
    "kind", ["llama", "mistral", "qwen3_moe", "granite", "cohere", "deepseek_v3", "gemma2", "gemma3", "gpt_oss"]
)
def test_transformers_targets_read_trees(kind: str):
    changes: dict[str, Any] = {"sliding_window": 5} if kind in ("mistral", "gemma2", "gemma3", "gpt_oss") else {}

    check_reads_trees(TransformersTarget(Target(tiny_target(kind, **changes))))


def test_a_target_whose_layers_no_tree_mask_fits_is_named():
    target = TransformersTarget(Target(tiny_target("llama4")))
    target.start(64, ())
    target.prefill(TEXT)

    with pytest.raises(TreeUnsupported, match=r"tree-unsupported[^|]*chunked_attention"):
        target.forward_tree(IDS, PARENTS)


def test_a_model_that_does_not_heed_masks_is_found_out(monkeypatch: pytest.MonkeyPatch):
    model = Target(tiny_target("llama"))
    everything = torch.zeros(1, 1, 3, 8)
    monkeypatch.setattr("eyas.models.target.target.tree_masks", lambda *_: everything)
    target = TransformersTarget(model)
    target.start(64, ())
    target.prefill(TEXT)

    with pytest.raises(TreeUnsupported, match="ignores the mask"):
        target.forward_tree(IDS, PARENTS)


SWITCHES: dict[str, dict[str, Any]] = {
    "EAGLE-3": {},
    "normed feedback": {"feedback": "post-norm"},
    "normed residual": {"residual": "post-norm"},
    "two layers": {"num_layers": 2},
    "a window": {"sliding_window": 4},
    "q and k norms": {"qk_norm": True},
}


def chain_logits(draft: ReferenceDraft, tokens: list[int], aux: torch.Tensor, path: list[int]) -> torch.Tensor:
    draft.start(60)
    logits = draft.read(tokens[1:], aux[: len(tokens) - 1])
    for token in path:
        logits = draft.step(token)
    return logits


@pytest.mark.parametrize("kind", ["torch", "native", "reference"])
@pytest.mark.parametrize("name", SWITCHES)
def test_drafts_expand_nodes_as_they_step_along_their_paths(name: str, kind: str, kernels: NativeKernels):
    draft = tiny_draft(**SWITCHES[name]).eval()
    reference = ReferenceDraft(draft, (1, 2, 3))
    tested: TreeDraft = ReferenceDraft(draft, (1, 2, 3))
    if kind != "reference":
        tested = FusedDraft(draft, (1, 2, 3), kernels=kernels if kind == "native" else None)
    check_expands(tested, reference)


def test_a_draft_with_latent_attention_expands_nodes_too():
    mla = Mla(q_lora_rank=12, kv_lora_rank=10, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=7)
    draft = tiny_draft(draft_class="mla", num_kv_heads=4, head_dim=10, mla=mla).eval()

    check_expands(ReferenceDraft(draft, (1, 2, 3)), ReferenceDraft(draft, (1, 2, 3)))


def check_expands(tested: TreeDraft, reference: ReferenceDraft) -> None:
    ids, aux = tiny_text(num_rows=1, length=20)
    tokens = ids[0].tolist()

    tested.start(60)
    for num_read in (9, 12):  # twice: what the first tree left must be gone
        begin = 0 if num_read == 9 else 8
        tested.read(tokens[begin + 1 : num_read], aux[0, begin : num_read - 1])
        found, paths = [], []
        for level, parents in (([5, 31], [-1, -1]), ([7, 8, 31], [1, 0, 1]), ([1, 2, 3], [2, 4, 3])):
            found.append(tested.expand(level, parents))
            paths += [[*(paths[p] if p >= 0 else []), token] for token, p in zip(level, parents, strict=True)]
        for row, path in zip(torch.cat(found), paths, strict=True):
            wanted = chain_logits(reference, tokens[:num_read], aux[0], path)
            torch.testing.assert_close(row, wanted, atol=2e-5, rtol=2e-5)
