"""One round of a conversation: the target reads the turns so far and answers. Many conversations at a time.

`TargetWriter` keeps the texts of each phase on disk until all are done, so that a killed run resumes. A `Dialogue` is a
conversation while the target writes it: turns as text, and the very token ids read and written.
"""

import gc
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from eyas.data.prepare_config import WritingConfig
from eyas.data.text.chat_template import TemplateRewritesAnswer, TemplateUnstable
from eyas.data.text.server_tokenizer import ServerTokenizer
from eyas.data.text.target_text import TargetText, answer_end
from eyas.data.text.tokenise import decode_many, encode_many, normalised
from eyas.decode.sampling import Sampling
from eyas.engine.batches.complete_prompts import BatchSettings, complete_prompts
from eyas.engine.batches.generator import Completion, Request
from eyas.models.placement import place
from eyas.models.target_folder import fingerprint_weights
from eyas.records import fingerprint
from eyas.records.conversation import Conversation, WrittenRow, text_print
from eyas.talk import Talk


class Writes(Protocol):
    """Answers to requests, by id. `phase` names the file in which they are kept meanwhile."""

    def __call__(self, phase: str, requests: Sequence[Request]) -> Mapping[str, Completion]: ...


class TargetWriter:
    """Our batch engine on a target's folder.

    Args:
        folder: of the target.
        text: its tokenizer.
        config: device, dtype and batch.
        work: folder for the phases' files, kept for a rerun.
    """

    def __init__(self, folder: Path, text: TargetText, config: WritingConfig, work: Path, talk: Talk) -> None:
        self._folder, self._text, self._config, self._work, self._talk = folder, text, config, work, talk
        self._placement = place(config.dtype, config.device)
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        self._target = writer_fingerprint(folder, config)

    def __call__(self, phase: str, requests: Sequence[Request]) -> Mapping[str, Completion]:
        """Answer all requests; what an earlier run has answered is read from its file."""
        if not requests:
            return {}
        tokenizer, config = self._text.tokenizer, self._config
        settings = BatchSettings(
            quantize=config.quantize,
            max_batch=config.max_batch,
            budget_bytes=None if config.max_cache_mib is None else config.max_cache_mib << 20,
        )
        _free_memory()
        return complete_prompts(
            self._folder,
            requests,
            self._work / f"{phase}.completions",
            placement=self._placement,
            decode=lambda ids: tokenizer.decode(ids, skip_special_tokens=False),
            target=self._target,
            settings=settings,
            talk=self._talk,
        )


def _free_memory() -> None:
    """Free the memory of the phase before: the next cache is planned by what is free."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def writer_fingerprint(folder: Path, config: WritingConfig) -> str:
    """Fingerprint of what decides the texts beside the requests: weights, their config, dtype and quantisation."""
    about = fingerprint.of_file(folder / "config.json")
    parts = [fingerprint_weights(folder), about, str(place(config.dtype, config.device).dtype)]
    return fingerprint.of_json(parts if config.quantize == "none" else [*parts, config.quantize])


@dataclass(slots=True, kw_only=True)
class Dialogue:
    """One conversation in the making.

    Attributes:
        id: unique in its file.
        messages: so far.
        temperature: of all answers.
        rows: what the target has read and written; a new one begins where earlier turns are rendered differently.
        done: the rendered text that the last row stands for; None when the next turn begins a new row.
        is_open: more turns may follow.
        is_finished: the last answer ended by itself.
    """

    id: str
    messages: list[Mapping[str, Any]]
    temperature: float
    tools: Sequence[Mapping[str, Any]] | None = None
    rows: list[WrittenRow] = field(default_factory=list)
    done: str | None = None
    is_open: bool = True
    is_finished: bool = True

    @property
    def num_answers(self) -> int:
        """Answers so far."""
        return sum(len(row.answers) for row in self.rows)

    def as_conversation(self, *more: Mapping[str, Any]) -> Conversation:
        """The turns so far and `more`, for a template."""
        return Conversation(
            messages=[*self.messages, *more], source=0, line=0, is_finished=self.is_finished, tools=self.tools
        )

    def as_record(self, written_by: str) -> dict[str, Any]:
        """The line of a data file; `record_forms` reads it again."""
        tools = {"tools": list(self.tools)} if self.tools else {}
        return {
            "id": self.id,
            "messages": self.messages,
            **tools,
            "finished": self.is_finished,
            "temperature": self.temperature,
            "written_by": written_by,
            "written_text": text_print(self.messages),
            "written": [{"ids": row.ids, "answers": row.answers} for row in self.rows],
        }

    def next_prompt(self, rendered: str) -> tuple[Sequence[int], str]:
        """Ids of a known prefix of `rendered`, and the rest of the text, still to be tokenised."""
        if self.done is not None and rendered.startswith(self.done):
            return self.rows[-1].ids, rendered[len(self.done) :]
        return (), rendered

    def note_prompt(self, ids: Sequence[int]) -> None:
        """Whether a prompt whose text is not known continues the last row, by its ids."""
        known = self.rows[-1].ids if self.rows else ()
        self.done = "" if known and list(ids[: len(known)]) == list(known) else None

    def add_answer(self, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> None:
        """Append what the target wrote after `prompt_ids`: to the row that they continue, or as a new one."""
        place = (len(prompt_ids), len(prompt_ids) + len(answer_ids))
        ids = [*prompt_ids, *answer_ids]
        if self.done is not None and self.rows:
            self.rows[-1] = WrittenRow(ids, [*self.rows[-1].answers, place])
        else:
            self.rows.append(WrittenRow(ids, [place]))


_CHUNK = 1024  # conversations rendered and tokenised at a time
_SEEDS = 2**31
Item = TypeVar("Item")


class Answering:
    """Lets the target answer the user turns that dialogues end with.

    Args:
        text: of the target.
        writes: the target.
        config: temperature, lengths, seed.
        max_length: longest row; a dialogue whose next answer may not fit is closed.
    """

    def __init__(self, text: TargetText, writes: Writes, config: WritingConfig, max_length: int) -> None:
        self._text, self._writes, self._config, self._max_length = text, writes, config, max_length
        self._stop_ids = text.end_ids | answer_end(text)
        self.dropped = Counter[str]()

    def answer(self, phase: str, dialogues: Sequence[Dialogue]) -> None:
        """Append an answer to each dialogue; one that cannot be answered is closed without its last user turn."""
        prompts: dict[str, tuple[Dialogue, list[int]]] = {}
        for chunk in chunks(dialogues):
            for dialogue, ids in zip(chunk, self._prompts(chunk), strict=True):
                if len(ids) + self._config.max_answer_tokens > self._max_length:
                    self._close(dialogue, f"a prompt with no room for an answer within {self._max_length} tokens")
                else:
                    prompts[dialogue.id] = dialogue, ids
        requests = [
            Request(
                id=name,
                prompt_ids=tuple(ids),
                max_new_tokens=self._config.max_answer_tokens,
                sampling=sampling(dialogue.temperature, self._config.answer_top_p, self._config.seed, phase, number),
                stop_ids=self._stop_ids,
            )
            for number, (name, (dialogue, ids)) in enumerate(prompts.items())
        ]
        found = self._writes(phase, requests)
        for names in chunks(list(prompts)):
            self._add([prompts[name] for name in names], [found[name] for name in names])

    def prepare_next(self, dialogues: Sequence[Dialogue]) -> None:
        """Note the rendered text that each dialogue's ids stand for, so that its next turn continues the same row.

        Where they stand for another text (the template trims an answer, or a token that is not the template's ended
        it), a server would show the target the rendered text: the next turn begins a new row.
        """
        if self._text.server_prompts is not None:
            return  # the server's ids of the next prompt show whether they continue the row
        for some in chunks(dialogues):
            read = decode_many(self._text.tokenizer, [dialogue.rows[-1].ids for dialogue in some])
            for dialogue, ids_text in zip(some, read, strict=True):
                try:
                    segments = self._text.template.segments(dialogue.as_conversation())
                except (TemplateUnstable, TemplateRewritesAnswer):
                    dialogue.done = None  # earlier turns will be rendered again
                else:
                    done = "".join(segment.text for segment in segments)
                    dialogue.done = done if ids_text in (done, normalised(self._text.tokenizer, done)) else None

    def _prompts(self, chunk: Sequence[Dialogue]) -> Iterator[list[int]]:
        conversations = [dialogue.as_conversation() for dialogue in chunk]
        if self._text.server_prompts is not None:
            prompts = self._text.server_prompts(conversations)
            for dialogue, prompt in zip(chunk, prompts, strict=True):
                dialogue.note_prompt(prompt)
            return iter(prompts)
        lengths = [len(c.messages) for c in conversations]
        rendered = self._text.template.render_many(conversations, lengths, for_generation=True)
        begun = [dialogue.next_prompt(text) for dialogue, text in zip(chunk, rendered, strict=True)]
        for dialogue, (ids, _) in zip(chunk, begun, strict=True):
            dialogue.done = dialogue.done if ids else None
        encoded = encode_many(self._text.tokenizer, [rest for _, rest in begun])
        return ([*ids, *more] for (ids, _), more in zip(begun, encoded, strict=True))

    def _add(self, asked: Sequence[tuple[Dialogue, list[int]]], answers: Sequence[Completion]) -> None:
        words = [c.ids[:-1] if c.finish == "stop" else c.ids for c in answers]
        for (dialogue, prompt_ids), answer, text in zip(
            asked, answers, texts_of(self._text, answers, words), strict=True
        ):
            if answer.finish == "refused":
                self._close(dialogue, REFUSED)
            elif not text.strip():
                self._close(dialogue, "an empty answer")
            else:
                dialogue.add_answer(prompt_ids, answer.ids)
                dialogue.messages.append({"role": "assistant", "content": text})
                dialogue.is_finished = answer.finish == "stop"
                dialogue.is_open = dialogue.is_finished

    def _close(self, dialogue: Dialogue, reason: str) -> None:
        self.dropped[reason] += 1
        dialogue.is_open = False
        while dialogue.messages and dialogue.messages[-1]["role"] != "assistant":
            dialogue.messages.pop()


REFUSED = "a prompt that the server refused"


def texts_of(text: TargetText, answers: Sequence[Completion], words: Sequence[Sequence[int]]) -> list[str]:
    """The answers' texts: of `words`, their ids without the ends; the server's own where it has the tokenizer."""
    if isinstance(text.tokenizer, ServerTokenizer):
        return [answer.text or "" for answer in answers]
    return decode_many(text.tokenizer, words)


def sampling(temperature: float, top_p: float, seed: int, phase: str, number: int) -> Sampling:
    """Of one request; its seed differs from those of all other requests of a phase."""
    own_seed = (seed * 1_000_003 + zlib.crc32(phase.encode()) + number * 0x9E3779B1) % _SEEDS
    return Sampling(temperature=temperature, top_p=top_p if temperature else 1.0, seed=own_seed)


def chunks(items: Sequence[Item], size: int = _CHUNK) -> Iterator[Sequence[Item]]:
    """Neighbours, `size` at a time."""
    return (items[i : i + size] for i in range(0, len(items), size))


def counted(dropped: Mapping[str, int]) -> str:
    """Counts with their reasons, for a person."""
    return ", ".join(f"{count} × {reason}" for reason, count in sorted(dropped.items())) or "nothing left out"
