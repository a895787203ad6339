"""A whole benchmark on stubs: what is compared, what is refused, what the record says."""

import json
from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor

from eyas.bench.bench_config import BenchConfig, BenchConfigInvalid
from eyas.bench.compare import PartTimes, compare, impossible, verdict
from eyas.bench.engine_arm import EngineArm, EngineOracle, TreePartTimes
from eyas.bench.measure import MAX_LOGIT_GAP, Answer, BenchPrompt, Measurements, TextsDiffer, judge, measure
from eyas.bench.run_bench import BenchSetup, parting, run_bench
from eyas.engine.captured.open_captured import open_path
from eyas.engine.eagle_draft import ReferenceDraft
from eyas.engine.engine import Engine, Limits
from eyas.engine.llama.llama_target import LlamaTarget
from eyas.engine.sequence_protocols import TargetOutput
from eyas.records.bench_record import Ceiling, Divergence
from eyas.talk import Silent
from stub_models import StubTarget, moody_draft, next_logits, right_draft
from stub_trees import StubTreeDraft, StubTreeTarget
from tiny_captured import BOUNDARIES, tiny_module, tiny_weights

PROMPTS = [
    BenchPrompt(id="a", set="chat", prompt_ids=(1, 2)),
    BenchPrompt(id="b", set="chat", prompt_ids=(3, 4, 5)),
    BenchPrompt(id="c", set="sums", prompt_ids=(6,)),
]
SUBJECT = BenchSetup(target={"name": "stub"}, draft={"name": "stub"}, data={}, settings={})


def next_offer(before: int, last: int, depth: int) -> Tensor:
    """Somewhat like the target."""
    return next_logits(before, last) + 0.7 * next_logits(last, before)


class Clock:
    """Each reading is a second later: every arm takes the same time, however little it does."""

    def __init__(self) -> None:
        self._ticks: Iterator[int] = iter(range(10**9))

    def __call__(self) -> float:
        return float(next(self._ticks))


def test_the_record_says_what_was_run_and_that_texts_are_the_same():
    engine = Engine(StubTarget(), moody_draft(), clock=Clock())
    settings = BenchConfig(num_draft_tokens="1,3", repeats=2, max_new_tokens=12)

    record = run_bench(engine, PROMPTS, settings, SUBJECT, pieces=lambda ids: [str(i) for i in ids], talk=Silent())

    document = json.loads(json.dumps(record.as_document()))
    assert document["schema"] == "eyas.bench/1"
    assert {(f["arm"], f["set"]) for f in document["figures"]} == {
        (arm, name) for arm in ("plain", "k=1", "k=3") for name in ("chat", "sums", "all")
    }
    assert {(c["num_draft_tokens"], c["set"]) for c in document["comparisons"]} == {
        (k, name) for k in (1, 3) for name in ("chat", "sums", "all")
    }
    # three prompts, two repeats, three arms; the first plain answer of each prompt is what the others are held against
    assert (record.num_compared, record.num_identical, record.divergences) == (15, 15, [])
    for passage in record.passages:
        assert {origin for _, origin in passage.pieces} <= {-1, 0, 1, 2, 3}
        assert passage.pieces[0][1] == -1
    assert "ll 15 answers are equal to the plain arm's first ones, token for token" in record.verdict


def test_the_verdict_names_the_best_arm_and_tells_one_kind_of_text_once():
    engine = Engine(StubTarget(), moody_draft(), clock=Clock())
    chat = [prompt for prompt in PROMPTS if prompt.set == "chat"]

    def verdict_of(depths: str, prompts: Sequence[BenchPrompt]) -> str:
        settings = BenchConfig(num_draft_tokens=depths, repeats=1, max_new_tokens=12)
        return run_bench(engine, prompts, settings, SUBJECT, pieces=lambda ids: [""] * len(ids), talk=Silent()).verdict

    alone, several = verdict_of("3", chat), verdict_of("1,3", PROMPTS)

    assert alone.startswith("K = 3. chat: ")
    assert ". all: " not in alone
    assert several.startswith(("Best of 2 arms: K = 1. chat: ", "Best of 2 arms: K = 3. chat: "))
    assert ". all: " in several


def test_accept_lengths_are_the_engines_own_counts():
    engine = Engine(StubTarget(), right_draft(), clock=Clock())
    settings = BenchConfig(num_draft_tokens="3", repeats=1, max_new_tokens=13)

    record = run_bench(engine, PROMPTS, settings, SUBJECT, pieces=lambda ids: [""] * len(ids), talk=Silent())

    assert [c.accept_length for c in record.comparisons] == [4.0, 4.0, 4.0]
    assert [c.rounds for c in record.comparisons] == [6, 3, 9]


def test_trees_are_arms_of_their_own_with_parts_of_their_own():
    engine = Engine(StubTreeTarget(), StubTreeDraft(next_offer), clock=Clock())
    settings = BenchConfig(num_draft_tokens="2", tree="2x2x4,3x3x9", repeats=2, max_new_tokens=12)

    record = run_bench(engine, PROMPTS, settings, SUBJECT, pieces=lambda ids: [""] * len(ids), talk=Silent())

    by_arm = {c.arm: c for c in record.comparisons if c.set == "all"}
    assert {arm: c.num_draft_tokens for arm, c in by_arm.items()} == {"k=2": 2, "tree=2x2x4": 2, "tree=3x3x9": 3}
    assert by_arm["tree=3x3x9"].accept_length > by_arm["k=2"].accept_length
    assert by_arm["k=2"].ceiling != by_arm["tree=2x2x4"].ceiling
    # three prompts, two repeats, four arms, less the first plain answers
    assert (record.num_compared, record.num_identical) == (21, 21)
    assert record.verdict.startswith(tuple(f"Best of 3 arms: {arm}. " for arm in ("tree 2x2x4", "tree 3x3x9", "K = 2")))


def test_the_ceiling_of_a_tree_counts_all_passes_of_its_draft():
    parts = TreePartTimes(one_row=0.04, verify=0.06, read=0.004, expand=0.005, num_expansions=3)

    ceiling = parts.ceiling(2.0, (0, 0, 0, 7))

    assert ceiling.speedup == pytest.approx(2.0 * 0.04 / (0.06 + 0.004 + 3 * 0.005))
    assert ceiling.draft_step_ms == pytest.approx(19 / 4)


def test_an_adaptive_arm_is_compared_as_the_others_and_says_how_deep_its_rounds_were():
    engine = Engine(StubTarget(), moody_draft(), clock=Clock())
    settings = BenchConfig(num_draft_tokens="2,auto", auto_most=2, repeats=2, max_new_tokens=30)

    record = run_bench(engine, PROMPTS, settings, SUBJECT, pieces=lambda ids: [""] * len(ids), talk=Silent())

    by_arm = {c.arm: c for c in record.comparisons if c.set == "all"}
    assert set(by_arm) == {"k=2", "k=auto"}
    assert by_arm["k=2"].depth_histogram == (0, 0, by_arm["k=2"].rounds)
    adaptive = by_arm["k=auto"]
    assert len(adaptive.depth_histogram) == 3
    assert sum(adaptive.depth_histogram) == adaptive.rounds
    assert adaptive.undrafted_rounds == adaptive.depth_histogram[0]
    assert record.best_arm in by_arm
    # three prompts, two repeats, three arms, less the first plain answers
    assert (record.num_compared, record.num_identical) == (15, 15)


def test_all_arms_of_captured_rounds_are_measured_and_their_parts_timed():
    weights = tiny_weights()
    draft = tiny_module(weights)
    fast = open_path(weights, draft, BOUNDARIES, "uncaptured", Silent())
    engine = Engine(LlamaTarget(weights), ReferenceDraft(draft, BOUNDARIES), fast=fast)
    prompts = [BenchPrompt(id="a", set="chat", prompt_ids=(1, 2)), BenchPrompt(id="b", set="chat", prompt_ids=(3, 4))]
    settings = BenchConfig(num_draft_tokens="2,auto", auto_most=2, repeats=1, max_new_tokens=20)

    record = run_bench(engine, prompts, settings, SUBJECT, pieces=lambda ids: [""] * len(ids), talk=Silent())

    assert record.num_identical == record.num_compared == 4
    for comparison in record.comparisons:
        assert comparison.ceiling is not None
        assert comparison.ceiling.one_row_ms > 0
        assert comparison.ceiling.draft_step_ms > 0


def test_a_lower_precision_has_wider_near_ties():
    a, b = text(7, 8), text(7, 9)

    assert judge(PROMPTS[0], a, b, 3, Gap(0.5), MAX_LOGIT_GAP["bfloat16"]) is not None
    with pytest.raises(TextsDiffer):
        judge(PROMPTS[0], a, b, 3, Gap(0.5))


def test_arms_take_turns_and_each_begins_equally_often():
    asked: list[tuple[str, str]] = []

    class Spy:
        num_draft_tokens = 0

        def __init__(self, name: str) -> None:
            self.name = name

        def answer(self, prompt: BenchPrompt) -> Answer:
            asked.append((prompt.id, self.name))
            return Answer(ids=(1, 2), prefill_s=1.0, decode_s=1.0)

    measure([Spy("x"), Spy("y")], PROMPTS[:2], 2, Silent())

    warm_up, counted = asked[:2], asked[2:]
    assert warm_up == [("a", "x"), ("a", "y")]
    assert counted == [("a", "x"), ("a", "y"), ("b", "y"), ("b", "x")] * 2


def answers(seconds: Sequence[float], accepted: tuple[int, ...] | None) -> list[list[Answer]]:
    return [[Answer(ids=(1,) * 9, accepted=accepted, prefill_s=1.0, decode_s=s)] for s in seconds]


@pytest.mark.parametrize(("plain_s", "is_possible"), [(8.0, True), (8.3, False)])
def test_a_speedup_beyond_the_accept_length_is_refused(plain_s: float, is_possible: bool):
    fast = answers([4.0, 4.0], (1, 1, 1, 1))  # accept length 2
    measured = Measurements(PROMPTS[:2], {"plain": answers([plain_s] * 2, None), "k=1": fast})

    found = compare(measured, "k=1", 1, None, seed=0)
    refusal = impossible(found)

    assert found[0].speedup == plain_s / 4
    assert (refusal is None) == is_possible
    assert is_possible or "bench-baseline-handicapped" in str(refusal)


def test_the_ceiling_is_what_the_parts_allow():
    parts = PartTimes(one_row=0.030, verify={3: 0.040}, draft_step=0.002)

    ceiling = parts.ceiling(2.0, (0, 0, 0, 1))

    assert round(ceiling.speedup, 6) == round(2.0 * 30 / (40 + 3 * 2), 6)
    assert (ceiling.one_row_ms, ceiling.verify_ms, ceiling.draft_step_ms) == (30.0, 40.0, 2.0)


@pytest.mark.parametrize(
    ("interval", "words"),
    [((1.5, 1.4, 1.6), "is faster"), ((0.8, 0.7, 0.9), "leave it off"), ((1.0, 0.9, 1.1), "no difference")],
)
def test_the_verdict_is_honest_in_either_direction(interval: tuple[float, float, float], words: str):
    ceiling = Ceiling(speedup=2.0, one_row_ms=1, verify_ms=1, draft_step_ms=1)

    assert words in verdict(*interval, ceiling)
    assert f"{interval[0] / 2:.0%} of the ceiling 2.00" in verdict(*interval, ceiling)


@pytest.mark.parametrize("speedup", [1.993, 2.0, 2.03])
def test_a_speedup_of_all_that_the_ceiling_allows_is_at_it(speedup: float):
    ceiling = Ceiling(speedup=2.0, one_row_ms=1, verify_ms=1, draft_step_ms=1)

    assert "; at the ceiling 2.00 that" in verdict(speedup, 1.9, 2.1, ceiling)


def test_a_ceiling_that_is_exceeded_is_called_unreliable_not_a_share():
    ceiling = Ceiling(speedup=1.5, one_row_ms=10, verify_ms=10, draft_step_ms=1)

    assert "above its ceiling 1.50" in verdict(1.6, 1.55, 1.65, ceiling)
    assert "%" not in verdict(1.6, 1.55, 1.65, ceiling).split(";")[1]


class Gap:
    def __init__(self, gap: float) -> None:
        self.gap, self.asked, self.tokens = gap, list[int](), list[int]()

    def logit_gap(self, ids: Sequence[int], tokens: Sequence[int]) -> float:
        self.asked, self.tokens = list(ids), list(tokens)
        return self.gap


def text(*ids: int) -> Answer:
    return Answer(ids=ids, prefill_s=0.0, decode_s=0.0)


def test_a_near_tie_is_counted_and_asked_at_the_right_place():
    oracle = Gap(5e-5)

    found = judge(PROMPTS[0], text(7, 8, 9), text(7, 8, 1), 3, oracle)

    assert found is not None
    assert (found.at, found.logit_gap) == (2, 5e-5)
    assert (oracle.asked, oracle.tokens) == ([1, 2, 7, 8], [9, 1])


class Row:
    """A target of one row of logits."""

    def __init__(self, *logits: float) -> None:
        self.logits = torch.tensor([logits])

    def start(self, capacity: int, aux_boundaries: Sequence[int]) -> None:
        pass

    def prefill(self, ids: Sequence[int]) -> TargetOutput:
        return TargetOutput(logits=self.logits, aux_states=self.logits[:, :0])


def test_a_wrong_token_is_no_near_tie_though_two_others_are():
    oracle = EngineOracle(Engine(Row(1.0, 8.0, 7.9375, 3.0)))  # type: ignore[arg-type]

    assert oracle.logit_gap([1], [1, 2]) == oracle.logit_gap([1], [2, 1]) == 0.0625
    assert oracle.logit_gap([1], [1, 3]) == 5.0
    with pytest.raises(TextsDiffer, match=r"5\.00e"):
        judge(PROMPTS[0], text(1), text(3), 3, oracle, max_gap=1.0)


@pytest.mark.parametrize("other", [text(7, 1, 9), text(7, 8), text(7, 8, 9, 9)])
def test_another_text_is_refused(other: Answer):
    with pytest.raises(TextsDiffer, match="bench-texts-differ"):
        judge(PROMPTS[0], text(7, 8, 9), other, 3, Gap(0.2))


def test_the_first_parting_is_told_with_its_gap():
    found = [Divergence(id="chat-3", num_draft_tokens=3, at=17, logit_gap=0.125)] * 2

    assert parting(found, 1.0).startswith("; 2 part where both tokens nearly tie for the target's best logit (< 1; ")
    assert "the first is chat-3 at token 17, 0.12 below" in parting(found, 1.0)
    assert parting([], 1.0) == ""


def test_plain_and_speculative_arms_share_the_engine():
    engine = Engine(StubTarget(), right_draft(), clock=Clock())
    arms = [EngineArm(engine, Limits(max_new_tokens=6), k) for k in (0, 2)]

    plain, fast = (arm.answer(PROMPTS[0]) for arm in arms)

    assert plain.ids == fast.ids
    assert (plain.accepted, fast.accepted) == (None, (2, 2))


@pytest.mark.parametrize("wrong", [{"num_draft_tokens": ""}, {"num_draft_tokens": "0"}, {"repeats": 0}])
def test_settings_that_measure_nothing_are_refused(wrong: dict[str, object]):
    with pytest.raises(BenchConfigInvalid):
        BenchConfig(**wrong)  # type: ignore[arg-type]


def test_each_depth_is_one_arm():
    assert BenchConfig(num_draft_tokens="1,1,auto", auto_most=2).depths == (1,)
    assert BenchConfig(num_draft_tokens="1,1,auto", auto_most=2).all_depths == (1, 2)
