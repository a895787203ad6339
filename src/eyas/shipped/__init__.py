"""What ships with eyas: training conversations, evaluation rows and a draft, all for the target `smollm2-135m`."""

from pathlib import Path

TARGET = "smollm2-135m"
_HERE = Path(__file__).parent


def conversations_path() -> Path:
    """JSONL of 48 conversations (`messages`): our own prompts, answers by the target; input of `eyas prepare`."""
    return _HERE / "conversations.jsonl"


def eval_rows_path() -> Path:
    """JSONL of 16 rows (`id, set, prompt_ids, response_ids`), 8 chat and 8 arithmetic; input of `eyas eval`."""
    return _HERE / "eval_rows.jsonl"


def draft_folder() -> Path:
    """The EAGLE-3 draft for smollm2-135m in SGLang's names, bf16, with a model card."""
    return _HERE / "draft"
