"""An engine's command line and the environment it needs: composed by `command_*.py`, shown and run by `launch`."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eyas.contract.files.checkpoint import Checkpoint
from eyas.diagnostic import Diagnostic
from eyas.serve.facts.run_folder import redact_command, redact_environment
from eyas.serve.launch.flag_table import KnownFlags, unknown_flags
from eyas.serve.launch.serve_options import Counting, ServeOptions

_LENGTH_KEYS = ("max_position_embeddings", "max_sequence_length", "seq_length", "n_positions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """All that a command is composed from.

    Attributes:
        python: interpreter of the engine.
        target, draft: as the engine shall be given them (folder or hub id).
        target_headers, draft_headers: as `check` saw them; target None = not at hand.
        extra: the user's further engine flags, appended as they are.
        known: the engine's flags.
        environment: from `check` (variables that the draft needs).
        needed: flags from `check` that this very draft needs (a sliding window, an unquantised draft, ...).
        effective_draft_length: the draft's longest sequence with its RoPE scaling counted; None = by the config's key.
        key_variable: name of the environment variable that holds the API key; None = none wanted.
        is_cpu: the CPU build.
    """

    python: str
    target: str
    draft: str
    options: ServeOptions
    known: KnownFlags
    target_headers: Checkpoint | None = None
    draft_headers: Checkpoint | None = None
    extra: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    needed: tuple[str, ...] = ()
    effective_draft_length: int | None = None
    key_variable: str | None = None
    is_cpu: bool = False

    @property
    def version(self) -> str:
        """The engine's version."""
        return self.known.version

    @property
    def target_length(self) -> int | None:
        """Longest sequence of the target by its config, tokens."""
        return config_length(self.target_headers)

    @property
    def draft_length(self) -> int | None:
        """Longest sequence of the draft, tokens."""
        return self.effective_draft_length or config_length(self.draft_headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCommand:
    """What will be started.

    Attributes:
        argv: the words.
        environment: variables to set for it (besides those passed through).
        url: where the server will answer; "" for a worker node without HTTP.
        key_flag: flag that must be given a private file with the API key, made at start; None = not needed.
        notes: what was translated, defaulted or left to the engine.
        findings: reasons not to start it, or to think twice.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    url: str
    counting: Counting
    key_flag: str | None = None
    notes: tuple[str, ...] = ()
    findings: tuple[Diagnostic, ...] = ()

    def shell(self, passed: Mapping[str, str] | None = None) -> str:
        """The command for a shell, secrets redacted: `env A=1 \\` and one flag a line."""
        shown = redact_environment({**(passed or {}), **self.environment})
        words = [shlex.quote(word) for word in redact_command(self.argv)]
        lines = [f"{name}={shlex.quote(value)}" for name, value in shown.items()]
        head = 1
        while head < len(words) and not words[head].startswith("--"):
            head += 1
        lines.append(" ".join(words[:head]))
        for word in words[head:]:
            if word.startswith("--"):
                lines.append(f"  {word}")
            else:
                lines[-1] += f" {word}"
        if self.key_flag:
            lines.append(f"  {self.key_flag} FILE   # a private file with the key, made at start")
        return " \\\n".join(lines)

    def as_document(self) -> dict[str, Any]:
        """The command as a JSON object, secrets redacted."""
        return {
            "argv": redact_command(self.argv),
            "environment": redact_environment(self.environment),
            "url": self.url,
            "num_draft_tokens": self.counting.num_draft_tokens,
            "sglang_counting": list(self.counting.sglang),
            "vllm_counting": self.counting.vllm,
            "notes": list(self.notes),
        }


def config_length(headers: Checkpoint | None) -> int | None:
    """The longest sequence that a config allows, looking into a multimodal wrapper's text part; None if unsaid."""
    config = headers.config if headers else {}
    for part in (config, config.get("text_config"), config.get("transformer_layer_config")):
        if isinstance(part, Mapping):
            for name in _LENGTH_KEYS:
                if isinstance(part.get(name), int):
                    return int(part[name])
    return None


def url_of(options: ServeOptions, port: int) -> str:
    """Where a local client reaches the server."""
    host = "127.0.0.1" if options.host in ("0.0.0.0", "::", "") else options.host
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def flag_findings(ours: Sequence[str], extra: Sequence[str], known: KnownFlags) -> Iterable[Diagnostic]:
    """Extra flags that the engine does not know, and those that say again what `serve` says."""
    from eyas.serve.launch.flag_table import first_version_with, last_version_with

    engine = f"{known.engine}=={known.version}"
    for name in unknown_flags(extra, known):
        last, first = last_version_with(known.engine, name), first_version_with(known.engine, name)
        history = f"; it was there up to {last}" if last else f"; it came with {first}" if first else ""
        nearest = known.nearest(name)
        yield Diagnostic(
            code="flag-unknown",
            severity="error",
            what=f"{known.engine} {known.version} does not know {name}",
            where=f"-- {name}",
            why=f"it is not in {known.source}{history}",
            do=f"use {nearest}" if nearest else f"take it out; `{known.engine}`'s --help lists what there is",
            engine=engine,
        )
    given = {word.partition("=")[0] for word in ours if word.startswith("--")}
    for name in sorted({word.partition("=")[0] for word in extra if word.startswith("--")} & given):
        yield Diagnostic(
            code="flag-given-twice",
            severity="error",
            what=f"{name} is set by eyas and again after --",
            where=f"-- {name}",
            why="which of the two the engine takes depends on its version",
            do=f"use eyas' own option instead of {name} (eyas serve --help)",
            engine=engine,
        )


def unknown_of_ours(argv: Sequence[str], known: KnownFlags) -> Iterable[Diagnostic]:
    """Flags that `serve` itself chose but that this engine does not know: our fault, said before anything starts."""
    for name in unknown_flags(argv, known):
        yield Diagnostic(
            code="flag-missing",
            severity="error",
            what=f"{known.engine} {known.version} does not know {name}, which this launch needs",
            where=name,
            why=f"it is not in {known.source}",
            do="choose another version of the engine, or leave the option out that asks for it",
            engine=f"{known.engine}=={known.version}",
        )
