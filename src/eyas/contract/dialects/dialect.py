"""What a dialect is: a pure translation between a foreign format and `DraftSpec`. Files are not its business."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from eyas.contract.dialects.assemble import assemble, flat_source
from eyas.contract.files.checkpoint import Checkpoint
from eyas.contract.spec.draft_spec import DraftReading, DraftSpec
from eyas.contract.spec.read_config import ConfigSource
from eyas.contract.spec.target_spec import TargetSpec
from eyas.diagnostic import Diagnostic, Flag, finding

SILU = frozenset({"silu", "swish"})  # SGLang's and vLLM's MLP raise for any other
NEEDS_TARGET = Flag("--target", "T", "(its depth decides the layer ids)")
ELSEWHERE = "choose another format"


def loss(code: str, switch: str, what: str, *, is_allowable: bool = True, needs_target: bool = False) -> Diagnostic:
    """Something of the draft that a format cannot hold.

    Args:
        switch: field of `DraftSpec`, or tensor, that is lost.
        is_allowable: a draft that is written without it still has a function; False = nothing can be written.
        needs_target: it is lost only because no target was given.
    """
    do = *((NEEDS_TARGET,) if needs_target else ()), ELSEWHERE, *((Flag("--allow", code),) if is_allowable else ())
    return finding(code, "error", what, switch, "the format has no place for it", do, items=(switch,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A draft in the words of a format.

    Attributes:
        config: config.json.
        names: canonical name -> stored name of every tensor that is written, `t2d` included when it is derived.
        derived: canonical name -> how it comes about: "d2t" (the mask), "target" (the embedding), "zeros" (a bias that
            the format's reader builds and the draft has not).
        dropped: canonical name -> why it is not written.
        losses: what the format cannot hold; empty = nothing is lost.
        container: how the weights are stored.
        notes: what was chosen, one sentence each.
    """

    config: Mapping[str, Any]
    names: Mapping[str, str]
    derived: Mapping[str, str] = field(default_factory=dict)
    dropped: Mapping[str, str] = field(default_factory=dict)
    losses: tuple[Diagnostic, ...] = ()
    container: Literal["safetensors", "bin"] = "safetensors"
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One format.

    Attributes:
        name: what `--to` takes.
        title: one line for a person.
        detect: what in a checkpoint shows this format; () = it is another. None = it is only written.
        write: a spec in this format. The target decides the convention of layer ids, and lends its name.
        activations: values of hidden_act that the engines which read this format compute; None = any.
        source: where its config keeps sizes and switches.
        odd: what is odd about a config of this format alone.
    """

    name: str
    title: str
    detect: Callable[[Checkpoint], tuple[str, ...]] | None
    write: Callable[[DraftSpec, TargetSpec | None], Written]
    activations: frozenset[str] | None = SILU
    source: Callable[[Checkpoint], ConfigSource] = flat_source
    odd: Callable[[Checkpoint], tuple[Diagnostic, ...]] = lambda _: ()

    def read(self, checkpoint: Checkpoint, target: TargetSpec | None, evidence: tuple[str, ...]) -> DraftReading:
        """A checkpoint of this format as a spec."""
        reading = assemble(checkpoint, target, self.source(checkpoint), self.name, evidence)
        return replace(reading, findings=(*reading.findings, *self.odd(checkpoint)))
