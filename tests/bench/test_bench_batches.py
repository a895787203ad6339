"""A benchmark of batches: what is compared, what is refused, what a person and a program see."""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from eyas.bench.batches import (
    BatchJudge,
    Turn,
    arm_figures,
    impossible_in_batches,
    run_batches,
    where_it_pays,
)
from eyas.bench.bench_config import BenchConfig, BenchConfigInvalid
from eyas.bench.measure import BenchPrompt, TextsDiffer
from eyas.cli.app import main
from eyas.engine.batches.batch_plan import BatchMemoryTooSmall
from eyas.engine.batches.generator import Completion
from eyas.engine.batches.speculate import BatchPair
from eyas.engine.llama.llama_weights import fuse_llama
from eyas.models.save_draft import save_draft
from eyas.records.bench_record import BatchArm, BatchFigures
from eyas.talk import Silent
from tiny_draft import tiny_draft
from tiny_target import tiny_target

VOCAB, BOUNDARIES, STOP_IDS = 9, (1, 2, 4), frozenset({7})
PROMPTS = [BenchPrompt(id=str(n), set="chat", prompt_ids=(n, 3, 5 + n % 3)) for n in range(5)]


class Exact:
    """Says that nothing is a tie."""

    def logit_gap(self, ids: Sequence[int], tokens: Sequence[int]) -> float:
        return 9.0


class Tied(Exact):
    """Says that everything is one, and counts."""

    num_asked = 0

    def logit_gap(self, ids: Sequence[int], tokens: Sequence[int]) -> float:
        self.num_asked += 1
        return 0.0


def pair() -> BatchPair:
    model = tiny_target("llama", vocab_size=VOCAB)
    sizes = {"target_hidden_size": 32, "vocab_size": VOCAB, "draft_vocab_size": 7, "aux_boundaries": BOUNDARIES}
    weights = fuse_llama(model.config.to_dict(), model.state_dict().get)
    return BatchPair(weights=weights, draft=tiny_draft(**sizes).eval(), aux_boundaries=BOUNDARIES, stop_ids=STOP_IDS)


def config(**changed: object) -> BenchConfig:
    usual = {"batch": "1,4", "num_draft_tokens": "1,3", "repeats": 2, "max_new_tokens": 12, "max_cache_mib": 16}
    return BenchConfig(**{**usual, **changed})  # type: ignore[arg-type]


def measured(
    oracle: Exact, clock: Callable[[], float] | None = None, **changed: object
) -> tuple[list[BatchFigures], BatchJudge]:
    judge, more = BatchJudge(oracle, 1e-4), {} if clock is None else {"clock": clock}
    figures, _ = run_batches(pair(), PROMPTS, config(**changed), judge, captures=False, talk=Silent(), **more)
    return figures, judge


def test_every_text_of_every_arm_is_the_plain_one_of_its_batch():
    figures, judge = measured(Exact())

    assert [(f.batch, f.num_requests) for f in figures] == [(1, 5), (4, 8)], "rows are repeated up to twice the batch"
    assert [[a.arm for a in f.arms] for f in figures] == [["plain", "k=1", "k=3"]] * 2
    assert [[a.equal_texts for a in f.arms] for f in figures] == [[5] * 3, [8] * 3]
    # of three arms and two repeats, the first plain one is what the others are held against
    assert (judge.num_compared, judge.divergences) == (5 * 5 + 5 * 8, [])
    for plain, *drafting in (f.arms for f in figures):
        assert (plain.speedup, plain.accept_length, plain.rounds) == (1.0, 1.0, 0)
        for arm in drafting:
            assert 1 < arm.accept_length < arm.num_draft_tokens + 1
            assert arm.num_tokens == plain.num_tokens
            assert arm.steps < plain.steps


def test_speeds_are_new_tokens_over_the_whole_time():
    ticks = iter(range(10**6))

    figures, _ = measured(Exact(), clock=lambda: 2.0 * next(ticks))

    for arm in (a for f in figures for a in f.arms):
        assert arm.tokens_per_s.median == arm.num_tokens / 2.0


def completion(*ids: int, accepted: tuple[int, ...] = ()) -> Completion:
    return Completion(id="0", ids=ids, finish="length", accepted=accepted)


def test_another_text_is_refused_and_a_near_tie_is_counted_once_asked():
    plain, other = completion(1, 2, 3), completion(1, 2, 4)
    with pytest.raises(TextsDiffer):
        BatchJudge(Exact(), 1e-4).is_same(PROMPTS[0], plain, other, 3, 8)

    tied = Tied()
    judge = BatchJudge(tied, 1e-4)
    found = [judge.is_same(PROMPTS[0], plain, text, 3, batch) for text in (plain, other, other) for batch in (8,)]

    assert found == [True, False, False]
    assert [(d.at, d.batch, d.num_draft_tokens) for d in judge.divergences] == [(2, 8, 3)] * 2
    assert tied.num_asked == 1


def turn(seconds: float, steps: int, *accepted: int) -> Turn:
    """Nine tokens."""
    return Turn(seconds=seconds, steps=steps, texts=(completion(*range(9), accepted=accepted),))


@pytest.mark.parametrize(("plain_s", "is_possible"), [(8.0, True), (8.3, False)])
def test_a_speedup_beyond_the_accept_length_is_an_error(plain_s: float, is_possible: bool):
    plain = [turn(plain_s, 8), turn(plain_s + 1, 8)]
    own = [turn(4.0, 4, 1, 1, 1, 1), turn(4.0, 4, 1, 1, 1, 1)]  # accept length 2
    arms = (arm_figures(0, plain, plain, 1), arm_figures(1, own, plain, 1))

    refusal = impossible_in_batches([BatchFigures(batch=8, num_requests=1, cache_bytes=1, arms=arms)])

    assert arms[1].speedup_low == plain_s / 4
    assert (refusal is None) == is_possible
    assert is_possible or "batch 8, k=1" in str(refusal)


def test_a_long_text_that_goes_on_alone_may_gain_more_than_the_accept_length():
    """Its rounds are what the batch lasts; those of short texts beside it count in the accept length only."""
    plain, own = [turn(20.0, 20)], [turn(5.0, 5, 0, 0, 1, 1)]

    arm = arm_figures(3, own, plain, 1)

    assert (arm.speedup, arm.accept_length, arm.speedup_limit) == (4.0, 1.5, 4.0)
    figures = BatchFigures(batch=2, num_requests=1, cache_bytes=1, arms=(arm_figures(0, plain, plain, 1), arm))
    assert impossible_in_batches([figures]) is None


def test_the_verdict_says_where_it_pays():
    def figures(batch: int, *seconds: float) -> BatchFigures:
        plain, own = [turn(4.0, 8) for _ in seconds], [turn(s, 4, 1, 1, 0, 0) for s in seconds]
        return BatchFigures(
            batch=batch,
            num_requests=1,
            cache_bytes=1,
            arms=(arm_figures(0, plain, plain, 1), arm_figures(3, own, plain, 1)),
        )

    assert where_it_pays([figures(1, 2.0, 2.1), figures(8, 3.2), figures(32, 5.0, 5.0), figures(64, 3.9, 4.1)]) == [
        "K = 3: speculation pays with 1 (1.95 times plain) and 8 (1.25 times plain) at a time; it loses with 32 (0.80);"
        " no difference can be shown with 64 (1.00); accept length 1.50"
    ]
    assert where_it_pays([figures(4, 5.0)])[0].startswith(
        "K = 3: speculation pays at none of the batch sizes; it loses"
    )


def test_all_batches_are_planned_before_the_first_one_runs():
    def never() -> float:
        raise AssertionError("nothing may run")

    with pytest.raises(BatchMemoryTooSmall, match="4 sequences of 64 tokens need"):
        measured(Exact(), clock=never, batch="1,64", max_cache_mib=1)
    measured(Exact(), batch="1", max_cache_mib=1)


def write_pair(folder: Path, kind: str = "llama") -> list[str]:
    tiny_target(kind).save_pretrained(folder / "target")
    sizes = {"target_hidden_size": 32, "vocab_size": 64, "draft_vocab_size": 24, "aux_boundaries": BOUNDARIES}
    save_draft(tiny_draft(**sizes), folder / "draft")
    chance = random.Random(1)
    rows = [{"prompt_ids": [chance.randrange(64) for _ in range(6)], "response_ids": [1]} for _ in range(3)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options = [
        "--target",
        str(folder / "target"),
        "--draft",
        str(folder / "draft"),
        "--device",
        "cpu",
        "--repeats",
        "2",
    ]
    return ["bench", *options, "--data", str(folder / "rows.jsonl"), "--max-new-tokens", "10"]


def test_the_command_prints_a_table_and_one_json_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    command = write_pair(tmp_path)

    code = main([*command, "--batch", "1,2", "-k", "2,3", "--json", "--out", str(tmp_path / "bench.json")])

    out, err = capsys.readouterr()
    document = json.loads(out.splitlines()[-1])
    assert code == 0, err
    assert document == json.loads((tmp_path / "bench.json").read_text())
    assert document["schema"] == "eyas.bench/1"
    assert (document["figures"], document["comparisons"], document["passages"]) == ([], [], [])
    assert [(f["batch"], [a["arm"] for a in f["arms"]]) for f in document["batches"]] == [
        (1, ["plain", "k=2", "k=3"]),
        (2, ["plain", "k=2", "k=3"]),
    ]
    assert document["settings"]["decoding"] == "greedy, batches of 1,2, chain"
    assert "batch  arm     tok/s (min - max)" in err
    assert "K = 2: speculation" in document["verdict"]
    assert main(["report", str(tmp_path / "bench.json"), "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "Speed in batches" in page
    assert "K = 3, 2 at a time" in page


def test_a_batch_that_does_not_fit_and_a_slow_target_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    command = write_pair(tmp_path)
    assert main([*command, "--batch", "1,99", "--max-cache-mib", "1"]) == 3
    assert "99 sequences of 64 tokens need" in capsys.readouterr().err

    command = write_pair(tmp_path / "slow", "gemma3_text")
    assert main([*command, "--batch", "2"]) == 2
    assert "this target cannot speculate in batches" in capsys.readouterr().err


@pytest.mark.parametrize(("waited", "code"), [(None, 1), (0.001, 1), (0.4, 0)])
def test_an_impossible_speedup_is_an_error_unless_other_programs_caused_it(
    waited: float | None,
    code: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    import eyas.bench.batches as batches

    def flattered(depth: int, own: Sequence[Turn], plain: Sequence[Turn], equal_texts: int) -> BatchArm:
        slowed = [Turn(seconds=1e3 * t.seconds, steps=t.steps, texts=t.texts) for t in plain] if depth else plain
        return arm_figures(depth, own, slowed, equal_texts)

    monkeypatch.setattr(batches, "arm_figures", flattered)
    monkeypatch.setattr("eyas.bench.processor_wait.ProcessorWait.share", lambda _: waited)
    out = tmp_path / "bench.json"

    assert main([*write_pair(tmp_path), "--batch", "2", "--out", str(out)]) == code

    assert ("error[bench-baseline-handicapped]" in capsys.readouterr().err) == (code == 1)
    verdict = json.loads(out.read_text())["verdict"]
    assert verdict.startswith("NOT VALID: a speedup of at least ")
    assert ("waited for a processor for 40% of the time" in verdict) == (code == 0)


@pytest.mark.parametrize(("text", "batches"), [("8", (8,)), ("1, 32,8", (1, 8, 32)), ("", ())])
def test_numbers_of_sequences(text: str, batches: tuple[int, ...]):
    assert BenchConfig(batch=text).batches == batches


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch": "0"},
        {"batch": "x"},
        {"batch": "1,"},
        {"batch": "5000"},
        {"batch": "8", "num_draft_tokens": "3,auto"},
        {"batch": "8", "tree": "3x3x7"},
        {"batch": "8", "peer": "transformers"},
    ],
)
def test_what_batches_cannot_have_is_refused(wrong: dict[str, str]):
    with pytest.raises(BenchConfigInvalid, match="--batch is"):
        BenchConfig(**wrong)  # type: ignore[arg-type]


def test_memory_is_an_option_of_batches_only():
    assert BenchConfig(batch="8", max_cache_mib=5).max_cache_mib == 5
    for options in ({"max_cache_mib": 5}, {"max_cache_mib": 0, "batch": "8"}):
        with pytest.raises(BenchConfigInvalid, match="--max-cache-mib is"):
            BenchConfig(**options)
