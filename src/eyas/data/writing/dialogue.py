"""A conversation while a target writes it: turns as text, and the very token ids that were read and written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eyas.records.conversation import Conversation, WrittenRow, text_print


@dataclass(slots=True, kw_only=True)
class Dialogue:
    """One conversation in the making.

    Attributes:
        id: unique in its file.
        messages: so far.
        temperature: of all answers.
        rows: what the target has read and written; a new one begins where the template renders earlier turns anew.
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
        """Ids that stand for the beginning of `rendered`, and the text that is left to tokenise."""
        if self.done is not None and rendered.startswith(self.done):
            return self.rows[-1].ids, rendered[len(self.done) :]
        return (), rendered

    def add_answer(self, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> None:
        """Append what the target wrote after `prompt_ids`; they go on the last row if they begin with it."""
        place = (len(prompt_ids), len(prompt_ids) + len(answer_ids))
        ids = [*prompt_ids, *answer_ids]
        if self.done is not None and self.rows:
            self.rows[-1] = WrittenRow(ids, [*self.rows[-1].answers, place])
        else:
            self.rows.append(WrittenRow(ids, [place]))
