"""What the data stage needs of a target's folder: tokenizer, chat template and closing tokens; never weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eyas.client.balanced import Servers
from eyas.contract.spec.target_spec import read_target
from eyas.data.text.chat_template import ChatTemplate, Tokenizer
from eyas.data.text.server_tokenizer import (
    ServerPrompts,
    ServerTokenizer,
    require_one_tokenizer,
    tokenizer_of_servers,
)
from eyas.errors import EyasError
from eyas.models.chat_prompt import TemplateFailed, TokenizerUnloadable, load_tokenizer, stop_ids_of
from eyas.records import fingerprint
from eyas.records.conversation import Conversation
from eyas.talk import Silent, Talk


class TemplateMissing(EyasError):
    """The target has no chat template."""

    code = "template-missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetText:
    """A target as a reader of text.

    Attributes:
        tokenizer_hash, template_hash: fingerprints as in `contract.target_spec.TargetSpec`.
        reader: fingerprint of tokenizer, template and its options: the same reader gives the same ids.
        server_prompts: ids of prompts under the servers' own template; None: prompts are rendered and tokenised here.
        closing: special tokens, and those at which generation stops.
        end_ids: at which the target's folder says that a text ends.
    """

    tokenizer: Tokenizer
    template: ChatTemplate
    tokenizer_hash: str
    template_hash: str
    reader: str
    closing: tuple[str, ...]
    end_ids: frozenset[int]
    server_prompts: ServerPrompts | None = None


def load_target_text(
    folder: Path, template_options: Mapping[str, Any], servers: Servers | None = None, talk: Talk | None = None
) -> TargetText:
    """The tokenizer and chat template of a Hugging Face folder.

    Args:
        servers: of this target: their tokenizer is taken where the folder has none that can be loaded.
        talk: told of it.

    Raises:
        TokenizerUnloadable: the folder has no tokenizer, or a broken one, and no server tokenises.
        OtherTokenizer: a server's tokenizer is not the folder's.
        TemplateMissing: the folder has no chat template.
        What `contract.target_spec.read_target` raises.
    """
    spec = read_target(folder)
    talk = talk or Silent()
    tokenizer: Any
    try:
        tokenizer = load_tokenizer(folder)
    except TokenizerUnloadable as error:
        tokenizer = tokenizer_of_servers(folder, servers, spec.vocab_size, error, talk)
    if servers is not None:
        require_one_tokenizer(tokenizer, servers, talk)
    if not tokenizer.chat_template:
        raise TemplateMissing(
            "the target has no chat template",
            str(folder),
            "without a chat template, conversations cannot be rendered for this target",
            "put chat_template.jinja beside its tokenizer.json",
        )
    end_ids = stop_ids_of(folder)
    stops = [tokenizer.convert_ids_to_tokens(i) for i in end_ids if 0 <= i < len(tokenizer)]
    # All tokens that are marked special: some close a turn only.
    special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    closing = (*tokenizer.all_special_tokens, *special, *stops)
    hashes = spec.tokenizer_hash or "unknown", spec.template_hash or "unknown"
    return TargetText(
        tokenizer=tokenizer,
        template=ChatTemplate(tokenizer, closing, template_options, stops),
        tokenizer_hash=hashes[0],
        template_hash=hashes[1],
        reader=fingerprint.of_json([*hashes, dict(template_options)]),
        closing=closing,
        end_ids=end_ids,
        server_prompts=_server_prompts(tokenizer, servers, template_options, talk),
    )


def _server_prompts(
    tokenizer: Any, servers: Servers | None, options: Mapping[str, Any], talk: Talk
) -> ServerPrompts | None:
    """Where servers tokenise, they render, too, if they can: a model's own code may render tools in another way."""
    if servers is None or not isinstance(tokenizer, ServerTokenizer):
        return None
    old = [a for a in servers.addresses if a.api.tokens is None or not a.api.tokens.takes_messages(a.version)]
    if not old:
        return ServerPrompts(servers=servers, options=dict(options), talk=talk)
    talk.note(
        f"{old[0].url} ({old[0].api.name} {old[0].version}) does not render messages under /tokenize: prompts are"
        " rendered by the folder's chat template"
    )
    return None


# Letters only: no template trims, escapes or splits it.
_MARK = "Qzeyasuserwordsqz"


class UserSlotUnclear(EyasError):
    """The template does not show where a user turn begins or ends."""

    code = "user-slot-unclear"


@dataclass(frozen=True, slots=True)
class UserSlot:
    """A place for a user turn.

    Attributes:
        before: the rendered text up to it.
        end_id: the special token that closes the turn; None where the template has none.
        end_text: the text that closes it then.
    """

    before: str
    end_id: int | None
    end_text: str


def user_slots(text: TargetText, conversations: Sequence[Conversation]) -> list[UserSlot]:
    """The place of the next user turn after each conversation, which may be empty or hold a system prompt only.

    Raises:
        UserSlotUnclear: the template leaves the user's words out, repeats them, or closes their turn with nothing.
    """
    marked = [replace(c, messages=[*c.messages, {"role": "user", "content": _MARK}]) for c in conversations]
    return [_slot(rendered, text) for rendered in text.template.render_many(marked, [len(c.messages) for c in marked])]


def answer_end(text: TargetText) -> frozenset[int]:
    """The special token that the template puts after an answer, if it does."""
    words = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": _MARK}]
    try:
        rendered = text.template.render(Conversation(messages=words, source=0, line=0), 2)
    except TemplateFailed:
        return frozenset()
    token = _token_at(rendered.partition(_MARK)[2].strip(), text)
    return frozenset() if token is None else frozenset([token[1]])


def _slot(rendered: str, text: TargetText) -> UserSlot:
    before, mark, after = rendered.partition(_MARK)
    if not mark or _MARK in after:
        raise _unclear(f"the rendered text holds a user's words {rendered.count(_MARK)} times")
    after = after.strip()
    token = _token_at(after, text)
    if token is None and not after:
        raise _unclear("nothing closes a user turn, so a target would not know where to end it")
    return UserSlot(before=before, end_id=token[1] if token else None, end_text=token[0] if token else after)


def _token_at(after: str, text: TargetText) -> tuple[str, int] | None:
    """The special token that `after` begins with, and its id."""
    for token in sorted(text.closing, key=len, reverse=True):
        if after.startswith(token):
            (token_id,) = text.tokenizer(token, add_special_tokens=False)["input_ids"]
            return token, token_id
    return None


def _unclear(why: str) -> UserSlotUnclear:
    return UserSlotUnclear(
        "the chat template does not show where a user turn begins and ends",
        "chat template",
        why,
        "give prompts with --data and --regenerate instead of --self-chat",
    )
