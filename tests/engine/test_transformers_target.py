"""Targets outside the fast path give the same text through transformers, with a draft or without."""

import json
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from eyas.engine.eagle_draft import FusedDraft
from eyas.engine.engine import Engine, Limits
from eyas.engine.llama.llama_weights import FAMILIES
from eyas.engine.transformers_target import TransformersTarget
from eyas.models.target import Target
from tiny_draft import tiny_draft
from tiny_target import CONFIGS, NESTED, tiny_target

KINDS = [*CONFIGS, *NESTED]
# Longer than every window and chunk of the tiny configurations (8): what slides has slid.
PROMPT = [3, 17, 5, 60, 9, 44, 21, 8, 33, 12, 7, 50]


def text_model_of(kind: str, model: PreTrainedModel) -> PreTrainedModel:
    # transformers 5.24's Llama4ForConditionalGeneration fails without images: ask the text model inside.
    return model.language_model if kind == "llama4" else model


@pytest.mark.parametrize("kind", KINDS)
def test_plain_and_speculative_text_are_transformers_greedy_text(kind: str):
    model = tiny_target(kind)
    draft = tiny_draft(target_hidden_size=32, vocab_size=64, aux_boundaries=(1, 2, 4)).eval()
    engine, limits = Engine(TransformersTarget(Target(model)), FusedDraft(draft, (1, 2, 4))), Limits(max_new_tokens=12)

    plain = engine.generate(PROMPT, limits)
    text = engine.generate(PROMPT, limits, num_draft_tokens=3)

    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
    ids = text_model_of(kind, model).generate(torch.tensor([PROMPT]), **options)
    assert plain.ids == ids[0, len(PROMPT) :].tolist()
    assert text.ids == plain.ids
    assert text.acceptance.rounds > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_kept", [0, 1, 3])
def test_what_is_cut_off_a_cache_leaves_no_trace(kind: str, num_kept: int):
    target, boundaries = Target(tiny_target(kind)), (0, 1, 4)
    ids = torch.randint(3, 64, (30,), generator=torch.Generator().manual_seed(5)).tolist()
    runner = TransformersTarget(target)
    runner.start(64, boundaries)
    runner.prefill(ids[:13])

    wrong = [(i + 7) % 64 for i in ids[13 + num_kept : 17]]
    runner.forward([*ids[13 : 13 + num_kept], *wrong])
    runner.truncate(13 + num_kept)
    out = runner.forward(ids[13 + num_kept :])

    assert runner.length == 30
    whole = target.forward(torch.tensor([ids]), boundaries)
    begin = 13 + num_kept
    torch.testing.assert_close(out.aux_states, whole.aux[0, begin:], atol=2e-4, rtol=1e-3)
    torch.testing.assert_close(out.logits, target.logits(whole.last[0, begin:]), atol=2e-4, rtol=1e-3)


def test_the_table_of_targets_in_the_docs_is_the_one_that_is_tested():
    page = (Path(__file__).parents[2] / "docs" / "targets.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `") and "model_type" not in line]
    listed = {kind for line in rows for kind in line.split("|")[1].replace("`", "").replace(",", " ").split()}

    assert listed == {*CONFIGS, *NESTED}
    fast = {kind for line in rows if line.split("|")[2].strip() == "fast" for kind in json.loads(_names(line))}
    assert fast == set(FAMILIES)


def _names(line: str) -> str:
    return "[" + line.split("|")[1].strip().replace("`", '"') + "]"
