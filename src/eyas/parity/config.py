"""Options of `eyas parity`. No torch here: the command line is built from this."""

from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import Parameter

from eyas.errors import EyasError


class ParityConfigInvalid(EyasError):
    """Options of `eyas parity` that are out of range or contradict each other."""

    code = "parity-config-invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityConfig:
    """How to ask the server, and how to replay."""

    num_draft_tokens: Annotated[int, Parameter(name=["--num-draft-tokens", "-k"])] = 3
    """Drafts per verify pass that the server was started with, K, the bonus token excluded (1 - 32)."""

    max_rows: int | None = None
    """Ask only the first n prompts."""

    max_new_tokens: int = 128
    """Longest answer, in tokens."""

    temperature: float = 0.0
    """0 = greedy. Sampled answers are replayed exactly too, as long as the engine drafts greedily (the default)."""

    drafts: Literal["greedy", "sampled"] = "greedy"
    """How the server picks its drafts when answers are sampled. sampled = from the draft's own distribution at the same
    temperature: then only expected counts can be compared, and the target is needed (--target)."""

    concurrency: int = 1
    """Requests at once. With more than one, batching may decide near-ties between tokens differently."""

    server_dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """Dtype that the server computes in: it decides what counts as a near-tie. auto = the target's own dtype."""

    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Dtype of target and draft in the replay."""

    device: str = "auto"
    """cpu, cuda, cuda:N, or auto: the first GPU where there is one."""

    def __post_init__(self) -> None:
        checks = [
            (1 <= self.num_draft_tokens <= 32, f"-k is {self.num_draft_tokens}, wanted 1 - 32"),
            (self.max_rows is None or self.max_rows >= 1, f"--max-rows is {self.max_rows}, wanted at least 1"),
            (2 <= self.max_new_tokens <= 1 << 20, f"--max-new-tokens is {self.max_new_tokens}, wanted 2 - 1048576"),
            (0 <= self.temperature <= 10, f"--temperature is {self.temperature}, wanted 0 - 10"),
            (self.drafts == "greedy" or self.temperature > 0, "--drafts sampled needs a --temperature above 0"),
            (1 <= self.concurrency <= 1024, f"--concurrency is {self.concurrency}, wanted 1 - 1024"),
        ]
        if wrong := [text for is_right, text in checks if not is_right]:
            raise ParityConfigInvalid("; ".join(wrong), "options", "outside the range", "see eyas parity --help")
