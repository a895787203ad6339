"""Makes the data that ships with eyas: `python recipes/make_shipped_data.py --target FOLDER --out src/eyas/shipped`.

The prompts beside this file were written for eyas; the answers are the target's own. `conversations.jsonl` holds
training conversations (greedy or at temperature 0.7, as each prompt says), `eval_rows.jsonl` the rows for `eyas eval`
(plain greedy decoding, batch 1, fp32). Greedy rows are the same on every machine but for near-ties; sampled ones
depend on the version of torch.
"""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = Path(__file__).parent
BATCH = 32
ANSWER_TOKENS = 220
EVAL_TOKENS = 128


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


class Writer:
    """The target as a writer of answers."""

    def __init__(self, folder: str) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)

    def prompt_ids(self, messages: list[dict[str, str]]) -> list[int]:
        ids: list[int] = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        return ids

    def answer(self, prompts: list[list[int]], temperature: float, max_new_tokens: int, seed: int) -> list[list[int]]:
        """Answers without padding; an answer that ended by itself keeps its end token."""
        width = max(map(len, prompts))
        end, pad = self.tokenizer.eos_token_id, self.tokenizer.pad_token_id
        torch.manual_seed(seed)
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
        out = self.model.generate(
            torch.tensor([[pad] * (width - len(p)) + p for p in prompts]),
            attention_mask=torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts]),
            max_new_tokens=max_new_tokens,
            **sampling,
        )[:, width:].tolist()
        return [ids[: ids.index(end) + 1] if end in ids else ids for ids in out]


def conversations(writer: Writer, prompts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = [{"id": p["id"], "temperature": p["temperature"], "finished": True, "messages": []} for p in prompts]
    for row, prompt in zip(rows, prompts, strict=True):
        if "system" in prompt:
            row["messages"].append({"role": "system", "content": prompt["system"]})
    for turn in range(max(len(p["turns"]) for p in prompts)):
        for temperature in sorted({p["temperature"] for p in prompts}):
            live = [i for i, p in enumerate(prompts) if len(p["turns"]) > turn and p["temperature"] == temperature]
            for start in range(0, len(live), BATCH):
                batch = live[start : start + BATCH]
                for i in batch:
                    rows[i]["messages"].append({"role": "user", "content": prompts[i]["turns"][turn]})
                ids = [writer.prompt_ids(rows[i]["messages"]) for i in batch]
                for i, answer in zip(batch, writer.answer(ids, temperature, ANSWER_TOKENS, seed=start), strict=True):
                    rows[i]["finished"] = answer[-1] == writer.tokenizer.eos_token_id
                    text = writer.tokenizer.decode(answer, skip_special_tokens=True)
                    rows[i]["messages"].append({"role": "assistant", "content": text})
                print(f"turn {turn + 1}, T={temperature}: {start + len(batch)}/{len(live)}", flush=True)
    return rows


def eval_rows(writer: Writer, prompts: list[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    for prompt in prompts:
        ids = writer.prompt_ids([{"role": "user", "content": prompt["prompt"]}])
        (answer,) = writer.answer([ids], 0.0, EVAL_TOKENS, seed=0)
        print(prompt["id"], len(answer), flush=True)
        yield {"id": prompt["id"], "set": prompt["set"], "prompt_ids": ids, "response_ids": answer}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True, help="folder of smollm2-135m")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    writer = Writer(given.target)
    write(given.out / "conversations.jsonl", conversations(writer, read(HERE / "shipped_prompts.jsonl")))
    write(given.out / "eval_rows.jsonl", eval_rows(writer, read(HERE / "shipped_eval_prompts.jsonl")))


if __name__ == "__main__":
    main()
