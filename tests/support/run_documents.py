"""A small run folder with every kind of document, hostile text included: what the page is tested with."""

import json
from pathlib import Path
from typing import Any

HOSTILE = "</span><script>document.title='owned'</script><img src=x onerror=alert(1)>&lt;"


def summary(accept_length: float, per_position: list[float]) -> dict[str, Any]:
    return {
        "accept_length": accept_length,
        "accept_length_request_mean": accept_length + 0.1,
        "per_position": per_position,
        "per_position_conditional": per_position,
        "accepted_at": [int(100 * p) for p in per_position],
        "rounds": 100,
        "num_tokens": 200,
        "num_requests": 8,
        "num_draft_tokens": len(per_position),
    }


def evaluation(accept_length: float) -> dict[str, Any]:
    figures = summary(accept_length, [0.56, 0.32, 0.19])
    return {
        "schema": "eyas.eval/1",
        **figures,
        "sets": {"chat": figures, "arithmetic": summary(3.0, [0.7, 0.5, 0.4])},
        "draft": {"fingerprint": "d" * 16},
        "target": {"fingerprint": "a" * 16},
        "data": {},
        "settings": {"dtype": "float32"},
        "notes": [],
        "rows": [],
    }


def benchmark() -> dict[str, Any]:
    def spread(median: float) -> dict[str, float]:
        return {"median": median, "minimum": median * 0.96, "maximum": median * 1.03}

    def figure(arm: str, k: int, speed: float) -> dict[str, Any]:
        return {
            "arm": arm,
            "set": "chat",
            "num_draft_tokens": k,
            "tokens_per_s": spread(speed),
            "tokens_per_s_with_prefill": spread(speed * 0.9),
            "num_tokens": 640,
        }

    comparison = {
        "set": "all",
        "num_draft_tokens": 3,
        "speedup": 1.52,
        "speedup_low": 1.41,
        "speedup_high": 1.6,
        "speedup_with_prefill": 1.4,
        "accept_length": 2.2,
        "accept_length_request_mean": 2.3,
        "per_position": [0.6, 0.4, 0.2],
        "rounds": 300,
        "ceiling": {"speedup": 1.7, "one_row_ms": 70.0, "verify_ms": 78.0, "draft_step_ms": 4.0},
        "verdict": "K = 3 on all: 1.52x",
    }
    pieces = [["Once", -1], [HOSTILE, 1], [" upon", 2], [" a", 3], [" time", 0]]
    return {
        "schema": "eyas.bench/1",
        "figures": [figure("plain", 0, 14.0), figure("k=3", 3, 21.0)],
        "comparisons": [comparison],
        "best_num_draft_tokens": 3,
        "num_compared": 16,
        "num_identical": 16,
        "divergences": [],
        "repetition": {"chat": 0.1},
        "passages": [{"id": HOSTILE, "set": "chat", "num_draft_tokens": 3, "pieces": pieces}],
        "target": {"name": HOSTILE},
        "draft": {},
        "data": {},
        "settings": {"threads": 2},
        "verdict": "Speculation wins: 1.52 times plain decoding.",
        "notes": [HOSTILE],
    }


def check() -> dict[str, Any]:
    ledger = {
        "engine": "sglang==0.5.9",
        "runner": None,
        "verdict": "silent-damage",
        "severity": "fatal",
        "dropped": ["layers.0.mlp.up_proj.weight"],
        "unfilled": ["model.midlayer.mlp.gate_up_proj.weight"],
        "aux": [2, 15, 27],
        "tensors": [{"name": HOSTILE, "fate": "dropped", "parameter": None, "remark": ""}],
        "parameters": [
            {"name": "model.norm.weight", "shape": [8], "state": "filled", "sources": ["norm"], "remark": ""}
        ],
        "source": "llama_eagle3.py",
        "grade": "read",
    }
    finding = {
        "code": "tensor-dropped",
        "severity": "fatal",
        "what": HOSTILE,
        "where": "x",
        "why": "y",
        "do": "eyas convert",
        "engine": "sglang==0.5.9",
    }
    return {"schema": "eyas.check/1", "findings": [finding], "engines": {"sglang==0.5.9": ledger}}


def timeline() -> dict[str, Any]:
    phases = [
        {"key": "weights-target", "role": "target", "detail": "", "began_at": 0.0, "duration_s": 9.0},
        {"key": "weights-draft", "role": "draft", "detail": "", "began_at": 9.0, "duration_s": 2.0},
        {"key": "ready", "role": None, "detail": "", "began_at": 11.0, "duration_s": None},
    ]
    return {
        "schema": "eyas.timeline/1",
        "engine": "sglang",
        "version": "0.5.15",
        "began_at": 0.0,
        "ready_after_s": 11.0,
        "phases": phases,
        "states": [{"state": "ready", "at": 11.0, "elapsed_s": 11.0, "reason": "port open"}],
        "events": [],
        "outcome": "ready",
        "reason": "",
        "cause": None,
    }


def write_run(folder: Path) -> Path:
    """A run folder with one document of every kind."""
    folder.mkdir(parents=True)
    (folder / "draft").mkdir()
    documents = {
        "eval-shipped.json": evaluation(2.27),
        "eval-trained.json": evaluation(1.05),
        "bench.json": benchmark(),
        "check.json": check(),
        "timeline.json": timeline(),
        "draft/config.json": {"model_type": "llama"},
    }
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document))
    metrics = [
        {
            "schema": "eyas.metrics/1",
            "step": step,
            "tokens": 200 * step,
            "seconds": 2.0 * step,
            "loss": 9.0 / step,
            "lr": 1e-3,
            "grad_norm": 1.0,
            "accuracy": [0.1 * step, 0.05 * step, None],
        }
        for step in range(1, 8)
    ]
    (folder / "draft" / "metrics.jsonl").write_text("\n".join(json.dumps(line) for line in metrics))
    return folder
