"""From messages to the ids that the target reads, and back: by its chat template, or the text as it is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas.contract.spec.target_spec import read_target
from eyas.data.text.chat_template import ChatTemplate, Tokenizer
from eyas.data.text.target_text import TemplateMissing, load_target_text
from eyas.data.text.tokenise import encode_many
from eyas.engine.known_ids import require_known_ids
from eyas.errors import EyasError
from eyas.models.chat_prompt import TemplateFailed, load_tokenizer, stop_ids_of
from eyas.records.conversation import Conversation

Message = Mapping[str, str]


class PromptTooLong(EyasError):
    """The conversation fills the target's context and leaves no room for an answer."""

    code = "prompt-too-long"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptReader:
    """Tokenizer and template of a target.

    Attributes:
        tokenizer: of the target.
        template: None if prompts are taken as they are.
        end_ids: ids that end an answer, by the folder's files and the tokenizer's end of text.
        context: positions that the target was trained for; None if its config does not say.
        vocab_size: ids that the target has; None if its config does not say.
    """

    tokenizer: Tokenizer
    template: ChatTemplate | None
    end_ids: frozenset[int]
    context: int | None
    vocab_size: int | None = None

    def ids(self, messages: Sequence[Message]) -> list[int]:
        """What the target reads before its next answer; without a template the last message alone.

        Raises:
            TemplateFailed: the template refuses such a conversation (a system message, for instance).
            PromptTooLong: it leaves no room for a single token.
            PromptOutsideVocabulary: the tokenizer knows tokens that the target does not have.
        """
        if self.template is None:
            ids: list[int] = list(self.tokenizer(messages[-1]["content"])["input_ids"])
        else:
            ids = encode_many(self.tokenizer, [self._render(self.template, messages)])[0]
        if self.context is not None and len(ids) >= self.context:
            raise PromptTooLong(
                f"the prompt has {len(ids)} tokens",
                "eyas chat",
                f"the target's context is {self.context} tokens, and the answer needs some of them",
                "shorten the prompt, or start over with /reset",
            )
        if self.vocab_size is not None:
            require_known_ids(ids, self.vocab_size, "eyas chat")
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens left out."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def _render(self, template: ChatTemplate, messages: Sequence[Message]) -> str:
        conversation = Conversation(messages=messages, source=0, line=1)
        try:
            return template.render(conversation, len(messages), for_generation=True)
        except TemplateFailed as error:
            raise TemplateFailed(
                "the chat template cannot render this conversation",
                f"eyas chat: {', '.join(message['role'] for message in messages)}",
                error.why,
                "leave out --system if the template refuses it, or give --raw to send prompts without a template",
            ) from error


def open_prompt_reader(folder: Path, *, is_raw: bool) -> PromptReader:
    """The tokenizer of a target's folder, with its chat template unless `is_raw`.

    Raises:
        TokenizerUnloadable: the folder has no tokenizer, or a broken one.
        TemplateMissing: the folder has no chat template; a note names `--raw`.
    """
    tokenizer: Any
    template = None
    if is_raw:
        tokenizer = load_tokenizer(folder)
    else:
        try:
            text = load_target_text(folder, {})
        except TemplateMissing as error:
            error.add_note("with --raw, the target continues each prompt as it is, without a template")
            raise
        tokenizer, template = text.tokenizer, text.template
    own_end, spec = getattr(tokenizer, "eos_token_id", None), read_target(folder)
    return PromptReader(
        tokenizer=tokenizer,
        template=template,
        end_ids=stop_ids_of(folder) | ({own_end} if isinstance(own_end, int) else set()),
        context=spec.max_position_embeddings,
        vocab_size=spec.vocab_size,
    )
