"""`trtllm-serve`: the command and the YAML file that it names, which holds everything about speculation.

Source: tensorrt_llm/commands/serve.py, llmapi/llm_args.py EagleDecodingConfig / Eagle3DecodingConfig. Started as a
module, so that the interpreter is the one that was asked for; one machine only (several need an MPI launcher).
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from eyas.contract.engines.launching.known_flags import FlagTable
from eyas.contract.engines.launching.recipe import (
    DraftLaunch,
    EngineCommand,
    Launch,
    Recipe,
    faked_acceptance,
    heads_do_not_divide,
    url_of,
)
from eyas.contract.engines.loading.ledger import PositionLimit
from eyas.contract.engines.serving_engine import Launching, ServingEngine
from eyas.contract.spec.layer_ids import LayerIds, default_boundaries
from eyas.diagnostic import Diagnostic, finding

CONFIG_FILE = "trtllm-serve.yaml"
_CONFIG_FLAGS = ("--config", "--extra_llm_api_options")
_OURS = re.compile(r"^(speculative_config|enable_iter_perf_stats)\s*:", re.MULTILINE)
_FAKE = "TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS"


class TensorRTLLMLaunching:
    """`Launching` of TensorRT-LLM."""

    package = "tensorrt_llm"
    help_words = ("-m", "tensorrt_llm.commands.serve", "serve", "--help")
    default_port = 8000
    # of what the weights leave, for the cache alone: no flag means the share of a whole GPU
    memory_share = 0.9
    memory_flag = ""
    speculation_flags: tuple[str, ...] = ()
    key_variable = None

    def __init__(self, engine: ServingEngine) -> None:
        self.flags, self._hooks = FlagTable.load(engine.name, engine.folder), engine.loading.hooks

    def draft_launch(self, draft: DraftLaunch) -> Launch:
        """The draft's flags alone, to add to a command that the user wrote."""
        return Launch(
            flags=("--config", CONFIG_FILE),
            files={CONFIG_FILE: config_text(draft)},
            notes=(f"max_draft_len {draft.counting.num_draft_tokens} = K drafts per pass", *self._notes(draft)),
        )

    def command(self, recipe: Recipe) -> EngineCommand:
        """The whole command for this machine."""
        options, port = recipe.options, recipe.options.port or self.default_port
        theirs, extra, findings = _own_config(recipe.extra, recipe.known.label)
        argv = [recipe.python, "-m", "tensorrt_llm.commands.serve", "serve", recipe.target]
        flags = ["--host", options.host, "--port", str(port), "--tp_size", str(options.tensor_parallel)]
        if options.context_length:
            flags += ["--max_seq_len", str(options.context_length)]
        if options.max_running_requests:
            flags += ["--max_batch_size", str(options.max_running_requests)]
        if options.served_name:
            flags += ["--served_model_name", options.served_name]
        flags += ["--config", CONFIG_FILE]
        return EngineCommand(
            argv=(*argv, *flags, *extra),
            environment={},
            url=url_of(options, port),
            counting=recipe.draft.counting,
            files={CONFIG_FILE: config_text(recipe.draft, theirs)},
            notes=self._notes(recipe.draft),
            findings=(*findings, *recipe.known.findings(flags, extra)),
        )

    def bad_combinations(self, recipe: Recipe, environment: Mapping[str, str]) -> Iterator[Diagnostic]:
        """Options that have no counterpart here, and what fakes acceptance."""
        options, engine = recipe.options, recipe.known.label
        asked = {
            "--topk": options.topk > 1,
            "--data-parallel": options.data_parallel > 1,
            "--nodes": options.nodes > 1,
            "--quantization": options.quantization is not None,
            "--draft-attention-backend": options.draft_attention_backend is not None,
            "--api-key-env": recipe.key_variable is not None,
        }
        for name in (name for name, is_asked in asked.items() if is_asked):
            yield finding(
                "option-not-supported",
                "error",
                f"{name} cannot be set for TensorRT-LLM through eyas",
                name,
                "trtllm-serve drafts chains, checks no key, takes the quantisation from the checkpoint, and needs a"
                " separate MPI launcher for several machines",
                f"leave {name} out",
                engine=engine,
            )
        if environment.get(_FAKE, "0") not in ("", "0"):
            yield faked_acceptance(_FAKE, f"environment: {_FAKE}", engine)
        yield from heads_do_not_divide(recipe)

    def warning(self, version: str) -> str:
        """This engine was never run here."""
        return "what eyas knows of TensorRT-LLM was read in its source, never run"

    def position_limit(self, draft: DraftLaunch) -> PositionLimit | None:
        """The end of the draft's RoPE table."""
        length, asked = draft.length, draft.asked_length
        if not length or not asked or length >= asked:
            return None
        return PositionLimit(tokens=length, beyond="its RoPE table ends there")

    def _notes(self, draft: DraftLaunch) -> tuple[str, ...]:
        taps = (
            "the file names the tapped layers (eagle3_layers_to_capture)"
            if layers_to_capture(draft.boundaries, draft.target_layers)
            else "the file names no tapped layers: the draft was trained on the engine's default"
            if draft.boundaries
            else "the file names no tapped layers: the engine taps its default"
        )
        notes = [
            f"{taps}; TensorRT-LLM reads none from the draft",
            "answers are greedy whatever a request asks, unless the file has allow_advanced_sampling",
        ]
        length, asked = draft.length, draft.asked_length
        if length and asked and length < asked:
            notes.append(
                f"context: the draft's config allows {length} tokens, {asked} are served: its RoPE table ends at"
                f" {length}; serve {length} at most, or write max_position_embeddings: {asked} in its config"
            )
        if draft.target_class and draft.target_class not in self._hooks:
            notes.append(f"whether {draft.target_class} can be tapped is not known")
        return tuple(notes)


def config_text(draft: DraftLaunch, theirs: str = "") -> str:
    """The YAML that `--config` names (`--extra_llm_api_options` is its other name).

    Args:
        theirs: the user's own file, which stands first.
    """
    ids = layers_to_capture(draft.boundaries, draft.target_layers)
    lines = [
        "speculative_config:",
        "  decoding_type: Eagle3",
        f"  max_draft_len: {draft.counting.num_draft_tokens}",
        # a JSON string is a YAML string
        f"  speculative_model: {json.dumps(draft.draft)}",
        *([f"  eagle3_layers_to_capture: {list(ids)}"] if ids else []),
        "enable_iter_perf_stats: true",
    ]
    start = f"{theirs.rstrip()}\n" if theirs.strip() else ""
    return start + "\n".join(lines) + "\n"


def layers_to_capture(boundaries: Sequence[int] | None, num_layers: int | None) -> tuple[int, ...]:
    """Ids after layers for boundaries without the embedding; () where the engine's default is the same.

    The default needs more than five layers. Source: llm_args.py, "Not enough hidden layers for default EAGLE3 capture".
    """
    wanted = tuple(sorted({b for b in boundaries or () if b > 0}))
    if num_layers is not None and num_layers > 5 and wanted == default_boundaries(num_layers):
        return ()
    return LayerIds.of_boundaries(wanted, "after-layer").ids


def _own_config(extra: Sequence[str], engine: str) -> tuple[str, tuple[str, ...], list[Diagnostic]]:
    """The text of the user's own file, taken out of the extra flags: trtllm-serve takes one file only."""
    rest: list[str] = []
    text, findings = "", list[Diagnostic]()
    words = iter(extra)
    for word in words:
        name, equals, value = word.partition("=")
        if name not in _CONFIG_FLAGS:
            rest.append(word)
            continue
        path = value if equals else next(words, "")
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            why, do = f"{type(error).__name__}: it cannot be read", "give the path of a file that exists"
        else:
            if (ours := _OURS.search(text)) is None:
                continue
            why = f"it sets {ours[1]}, which eyas writes itself"
            do = f"leave {ours[1]} out of it"
        findings.append(
            finding("config-file-unusable", "error", f"{name} {path}: {why}", f"-- {name}", why, do, engine=engine)
        )
    return text, tuple(rest), findings


LAUNCHING: Callable[[ServingEngine], Launching] = TensorRTLLMLaunching
