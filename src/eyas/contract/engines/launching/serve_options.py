"""The options of `eyas serve`, and K, steps and top-k in each engine's own counting."""

import re
from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from eyas.decode.accept_length import DEFAULT_DRAFT_TOKENS
from eyas.errors import EyasError
from eyas.talk import counted


class ServeOptionsInvalid(EyasError):
    """Values that cannot go together; all problems at once."""

    code = "serve-options-invalid"


def refuse_where(*rules: tuple[str, bool]) -> None:
    """Raise `ServeOptionsInvalid` with each text whose rule is broken (True)."""
    problems = [text for text, is_wrong in rules if is_wrong]
    if problems:
        raise ServeOptionsInvalid(
            f"{counted(len(problems), 'option')} of serve cannot be used like this",
            "eyas serve",
            "; ".join(problems),
            "change them; `eyas serve --help` gives units and defaults",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """How to serve a target with a draft."""

    num_draft_tokens: Annotated[int, Parameter(name=["--num-draft-tokens", "-k"])] = DEFAULT_DRAFT_TOKENS
    """Drafts per verify pass along one path (K, bonus excluded), >= 1."""

    topk: int = 1
    """Branches per draft step: 1 = a chain; more = a tree (SGLang only)."""

    tree_tokens: int | None = None
    """Nodes of the tree that are verified, root included (SGLang's own counting); only with --topk above 1."""

    tensor_parallel: int = 1
    """GPUs that share one copy of the model, >= 1."""

    data_parallel: int = 1
    """Copies of the model, >= 1."""

    nodes: int = 1
    """Machines that serve together; run the same command on each with its own --node-rank."""

    node_rank: int = 0
    """This machine's number, 0 = the head, which has the HTTP port."""

    head_address: str | None = None
    """HOST:PORT where the head is reached by the others; needed with --nodes above 1."""

    host: str = "127.0.0.1"
    """Address to listen on."""

    port: int | None = None
    """HTTP port; default 30000 for SGLang, 8000 for vLLM."""

    context_length: int | None = None
    """Longest sequence served, tokens; default is the target's own."""

    max_running_requests: int | None = None
    """Requests in one batch; default is the engine's (SGLang: 48 when speculation is on)."""

    quantization: str | None = None
    """The engine's quantisation of the target; leave out for a checkpoint that says so itself."""

    draft_attention_backend: str | None = None
    """Attention backend of the draft only; default is the engine's choice."""

    served_name: str | None = None
    """Name of the model in the API; default is the target as given."""

    def __post_init__(self) -> None:
        refuse_where(*self._rules())

    def _rules(self) -> list[tuple[str, bool]]:
        counts = {
            "--num-draft-tokens": self.num_draft_tokens,
            "--topk": self.topk,
            "--tensor-parallel": self.tensor_parallel,
            "--data-parallel": self.data_parallel,
            "--nodes": self.nodes,
            "--context-length": self.context_length,
            "--max-running-requests": self.max_running_requests,
        }
        tree = self.tree_tokens
        depth_needed = self.num_draft_tokens + 1
        return [
            *((f"{name} {value} is below 1", value is not None and value < 1) for name, value in counts.items()),
            (f"--port {self.port} is not in 1 .. 65535", self.port is not None and not 1 <= self.port <= 65535),
            (f"--node-rank {self.node_rank} is not in 0 .. {self.nodes - 1}", not 0 <= self.node_rank < self.nodes),
            ("--nodes above 1 needs --head-address HOST:PORT", self.nodes > 1 and not self.head_address),
            ("--tree-tokens needs --topk above 1", tree is not None and self.topk == 1),
            (
                f"--tree-tokens {tree} is below {depth_needed} (the root and one path of {self.num_draft_tokens})",
                tree is not None and tree < depth_needed,
            ),
            (
                f"--head-address {self.head_address} is not HOST:PORT",
                bool(self.head_address) and not re.fullmatch(r".+:[0-9]{1,5}", str(self.head_address)),
            ),
        ]

    @property
    def num_nodes_verified(self) -> int:
        """Tokens in one verify pass, root included: SGLang's `--speculative-num-draft-tokens`."""
        if self.topk == 1:
            return self.num_draft_tokens + 1
        # EAGLE's own default shape grows with breadth; 8 for (5, 4) is what SGLang chooses for Llama.
        return self.tree_tokens or max(self.num_draft_tokens + 1, 2 * self.topk)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting:
    """One speculation setting in the three countings that people meet.

    Attributes:
        num_draft_tokens: ours (K): drafts per verify pass along a path, bonus excluded.
        sglang: --speculative-num-steps / -eagle-topk / -num-draft-tokens.
        vllm: num_speculative_tokens; None for a tree, which vLLM has not.
    """

    num_draft_tokens: int
    sglang: tuple[int, int, int]
    vllm: int | None

    @classmethod
    def of(cls, options: ServeOptions) -> "Counting":
        """The countings of a set of options."""
        steps, topk, nodes = options.num_draft_tokens, options.topk, options.num_nodes_verified
        return cls(
            num_draft_tokens=steps,
            sglang=(steps, topk, nodes),
            vllm=steps if topk == 1 else None,
        )

    @classmethod
    def chain(cls, num_draft_tokens: int) -> "Counting":
        """The countings of a chain."""
        return cls(
            num_draft_tokens=num_draft_tokens,
            sglang=(num_draft_tokens, 1, num_draft_tokens + 1),
            vllm=num_draft_tokens,
        )

    def __str__(self) -> str:
        steps, topk, nodes = self.sglang
        vllm = f"num_speculative_tokens {self.vllm}" if self.vllm else "not available (chains only)"
        return (
            f"K = {self.num_draft_tokens} drafts per verify pass (bonus excluded)\n"
            f"  in SGLang: steps {steps}, top-k {topk}, num-draft-tokens {nodes} (root included)\n"
            f"  in vLLM:   {vllm}"
        )
