"""Stands for a target that writes: gives prepared texts, remembers what it was asked, and can die in the middle."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from byte_tokenizer import byte_tokenizer
from eyas.engine.batches.completions_file import complete_to_file
from eyas.engine.batches.generator import Completion, Request
from eyas.talk import Silent

TOKENIZER = byte_tokenizer()
END = TOKENIZER.convert_tokens_to_ids("<|im_end|>")


class RecordedWriter:
    """Answers each request with `text(phase, prompt)`; a text that ends with … is cut off there.

    Args:
        text: from the phase and the decoded prompt to what is written.
        dies_after: so many answers, then KeyboardInterrupt.
    """

    def __init__(self, text: Callable[[str, str], str], dies_after: int | None = None) -> None:
        self._text, self._left = text, dies_after
        self.asked: dict[str, list[Request]] = {}
        self.answered: list[str] = []
        self._folder: Path | None = None

    def open(self, folder: Path) -> "RecordedWriter":
        """For `prepare(writer=...)`."""
        self._folder = folder
        return self

    def __call__(self, phase: str, requests: Sequence[Request]) -> Mapping[str, Completion]:
        assert self._folder is not None
        self.asked[phase] = list(requests)

        def run(asked: Sequence[Request]) -> Iterable[Completion]:
            for request in asked:
                if self._left == 0:
                    raise KeyboardInterrupt
                self._left = None if self._left is None else self._left - 1
                self.answered.append(request.id)
                yield self._completion(request, self._text(phase, TOKENIZER.decode(request.prompt_ids)))

        return complete_to_file(self._folder / f"{phase}.completions", requests, run, target="t", talk=Silent())

    @staticmethod
    def _completion(request: Request, text: str) -> Completion:
        is_cut = text.endswith("…")
        ids = TOKENIZER(text.removesuffix("…"), add_special_tokens=False)["input_ids"]
        return Completion(
            id=request.id, ids=tuple(ids if is_cut else [*ids, END]), finish="length" if is_cut else "stop"
        )
