"""Decoding with trees gives the text of plain decoding, whatever the draft; and the counts of what was accepted."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.decode.tree_shape import TreeShape
from eyas.engine.engine import Engine, Limits, PromptEmpty
from eyas.engine.generation import BONUS, PREFILL, Generation
from eyas.engine.trees.tree_engine import TreeEngine, TreeUnsupported
from stub_models import VOCAB, StubDraft, StubTarget, moody_draft, next_logits, right_draft, wrong_draft
from stub_trees import StubTreeDraft, StubTreeTarget

MAKERS = {"always right": right_draft, "never right": wrong_draft, "sometimes right": moody_draft}


def tree_draft(kind: str) -> StubTreeDraft:
    return StubTreeDraft(MAKERS[kind]()._logits)


def generate(
    kind: str, shape: str, prompt: list[int], limits: Limits, target: StubTreeTarget | None = None
) -> Generation:
    engine = Engine(target or StubTreeTarget(), tree_draft(kind))
    return TreeEngine(engine).generate(prompt, limits, TreeShape.parse(shape))


@pytest.mark.parametrize("shape", ["1x1x1", "1x4x4", "2x1x2", "2x3x6", "4x4x20", "3x5x5"])
@pytest.mark.parametrize("kind", MAKERS)
@settings(max_examples=15, deadline=None)
@given(
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=5),
    num=st.integers(1, 25),
    stop_id=st.none() | st.integers(0, VOCAB - 1),
)
def test_the_text_is_plain_text(kind: str, shape: str, prompt: list[int], num: int, stop_id: int | None):
    limits = Limits(max_new_tokens=num, stop_ids=frozenset() if stop_id is None else frozenset({stop_id}))

    text = generate(kind, shape, prompt, limits)

    plain = Engine(StubTarget()).generate(prompt, limits)
    assert (text.ids, text.finish) == (plain.ids, plain.finish)


@pytest.mark.parametrize("depth", range(1, 6))
@pytest.mark.parametrize("kind", MAKERS)
def test_a_tree_of_width_one_is_the_chain_round_by_round(kind: str, depth: int):
    limits = Limits(max_new_tokens=40)

    tree = generate(kind, f"1x{depth}x{depth}", [1, 2], limits)

    chain = Engine(StubTarget(), MAKERS[kind]()).generate([1, 2], limits, num_draft_tokens=depth)
    assert (tree.ids, tree.origins, tree.accepted) == (chain.ids, chain.origins, chain.accepted)


def test_a_tree_of_the_whole_vocabulary_accepts_also_what_is_the_drafts_last_guess():
    tree = generate("never right", f"{VOCAB}x1x{VOCAB}", [1, 2], Limits(max_new_tokens=1 + 3 * 2))

    assert tree.accepted == [1, 1, 1]
    assert tree.origins == [PREFILL] + 3 * [1, BONUS]


def test_one_pass_reads_the_pending_token_and_all_nodes():
    target = StubTreeTarget()

    text = generate("always right", "2x3x5", [1, 2], Limits(max_new_tokens=1 + 4 * 3), target)

    assert target.num_rows == 1 + 5
    assert target.num_passes == 1 + len(text.accepted)
    assert text.acceptance.accept_length > 1


def test_a_sure_draft_makes_the_tree_a_chain_and_all_of_it_is_accepted():
    draft = StubTreeDraft(lambda before, last, _: 50 * next_logits(before, last))

    text = TreeEngine(Engine(StubTreeTarget(), draft)).generate(
        [1, 2], Limits(max_new_tokens=1 + 4 * 3), TreeShape.parse("2x3x4")
    )

    assert text.accepted == [3, 3, 3]
    assert text.acceptance.accept_length == 4


def test_every_round_reports_its_tokens_as_they_come():
    heard: list[tuple[int, ...]] = []
    engine = TreeEngine(Engine(StubTreeTarget(), tree_draft("sometimes right")))

    text = engine.generate([1, 2], Limits(max_new_tokens=9), TreeShape.parse("2x2x4"), on_tokens=heard.append)

    assert heard[0] == (text.ids[0],)
    assert [i for ids in heard for i in ids] == text.ids
    assert len(heard) == 1 + len(text.accepted)


def test_an_empty_prompt_is_refused():
    with pytest.raises(PromptEmpty, match="prompt-empty"):
        generate("always right", "2x2x4", [], Limits())


@pytest.mark.parametrize(
    ("engine", "named"),
    [
        (Engine(StubTarget(), tree_draft("always right")), "StubTarget"),
        (Engine(StubTreeTarget(), right_draft()), "StubDraft"),
        (Engine(StubTreeTarget()), "NoneType"),
    ],
)
def test_a_target_or_draft_that_reads_no_trees_is_named(engine: Engine, named: str):
    assert isinstance(right_draft(), StubDraft)
    with pytest.raises(TreeUnsupported, match=f"tree-unsupported[^|]*--> {named}"):
        TreeEngine(engine)
