"""A target's tokenizer where only a server has it: texts and ids go over HTTP, the chat template is the folder's own.

For tokenizers that are code which a model brings along (Kimi's): eyas never runs it, and the server already does.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from eyas.client.address import ServerAddress, ServerRefused
from eyas.client.balanced import Refused, Servers
from eyas.client.tokens import ids_of_messages, ids_of_text, text_of_ids
from eyas.contract.files.json_file import read_json_object
from eyas.data.text.tokenise import encode_many
from eyas.errors import EyasError
from eyas.models.chat_prompt import TokenizerUnloadable
from eyas.records.conversation import Conversation
from eyas.talk import Talk

if TYPE_CHECKING:
    import httpx

Item = TypeVar("Item")
Answer = TypeVar("Answer")
_PROBE = 'Twelve (12 345,6) élan — 中文 🙂\n\tdef f(x): return {"a": x}  #'


class OtherTokenizer(EyasError):
    """A server makes other token ids of a text than the target's folder, or than another server."""

    code = "other-tokenizer"


@dataclass(frozen=True, slots=True)
class _Numbered:
    """Items are told apart by their place: equal texts are asked once each."""

    place: int
    value: Any


class ServerTokenizer:
    """What is used of a `transformers` tokenizer, by servers that have `/tokenize` and `/detokenize`.

    Args:
        folder: of the target, with tokenizer_config.json and a chat template; no vocabulary is read.
        servers: of it.
        vocab_size: of its config.
        talk: told of servers that go and come.
    """

    def __init__(self, folder: Path, servers: Servers, vocab_size: int, talk: Talk) -> None:
        self._servers, self._vocab_size, self._talk = servers, vocab_size, talk
        path = folder / "tokenizer_config.json"
        config = read_json_object(path) if path.exists() else {}
        self._plain = _plain(folder, config)
        self.added_tokens_decoder = _added(config.get("added_tokens_decoder"))
        special = [token.content for token in self.added_tokens_decoder.values() if token.special]
        self.all_special_tokens = list(dict.fromkeys([*self._plain.all_special_tokens, *special]))

    @property
    def chat_template(self) -> Any:
        """Of the folder."""
        return self._plain.chat_template

    @chat_template.setter
    def chat_template(self, template: Any) -> None:
        self._plain.chat_template = template

    def __len__(self) -> int:
        return self._vocab_size

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        """Render (tokenize=False), here."""
        return self._plain.apply_chat_template(conversation, **options)

    def convert_ids_to_tokens(self, token_id: int) -> str:
        """The text of one id."""
        token = self.added_tokens_decoder.get(token_id)
        return token.content if token else self.decode([token_id])

    def __call__(self, text: Any, **_: Any) -> Any:
        """Token ids under `input_ids`, of one text or of each."""
        if isinstance(text, str):
            return {"input_ids": self._all([text], ids_of_text)[0]}
        return {"input_ids": self._all(text, ids_of_text)}

    def decode(self, token_ids: Any, **_: Any) -> str:
        """Text of ids, special tokens in it."""
        return self.decode_rows([token_ids])[0]

    def decode_rows(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """`decode` of each, as many at a time as the servers take."""
        return self._all(rows, text_of_ids)

    def _all(self, values: "Sequence[Item]", ask: Any) -> list[Any]:
        return answers_of_all(self._servers, values, ask, self._talk)


def answers_of_all(servers: Servers, values: Sequence[Any], ask: Any, talk: Talk) -> list[Any]:
    """`ask(http, address, value)` for each, in order.

    Raises:
        ServerRefused: a server refuses one of them for its own fault.
        What `Servers.ask_all` raises.
    """

    def one(http: "httpx.Client", address: ServerAddress, item: _Numbered) -> Any:
        return ask(http, address, item.value)

    found: dict[int, Any] = {}
    for item, answer in servers.ask_all([_Numbered(i, value) for i, value in enumerate(values)], one, talk):
        if isinstance(answer, Refused):
            raise ServerRefused(
                "the server does not tokenise a text",
                servers.addresses[0].url,
                answer.why,
                "see the server's log; leave out the record, or give it another form",
            )
        found[item.place] = answer
    return [found[place] for place in range(len(values))]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPrompts:
    """Prompts as the servers' own chat template renders them.

    Attributes:
        options: further variables for the template.
    """

    servers: Servers
    talk: Talk
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, conversations: Sequence[Conversation]) -> list[list[int]]:
        """Token ids of each conversation, ready for the answer."""

        def ask(http: "httpx.Client", address: ServerAddress, c: Conversation) -> list[int]:
            return ids_of_messages(http, address, c.messages, tools=c.tools, template_options=self.options)

        return answers_of_all(self.servers, conversations, ask, self.talk)


def require_one_tokenizer(tokenizer: Any, servers: Servers, talk: Talk) -> None:
    """Compare the ids of a text by the folder's tokenizer and by each server that answers and has `/tokenize`.

    Raises:
        OtherTokenizer: they differ: it serves another model.
    """
    from eyas.client.address import open_http

    known = None if isinstance(tokenizer, ServerTokenizer) else encode_many(tokenizer, [_PROBE])[0]
    whose = "the target's folder"
    for address in servers.addresses:
        if address.api.tokens is None:
            talk.note(
                f"{address.url} has no /tokenize that eyas knows: whether its tokenizer is the target's is unknown"
            )
            continue
        if address.url in servers.away:
            continue
        with open_http(address, timeout_s=servers.timeout_s) as http:
            found = ids_of_text(http, address, _PROBE)
        if known is not None and found != known:
            raise OtherTokenizer(
                f"{address.url} has another tokenizer than {whose}",
                f"{address.url}/tokenize",
                f"a text is {len(found)} tokens {found[:6]}… there, and {len(known)} tokens {known[:6]}… in {whose}",
                "give the servers of this target, or the --target that they serve",
            )
        known, whose = found, (whose if not isinstance(tokenizer, ServerTokenizer) else address.url)


def _plain(folder: Path, config: Mapping[str, Any]) -> Any:
    """A tokenizer without vocabulary, which renders the folder's chat template."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    template: Any = config.get("chat_template")
    if (path := folder / "chat_template.json").exists():
        template = read_json_object(path).get("chat_template")
    if (path := folder / "chat_template.jinja").exists():
        template = path.read_text("utf-8")
    if isinstance(template, list):  # several by name
        template = {
            t["name"]: t["template"] for t in template if isinstance(t, dict) and {"name", "template"} <= set(t)
        }
    names = ("bos_token", "eos_token", "unk_token", "pad_token")
    tokens = {name: content for name in names if (content := _content(config.get(name))) is not None}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({})), chat_template=template, **tokens)


@dataclass(frozen=True, slots=True)
class _Added:
    content: str
    special: bool


def _added(table: Any) -> dict[int, _Added]:
    return dict(_added_of(table)) if isinstance(table, dict) else {}


def _added_of(table: Mapping[str, Any]) -> Iterator[tuple[int, _Added]]:
    for name, entry in table.items():
        content = _content(entry)
        if name.isdecimal() and content:
            yield int(name), _Added(content, bool(entry.get("special")) if isinstance(entry, dict) else False)


def _content(token: Any) -> str | None:
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def tokenizer_of_servers(
    folder: Path, servers: Servers | None, vocab_size: int | None, error: TokenizerUnloadable, talk: Talk
) -> ServerTokenizer:
    """The servers' tokenizer, where the folder's cannot be loaded.

    Raises:
        TokenizerUnloadable: `error`, where no server has one either.
    """
    if servers is None or any(address.api.tokens is None for address in servers.addresses):
        raise error
    talk.note(f"texts are tokenised by {servers.addresses[0].url}: {error.why}")
    return ServerTokenizer(folder, servers, vocab_size or 1 << 31, talk)
