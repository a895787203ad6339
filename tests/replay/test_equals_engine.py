"""The two halves of the proof meet: what replay predicts from a text is what the engine counted while writing it."""

from pathlib import Path

import pytest

from eyas import shipped
from eyas.cli.target_option import cache_folder
from eyas.contract.spec.target_spec import read_target
from eyas.engine.engine import Limits
from eyas.engine.open_engine import OpenedEngine, open_engine
from eyas.models.load_draft import load_draft
from eyas.models.placement import place
from eyas.models.save_draft import save_draft
from eyas.models.target import Target
from eyas.records.eval_rows import EvalRow
from eyas.replay.replay import replay
from eyas.talk import Silent
from tiny_draft import tiny_draft
from tiny_target import tiny_target

CPU = place("float32", "cpu")
KINDS = {
    "fused": {},
    "fused, two layers": {"num_layers": 2},
    "reference: post-norm feedback": {"feedback": "post-norm"},
    "norm per state": {"aux_norm": "per-state"},
}


def opened(target: Path, draft: Path) -> OpenedEngine:
    return open_engine(target, draft, CPU, cache=cache_folder(), num_threads=1, talk=Silent())


def compare(target: Path, draft: Path, prompts: list[list[int]], limits: Limits, num_draft_tokens: int) -> list[int]:
    """Assert equality round by round; all accepted counts, for the caller to see that they are not trivial."""
    engine = opened(target, draft).engine
    texts = [engine.generate(prompt, limits, num_draft_tokens=num_draft_tokens) for prompt in prompts]
    rows = [
        EvalRow(id=str(i), set="engine", prompt_ids=tuple(prompt), response_ids=tuple(text.ids))
        for i, (prompt, text) in enumerate(zip(prompts, texts, strict=True))
    ]
    model = Target.load(target, CPU)
    loaded = load_draft(
        draft,
        CPU,
        target_spec=read_target(target),
        target_embedding=model.parts.embedding,
        target_head=model.parts.head,
    )

    results = replay(model, loaded, rows, num_draft_tokens, Silent())

    assert [list(result.accepted) for result in results] == [text.accepted for text in texts]
    return [count for text in texts for count in text.accepted]


@pytest.mark.parametrize("kind", KINDS)
def test_on_a_tiny_model_replay_counts_what_the_engine_counted_for_every_depth(tmp_path, kind):
    tiny_target(vocab_size=6, seed=3).save_pretrained(tmp_path / "target")
    draft = tiny_draft(vocab_size=6, draft_vocab_size=5, target_hidden_size=32, aux_boundaries=(1, 2, 4), **KINDS[kind])
    save_draft(draft, tmp_path / "draft")

    counts = []
    for k in (1, 2, 4, 7):
        prompts = [[first, 1 + first % 5, 3] for first in range(4)]
        counts += compare(tmp_path / "target", tmp_path / "draft", prompts, Limits(max_new_tokens=31), k)

    assert 0 < sum(counts) < 4 * 4 * 30
    assert max(counts) >= 2


def test_a_stop_token_ends_both_at_the_same_place(tmp_path):
    tiny_target(vocab_size=6, seed=3).save_pretrained(tmp_path / "target")
    draft = tiny_draft(vocab_size=6, draft_vocab_size=5, target_hidden_size=32, aux_boundaries=(1, 2, 4))
    save_draft(draft, tmp_path / "draft")

    for stop_id in range(6):
        limits = Limits(max_new_tokens=31, stop_ids=frozenset({stop_id}))
        compare(tmp_path / "target", tmp_path / "draft", [[first, 3] for first in range(5)], limits, 4)


@pytest.mark.smollm2
@pytest.mark.timeout(1200)
def test_on_the_real_model_replay_counts_what_the_engine_counted_at_several_depths(smollm2_folder):
    chat = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]
    sums = [1, 4093, 198, 1780, 314, 216, 34, 1232, 216, 35, 47, 2, 198, 1, 520, 9531, 198]
    limits = Limits(max_new_tokens=33, stop_ids=frozenset({2}))

    for k, prompt in ((2, chat), (7, sums)):
        compare(smollm2_folder, shipped.draft_folder(), [prompt], limits, k)
