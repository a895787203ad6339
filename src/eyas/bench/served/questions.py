"""What a server is asked: conversations of one or several user turns, token ids, or random ids."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas.client.server_api import Prompt
from eyas.records.data_files import file_records
from eyas.records.eval_rows import EvalRow, read_eval_rows
from eyas.talk import Talk

# Ids that every vocabulary of a language model has, and no special token of one that is known.
_RANDOM_IDS = range(1000, 10_000)
_MOST_TURNS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One conversation to hold.

    Attributes:
        id, set: its name, and the kind of text that it is reported under.
        ids: the whole prompt as token ids; () for messages.
        begin: the turns before the first question, or with it where there is only one.
        turns: what the user says, one turn after another, where there are several: the server's answers stand between.
    """

    id: str
    set: str
    ids: tuple[int, ...] = ()
    begin: Sequence[Mapping[str, Any]] = ()
    turns: tuple[str, ...] = ()

    def prompt(self, answers: Sequence[str]) -> Prompt:
        """What is sent after so many answers."""
        if self.ids:
            return self.ids
        messages: list[Mapping[str, Any]] = list(self.begin)
        for number, turn in enumerate(self.turns[: len(answers) + 1]):
            messages.append({"role": "user", "content": turn})
            if number < len(answers):
                messages.append({"role": "assistant", "content": answers[number]})
        return messages


def read_questions(paths: Sequence[Path], per_set: int | None, talk: Talk) -> list[Question]:
    """The conversations of JSONL files: what `eyas eval` reads, and every turn of benchmarks' `turns`.

    MT-bench's and Spec-Bench's `category` is the set where a row names none.

    Raises:
        EvalDataMissing, EvalRowMalformed, EvalDataEmpty: see `read_eval_rows`.
    """
    questions, taken = [], Counter[str]()
    for path in paths:
        rows = read_eval_rows([path], talk=talk)  # its errors are told first
        told = [_extra(record) for _, record in file_records(path) if isinstance(record, Mapping)]
        by_line = told if len(told) == len(rows) else [("", ())] * len(rows)  # rows were left out: no extras
        for row, (category, turns) in zip(rows, by_line, strict=True):
            name = category or row.set
            taken[name] += 1
            if per_set is not None and taken[name] > per_set:
                continue
            if isinstance(row, EvalRow):
                questions.append(Question(id=row.id, set=name, ids=row.prompt_ids))
            else:
                begin = row.messages[:-1] if turns else row.messages
                questions.append(Question(id=row.id, set=name, begin=begin, turns=turns))
    return questions


def random_questions(num_tokens: int, number: int, seed: int) -> list[Question]:
    """Prompts of random ids: for speed only."""
    chance = random.Random(seed)
    return [
        Question(id=f"random:{n}", set="random", ids=tuple(chance.choices(_RANDOM_IDS, k=num_tokens)))
        for n in range(number)
    ]


def _extra(record: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """A benchmark's category, and its turns where there are several."""
    turns, category = record.get("turns"), record.get("category")
    is_text = isinstance(turns, list) and all(isinstance(turn, str) for turn in turns)
    kept = tuple(turns[:_MOST_TURNS]) if is_text and isinstance(turns, list) and len(turns) > 1 else ()
    return (category if isinstance(category, str) and "set" not in record else ""), kept
