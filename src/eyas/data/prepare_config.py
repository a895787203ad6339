"""The options that decide how conversations become rows, and what the target is asked to write."""

import json
import re
from dataclasses import dataclass
from math import inf
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from eyas.errors import EyasError

# Sections of `eyas prepare --help`, in this order, after what must be given.
DATA = Group("Data and rows", sort_key=1)
WRITING = Group("What the target writes", sort_key=2)
MACHINE = Group("Machine", sort_key=3)
OUTPUT = Group("Output", sort_key=4)


class ConfigInvalid(EyasError):
    """Options that contradict each other or are out of range; all problems at once."""

    code = "config-invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareConfig:
    """How conversations become rows."""

    max_length: Annotated[int, Parameter(group=DATA)] = 2048
    """Longest row in tokens, 16 or more."""
    too_long: Annotated[Literal["drop", "cut"], Parameter(group=DATA)] = "drop"
    """What happens to a longer row: dropped and counted, or cut at max_length and counted."""
    turns: Annotated[Literal["joint", "split"], Parameter(group=DATA)] = "joint"
    """One row per conversation with all answers supervised, or one row per answer (for templates that rewrite
    earlier turns)."""
    template_options: Annotated[str, Parameter(group=DATA)] = "{}"
    """JSON object of further variables for the chat template, such as '{"enable_thinking": false}'."""
    held_out: Annotated[int | None, Parameter(group=DATA)] = None
    """Number of rows set aside for evaluation, 0 = none; no row with one of their prompts is trained on. By default one
    of 25 different prompts, at most 64, and none of fewer than 100."""

    def __post_init__(self) -> None:
        problems = []
        if self.max_length < 16:
            problems.append(f"max_length = {self.max_length}, wanted 16 or more")
        if self.held_out is not None and self.held_out < 0:
            problems.append(f"held_out = {self.held_out}, wanted 0 or more")
        try:
            is_object = isinstance(json.loads(self.template_options), dict)
        except (ValueError, RecursionError):
            is_object = False
        if not is_object:
            problems.append(f"template_options = {self.template_options[:60]!r} is not a JSON object")
        if problems:
            raise ConfigInvalid(
                "options of prepare are out of range", "PrepareConfig", "; ".join(problems), "see `eyas prepare --help`"
            )


_MOST_SELF_CHATS = 10**8
_URL = re.compile(r"https?://[^/\s]+/?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class WritingConfig:
    """How the target writes data."""

    self_chat: Annotated[int, Parameter(group=WRITING)] = 0
    """Number of self-chat conversations to try: the target also writes the user turns, and --data is not needed."""
    regenerate: Annotated[bool, Parameter(group=WRITING, negative="")] = False
    """The target writes its own answers to the user turns of --data; the recorded answers are left out."""
    chat_turns: Annotated[int, Parameter(group=WRITING)] = 1
    """User turns of a self-chat conversation, at most."""
    system: Annotated[tuple[str, ...], Parameter(group=WRITING, consume_multiple=True, negative="")] = ()
    """System prompts of self-chat conversations, taken in turn; default: the template's own."""
    user_temperature: Annotated[float, Parameter(group=WRITING)] = 1.0
    """Temperature of self-chat's user turns."""
    user_top_p: Annotated[float, Parameter(group=WRITING)] = 1.0
    """Top-p of self-chat's user turns, (0, 1]; 1: all tokens."""
    max_user_tokens: Annotated[int, Parameter(group=WRITING)] = 192
    """Longest user turn, in tokens; longer ones are dropped."""
    min_user_words: Annotated[int, Parameter(group=WRITING)] = 3
    """Shortest user turn, in words; shorter ones are dropped."""
    answer_temperature: Annotated[tuple[float, ...], Parameter(group=WRITING, consume_multiple=True, negative="")] = (
        0.0,
        0.7,
    )
    """Temperatures of answers; conversations take them in turn (0 = greedy), so `0 0 0.7` makes two thirds greedy."""
    answer_top_p: Annotated[float, Parameter(group=WRITING)] = 1.0
    """Top-p of sampled answers, (0, 1]; 1: all tokens."""
    max_answer_tokens: Annotated[int, Parameter(group=WRITING)] = 320
    """Longest answer, in tokens; longer ones are cut off, kept, and marked as unfinished."""
    seed: Annotated[int, Parameter(group=WRITING)] = 0
    """Seed of all sampling; the same seed gives the same text on the same kind of device."""
    url: Annotated[tuple[str, ...], Parameter(name="--url", group=WRITING, consume_multiple=True, negative="")] = ()
    """Servers of the target (SGLang, vLLM, or any with OpenAI's routes), http://host:port: they write, no weights are
    loaded. Give several, or --url several times: each gets the next prompt when it is free. An API key is read from
    EYAS_API_KEY."""
    concurrency: Annotated[int, Parameter(group=WRITING)] = 64
    """Requests at a time for each server, 1 - 1024."""
    answer_timeout: Annotated[float, Parameter(group=WRITING)] = 900.0
    """Longest wait for one answer of a server, in seconds; then it is asked again, elsewhere where that is possible."""
    device: Annotated[str, Parameter(group=MACHINE)] = "auto"
    """Where the target writes: cpu, cuda, cuda:N, or auto: the first GPU where there is one."""
    dtype: Annotated[str, Parameter(group=MACHINE)] = "auto"
    """float32, bfloat16, float16, or auto: bfloat16 on a GPU, float32 elsewhere."""
    quantize: Annotated[Literal["none", "int8", "int4"], Parameter(group=MACHINE)] = "none"
    """Weights of the writing target's layers, through torchao: texts are then those of the quantised target. int4: GPU,
    bfloat16."""
    threads: Annotated[int | None, Parameter(group=MACHINE)] = None
    """CPU threads, 1 - 1024, of tokenising and of a target that writes on the CPU; default: their own choice."""
    max_batch: Annotated[int | None, Parameter(group=MACHINE)] = None
    """Most texts written at a time; default: what fits in memory, by the engine's own estimate."""
    max_cache_mib: Annotated[int | None, Parameter(group=MACHINE)] = None
    """Memory in MiB for the keys and values of the texts written at a time; default: 60 % of what is free. If not even
    one text fits, the run is refused."""

    @property
    def writes(self) -> bool:
        """Whether the target writes anything."""
        return self.self_chat > 0 or self.regenerate

    def __post_init__(self) -> None:
        least = dict.fromkeys(("chat_turns", "max_user_tokens", "max_answer_tokens", "max_batch", "max_cache_mib"), 1)
        least |= dict.fromkeys(("self_chat", "min_user_words", "seed"), 0)
        given = {name: value for name in least if (value := getattr(self, name)) is not None}
        problems = [f"{n} = {v}, wanted {least[n]} or more" for n, v in given.items() if v < least[n]]
        if self.threads is not None and not 1 <= self.threads <= 1024:
            problems.append(f"threads = {self.threads}, wanted 1 - 1024")
        if self.self_chat > _MOST_SELF_CHATS:
            problems.append(f"self_chat = {self.self_chat}, wanted {_MOST_SELF_CHATS} or less")
        if self.self_chat and self.regenerate:
            problems.append("self_chat and regenerate are two ways to write: run one, then mix with --data")
        if not 1 <= self.concurrency <= 1024:
            problems.append(f"concurrency = {self.concurrency}, wanted 1 - 1024")
        if not 1 <= self.answer_timeout < inf:
            problems.append(f"answer_timeout = {self.answer_timeout}, wanted 1 s or more")
        problems += [f"url = {url[:60]!r}, wanted http://host:port" for url in self.url if not _URL.match(url)]
        here = {"device": "auto", "dtype": "auto", "quantize": "none", "max_batch": None, "max_cache_mib": None}
        idle = [name for name, default in here.items() if getattr(self, name) != default]
        if self.url and idle:
            problems.append(f"{', '.join(idle)}: not of a server (--url), which was started with its own")
        temperatures = (*self.answer_temperature, self.user_temperature)
        if not self.answer_temperature or not all(t == 0 or 1e-6 <= t < inf for t in temperatures):
            problems.append("a temperature is 0, or finite and at least 1e-6; answers need one or more")
        # An odd byte on the command line becomes half of a surrogate pair.
        if any("\ud800" <= letter <= "\udfff" for prompt in self.system for letter in prompt):
            problems.append("system holds bytes that are not UTF-8")
        if not all(0 < p <= 1 for p in (self.user_top_p, self.answer_top_p)):
            problems.append("top_p is in (0, 1]")
        if problems:
            raise ConfigInvalid(
                "options for writing are out of range",
                "WritingConfig",
                "; ".join(problems),
                "see `eyas prepare --help`",
            )
