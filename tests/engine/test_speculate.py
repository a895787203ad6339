"""Speculation in batches for a caller: texts and counts, the memory of both models, and what is refused."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from eyas.contract.files.read_checkpoint import CheckpointNotFound
from eyas.decode.sampling import Sampling
from eyas.engine.batches.batch_draft import draft_bytes_per_position
from eyas.engine.batches.batch_llama import bytes_per_position
from eyas.engine.batches.batch_plan import BatchMemoryTooSmall, SlotSize, plan_slots
from eyas.engine.batches.generator import BatchGenerator, Request
from eyas.engine.batches.speculate import (
    BatchPair,
    BatchSettingsInvalid,
    SpeculationSettings,
    open_batch_pair,
    plan_pair,
    runners_for,
    speculate,
)
from eyas.engine.cuda_graphs import FastPathUnsupported
from eyas.engine.eagle_draft import FusedDraft
from eyas.engine.engine import Engine, Limits
from eyas.engine.known_ids import PromptOutsideVocabulary
from eyas.engine.llama.llama_target import LlamaTarget
from eyas.engine.llama.llama_weights import fuse_llama
from eyas.engine.open_engine import open_engine
from eyas.models.placement import place
from eyas.models.save_draft import save_draft
from eyas.talk import Silent
from tiny_draft import SWITCHES, tiny_draft
from tiny_target import tiny_target

VOCAB, BOUNDARIES = 9, (1, 2, 4)
SETTINGS = SpeculationSettings(max_new_tokens=14, max_batch=3, stop_ids=frozenset({7}))
WHOLE = replace(SETTINGS, max_new_tokens=50, stop_ids=frozenset())
PROMPTS = [(1, 2, 3), (4,), (5, 6, 8, 1, 2), (3, 3), (8, 0, 4, 4), (2, 6)]


def pair_of(name: str = "eagle-3", kind: str = "llama", **sizes: int) -> BatchPair:
    model = tiny_target(kind, vocab_size=VOCAB, **sizes)
    shape = {"target_hidden_size": 32, "vocab_size": VOCAB, "draft_vocab_size": 7, "aux_boundaries": BOUNDARIES}
    return BatchPair(
        weights=fuse_llama(model.config.to_dict(), model.state_dict().get),
        draft=tiny_draft(**{**SWITCHES[name], **shape}).eval(),
        aux_boundaries=BOUNDARIES,
    )


def alone(pair: BatchPair, prompts: Sequence[Sequence[int]], depth: int) -> list[tuple[list[int], list[int]]]:
    """Text and counts of the single-stream engine."""
    engine = Engine(LlamaTarget(pair.weights), FusedDraft(pair.draft, BOUNDARIES))
    limits = Limits(max_new_tokens=SETTINGS.max_new_tokens, stop_ids=frozenset({7}))
    texts = [engine.generate(ids, limits, num_draft_tokens=depth) for ids in prompts]
    return [(text.ids, list(text.accepted)) for text in texts]


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_answers_come_in_order_with_the_counts_of_the_single_stream_engine(depth: int):
    pair = pair_of()

    found = speculate(pair, PROMPTS, replace(SETTINGS, num_draft_tokens=depth), Silent())

    expected = alone(pair, PROMPTS, depth)
    assert [list(c.ids) for c in found] == [ids for ids, _ in expected]
    assert not depth or [list(c.accepted) for c in found] == [counts for _, counts in expected]
    counts = [a for c in found for a in c.accepted]
    assert not depth or min(counts) == 0 < max(counts), "drafts must be accepted and rejected"


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ([1, VOCAB], f"holds token id {VOCAB}"),
        ([-1], "holds token id -1"),
        ([1, 2.5], "holds something that is not a token id"),
        ("hello", "holds something that is not a token id"),
        (7, "holds something that is not a token id"),
    ],
)
def test_ids_that_the_target_does_not_have_are_refused_before_anything_runs(ids, said):
    talk = Silent()
    with pytest.raises(PromptOutsideVocabulary, match=said) as caught:
        speculate(pair_of(), [(1, 2), ids], SETTINGS, talk)
    assert caught.value.where == "prompt 1"
    assert talk.lines == []


def test_a_target_that_is_not_there_is_said_so(tmp_path):
    with pytest.raises(CheckpointNotFound):
        open_batch_pair(tmp_path / "nowhere", tmp_path / "draft", place("float32", "cpu"), Silent())
    with pytest.raises(CheckpointNotFound):
        open_engine(tmp_path / "nowhere", None, place("float32", "cpu"), cache=tmp_path, num_threads=1, talk=Silent())


def test_ids_may_be_integers_of_any_library():
    pair = pair_of()
    given = [torch.tensor(ids) for ids in PROMPTS]
    assert speculate(pair, given, SETTINGS, Silent()) == speculate(pair, PROMPTS, SETTINGS, Silent())


def test_the_stop_ids_are_the_targets_own_unless_others_are_given():
    pair = replace(pair_of(), stop_ids=frozenset(range(VOCAB)))

    own = speculate(pair, PROMPTS, replace(SETTINGS, stop_ids=None), Silent())
    none = speculate(pair, PROMPTS, replace(SETTINGS, stop_ids=frozenset()), Silent())

    assert [len(c.ids) for c in own] == [1] * len(PROMPTS)
    assert [len(c.ids) for c in none] == [SETTINGS.max_new_tokens] * len(PROMPTS)


def test_sampled_texts_with_drafts_are_those_without():
    pair, sampling = pair_of(), Sampling(temperature=1.0, seed=3)
    settings = [replace(SETTINGS, sampling=sampling, num_draft_tokens=depth) for depth in (0, 3)]

    plain, fast = ([c.ids for c in speculate(pair, [(1, 2)] * 6, s, Silent())] for s in settings)

    assert plain == fast
    assert len(set(fast)) > 3, "each prompt has a seed of its own"


def test_no_prompts_have_no_answers():
    assert speculate(pair_of(), [], SETTINGS, Silent()) == []


def requests(num: int) -> list[Request]:
    return [Request(id=str(i), prompt_ids=(1, i % 7), max_new_tokens=50) for i in range(num)]


@pytest.mark.parametrize("name", ["eagle-3", "two layers"])
def test_the_plan_counts_every_byte_of_both_caches(name: str):
    pair, depths = pair_of(name), (0, 2, 3)

    plan = plan_pair(pair, requests(9), depths, most=4)
    runners = runners_for(pair, plan, depths)

    speculations = [s for r in runners.values() if (s := r.speculation) is not None]
    held = {id(t): t for r in runners.values() for t in (r.model.cache,)}
    held |= {id(t): t for s in speculations for t in (*s.draft.caches,)}
    shared = sum(t.numel() * t.element_size() for t in held.values())
    assert shared == (4 + 1) * plan.capacity * (bytes_per_position(pair.weights) + draft_bytes_per_position(pair.draft))
    own = sum(t.numel() * t.element_size() for s in speculations for t in (s.aux_states, s.states))
    assert plan.num_bytes == shared + own


def test_a_draft_costs_slots_that_plain_decoding_has():
    pair = pair_of()
    budget = plan_pair(pair, requests(9), [0], most=9).num_bytes

    assert plan_pair(pair, requests(9), [0], most=9, budget_bytes=budget).num_slots == 9
    assert plan_pair(pair, requests(9), [0, 3], most=9, budget_bytes=budget).num_slots < 9


def test_what_does_not_fit_with_the_draft_is_refused_at_the_start():
    pair = pair_of()
    budget = plan_pair(pair, requests(9), [0], most=9).num_bytes

    with pytest.raises(BatchMemoryTooSmall, match=r"9 sequences of 64 tokens need .* MiB"):
        plan_pair(pair, requests(9), [3], least=9, most=9, budget_bytes=budget)
    with pytest.raises(BatchMemoryTooSmall, match="a sequence of 64 tokens needs"):
        speculate(pair, PROMPTS, replace(SETTINGS, budget_bytes=1000), Silent())


def test_spare_slots_are_allocated_but_not_used():
    size = SlotSize(capacity=10, position_bytes=3, row_bytes=5, num_spare=1)

    assert size.of(2) == 3 * 35
    plan = plan_slots(size, 110, least=1, most=9)
    assert (plan.num_slots, plan.num_bytes) == (2, 105)


def test_texts_that_outgrow_the_window_are_refused():
    pair = pair_of(kind="mistral", sliding_window=64)

    assert len(speculate(pair, PROMPTS, SETTINGS, Silent())) == len(PROMPTS)
    with pytest.raises(FastPathUnsupported, match="outgrow its window of 64"):
        speculate(pair, PROMPTS, replace(SETTINGS, max_new_tokens=80), Silent())


def folders(tmp_path: Path, kind: str = "llama", name: str = "eagle-3") -> tuple[Path, Path]:
    tiny_target(kind).save_pretrained(tmp_path / "target")
    sizes = {"target_hidden_size": 32, "vocab_size": 64, "draft_vocab_size": 24, "aux_boundaries": BOUNDARIES}
    save_draft(tiny_draft(**{**sizes, **SWITCHES[name]}), tmp_path / "draft")
    return tmp_path / "target", tmp_path / "draft"


def test_from_folders_to_answers(tmp_path: Path):
    pair = open_batch_pair(*folders(tmp_path), place("float32", "cpu"), Silent())

    found = speculate(pair, PROMPTS, replace(SETTINGS, stop_ids=None), Silent())

    assert (pair.aux_boundaries, pair.stop_ids) == (BOUNDARIES, frozenset({2}))
    assert [len(c.ids) > 0 for c in found] == [True] * len(PROMPTS)


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        ("gemma3_text", "eagle-3", "this target cannot speculate in batches"),
        ("llama", "sliding window", "this draft cannot speculate in batches"),
        ("llama", "latent attention", "this draft cannot speculate in batches"),
    ],
)
def test_targets_and_drafts_without_a_batched_path_are_refused(tmp_path: Path, kind: str, name: str, words: str):
    with pytest.raises(FastPathUnsupported, match=words) as caught:
        open_batch_pair(*folders(tmp_path, kind, name), place("float32", "cpu"), Silent())
    assert "one stream at a time" in str(caught.value)


def test_all_settings_that_are_wrong_are_named_at_once():
    with pytest.raises(BatchSettingsInvalid, match="batch-settings-invalid") as caught:
        SpeculationSettings(num_draft_tokens=33, max_batch=0, max_new_tokens=0)
    for name in ("num_draft_tokens is 33", "max_batch is 0", "max_new_tokens is 0"):
        assert name in str(caught.value)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_captured_arms_share_their_caches_in_turns():
    pair, depths, asked = pair_of(), (0, 1, 3), requests(6)
    model = tiny_target("llama", vocab_size=VOCAB).to("cuda")
    weights = fuse_llama(model.config.to_dict(), model.state_dict().get)
    on_gpu = replace(pair, weights=weights, draft=pair_of().draft.to("cuda"))
    runners = runners_for(on_gpu, plan_pair(on_gpu, asked, depths, most=4), depths, captures=True)
    expected = [c.ids for c in speculate(pair, [r.prompt_ids for r in asked], WHOLE, Silent())]

    for _ in range(2):
        for runner in runners.values():
            found = {c.id: c.ids for c in BatchGenerator(runner, lambda ids: "").run(asked, Silent())}
            assert [found[r.id] for r in asked] == expected
