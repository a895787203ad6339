"""Self-chat: the target writes user turns after its chat template's user header, then answers them.

The result is close to what the target was tuned on, and no other data is needed. Idea: Magpie, arXiv:2406.08464.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from eyas.data.prepare_config import WritingConfig
from eyas.data.rows.exclusion import Exclusion, num_unspaced
from eyas.data.text.target_text import TargetText, UserSlot, user_slots
from eyas.data.text.tokenise import encode_many
from eyas.data.writing.answering import REFUSED, Answering, Dialogue, Writes, chunks, counted, sampling, texts_of
from eyas.engine.batches.generator import Completion, Request
from eyas.records.conversation import Conversation
from eyas.talk import Talk


@lru_cache(maxsize=4)
def _special(tokens: tuple[str, ...]) -> re.Pattern[str]:
    """Finds any of these tokens in one search: a hundred single ones would cost more than the rest of a check."""
    return re.compile("|".join(map(re.escape, filter(None, tokens))) or "(?!)")


@dataclass(frozen=True, slots=True)
class SelfChat:
    """Lets a target talk to itself.

    Attributes:
        text, writes: the target.
        config: how many, how long, how random.
        max_length: longest row.
        excluded: prompts that must not come out.
    """

    text: TargetText
    writes: Writes
    config: WritingConfig
    max_length: int
    excluded: Exclusion

    def run(self, talk: Talk) -> tuple[list[Dialogue], Mapping[str, int]]:
        """The conversations, and what was left out and why.

        Raises:
            UserSlotUnclear: the template does not show where a user turn begins and ends.
        """
        answering = Answering(self.text, self.writes, self.config, self.max_length)
        dialogues, dropped = [self._new(number) for number in range(self.config.self_chat)], Counter[str]()
        for turn in range(1, self.config.chat_turns + 1):
            going = [dialogue for dialogue in dialogues if dialogue.is_open]
            if not going:
                break
            if turn > 1:
                answering.prepare_next(going)
            talk.line(f"turn {turn}: the target writes {len(going)} user turns")
            asking = self._ask(f"user-{turn}", going, dropped)
            talk.line(f"turn {turn}: {len(asking)} of them kept, and answered now ({counted(dropped)})")
            answering.answer(f"answer-{turn}", asking)
        return [dialogue for dialogue in dialogues if dialogue.rows], dropped + answering.dropped

    def _new(self, number: int) -> Dialogue:
        system, temperatures = self.config.system, self.config.answer_temperature
        return Dialogue(
            id=f"self-{number}",
            messages=[{"role": "system", "content": system[number % len(system)]}] if system else [],
            temperature=temperatures[number % len(temperatures)],
        )

    def _ask(self, phase: str, dialogues: Sequence[Dialogue], dropped: Counter[str]) -> list[Dialogue]:
        """Let the target write a user turn in each dialogue: those with a usable turn; the others are closed."""
        slots = self._slots(dialogues)
        requests = self._requests(phase, dialogues, slots)
        found = self.writes(phase, requests)
        kept, seen = list[Dialogue](), set[str]()
        for some in chunks(list(zip(dialogues, slots, strict=True))):
            answers = [found[dialogue.id] for dialogue, _ in some]
            words = [c.ids[:-1] if slot.end_id is not None and c.finish == "stop" else c.ids
                     for c, (_, slot) in zip(answers, some, strict=True)]  # fmt: skip
            texts = texts_of(self.text, answers, words)
            for (dialogue, slot), answer, words_text in zip(some, answers, texts, strict=True):
                turn = words_text if slot.end_id is not None else words_text.partition(slot.end_text)[0]
                reason = self._why_not(turn, answer, seen if not dialogue.rows else set())
                if reason is None:
                    dialogue.messages.append({"role": "user", "content": turn.strip()})
                    kept.append(dialogue)
                else:
                    dropped[reason] += 1
                    dialogue.is_open = False
        return kept

    def _slots(self, dialogues: Sequence[Dialogue]) -> list[UserSlot]:
        """Places of the user turns; first turns share theirs by system prompt."""
        conversations = [dialogue.as_conversation() for dialogue in dialogues]
        if all(not dialogue.rows for dialogue in dialogues):
            kinds = {str(c.messages): c for c in conversations}
            found = dict(zip(kinds, user_slots(self.text, list(kinds.values())), strict=True))
            return [found[str(c.messages)] for c in conversations]
        return [slot for some in chunks(conversations) for slot in user_slots(self.text, some)]

    def _requests(self, phase: str, dialogues: Sequence[Dialogue], slots: Sequence[UserSlot]) -> list[Request]:
        begun = [dialogue.next_prompt(slot.before) for dialogue, slot in zip(dialogues, slots, strict=True)]
        kinds = list(dict.fromkeys(rest for _, rest in begun))
        encoded = {
            rest: ids
            for some in chunks(kinds)
            for rest, ids in zip(some, encode_many(self.text.tokenizer, some), strict=True)
        }
        config = self.config
        return [
            Request(
                id=dialogue.id,
                prompt_ids=(*ids, *encoded[rest]),
                max_new_tokens=config.max_user_tokens,
                sampling=sampling(config.user_temperature, config.user_top_p, config.seed, phase, number),
                stop_ids=self.text.end_ids | (frozenset() if slot.end_id is None else {slot.end_id}),
                stop_strings=(slot.end_text,) if slot.end_id is None else (),
            )
            for number, (dialogue, slot, (ids, rest)) in enumerate(zip(dialogues, slots, begun, strict=True))
        ]

    def _why_not(self, turn: str, answer: Completion, seen: set[str]) -> str | None:
        """The reason to drop a user turn; a turn that is fine is added to `seen`."""
        words = turn.lower().split()
        plain = " ".join(words)
        if answer.finish == "refused":
            return REFUSED
        if answer.finish != "stop":
            return f"a user turn that did not end within {self.config.max_user_tokens} tokens"
        if not words:
            return "an empty user turn"
        if _special(self.text.closing).search(turn):
            return "a user turn with a special token in it"
        if "\ufffd" in turn:
            return "a user turn with half a character"
        if len(words) + num_unspaced(turn) < self.config.min_user_words:
            return f"a user turn under {self.config.min_user_words} words"
        if plain in seen:
            return "a user turn like an earlier one"
        asked = Conversation(messages=[{"role": "user", "content": turn}], source=0, line=0)
        if self.excluded.holds(asked):
            return self.excluded.reason
        seen.add(plain)
        return None
