"""What the report of `check` means for a launch: flags that the draft needs, its length, the ledger in one sentence."""

import json
from collections.abc import Sequence

from eyas.contract.engines.launch_flags import Launch, draft_length
from eyas.contract.engines.loading.ledger import Ledger
from eyas.contract.files.checkpoint import Checkpoint
from eyas.contract.reading.read_draft import read_draft
from eyas.errors import EyasError
from eyas.talk import counted

_OWN_FLAGS = (
    "--speculative-algorithm",
    "--speculative-draft-model-path",
    "--speculative-num-steps",
    "--speculative-eagle-topk",
    "--speculative-num-draft-tokens",
)
_OWN_SETTINGS = ("method", "model", "num_speculative_tokens")


def ledger_words(ledger: Ledger | None, *, is_target_known: bool = True, is_sound: bool = True) -> str:
    """What a ledger says of a draft, in one sentence.

    Args:
        is_target_known: False = the draft was judged alone, and nothing is vouched for.
        is_sound: False = the draft or the pair has errors that are not the engine's doing.
    """
    if ledger is None:
        return ""
    if ledger.is_healthy and not is_sound:
        return f"{ledger.engine.label} loads this draft, but draft or target are at fault (see the findings)"
    if ledger.is_healthy and is_target_known:
        return f"{ledger.engine.label} serves this draft as it was trained"
    if ledger.is_healthy:
        return (
            f"{ledger.engine.label} loads this draft; checked alone, target unknown: whether they fit is NOT known"
            " (give the target's folder or its config.json)"
        )
    reasons = [r.diagnostic.what for r in ledger.reasons]
    if ledger.dropped:
        reasons.insert(
            0, f"{counted(len(ledger.dropped), 'tensor is', 'tensors are')} dropped ({_pattern(ledger.dropped)})"
        )
    if not is_target_known:
        reasons.append("checked alone, target unknown")
    return f"{ledger.engine.label}: " + "; ".join(dict.fromkeys(reasons))


def _pattern(names: Sequence[str]) -> str:
    """ "layers.0.*" for many names with a common beginning, else the first two."""
    common: list[str] = []
    for parts in zip(*(name.split(".")[:-1] for name in names), strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    if common and len(names) > 1:
        return f"{'.'.join(common)}.*"
    return ", ".join(names[:2]) + (" ..." if len(names) > 2 else "")


def needed_flags(launch: Launch) -> tuple[str, ...]:
    """What `check` wants on the command line beyond algorithm, draft, K and shape, which `serve` sets itself."""
    words: list[str] = []
    for name, value in zip(launch.flags[::2], launch.flags[1::2], strict=False):
        if name == "--speculative-config":
            settings = {k: v for k, v in json.loads(value).items() if k not in _OWN_SETTINGS}
            words += [name, json.dumps(settings)] if settings else []
        elif name not in _OWN_FLAGS:
            words += [name, value]
    return tuple(words)


def effective_length(draft: Checkpoint) -> int | None:
    """The draft's longest sequence with its RoPE scaling counted; None where the draft cannot be understood."""
    try:
        return draft_length(read_draft(draft, None).spec)
    except EyasError:
        return None
