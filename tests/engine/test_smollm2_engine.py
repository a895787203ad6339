"""On the real target: the engine writes what transformers writes, and the shipped draft changes nothing but speed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from eyas import shipped
from eyas.cli.target_option import cache_folder
from eyas.engine.adaptive import AdaptiveDepth, AdaptiveSettings
from eyas.engine.cost_table import CostTable
from eyas.engine.engine import Engine, Limits
from eyas.engine.open_engine import open_engine
from eyas.models.placement import place
from eyas.talk import Silent

QUESTIONS = ["Name three uses of a paper clip.", "I have 7 apples and eat 2. How many are left?"]


@pytest.fixture(scope="module")
def engine(smollm2_folder: Path) -> Engine:
    placement = place("float32", "cpu")
    draft = shipped.draft_folder()
    return open_engine(smollm2_folder, draft, placement, cache=cache_folder(), num_threads=1, talk=Silent()).engine


@pytest.fixture(scope="module")
def prompts(smollm2_folder: Path) -> list[list[int]]:
    tokenizer: Any = AutoTokenizer.from_pretrained(smollm2_folder)
    turns = [[{"role": "user", "content": text}] for text in QUESTIONS]
    return [tokenizer.apply_chat_template(t, add_generation_prompt=True, return_dict=False) for t in turns]


def test_plain_text_is_transformers_greedy_text(engine: Engine, prompts: list[list[int]], smollm2_folder: Path):
    model = AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.float32)
    for prompt in prompts:
        ids = torch.tensor([prompt])
        wanted = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12)
        stop_ids = frozenset({model.generation_config.eos_token_id})

        text = engine.generate(prompt, Limits(max_new_tokens=12, stop_ids=stop_ids))

        assert text.ids == wanted[0, len(prompt) :].tolist()


def test_the_shipped_draft_leaves_the_text_as_it_is_at_every_depth(engine: Engine, prompts: list[list[int]]):
    limits = Limits(max_new_tokens=20)
    plain = engine.generate(prompts[1], limits)
    for k in (1, 3, 7):
        text = engine.generate(prompts[1], limits, num_draft_tokens=k)

        assert text.ids == plain.ids, f"K = {k}"
        assert text.acceptance.accept_length > 1.2, "the draft was trained for this target"


def test_adaptive_depth_leaves_the_text_as_it_is(engine: Engine, prompts: list[list[int]]):
    limits = Limits(max_new_tokens=24)
    adaptive = engine.adaptive(prompts[0], most=3)
    for prompt in prompts:
        text = engine.generate(prompt, limits, adaptive=adaptive)

        assert text.ids == engine.generate(prompt, limits).ids
    assert text.acceptance.accept_length > 1.2, "the draft was trained for this target"


def test_captured_rounds_run_eagerly_give_the_same_texts_and_counts(
    engine: Engine, prompts: list[list[int]], smollm2_folder: Path
):
    draft, limits = shipped.draft_folder(), Limits(max_new_tokens=14)
    opened = open_engine(
        smollm2_folder,
        draft,
        place("float32", "cpu"),
        cache=cache_folder(),
        num_threads=1,
        talk=Silent(),
        rounds="uncaptured",
    )
    plain = engine.generate(prompts[1], limits)
    expected = engine.generate(prompts[1], limits, num_draft_tokens=3)

    got = opened.engine.generate(prompts[1], limits, num_draft_tokens=3)

    assert (opened.target_path, opened.draft_path) == ("captured round, run eagerly",) * 2
    assert opened.engine.generate(prompts[1], limits).ids == got.ids == plain.ids
    assert got.accepted == expected.accepted
    adaptive = AdaptiveDepth(CostTable(round_s=(1.0, 1.2, 1.3)), AdaptiveSettings(first_wait=2, budget=1.0, trial=2))
    assert opened.engine.generate(prompts[1], limits, adaptive=adaptive).ids == plain.ids
