"""Every architecture through all commands: prepare, extract, train from the store, eval, check, convert; then our
engine decodes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from byte_tokenizer import save_target_with
from eyas.cli.app import main
from eyas.contract.spec.target_spec import read_target
from eyas.engine.engine import Limits
from eyas.engine.open_engine import open_engine
from eyas.models.placement import place
from eyas.store import StoreReader, StoreWriter
from eyas.talk import Silent
from published_targets import SMALL, make_tokenizer_code, save_deepseek_v3, save_kimi_k25
from writing_server import Writer, WritingServer

ANSWERS = ["A hawk flies.", "Two and two is four.", "Yes, it does.", "No rain today.", "Read the page again."]
TIED = {"tie_word_embeddings": True}
SGLANG, VLLM = "sglang==0.5.23", "vllm==0.33.0"
SIZES: dict[str, dict[str, Any]] = {kind: {} for kind in ("qwen3_moe", "gpt_oss", "qwen3_vl", "gemma3", "llama4")}
SIZES |= {"glm4_moe": {}, "qwen3_next": {}, "minicpm3": {}, "granite": TIED, "qwen2": TIED}
PUBLISHED = {"deepseek_v3": save_deepseek_v3, "kimi_k25": save_kimi_k25}
# Engines whose class of the target hands over no states: refused by name, and nothing else is found.
REFUSED = {"gemma3": VLLM, "glm4_moe": VLLM, "minicpm3": SGLANG, "granite": SGLANG}
CASES = [*((kind, "gqa") for kind in SIZES), *((kind, attention) for kind in PUBLISHED for attention in ("gqa", "mla"))]
QUICK = [("gpt_oss", "gqa"), ("minicpm3", "gqa")]


def save(folder: Path, kind: str) -> None:
    """A target's folder."""
    if kind in PUBLISHED:
        PUBLISHED[kind](folder, **({"packed": False} if kind == "kimi_k25" else {}), **SMALL)
        return
    save_target_with(folder, kind=kind, num_hidden_layers=6, **SIZES[kind])
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))


def write_conversations(path: Path) -> Path:
    """Twenty of them."""
    turns = [({"role": "user", "content": f"Question {i}?"}, answer) for i, answer in enumerate(ANSWERS * 4)]
    records = [{"messages": [question, {"role": "assistant", "content": answer}]} for question, answer in turns]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


class Told:
    """Runs commands; gives the JSON object that each prints."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str | Path, code: int = 0) -> dict[str, Any]:
        found = main([*map(str, words), "--json"])
        out, err = self._capsys.readouterr()
        assert found == code, err
        document: dict[str, Any] = json.loads(out.splitlines()[-1])
        return document


TRAIN = ["--aux-boundaries", "2", "3", "4", "--draft-vocab-size", "32", "--ttt-steps", "3"]
TRAIN += ["--batch-tokens", "1500", "--lr", "3e-3", "--eval-every", "0", "--device", "cpu"]


@pytest.mark.parametrize(
    ("kind", "attention"), [c if c in QUICK else pytest.param(*c, marks=pytest.mark.soak) for c in CASES]
)
def test_from_conversations_to_a_draft_that_engines_take(kind: str, attention: str, tmp_path: Path, capsys):
    told, target, rows, store, draft = Told(capsys), *(tmp_path / part for part in ("target", "rows", "store", "draft"))
    save(target, kind)
    of_target, data = ["--target", target], write_conversations(tmp_path / "data.jsonl")

    told("prepare", *of_target, "--data", data, "--out", rows, "--held-out", "2")
    boundaries = ["--boundaries", "2", "3", "4"]
    stored = told("extract", *of_target, "--data", rows, "--out", store, "--device", "cpu", *boundaries)
    assert stored["rows"] > 0
    states = ["--hidden-states", store, "--data", rows]
    told("train", *of_target, *states, "--out", draft, "--attention", attention, *TRAIN, "--steps", "6")
    losses = [loss for line in (draft / "metrics.jsonl").open() if (loss := json.loads(line).get("loss")) is not None]
    assert losses[-1] < losses[0]
    replayed = told("eval", draft, *of_target, "--data", rows, "--device", "cpu")
    assert replayed["accept_length"] >= 1
    refused = REFUSED.get(kind)
    checked = told("check", draft, *of_target, "--for", SGLANG, "--for", VLLM, code=1 if refused else 0)
    for engine, verdict in checked["engines"].items():
        assert (verdict["verdict"], verdict["aux"]) == (("refuses", None) if engine == refused else ("ok", [2, 3, 4]))
    to = "speculators" if attention == "gqa" else "torchspec"
    told("convert", draft, tmp_path / "converted", "--to", to, *of_target)

    cpu, prompt = place("float32", "cpu"), [ord(c) for c in "Question 3?"]
    opened = open_engine(target, draft, cpu, cache=tmp_path, num_threads=1, talk=Silent())
    plain, text = (opened.engine.generate(prompt, Limits(max_new_tokens=16), num_draft_tokens=k).ids for k in (0, 3))
    assert (opened.target_path == "transformers") == (kind != "qwen2")
    assert text == plain


def test_kimi_k25_as_published_through_an_engine_that_holds_it(tmp_path: Path, capsys):
    """INT4 experts, a tokenizer that is code, 163 840 ids: nothing of it can be loaded here but three tensors."""
    told, sizes = Told(capsys), SMALL | {"vocab_size": 163840, "hidden_size": 32}
    target, twin, rows = save_kimi_k25(tmp_path / "target", **sizes), tmp_path / "twin", tmp_path / "rows"
    save_kimi_k25(twin, packed=False, **sizes)
    make_tokenizer_code(target)
    of_target, data = ["--target", target], write_conversations(tmp_path / "data.jsonl")

    with WritingServer(Writer(engine="sglang")) as server:
        words = ["--data", data, "--out", rows, "--held-out", "2", "--regenerate", "--url", server.url]
        written = told("prepare", *of_target, *words)
    assert (written["num_as_written"], written["num_rows"], written["num_held_out"]) == (20, 18, 2)

    told("prepare", "--target", twin, "--data", tmp_path / "rows.regenerated", "--out", tmp_path / "same-rows")
    boundaries = ["--boundaries", "2", "3", "4", "--device", "cpu"]
    held = tmp_path / "held"
    told("extract", "--target", twin, "--data", tmp_path / "same-rows", "--out", held, *boundaries)
    hand_over(held, tmp_path / "store", target)
    for attention in ("gqa", "mla"):
        draft = tmp_path / attention
        states = ["--hidden-states", tmp_path / "store", "--data", rows, "--out", draft]
        told("train", *of_target, *states, "--attention", attention, *TRAIN, "--steps", "2")
        told("check", draft, *of_target, "--for", SGLANG, "--for", VLLM)
        told("convert", draft, tmp_path / f"{attention}-torchspec", "--to", "torchspec", *of_target)
    assert told("eval", draft, *of_target, "--data", rows, "--device", "cpu", code=2)["code"] == "target-unloadable"


def hand_over(held: Path, out: Path, target: Path) -> None:
    """The store that the engine would have written, which holds the very same numbers as its twin."""
    reader, spec = StoreReader.open(held), read_target(target)
    about = replace(
        reader.about, target=spec.as_document(), tokenizer=spec.tokenizer_hash, source="sglang==0.5.15.post1"
    )
    with StoreWriter.open(out, about) as writer:
        for number in range(len(reader)):
            writer.append(reader.row(number))
