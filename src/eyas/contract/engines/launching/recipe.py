"""What an engine's command is composed from and what comes out. Each engine's `launching.py` composes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from eyas.contract.engines.launching.known_flags import KnownFlags, told
from eyas.contract.engines.launching.serve_options import Counting, ServeOptions
from eyas.contract.engines.loading.load_rules import LoadRules
from eyas.contract.engines.version import EngineVersion
from eyas.contract.files.checkpoint import Checkpoint
from eyas.contract.spec.config_keys import MASK_TOKEN_KEYS
from eyas.contract.spec.draft_spec import DraftReading
from eyas.contract.spec.target_spec import TargetSpec, config_dtype
from eyas.diagnostic import Diagnostic, draft_folder

_HERE = Path(__file__).parent
_LENGTH_KEYS = ("max_position_embeddings", "max_sequence_length", "seq_length", "n_positions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What to pass to the engine's own command line.

    Attributes:
        flags: arguments of the engine's command that concern the draft, its path included.
        environment: variables that must be set.
        notes: hints in words (lengths, attention backend, mapping of K).
        files: name -> text of the files that `flags` name, for an engine that takes settings from a file.
        answers: codes of findings of `check` that these flags and variables fix.
    """

    flags: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    answers: tuple[str, ...] = ()

    def as_document(self) -> dict[str, Any]:
        """The launch as a JSON object; `files` only where there are any."""
        return {k: v for k, v in asdict(self).items() if k != "answers" and (k != "files" or v)}


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftLaunch:
    """What the launch flags depend on: the draft, its target, and the user's options.

    Attributes:
        draft: as the engine shall be given it.
        length: longest sequence by the draft's config, tokens; `scaled_length`: with its RoPE scaling counted.
        rope_type: of the draft's RoPE scaling.
        window: the draft's sliding window; None where the engine needs no flag for it.
        dtype: that the draft's config names; None = none. is_quantised, is_mla: of the draft.
        is_parallel: P-EAGLE: all drafts in one pass.
        boundaries: aux boundaries of training; None = not known.
        target_length: longest sequence of the target by its config, tokens.
        target_layers, target_class: of the target; None, "" = not known.
        target_is_quantised: its checkpoint is. target_type: model type of its language model. target_dtype: that its
            config names; None = it names none, or the target is unknown.
        target_code: files of Python code that the target's config names (`auto_map`).
        counting: K, steps and top-k.
        served_length: longest sequence to serve; None = the target's own.
        quantization: of the target, asked for on the command line.
        attention_backend: of the draft only.
    """

    engine: EngineVersion
    draft: str
    counting: Counting
    length: int | None = None
    scaled_length: int | None = None
    rope_type: str = "default"
    window: int | None = None
    dtype: str | None = None
    is_quantised: bool = False
    is_mla: bool = False
    is_parallel: bool = False
    boundaries: tuple[int, ...] | None = None
    target_length: int | None = None
    target_layers: int | None = None
    target_class: str = ""
    target_is_quantised: bool = False
    target_type: str = ""
    target_dtype: str | None = None
    target_code: tuple[str, ...] = ()
    served_length: int | None = None
    quantization: str | None = None
    attention_backend: str | None = None

    @property
    def asked_length(self) -> int | None:
        """Longest sequence that will be served, tokens; None where neither option nor config says."""
        return self.served_length or self.target_length

    @classmethod
    def of(
        cls,
        engine: EngineVersion,
        reading: DraftReading,
        target: TargetSpec | None,
        rules: LoadRules | None,
        counting: Counting,
    ) -> "DraftLaunch":
        """The launch of a draft that eyas can read, with default options."""
        spec = reading.spec
        return cls(
            engine=engine,
            draft=draft_folder(reading.checkpoint.where),
            counting=counting,
            length=spec.max_position_embeddings,
            scaled_length=_scaled_length(spec.rope.scaling or {}, spec.max_position_embeddings),
            rope_type=(spec.rope.scaling or {}).get("rope_type", "default"),
            window=spec.sliding_window if rules is not None and rules.window == "flag" else None,
            dtype=config_dtype(reading.checkpoint.config),
            is_quantised=spec.quantization is not None,
            is_mla=spec.draft_class == "mla",
            is_parallel=_is_parallel(reading),
            boundaries=tuple(spec.aux_boundaries) if spec.aux_boundaries is not None else None,
            target_length=target.max_position_embeddings if target else None,
            target_layers=target.num_layers if target else None,
            target_class=next(iter(target.architectures), "") if target else "",
            target_is_quantised=bool(target and target.quantization),
            target_type=target.text_model_type if target else "",
            target_dtype=target.dtype if target else None,
            target_code=code_of(target.config if target else {}),
        )

    @classmethod
    def of_headers(cls, engine: EngineVersion, draft: str, headers: Checkpoint, counting: Counting) -> "DraftLaunch":
        """The launch of a draft that eyas cannot read, from what its config says."""
        config, length = headers.config, config_length(headers)
        ropes = [r for r in (config.get("rope_scaling"), config.get("rope_parameters")) if isinstance(r, Mapping)]
        kinds = (rope.get("rope_type", rope.get("type")) for rope in ropes)
        return cls(
            engine=engine,
            draft=draft,
            counting=counting,
            length=length,
            scaled_length=length,
            rope_type=next((kind for kind in kinds if isinstance(kind, str)), "default"),
            is_mla="kv_lora_rank" in config or "Deepseek" in str(config.get("architectures")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """All that a command of `serve` is composed from.

    Attributes:
        python: interpreter of the engine.
        target: as the engine shall be given it (folder or hub id).
        draft: the draft and what is wished for it.
        known: the engine's flags.
        target_headers, draft_headers: as `check` saw them; None = not there.
        extra: the user's further engine flags, appended as they are.
        key_variable: name of the environment variable that holds the API key; None = none wanted.
    """

    python: str
    target: str
    draft: DraftLaunch
    options: ServeOptions
    known: KnownFlags
    target_headers: Checkpoint | None = None
    draft_headers: Checkpoint | None = None
    extra: tuple[str, ...] = ()
    key_variable: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCommand:
    """What will be started.

    Attributes:
        argv: the words.
        environment: variables to set for it (besides those passed through).
        url: where the server will answer; "" for a worker node without HTTP.
        key_flag: flag that must be given a private file with the API key, made at start; None = not needed.
        files: name -> text of the files that `argv` names; they are written to the run folder at start.
        notes: what was translated, defaulted or left to the engine.
        findings: reasons not to start it, or to think twice.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    url: str
    counting: Counting
    key_flag: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    findings: tuple[Diagnostic, ...] = ()


def code_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Files of Python code that a config names (`auto_map`)."""
    named = config.get("auto_map")
    values = named.values() if isinstance(named, Mapping) else ()
    return tuple(dict.fromkeys(f"{v.rpartition('.')[0]}.py" for v in values if isinstance(v, str) and "." in v))


def trust_words(recipe: Recipe) -> tuple[list[str], list[str]]:
    """--trust-remote-code and what it runs, where the target's config names code of its own; else nothing."""
    if not recipe.draft.target_code or "--trust-remote-code" in recipe.extra:
        return [], []
    note = "--trust-remote-code: the target's config.json names code of its own, which the engine will run: {}"
    return ["--trust-remote-code"], [note.format(", ".join(recipe.draft.target_code))]


def _is_parallel(reading: DraftReading) -> bool:
    """Whether the draft proposes all tokens in one pass: P-EAGLE, by its speculators config or its mask token."""
    config = reading.checkpoint.config
    has_mask = "mask_hidden" in reading.spec.tensors and any(config.get(k) is not None for k in MASK_TOKEN_KEYS)
    return config.get("speculators_model_type") == "peagle" or has_mask


def _scaled_length(scaling: Mapping[str, Any], length: int) -> int:
    """Context length that SGLang derives: the factor counts unless the original length is given.

    Source: sglang srt/utils/hf_transformers/common.py get_context_length.
    """
    factor = scaling.get("factor", 1)
    if "original_max_position_embeddings" in scaling or scaling.get("rope_type") == "llama3":
        factor = 1
    plain = isinstance(factor, int | float) and not isinstance(factor, bool) and 0 < factor < 1 << 20
    return int(length * (factor if plain else 1))


def without_speculation(command: EngineCommand, prefixes: Sequence[str]) -> EngineCommand:
    """The same command without the flags that begin so, and their values: what a draft is measured against."""
    argv, drops_value = [], False
    for word in command.argv:
        is_flag = word.startswith("--")
        if drops_value and not is_flag:
            drops_value = False
            continue
        drops_value = is_flag and word.startswith(tuple(prefixes)) and "=" not in word
        if not (is_flag and word.startswith(tuple(prefixes))):
            argv.append(word)
    return replace(command, argv=tuple(argv))


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
    """Where a local client reaches the server; "" for a worker node, which has no HTTP."""
    if options.node_rank > 0:
        return ""
    host = "127.0.0.1" if options.host in ("0.0.0.0", "::", "") else options.host
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def heads_do_not_divide(recipe: Recipe) -> Iterator[Diagnostic]:
    """The draft's attention heads cannot be split by the tensor parallelism."""
    config = recipe.draft_headers.config if recipe.draft_headers else {}
    part = config.get("transformer_layer_config") if isinstance(config.get("transformer_layer_config"), Mapping) else {}
    heads = (part or config).get("num_attention_heads")
    parallel = recipe.options.tensor_parallel
    if isinstance(heads, int) and heads % parallel:
        facts = {"heads": heads, "parallel": parallel, "draft": recipe.draft.draft}
        yield told("tensor-parallel-does-not-divide", _HERE, recipe.known.label, facts)


def faked_acceptance(name: str, where: str, engine: str) -> Diagnostic:
    """The engine makes acceptance up."""
    return told("acceptance-faked", _HERE, engine, {"name": name, "where": where})
