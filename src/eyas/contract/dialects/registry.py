"""All dialects, and which of them a checkpoint is written in."""

from eyas.contract.dialects.angelslim import ANGELSLIM
from eyas.contract.dialects.dialect import Dialect
from eyas.contract.dialects.eagle import EAGLE
from eyas.contract.dialects.evidence import is_eagle3, sidecar_dialect
from eyas.contract.dialects.modelopt import MODELOPT
from eyas.contract.dialects.other_methods import refuse_other_method
from eyas.contract.dialects.sglang import SGLANG
from eyas.contract.dialects.speculators import SPECULATORS
from eyas.contract.dialects.torchspec import TORCHSPEC
from eyas.contract.dialects.trtllm import TRTLLM
from eyas.contract.dialects.vllm import VLLM
from eyas.contract.files.checkpoint import Checkpoint
from eyas.errors import EyasError

# most specific first: the first with evidence wins
DIALECTS: tuple[Dialect, ...] = (SPECULATORS, TORCHSPEC, ANGELSLIM, EAGLE, MODELOPT, SGLANG, VLLM, TRTLLM)
_ALIASES = {"specforge": "sglang", "raw-vllm": "vllm", "tensorrt-llm": "trtllm", "eagle-repo": "eagle"}


class NotADraft(EyasError):
    """Nothing in the checkpoint says EAGLE-3."""

    code = "not-a-draft"


class DialectUnknown(EyasError):
    """A format name that eyas does not know."""

    code = "dialect-unknown"


def dialect_named(name: str) -> Dialect:
    """The dialect `name`, or the one it is an alias of.

    Raises:
        DialectUnknown: with the names there are.
    """
    wanted = _ALIASES.get(name.lower(), name.lower())
    for dialect in DIALECTS:
        if dialect.name == wanted:
            return dialect
    raise DialectUnknown(
        f"unknown format {name!r}",
        "--to",
        f"known: {', '.join(d.name for d in DIALECTS)}, llama.cpp (prints its own command)",
        "choose one of these",
    )


def detect(checkpoint: Checkpoint) -> tuple[Dialect, tuple[str, ...]]:
    """The dialect of `checkpoint` and what it was recognised by.

    Raises:
        OtherMethod: it is a draft of another method, or a plain model.
        NotADraft: no tensor and no key of any draft.
    """
    # two formats may look alike; where eyas wrote the folder it knows which it was
    written_as = sidecar_dialect(checkpoint)
    for dialect in DIALECTS:
        if dialect.name == written_as and is_eagle3(checkpoint):
            evidence = dialect.detect(checkpoint) if dialect.detect else ()
            return (dialect if dialect.detect else VLLM), (*evidence, f"eyas.json: written as {written_as}")
    refuse_other_method(checkpoint)
    for dialect in DIALECTS:
        if dialect.detect and (evidence := dialect.detect(checkpoint)):
            return dialect, evidence
    names = ", ".join(sorted(checkpoint.tensors)[:3]) or "no tensors"
    raise NotADraft(
        "this is not an EAGLE-3 draft",
        checkpoint.where,
        f"no midlayer.* / layers.0.hidden_norm, no fc, no d2t, no EAGLE-3 class name; it has {names[:150]}",
        "give the draft's folder",
    )
