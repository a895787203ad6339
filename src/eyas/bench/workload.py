"""The prompts of a benchmark, as token ids: recorded rows, or messages under the target's chat template."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from eyas.bench.arm import BenchPrompt
from eyas.models.chat_prompt import load_tokenizer, prompt_ids
from eyas.records.eval_rows import EvalPrompt, EvalRow


class TargetTokenizer:
    """The tokenizer of a Hugging Face folder, loaded when first needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loaded: Any = None

    def prompt_ids(self, prompt: EvalPrompt) -> tuple[int, ...]:
        """A conversation under the chat template, ready for the answer.

        Raises:
            TokenizerUnloadable, TemplateFailed: see `models.chat_prompt`.
        """
        return prompt_ids(self._tokenizer, prompt.messages, prompt.tools, f"row {prompt.id}")

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """What each id adds to the text; a character made of several ids belongs to its last one."""
        texts, before = [], ""
        for end in range(1, len(ids) + 1):
            now = self._tokenizer.decode(ids[:end])
            if now.endswith("�") and end < len(ids):
                texts.append("")
                continue
            texts.append(now[len(before) :])
            before = now
        return texts

    @property
    def _tokenizer(self) -> Any:
        if self._loaded is None:
            self._loaded = load_tokenizer(self._folder)
        return self._loaded


def workload(
    rows: Sequence[EvalRow | EvalPrompt], prompt_ids: Callable[[EvalPrompt], tuple[int, ...]], per_set: int | None
) -> list[BenchPrompt]:
    """The rows' prompts; of each set only the first `per_set`, if given."""
    taken: Counter[str] = Counter()
    prompts = []
    for row in rows:
        taken[row.set] += 1
        if per_set is None or taken[row.set] <= per_set:
            ids = row.prompt_ids if isinstance(row, EvalRow) else prompt_ids(row)
            prompts.append(BenchPrompt(id=row.id, set=row.set, prompt_ids=ids))
    return prompts
