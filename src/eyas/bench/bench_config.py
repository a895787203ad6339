"""Options of `eyas bench`. No torch here: the command line is built from this."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import Parameter

from eyas.decode.accept_length import DEFAULT_DRAFT_TOKENS
from eyas.decode.tree_shape import TreeShape
from eyas.errors import EyasError

_MAX_DEPTH = 32
_MAX_BATCH = 4096
_AUTO_MOST = 5


class BenchConfigInvalid(EyasError):
    """Options of `eyas bench` that are out of range or contradict each other."""

    code = "bench-config-invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchConfig:
    """How to measure."""

    num_draft_tokens: Annotated[str, Parameter(name=["--num-draft-tokens", "-k"])] = str(DEFAULT_DRAFT_TOKENS)
    """Drafts per verify pass (K), bonus token excluded: a number, a list 1,3,5, a range 1..7 (1 - 32), or auto: each
    round takes the depth expected to be fastest, 0 included. A list may contain auto: 3,auto."""

    auto_most: int = _AUTO_MOST
    """With -k auto: the deepest draft, 1 - 7."""

    tree: str = ""
    """Also measure draft trees, WIDTHxDEPTHxNODES: one such as 3x3x7, or several, 3x3x7,8x6x32. The numbers are the
    nodes expanded per depth, the depth, and the nodes verified in one pass. All arms then take the reference rounds."""

    batch: str = ""
    """Measure batches instead of one stream: the sequences at a time, as a number or a list such as 1,8,32. Prompts are
    repeated up to twice the batch, so that sequences join and leave. Only for targets of the fast path."""

    max_cache_mib: int | None = None
    """With --batch: memory for the keys and values of target and draft, in MiB; default: 60 % of the free memory. If
    the largest batch does not fit, nothing runs."""

    repeats: int = 3
    """How often every arm answers the whole workload (1 - 1000); the spread is over these repeats."""

    max_new_tokens: int = 64
    """Longest answer in tokens, at least 2."""

    max_prompts: int | None = None
    """Use only the first n prompts of each kind of text."""

    peer: Literal["none", "transformers"] = "none"
    """Also measure transformers' `generate`, to show that the plain arm is not a weak baseline."""

    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of target and draft. Below float32, near-ties between tokens may flip."""

    rounds: Literal["auto", "reference"] = "auto"
    """auto: capture whole rounds into CUDA graphs on a GPU if target and draft allow it. reference: never."""

    quantize: Literal["none", "int8", "int4"] = "none"
    """Quantise the weights of the target's layers with torchao in all arms; texts are then the quantised target's. int4
    needs a GPU and bfloat16."""

    device: str = "auto"
    """cpu, cuda, cuda:N, or auto: the first GPU, else the CPU."""

    threads: int | None = None
    """CPU threads; default: torch's choice."""

    seed: int = 0
    """Seed of the bootstrap that gives the intervals."""

    def __post_init__(self) -> None:
        TreeShape.parse_all(self.tree)  # raises its own error
        quantised_peer = self.quantize != "none" and self.peer != "none"
        only_chains = bool(self.depths) and not (self.is_adaptive or self.tree or self.peer != "none")
        batch_words = f"numbers 1 - {_MAX_BATCH} such as 8 or 1,8,32"
        batch_alone = "a fixed -k, and neither --tree nor --peer"
        cache, is_default_most = self.max_cache_mib, self.auto_most == _AUTO_MOST
        wrong = [
            f"{name} is {value}, wanted {wanted}"
            for name, value, wanted, is_right in (
                ("-k", self.num_draft_tokens, "numbers 1 - 32 such as 3, 1,3,5 or 1..7, or auto", self._is_depth),
                ("--auto-most", self.auto_most, "1 - 7", 1 <= self.auto_most <= 7),
                ("--auto-most", self.auto_most, "its default without -k auto", is_default_most or self.is_adaptive),
                ("--batch", self.batch, batch_words, not self.batch or bool(self.batches)),
                ("--batch", self.batch, batch_alone, not self.batches or only_chains),
                ("--max-cache-mib", cache, "at least 1, with --batch", cache is None or (cache > 0 and self.batch)),
                ("--repeats", self.repeats, "1 - 1000", 1 <= self.repeats <= 1000),
                ("--max-new-tokens", self.max_new_tokens, "at least 2", self.max_new_tokens >= 2),
                ("--max-prompts", self.max_prompts, "at least 1", self.max_prompts is None or self.max_prompts >= 1),
                ("--peer", self.peer, "none with --quantize, because it runs another target", not quantised_peer),
                ("--threads", self.threads, "1 - 1024", self.threads is None or 1 <= self.threads <= 1024),
            )
            if not is_right
        ]
        if wrong:
            raise BenchConfigInvalid("; ".join(wrong), "eyas bench", "outside the range", "see `eyas bench --help`")

    @property
    def trees(self) -> tuple[TreeShape, ...]:
        """All trees asked for."""
        return TreeShape.parse_all(self.tree)

    @property
    def is_adaptive(self) -> bool:
        """Whether `auto` was asked for, alone or with fixed depths."""
        return "auto" in self._parts

    @property
    def _parts(self) -> list[str]:
        return [part.strip() for part in self.num_draft_tokens.split(",")]

    @property
    def _is_depth(self) -> bool:
        return bool(self.depths) or self._parts == ["auto"]

    @property
    def depths(self) -> tuple[int, ...]:
        """All fixed K asked for, ascending; empty if the text names none."""
        return _numbers([part for part in self._parts if part != "auto"], _MAX_DEPTH)

    @property
    def all_depths(self) -> tuple[int, ...]:
        """Every K that a round of a chain can have, ascending."""
        return tuple(sorted({*self.depths, *(range(1, self.auto_most + 1) if self.is_adaptive else ())}))

    @property
    def batches(self) -> tuple[int, ...]:
        """All batch sizes, ascending; empty for one stream, or if the text names none."""
        return _numbers([part.strip() for part in self.batch.split(",")], _MAX_BATCH)


def _numbers(parts: Sequence[str], most: int) -> tuple[int, ...]:
    """Numbers 1 - `most` and ranges of them, ascending; empty if one part is neither."""
    found: set[int] = set()
    for part in parts:
        first, dots, last = part.partition("..")
        if not part.isascii() or not first.isdecimal() or (dots and not last.isdecimal()):
            return ()
        if max(len(first), len(last)) > 9 or int(last or first) > most:
            return ()  # before a range of any size is made
        found |= set(range(int(first), int(last or first) + 1)) if dots else {int(first)}
    return tuple(sorted(found)) if found and min(found) >= 1 else ()
