"""What a person sees of a benchmark."""

from eyas.cli.bench import render
from eyas.records.bench_record import ArmFigures, BenchRecord, Ceiling, Comparison, Spread


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
        "set            K  speedup (95 %)        accept length  ceiling  of it",
        "chat           3  1.50 (1.42 - 1.58)            2.200     1.60    94%",
        "",
        "parts at K = 3: one row 35.0 ms, verify 42.0 ms, draft step 2.25 ms",
        "K = 3. chat: speculation is faster.",
        "note: something unusual",
    ]
