"""A plan in words: the command for a shell and as JSON, and what the ledger says, in one sentence. No secrets."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from eyas.contract.engines.launching.recipe import EngineCommand
from eyas.contract.engines.loading.ledger import Ledger
from eyas.serve.facts.run_folder import redact_command, redact_environment
from eyas.talk import counted


def shell_text(command: EngineCommand, passed: Mapping[str, str]) -> str:
    """The command for a shell, secrets redacted: variables and flags one a line; files that it names before it."""
    shown = redact_environment({**passed, **command.environment})
    words = [shlex.quote(word) for word in redact_command(command.argv)]
    lines = [f"{name}={shlex.quote(value)}" for name, value in shown.items()]
    head = next((i for i, word in enumerate(words) if word.startswith("--")), len(words))
    lines.append(" ".join(words[:head]))
    for word in words[head:]:
        if word.startswith("--"):
            lines.append(f"  {word}")
        else:
            lines[-1] += f" {word}"
    if command.key_flag:
        lines.append(f"  {command.key_flag} FILE   # a private file with the key, made at start")
    files = [f"cat > {name} <<'END'\n{text.rstrip()}\nEND" for name, text in command.files.items()]
    return "\n".join([*files, " \\\n".join(lines)])


def command_document(command: EngineCommand) -> dict[str, Any]:
    """The command as a JSON object, secrets redacted."""
    return {
        "argv": redact_command(command.argv),
        "environment": redact_environment(command.environment),
        "url": command.url,
        "num_draft_tokens": command.counting.num_draft_tokens,
        "sglang_counting": list(command.counting.sglang),
        "vllm_counting": command.counting.vllm,
        "notes": list(command.notes),
        **({"files": dict(command.files)} if command.files else {}),
    }


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
    """ "layers.0.*" for many names with a common prefix, else the first two."""
    common: list[str] = []
    for parts in zip(*(name.split(".")[:-1] for name in names), strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    if common and len(names) > 1:
        return f"{'.'.join(common)}.*"
    return ", ".join(names[:2]) + (" ..." if len(names) > 2 else "")
