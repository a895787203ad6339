"""Options of `eyas eval` and `eyas infer`. No torch here: the command line is built from this."""

from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import Parameter

from eyas.decode.accept_length import DEFAULT_DRAFT_TOKENS
from eyas.decode.tree_shape import TreeShape
from eyas.errors import EyasError


class EvalConfigInvalid(EyasError):
    """Options of `eyas eval` are out of range or contradict each other."""

    code = "eval-config-invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig:
    """How to replay a draft: what `eyas eval` and `eyas infer` share."""

    num_draft_tokens: Annotated[int, Parameter(name=["--num-draft-tokens", "-k"])] = DEFAULT_DRAFT_TOKENS
    """Drafts per verify pass, K, the bonus token excluded (1 - 32)."""

    max_rows: int | None = None
    """Use only the first N rows of all files together."""

    max_new_tokens: int = 256
    """Longest answer, in tokens, where the data holds prompts only and the target has to answer them first."""

    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Dtype of target and draft. Below float32, near-ties between tokens may flip."""

    device: str = "auto"
    """cpu, cuda, cuda:N, or auto: the first GPU where there is one."""

    threads: int | None = None
    """CPU threads; default: what torch chooses."""

    def __post_init__(self) -> None:
        wrong = [text for is_right, text in self._rules() if not is_right]
        if wrong:
            raise EvalConfigInvalid(
                "; ".join(wrong), "options", "the value is out of range", "see the command's --help"
            )

    def _rules(self) -> list[tuple[bool, str]]:
        """Whether each option is in its range, and the problem to report where it is not."""
        return [
            (1 <= self.num_draft_tokens <= 32, f"--num-draft-tokens is {self.num_draft_tokens}, wanted 1 - 32"),
            (self.max_rows is None or self.max_rows >= 1, f"--max-rows is {self.max_rows}, wanted at least 1"),
            (self.max_new_tokens >= 2, f"--max-new-tokens is {self.max_new_tokens}, wanted at least 2"),
            (self.threads is None or 1 <= self.threads <= 1024, f"--threads is {self.threads}, wanted 1 - 1024"),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig(ReplayConfig):
    """How to evaluate."""

    tree: str | None = None
    """Draft a tree in place of a chain, WIDTHxDEPTHxNODES, such as 4x5x16: nodes expanded per depth, depth, and nodes
    verified in one pass. Its depth takes the place of -k."""

    batch_tokens: int | None = None
    """Padded tokens that run together; default 1 on a CPU (row by row), 16384 on a GPU."""

    probe_neighbours: Annotated[bool, Parameter(negative="")] = False
    """With --write-probe: also keep the target's states one layer below and above those the draft reads."""

    def _rules(self) -> list[tuple[bool, str]]:
        shape, drafts = self.tree_shape, self.num_draft_tokens
        return [
            *ReplayConfig._rules(self),
            (
                shape is None or drafts in (DEFAULT_DRAFT_TOKENS, shape.depth),
                f"-k {drafts} conflicts with --tree, which gives the depth",
            ),
            (
                self.batch_tokens is None or self.batch_tokens >= 1,
                f"--batch-tokens is {self.batch_tokens}, wanted at least 1",
            ),
        ]

    @property
    def tree_shape(self) -> TreeShape | None:
        """The tree asked for; None for a chain."""
        return None if self.tree is None else TreeShape.parse(self.tree)

    @property
    def depth(self) -> int:
        """Most drafts that a round can accept: the tree's depth, or K."""
        return self.num_draft_tokens if self.tree_shape is None else self.tree_shape.depth
