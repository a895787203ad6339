"""Options of `eyas chat`. No torch here: the command line is built from this."""

from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import Parameter

from eyas.errors import EyasError

_MAX_DEPTH = 32


class ChatConfigInvalid(EyasError):
    """Options of `eyas chat` that are out of range or contradict each other."""

    code = "chat-config-invalid"


class ChatPromptInvalid(EyasError):
    """A prompt that is empty or is not valid UTF-8."""

    code = "chat-prompt-invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatConfig:
    """How to answer."""

    system: str | None = None
    """System message before the first prompt; default: what the target's template inserts by itself."""

    raw: Annotated[bool, Parameter(negative="")] = False
    """Continue each prompt as it is, without a chat template, for base models. Each prompt stands alone."""

    num_draft_tokens: Annotated[str, Parameter(name=["--num-draft-tokens", "-k"])] = "auto"
    """Drafts per verify pass (K), bonus token excluded: 1 - 32. auto: each round takes the depth expected to be
    fastest, 0 included. 0: plain decoding, the draft is not loaded."""

    temperature: float = 0.0
    """0: greedy, the same text as plain decoding. From 1e-6: sampled, with the same distribution as plain sampling."""

    top_p: float = 1.0
    """Top-p: keep only the most likely tokens, up to this sum of probabilities, (0, 1]."""

    top_k: int = 0
    """Keep only the k most likely tokens; 0: all."""

    min_p: float = 0.0
    """Min-p: drop tokens below this share of the most likely token's probability, [0, 1]."""

    seed: int | None = None
    """Seed of the first sampled answer; each later answer takes the next number. Default: random, and printed."""

    max_new_tokens: int = 512
    """Longest answer in tokens, at least 1."""

    stop: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """Stop string: ends the answer, which leaves it out; may be given several times."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Precision of target and draft; auto: bfloat16 on a GPU, float32 elsewhere."""

    rounds: Literal["auto", "reference"] = "auto"
    """auto: capture whole rounds into CUDA graphs on a GPU if target and draft allow it. reference: never."""

    quantize: Literal["none", "int8", "int4"] = "none"
    """Quantise the weights of the target's layers with torchao; texts are then the quantised target's. int4 needs a GPU
    and bfloat16."""

    device: str = "auto"
    """cpu, cuda, cuda:N, or auto: the first GPU, else the CPU."""

    threads: int | None = None
    """CPU threads; default: torch's choice."""

    show_drafts: bool = True
    """On a terminal, underline the tokens that the draft guessed."""

    def __post_init__(self) -> None:
        wrong = [
            f"{name} is {value!r}, wanted {wanted}"
            for name, value, wanted, is_right in (
                ("-k", self.num_draft_tokens, f"auto, or a number 0 - {_MAX_DEPTH}", self._is_depth),
                ("--max-new-tokens", self.max_new_tokens, "at least 1", self.max_new_tokens >= 1),
                ("--stop", "", "a non-empty text", all(self.stop)),
                ("--threads", self.threads, "1 - 1024", self.threads is None or 1 <= self.threads <= 1024),
                ("--system", self.system, "nothing with --raw, which uses no template", not (self.raw and self.system)),
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
    """Raise `ChatPromptInvalid` for a blank prompt or one that is not valid UTF-8; `where` goes into the message."""
    if not prompt.strip():
        raise ChatPromptInvalid(
            "the prompt is empty", where, "there is nothing to answer", "give a text, such as --prompt 'Hello'"
        )
    require_text(prompt, where)


def require_text(given: str, where: str) -> None:
    """Raise `ChatPromptInvalid` for a lone surrogate, which Python makes of an undecodable byte on a command line."""
    if any("\ud800" <= letter <= "\udfff" for letter in given):
        raise ChatPromptInvalid(
            f"{where} is not valid UTF-8",
            where,
            "a tokenizer reads text, but some bytes are not valid UTF-8",
            "give it in UTF-8",
        )
