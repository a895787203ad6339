"""Which boundaries an engine taps for a draft: where it looks for ids, how it reads them, what it does without."""

from dataclasses import dataclass

from eyas.contract.engines.loading.seen_config import SeenConfig
from eyas.contract.engines.loading.target_hooks import TargetHook
from eyas.contract.engines.version import EngineVersion, at_least
from eyas.contract.spec.layer_ids import LayerIds, default_boundaries

_TOP, _NESTED = "eagle_aux_hidden_state_layer_ids", "eagle_config.eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuxCapture:
    """What is tapped.

    Attributes:
        boundaries: in the order in which the states are concatenated; None when the target's depth is unknown.
        source: where it came from, for a person.
        is_off: the engine captures no aux states at all.
    """

    boundaries: tuple[int, ...] | None
    source: str
    is_off: bool = False


def aux_capture(
    engine: EngineVersion, runner: str | None, config: SeenConfig, hook: TargetHook, num_layers: int | None
) -> AuxCapture:
    """The boundaries that `engine` taps for this draft."""
    if config.get("eagle_config.use_aux_hidden_state", True) is False:
        return AuxCapture(boundaries=None, source="eagle_config.use_aux_hidden_state is false", is_off=True)
    ids, source = _ids(engine, runner, config)
    if ids is None:
        default = None
        if num_layers is not None:
            default = tuple(b + hook.default_shift for b in default_boundaries(num_layers))
        return AuxCapture(boundaries=default, source=f"{source}: the default of the target class")
    if engine.engine == "vllm":
        # vLLM sorts and de-duplicates. Source: model_executor/models/interfaces.py set_aux_hidden_state_layers
        return AuxCapture(boundaries=tuple(sorted(set(ids))), source=f"{source}, as boundaries, sorted")
    if hook.convention == "last-is-n" and num_layers is None:
        return AuxCapture(boundaries=None, source=source)
    read = LayerIds(ids=ids, convention=hook.convention if hook.status != "unknown" else "after-layer")
    # The target's layers append their state in the order of the layers, whatever the order of the ids.
    boundaries = tuple(sorted(set(read.boundaries(num_layers))))
    return AuxCapture(boundaries=boundaries, source=f"{source}, read as {read.convention}")


def _ids(engine: EngineVersion, runner: str | None, config: SeenConfig) -> tuple[tuple[int, ...] | None, str]:
    if engine.engine == "sglang":
        # any exception while reading is swallowed. Source: spec_aux_hidden_state.py:185-196
        return _integers(config.get(_NESTED)), _NESTED if config.has(_NESTED) else "no ids in eagle_config"
    top = _integers(config.get(_TOP))
    if top:
        return top, _TOP
    if runner == "v1":
        return _integers(config.get(_NESTED)), _NESTED if config.has(_NESTED) else "no ids"
    other = "eagle_config.layer_ids"
    if at_least(engine.rules, "0.32.0") and (ids := _integers(config.get(other))):
        return ids, other
    return None, "no top-level ids (the V2 runner does not read those in eagle_config)"


def _integers(value: object) -> tuple[int, ...] | None:
    if isinstance(value, list) and value and all(type(i) is int for i in value):
        return tuple(value)
    return None
