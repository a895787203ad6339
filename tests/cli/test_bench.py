"""What a person sees of a benchmark."""

import json
from pathlib import Path

import pytest

from eyas.cli.app import main
from eyas.cli.bench import render
from eyas.contract.json_file import JsonInvalid
from eyas.models.stop_ids import stop_ids_of
from eyas.records.bench_record import ArmFigures, BenchRecord, Ceiling, Comparison, Spread
from eyas.records.eval_rows import EvalRowMalformed, read_eval_rows


def test_a_record_is_two_tables_the_parts_and_the_verdict():
    def figures(arm: str, k: int, speed: float) -> ArmFigures:
        spread = Spread(median=speed, minimum=speed - 1, maximum=speed + 1)
        whole = Spread(median=speed - 4, minimum=speed - 4, maximum=speed - 4)
        return ArmFigures(
            arm=arm, set="chat", num_draft_tokens=k, tokens_per_s=spread, tokens_per_s_with_prefill=whole, num_tokens=9
        )

    record = BenchRecord(
        figures=[figures("plain", 0, 28.0), figures("k=3", 3, 42.0)],
        comparisons=[
            Comparison(
                set="chat",
                num_draft_tokens=3,
                speedup=1.5,
                speedup_low=1.42,
                speedup_high=1.58,
                speedup_with_prefill=1.4,
                accept_length=2.2,
                accept_length_request_mean=2.1,
                per_position=(0.6, 0.4, 0.2),
                rounds=100,
                ceiling=Ceiling(speedup=1.6, one_row_ms=35.0, verify_ms=42.0, draft_step_ms=2.25),
                verdict="speculation is faster",
            )
        ],
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

    assert render(record.as_document()).splitlines() == [
        "set           arm           tok/s (min - max)          with prefill",
        "chat          plain         28.0 (27.0 - 29.0)         24.0",
        "chat          k=3           42.0 (41.0 - 43.0)         38.0",
        "",
        "set              K  speedup (95 %)        accept length  ceiling  of it",
        "chat             3  1.50 (1.42 - 1.58)            2.200     1.60    94%",
        "",
        "parts at K = 3: one row 35.0 ms, verify 42.0 ms, draft step 2.25 ms",
        "K = 3. chat: speculation is faster.",
        "note: something unusual",
    ]


def test_the_help_of_data_and_its_reader_agree(tmp_path: Path, capsys):
    assert main(["bench", "--help"]) == 0
    assert "prompt_ids beside response_ids" in " ".join(capsys.readouterr().out.replace("│", " ").split())
    path = tmp_path / "d.jsonl"
    path.write_text('{"prompt_ids": [1], "response_ids": [2]}')
    assert len(read_eval_rows([path])) == 1
    path.write_text('{"prompt_ids": [1]}')
    with pytest.raises(EvalRowMalformed, match="`response_ids` is no list"):
        read_eval_rows([path])


def test_an_output_that_cannot_be_written_is_told_before_the_work(tmp_path: Path, capsys):
    assert main(["bench", "--target", "t", "--draft", "d", "--out", str(tmp_path)]) == 3
    assert f"cannot write {tmp_path}" in capsys.readouterr().err


@pytest.mark.parametrize(("stated", "ids"), [(7, {7}), ([7, 8], {7, 8}), (["x", 7], {7}), ("x", set()), (None, set())])
def test_stop_ids_are_the_numbers_that_the_target_states(tmp_path: Path, stated, ids):
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": stated}))
    assert stop_ids_of(tmp_path) == ids


def test_a_broken_generation_config_is_named(tmp_path: Path):
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(JsonInvalid):
        stop_ids_of(tmp_path)
