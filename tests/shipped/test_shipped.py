"""What ships: complete, small, made as its recipe and card say, no evaluation text among the training text."""

import json
import re
from collections import Counter
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from eyas import shipped
from eyas.cli.app import build_app, main
from eyas.cli.recipe_file import with_recipe

ROOT = Path(__file__).parents[2]

SHARD_LIMIT = 16 << 20
NGRAM = 8  # words; prompts that share so many in a row are the same prompt


def conversations() -> list[dict]:
    return [json.loads(line) for line in shipped.conversations_path().read_text().splitlines()]


def eval_rows() -> list[dict]:
    return [json.loads(line) for line in shipped.eval_rows_path().read_text().splitlines()]


def ngrams(text: str) -> set[tuple[str, ...]]:
    words = text.lower().split()
    return {tuple(words[i : i + NGRAM]) for i in range(max(1, len(words) - NGRAM + 1))}


def user_turns(record: dict) -> list[str]:
    return [m["content"] for m in record["messages"] if m["role"] == "user"]


def training_ngrams() -> set[tuple[str, ...]]:
    return set().union(*(ngrams(m["content"]) for record in conversations() for m in record["messages"]))


def test_there_are_a_few_dozen_varied_conversations():
    records = conversations()
    assert len(records) == 48
    assert Counter(r["id"].split("-")[0] for r in records) == {
        "talk": 12,
        "explain": 12,
        "code": 8,
        "sum": 8,
        "list": 8,
    }
    assert {r["temperature"] for r in records} == {0.0, 0.7}
    assert sum(len(user_turns(r)) == 2 for r in records) >= 4
    for record in records:
        roles = [m["role"] for m in record["messages"] if m["role"] != "system"]
        assert roles == ["user", "assistant"] * (len(roles) // 2)


def test_the_evaluation_rows_are_half_chat_half_arithmetic():
    rows = eval_rows()
    assert Counter(row["set"] for row in rows) == {"chat": 8, "arithmetic": 8}
    assert len({row["id"] for row in rows}) == 16
    for row in rows:
        assert set(row) == {"id", "set", "prompt_ids", "response_ids"}
        assert 16 <= len(row["response_ids"]) <= 128
        # an answer ends by itself or at the limit
        assert row["response_ids"][-1] == 2 or len(row["response_ids"]) == 128


def test_no_evaluation_prompt_is_in_the_training_text_and_no_answer_but_for_stock_phrases(smollm2_folder: Path):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2_folder)
    learned = training_ngrams()
    for row in eval_rows():
        prompt = tokenizer.decode(row["prompt_ids"]).split("<|im_start|>user\n")[1].split("<|im_end|>")[0]
        assert not ngrams(prompt) & learned, row["id"]
        # One model wrote both: "To solve this problem, we need to ..." is in many of its answers.
        answer = ngrams(tokenizer.decode(row["response_ids"], skip_special_tokens=True))
        assert len(answer & learned) < 0.1 * len(answer), row["id"]


def test_the_search_for_shared_text_can_find_some():
    copied = user_turns(conversations()[0])[0]
    assert ngrams(f"Please tell me: {copied}") & training_ngrams()


def test_no_benchmark_prompt_is_shipped(shared: Path):
    ours = [turn for record in conversations() for turn in user_turns(record)]
    mine = set().union(*map(ngrams, ours))
    for name in ("mt_bench", "alpaca", "humaneval", "gsm8k"):
        for line in (shared / "data" / f"{name}.jsonl").read_text().splitlines():
            for turn in json.loads(line)["turns"]:
                assert not ngrams(turn) & mine, turn


def test_the_draft_is_in_small_shards_that_its_index_accounts_for():
    folder = shipped.draft_folder()
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    stored = {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}

    assert set(index["weight_map"]) == set(stored)
    assert index["metadata"]["total_size"] == sum(t.numel() * t.element_size() for t in stored.values())
    assert all(path.stat().st_size < SHARD_LIMIT for path in folder.iterdir())


def sidecar() -> dict:
    return json.loads((shipped.draft_folder() / "eyas.json").read_text())


def test_the_draft_was_trained_with_the_options_of_its_recipe():
    app = build_app()
    tokens = with_recipe(["train", "--config", str(ROOT / "recipes" / "smollm2-135m.yaml")], app)
    _, bound, _ = app.parse_args(tokens, exit_on_error=False, print_error=False)

    recorded = sidecar()["about"]["options"]
    options = json.loads(json.dumps(asdict(bound.arguments["config"])))
    assert {name: options[name] for name in recorded} == recorded, "options that came later have their defaults"


def test_the_recipe_s_two_halves_fit():
    app = build_app()
    bound = {}
    for command in ("prepare", "train"):
        tokens = with_recipe([command, "--config", str(ROOT / "recipes" / "smollm2-135m.yaml")], app)
        _, bound[command], _ = app.parse_args(tokens, exit_on_error=False, print_error=False)

    assert bound["prepare"].arguments["out"] == bound["train"].arguments["data"] == Path("rows-smollm2")


def test_the_model_card_has_the_curve_of_the_metrics_and_the_numbers_of_the_sidecar():
    folder = shipped.draft_folder()
    card = (folder / "README.md").read_text()
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    replays = {f"{r['tokens'] / 1e6:.1f}": f"{r['accept_length']:.2f}" for r in records if "held-out" in r["schema"]}
    columns, values = (
        re.findall(r"\d+\.\d+", line)
        for line in card.splitlines()
        if line.startswith(("| M tokens", "| accept length |"))
    )
    rows = sidecar()["about"]["rows"]

    assert len(columns) >= 10
    assert {column: replays[column] for column in columns} == dict(zip(columns, values, strict=True))
    assert columns[-1] == f"{sidecar()['about']['tokens'] / 1e6:.1f}"
    assert f"{rows['num_tokens'] / 1e6:.1f} M tokens" in card
    assert "2 / 15 / 27" in card


@pytest.mark.smollm2
def test_an_evaluation_answer_is_the_targets_own_greedy_one(smollm2_folder: Path):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.float32)
    row = min(eval_rows(), key=lambda r: len(r["prompt_ids"]) + len(r["response_ids"]))
    ids = torch.tensor([row["prompt_ids"] + row["response_ids"]])
    with torch.no_grad():
        logits = model(ids).logits[0, len(row["prompt_ids"]) - 1 : -1]
    best, answer = logits.argmax(-1), torch.tensor(row["response_ids"])
    gaps = logits.max(-1).values - logits.gather(-1, answer[:, None])[:, 0]

    assert bool(((best == answer) | (gaps < 1e-4)).all())


def test_the_order_of_turns_is_strict_in_every_conversation():
    for record in conversations():
        for before, after in pairwise(record["messages"]):
            assert before["role"] != after["role"], record["id"]


@pytest.mark.smollm2
def test_check_finds_nothing_wrong_with_the_draft_and_its_target(
    smollm2_folder: Path, capsys: pytest.CaptureFixture[str]
):
    words = ["check", str(shipped.draft_folder()), "--target", str(smollm2_folder), "--for", "sglang==0.5.23", "--json"]

    assert main(words) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert not [f for f in found["findings"] if f["severity"] in ("warning", "error", "fatal")]
