"""Options of `eyas chat`. No torch here: the command line is built from this."""

from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import Parameter

from eyas.errors import EyasError

_MAX_DEPTH = 32


class ChatConfigInvalid(EyasError):
    """Options of `eyas chat` that cannot be meant."""

    code = "chat-config-invalid"


class ChatPromptInvalid(EyasError):
    """A prompt that holds nothing, or bytes that are no text."""

    code = "chat-prompt-invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatConfig:
    """How to talk."""

    system: str | None = None
    """A system message before the first prompt; default: what the target's template puts there by itself."""

    raw: Annotated[bool, Parameter(negative="")] = False
    """The target continues each prompt as it is, without a chat template: for base models. Prompts know nothing of each
    other."""

    num_draft_tokens: Annotated[str, Parameter(name=["--num-draft-tokens", "-k"])] = "auto"
    """Drafts per verify pass, the bonus token excluded: 1 - 32; auto: the depth that is expected to pay is chosen for
    each round, 0 included; 0: plain decoding, the draft is not loaded."""

    temperature: float = 0.0
    """0: greedy, the text is that of plain decoding; 1e-6 and more: sampled, distributed as plain sampling is."""

    top_p: float = 1.0
    """Only the likeliest tokens that reach this probability together, (0, 1]."""

    top_k: int = 0
    """Only the k likeliest tokens; 0: all."""

    min_p: float = 0.0
    """Only tokens at least this share of the likeliest one's probability, [0, 1]."""

    seed: int | None = None
    """Of the first sampled answer; the next ones take the numbers after it. Default: drawn, and printed."""

    max_new_tokens: int = 512
    """Longest answer in tokens, at least 1."""

    stop: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """An answer ends before this text; may be given several times."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """In which target and draft compute; auto: bfloat16 on a GPU, float32 elsewhere."""

    rounds: Literal["auto", "reference"] = "auto"
    """auto: on a GPU, whole rounds are captured into CUDA graphs where target and draft allow it. reference: never."""

    quantize: Literal["none", "int8", "int4"] = "none"
    """Weights of the target's layers, through torchao; texts are then the quantised target's. int4: GPU, bfloat16."""

    device: str = "auto"
    """cpu, cuda, cuda:N, or auto: the first GPU where there is one."""

    threads: int | None = None
    """CPU threads; default: what torch chooses."""

    show_drafts: bool = True
    """In a terminal, underline the tokens that the draft guessed."""

    def __post_init__(self) -> None:
        wrong = [
            f"{name} is {value!r}, wanted {wanted}"
            for name, value, wanted, is_right in (
                ("-k", self.num_draft_tokens, f"auto, or a number 0 - {_MAX_DEPTH}", self._is_depth),
                ("--max-new-tokens", self.max_new_tokens, "at least 1", self.max_new_tokens >= 1),
                ("--stop", "", "some text", all(self.stop)),
                ("--threads", self.threads, "1 - 1024", self.threads is None or 1 <= self.threads <= 1024),
                ("--system", self.system, "none beside --raw: there is no template", not (self.raw and self.system)),
            )
            if not is_right
        ]
        if wrong:
            raise ChatConfigInvalid("; ".join(wrong), "eyas chat", "outside the range", "see `eyas chat --help`")
        for name, text in (("--system", self.system), *(("--stop", stop) for stop in self.stop)):
            require_text(text or "", name)

    @property
    def depth(self) -> int | None:
        """K; None where it adapts."""
        return None if self.num_draft_tokens == "auto" else int(self.num_draft_tokens)

    @property
    def _is_depth(self) -> bool:
        k = self.num_draft_tokens
        return k == "auto" or (k.isascii() and k.isdecimal() and len(k) < 9 and int(k) <= _MAX_DEPTH)


def require_prompt_text(prompt: str, where: str) -> None:
    """Raise `ChatPromptInvalid`, which says where, for a blank prompt or bytes that are no text."""
    if not prompt.strip():
        raise ChatPromptInvalid(
            "the prompt is empty", where, "there is nothing to answer", "give some text, such as --prompt 'Hello'"
        )
    require_text(prompt, where)


def require_text(given: str, where: str) -> None:
    """Raise `ChatPromptInvalid` for half of a surrogate pair, which an odd byte on the command line becomes."""
    if any("\ud800" <= letter <= "\udfff" for letter in given):
        raise ChatPromptInvalid(
            f"{where} holds bytes that are no UTF-8",
            where,
            "a tokenizer reads text, and these bytes are none",
            "give it in UTF-8",
        )
