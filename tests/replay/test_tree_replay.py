"""What replay predicts for trees is what the engine counted and what a loop without tree attention finds."""

from pathlib import Path
from typing import Any

import pytest
import torch

from eyas import shipped
from eyas.cli.target_option import cache_folder
from eyas.contract.spec.target_spec import read_target
from eyas.decode.tree_shape import TreeShape
from eyas.engine.eagle_draft import ReferenceDraft
from eyas.engine.engine import Limits
from eyas.engine.open_engine import open_engine
from eyas.engine.trees.tree_engine import TreeEngine
from eyas.models.draft import Eagle3Draft
from eyas.models.load_draft import load_draft
from eyas.models.placement import place
from eyas.models.save_draft import save_draft
from eyas.models.target import LiveStates, Target
from eyas.records.eval_rows import EvalRow, write_eval_rows
from eyas.replay.eval_config import EvalConfig, EvalConfigInvalid
from eyas.replay.evaluate import Keep, TreeNeedsTarget, evaluate, evaluate_on_probe
from eyas.replay.replay import replay
from eyas.replay.tree_replay import replay_trees
from eyas.talk import Silent
from tiny_draft import tiny_draft
from tiny_target import tiny_target

CPU = place("float32", "cpu")
PROMPTS = [[first, 1 + first % 5, 3] for first in range(4)]
KINDS: dict[str, dict[str, Any]] = {
    "fused": {},
    "fused, two layers": {"num_layers": 2},
    "post-norm feedback": {"feedback": "post-norm"},
    "a window": {"sliding_window": 6},
    "reference": {"activation": "gelu"},
}


def save_both(folder: Path, **changes: Any) -> None:
    tiny_target(vocab_size=6, seed=3).save_pretrained(folder / "target")
    sizes = {"vocab_size": 6, "draft_vocab_size": 5, "target_hidden_size": 32, "aux_boundaries": (1, 2, 4)}
    save_draft(tiny_draft(**{**sizes, **changes}), folder / "draft")


def load(target: Path, draft: Path) -> tuple[Target, Eagle3Draft]:
    model = Target.load(target, CPU)
    shared = {"target_embedding": model.parts.embedding, "target_head": model.parts.head}
    return model, load_draft(draft, CPU, target_spec=read_target(target), **shared)


def written(
    target: Path, draft: Path, prompts: list[list[int]], limits: Limits, shape: TreeShape
) -> tuple[list[EvalRow], list[list[int]]]:
    """Rows that the engine wrote with trees, and its counts."""
    opened = open_engine(target, draft, CPU, cache=cache_folder(), num_threads=1, talk=Silent())
    texts = [TreeEngine(opened.engine).generate(prompt, limits, shape) for prompt in prompts]
    rows = [
        EvalRow(id=str(i), set="engine", prompt_ids=tuple(prompt), response_ids=tuple(text.ids))
        for i, (prompt, text) in enumerate(zip(prompts, texts, strict=True))
    ]
    plain = [opened.engine.generate(prompt, limits).ids for prompt in prompts]
    assert [list(row.response_ids) for row in rows] == plain, "trees changed a text"
    return rows, [text.accepted for text in texts]


@pytest.mark.parametrize("shape", ["2x3x5", "3x4x12"])
@pytest.mark.parametrize("kind", KINDS)
def test_replay_counts_what_the_engine_counted_round_by_round(tmp_path: Path, kind: str, shape: str):
    save_both(tmp_path, **KINDS[kind])
    tree = TreeShape.parse(shape)

    rows, counted = written(tmp_path / "target", tmp_path / "draft", PROMPTS, Limits(max_new_tokens=25), tree)

    model, draft = load(tmp_path / "target", tmp_path / "draft")
    results = replay_trees(LiveStates(model), draft, rows, tree, Silent())
    assert [list(result.accepted) for result in results] == counted
    assert 0 < sum(map(sum, counted)) < 4 * 24 - len(counted)


def test_a_stop_token_ends_both_at_the_same_place(tmp_path: Path):
    save_both(tmp_path)
    tree = TreeShape.parse("3x3x9")
    model, draft = load(tmp_path / "target", tmp_path / "draft")
    for stop_id in range(6):
        limits = Limits(max_new_tokens=25, stop_ids=frozenset({stop_id}))
        rows, counted = written(tmp_path / "target", tmp_path / "draft", PROMPTS, limits, tree)

        results = replay_trees(LiveStates(model), draft, rows, tree, Silent())

        assert [list(result.accepted) for result in results] == counted


def by_definition(
    draft: Eagle3Draft, aux: torch.Tensor, text: list[int], num_prompt: int, shape: TreeShape
) -> list[int]:
    """Rounds without tree masks, caches or early ends: each path's logits from a chain of its own."""
    rounds, newest = [], num_prompt
    while newest < len(text) - 1:
        found: dict[tuple[int, ...], float] = {(): 0.0}
        level: list[tuple[int, ...]] = [()]
        for _ in range(shape.depth):
            children: list[tuple[int, ...]] = []
            for path in level:
                runner = ReferenceDraft(draft, draft.spec.aux_boundaries or ())
                runner.start(0)
                logits = runner.read(text[1 : newest + 1], aux[:newest])
                for token in path:
                    logits = runner.step(token)
                best = logits.log_softmax(-1).topk(shape.width)
                for value, token in zip(best.values.tolist(), best.indices, strict=True):
                    children.append((*path, int(draft.to_target_ids(token))))
                    found[children[-1]] = found[path] + value
            level = sorted(children, key=lambda path: -found[path])[: shape.width]
        del found[()]
        kept = set(sorted(found, key=lambda path: -found[path])[: shape.num_nodes])
        accepted = 0
        while newest + accepted + 1 < len(text) and tuple(text[newest + 1 : newest + accepted + 2]) in kept:
            accepted += 1
        rounds.append(accepted)
        newest += accepted + 1
    return rounds


@pytest.mark.parametrize("shape", ["2x3x5", "3x3x7"])
def test_replay_finds_what_a_loop_without_tree_attention_finds(tmp_path: Path, shape: str):
    save_both(tmp_path)
    tree = TreeShape.parse(shape)
    rows, _ = written(tmp_path / "target", tmp_path / "draft", PROMPTS[:2], Limits(max_new_tokens=15), tree)
    model, draft = load(tmp_path / "target", tmp_path / "draft")

    results = replay_trees(LiveStates(model), draft, rows, tree, Silent())

    for row, result in zip(rows, results, strict=True):
        text = [*row.prompt_ids, *row.response_ids]
        aux = model.forward(torch.tensor([text]), (1, 2, 4)).aux[0]
        assert list(result.accepted) == by_definition(draft, aux, text, len(row.prompt_ids), tree)


def test_trees_of_width_one_are_the_chain_and_wider_ones_accept_more(tmp_path: Path):
    save_both(tmp_path)
    rows, _ = written(
        tmp_path / "target", tmp_path / "draft", PROMPTS, Limits(max_new_tokens=25), TreeShape.parse("1x1x1")
    )
    model, draft = load(tmp_path / "target", tmp_path / "draft")
    for depth in (1, 3, 5):
        chain = replay(model, draft, rows, depth, Silent())
        narrow = TreeShape(width=1, depth=depth, num_nodes=depth)
        wide = TreeShape(width=3, depth=depth, num_nodes=3 * depth)

        assert replay_trees(LiveStates(model), draft, rows, narrow, Silent()) == chain
        wider = replay_trees(LiveStates(model), draft, rows, wide, Silent())
        assert sum(len(result.accepted) for result in wider) < sum(len(result.accepted) for result in chain)


def test_an_evaluation_with_a_tree_says_so_and_a_pack_gives_the_same(tmp_path: Path):
    save_both(tmp_path)
    rows, counted = written(
        tmp_path / "target", tmp_path / "draft", PROMPTS, Limits(max_new_tokens=12), TreeShape.parse("2x3x5")
    )
    write_eval_rows(rows, tmp_path / "rows.jsonl")
    config, keep = EvalConfig(tree="2x3x5", device="cpu"), Keep(probe=tmp_path / "pack")

    record = evaluate(tmp_path / "draft", tmp_path / "target", [tmp_path / "rows.jsonl"], config, Silent(), keep)
    again = evaluate_on_probe(tmp_path / "draft", tmp_path / "pack", config, Silent())

    assert [list(row.accepted) for row in record.rows] == counted
    assert again.rows == record.rows
    document = record.as_document()
    assert document["tree"] == {"width": 2, "depth": 3, "num_nodes": 5}
    assert document["num_draft_tokens"] == len(document["accepted_at"]) == 3


def test_a_pack_without_the_embedding_of_guessed_tokens_is_refused(tmp_path: Path):
    save_both(tmp_path, hidden_size=32, embedding="target")
    rows, _ = written(
        tmp_path / "target", tmp_path / "draft", PROMPTS, Limits(max_new_tokens=6), TreeShape.parse("2x2x4")
    )
    write_eval_rows(rows, tmp_path / "rows.jsonl")
    keep = Keep(probe=tmp_path / "pack")
    arguments = (tmp_path / "draft", tmp_path / "target", [tmp_path / "rows.jsonl"], EvalConfig(device="cpu"))
    evaluate(*arguments, Silent(), keep)

    with pytest.raises(TreeNeedsTarget, match="tree-needs-target"):
        evaluate_on_probe(tmp_path / "draft", tmp_path / "pack", EvalConfig(tree="2x2x4", device="cpu"), Silent())


def test_a_depth_beside_a_tree_is_refused():
    assert EvalConfig(tree="4x6x16").depth == 6
    with pytest.raises(EvalConfigInvalid, match="-k 4 conflicts with --tree"):
        EvalConfig(tree="4x6x16", num_draft_tokens=4)


@pytest.mark.smollm2
@pytest.mark.parametrize("shape", ["4x4x8", "8x5x24"])
def test_on_the_real_model_the_text_is_plain_and_replay_counts_what_the_engine_counted(
    smollm2_folder: Path, shape: str
):
    chat = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]
    tree = TreeShape.parse(shape)
    limits = Limits(max_new_tokens=33, stop_ids=frozenset({2}))

    rows, counted = written(smollm2_folder, shipped.draft_folder(), [chat], limits, tree)

    model, draft = load(smollm2_folder, shipped.draft_folder())
    results = replay_trees(LiveStates(model), draft, rows, tree, Silent())
    assert [list(result.accepted) for result in results] == counted
    assert sum(counted[0]) > len(counted[0]), "more than one draft accepted a round: the draft was trained for it"
