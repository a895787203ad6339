"""What a person sees of a benchmark."""

import json
from pathlib import Path

import pytest

from eyas.cli.app import main
from eyas.cli.commands.bench import render
from eyas.contract.files.json_file import JsonInvalid
from eyas.models.chat_prompt import stop_ids_of
from eyas.records.bench_record import ArmFigures, BenchRecord, Ceiling, Comparison, Spread
from eyas.records.eval_rows import EvalRowMalformed, read_eval_rows


def figures(arm: str, k: int, speed: float, set_name: str = "chat") -> ArmFigures:
    spread = Spread(median=speed, minimum=speed - 1, maximum=speed + 1)
    whole = Spread(median=speed - 4, minimum=speed - 4, maximum=speed - 4)
    return ArmFigures(
        arm=arm, set=set_name, num_draft_tokens=k, tokens_per_s=spread, tokens_per_s_with_prefill=whole, num_tokens=9
    )


def comparison(arm: str = "k=3", speedup: float = 1.5, set_name: str = "chat") -> Comparison:
    return Comparison(
        set=set_name,
        arm=arm,
        num_draft_tokens=3,
        speedup=speedup,
        speedup_low=speedup - 0.08,
        speedup_high=speedup + 0.08,
        speedup_with_prefill=1.4,
        accept_length=2.2,
        accept_length_request_mean=2.1,
        per_position=(0.6, 0.4, 0.2),
        rounds=100,
        ceiling=Ceiling(speedup=1.6, one_row_ms=35.0, verify_ms=42.0, draft_step_ms=2.25),
        verdict="speculation is faster",
    )


def record_of(speeds: list[ArmFigures], comparisons: list[Comparison]) -> BenchRecord:
    return BenchRecord(
        figures=speeds,
        comparisons=comparisons,
        best_num_draft_tokens=3,
        num_compared=5,
        num_identical=5,
        divergences=[],
        repetition={"chat": 0.1},
        passages=[],
        target={},
        draft={},
        data={},
        settings={},
        verdict="K = 3. chat: speculation is faster.",
        notes=["something unusual"],
    )


def lines_of(speeds: list[ArmFigures], comparisons: list[Comparison]) -> list[str]:
    return render(record_of(speeds, comparisons).as_document()).splitlines()


def test_a_record_is_two_tables_the_parts_and_the_verdict():
    assert lines_of([figures("plain", 0, 28.0), figures("k=3", 3, 42.0)], [comparison()]) == [
        "set           arm           tok/s (min - max)          with prefill",
        "chat          plain         28.0 (27.0 - 29.0)         24.0",
        "chat          k=3           42.0 (41.0 - 43.0)         38.0",
        "",
        "set              K  speedup (95 %)        accept length  ceiling  of it",
        "chat             3  1.50 (1.42 - 1.58)            2.200     1.60    94%",
        "",
        "K = 3: speculation is faster; parts: one row 35.0 ms, verify 42.0 ms, draft step 2.25 ms",
        "K = 3. chat: speculation is faster.",
        "note: something unusual",
    ]


def test_one_kind_of_text_is_told_once_and_several_have_a_sum():
    def told(*sets: str) -> list[str]:
        return lines_of(
            [figures("plain", 0, 28.0, name) for name in sets], [comparison(set_name=name) for name in sets]
        )

    assert told("chat", "all") == told("chat")
    assert sum(line.startswith("all ") for line in told("chat", "code", "all")) == 2


def test_every_arm_has_its_line_with_its_parts():
    arms = {"k=1": 1.2, "k=3": 1.5, "tree=3x3x7": 0.8, "k=auto": 1.0}

    lines = lines_of(
        [], [comparison(arm, speedup, name) for name in ("a", "b", "all") for arm, speedup in arms.items()]
    )

    told = [line.split("; parts: one row 35.0 ms")[0] for line in lines if "; parts: " in line]
    assert told == [
        "K = 1: speculation is faster",
        "K = 3: speculation is faster",
        "tree 3x3x7: speculation is slower",
        "K = auto: no difference can be shown",
    ]


@pytest.mark.parametrize(("speedup", "words"), [(1.58, "  99%"), (1.595, "at it"), (1.63, "at it"), (1.64, "above")])
def test_a_share_of_the_ceiling_is_never_more_than_all_of_it(speedup: float, words: str):
    [line] = [line for line in lines_of([], [comparison(speedup=speedup)]) if line.startswith("chat ")]
    assert line.endswith(f"1.60  {words}")


def test_the_help_of_data_and_its_reader_agree(tmp_path: Path, capsys):
    assert main(["bench", "--help"]) == 0
    assert "prompt_ids with response_ids" in " ".join(capsys.readouterr().out.replace("│", " ").split())
    path = tmp_path / "d.jsonl"
    path.write_text('{"prompt_ids": [1], "response_ids": [2]}')
    assert len(read_eval_rows([path])) == 1
    path.write_text('{"prompt_ids": [1]}')
    with pytest.raises(EvalRowMalformed, match="`response_ids` is not a list"):
        read_eval_rows([path])


@pytest.mark.parametrize("out", ["--out=~", "--out=~/"])  # which a shell leaves alone
def test_an_output_that_cannot_be_written_is_told_before_the_work(tmp_path: Path, capsys, monkeypatch, out: str):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["bench", "--target", "t", "--draft", "d", out]) == 3
    assert f"cannot write {tmp_path}" in capsys.readouterr().err


@pytest.mark.parametrize(("stated", "ids"), [(7, {7}), ([7, 8], {7, 8}), (["x", 7], {7}), ("x", set()), (None, set())])
def test_stop_ids_are_the_numbers_that_the_target_states(tmp_path: Path, stated, ids):
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": stated}))
    assert stop_ids_of(tmp_path) == ids


def test_a_broken_generation_config_is_named(tmp_path: Path):
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(JsonInvalid):
        stop_ids_of(tmp_path)
