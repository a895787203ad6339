"""The public Python API: the stages under the names of the commands, each imported on first use.

    from eyas import api

    record = api.evaluate(draft, target_folder, [rows], api.EvalConfig(num_draft_tokens=5), api.Silent())

Paths may be given as `str`. Examples: docs/api.md. `import eyas.api` imports no torch. What is not listed here may
change without notice.
"""

import inspect
from collections.abc import Callable, Sequence
from functools import cache, wraps
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, get_args, get_origin

from eyas.errors import EyasError as _EyasError

if TYPE_CHECKING:
    from eyas.contract.check.check import CheckOptions as CheckOptions
    from eyas.contract.check.check import check as check
    from eyas.contract.convert.conversion_apply import apply_conversion as apply_conversion
    from eyas.contract.convert.conversion_plan import plan_conversion as plan_conversion
    from eyas.contract.dialects.registry import dialect_named as dialect_named
    from eyas.contract.engines.registry import parse_engine as parse_engine
    from eyas.contract.files.read_checkpoint import read_checkpoint as read_checkpoint
    from eyas.contract.reading.open_draft import open_draft as open_draft
    from eyas.contract.reading.read_draft import read_draft as read_draft
    from eyas.contract.spec.draft_spec import DraftSpec as DraftSpec
    from eyas.contract.spec.target_spec import read_target as read_target
    from eyas.data.prepare import prepare as prepare
    from eyas.data.prepare_config import PrepareConfig as PrepareConfig
    from eyas.data.prepare_config import WritingConfig as WritingConfig
    from eyas.decode.accept_length import Acceptance as Acceptance
    from eyas.decode.sampling import Sampling as Sampling
    from eyas.engine.batches.generator import Completion as Completion
    from eyas.engine.batches.speculate import BatchPair as BatchPair
    from eyas.engine.batches.speculate import SpeculationSettings as SpeculationSettings
    from eyas.engine.batches.speculate import open_batch_pair as open_batch_pair
    from eyas.engine.batches.speculate import speculate as speculate
    from eyas.engine.engine import Engine as Engine
    from eyas.engine.engine import Limits as Limits
    from eyas.engine.open_engine import open_engine as open_engine
    from eyas.errors import EyasError as EyasError
    from eyas.extract.config import ExtractConfig as ExtractConfig
    from eyas.extract.extract import extract as extract
    from eyas.extract.plan import ExtractRequest as ExtractRequest
    from eyas.models.draft import Eagle3Draft as Eagle3Draft
    from eyas.models.load_draft import load_draft as load_draft
    from eyas.models.placement import place as place
    from eyas.models.save_draft import save_draft as save_draft
    from eyas.models.states import States as States
    from eyas.models.states import StateSource as StateSource
    from eyas.models.states import states_of_row as states_of_row
    from eyas.models.target import FrozenParts as FrozenParts
    from eyas.models.target import LiveStates as LiveStates
    from eyas.models.target import Target as Target
    from eyas.models.target_folder import resolve_target as resolve_target
    from eyas.records.eval_record import EvalRecord as EvalRecord
    from eyas.records.eval_rows import EvalRow as EvalRow
    from eyas.records.eval_rows import read_eval_rows as read_eval_rows
    from eyas.replay.eval_config import EvalConfig as EvalConfig
    from eyas.replay.evaluate import evaluate as evaluate
    from eyas.replay.evaluate import evaluate_on_probe as evaluate_on_probe
    from eyas.replay.infer import infer_switches as infer_switches
    from eyas.replay.predict import predict as predict
    from eyas.replay.probe_pack import PackStates as PackStates
    from eyas.replay.probe_pack import make_probe as make_probe
    from eyas.replay.probe_pack import read_probe as read_probe
    from eyas.replay.replay import replay as replay
    from eyas.report.build import build_report as build_report
    from eyas.store import StoreReader as StoreReader
    from eyas.store import StoreRow as StoreRow
    from eyas.store import StoreWriter as StoreWriter
    from eyas.talk import Silent as Silent
    from eyas.talk import Talk as Talk
    from eyas.train.config import DraftShape as DraftShape
    from eyas.train.config import TrainConfig as TrainConfig
    from eyas.train.preflight.examine import plan_train as plan_train
    from eyas.train.request import TrainRequest as TrainRequest
    from eyas.train.run.train import train as train

# module below eyas -> the public names that it defines
_NAMES = {
    "contract.check.check": "CheckOptions check",
    "contract.convert.conversion_apply": "apply_conversion",
    "contract.convert.conversion_plan": "plan_conversion",
    "contract.dialects.registry": "dialect_named",
    "contract.engines.registry": "parse_engine",
    "contract.files.read_checkpoint": "read_checkpoint",
    "contract.reading.open_draft": "open_draft",
    "contract.reading.read_draft": "read_draft",
    "contract.spec.draft_spec": "DraftSpec",
    "contract.spec.target_spec": "read_target",
    "data.prepare": "prepare",
    "data.prepare_config": "PrepareConfig WritingConfig",
    "decode.accept_length": "Acceptance",
    "decode.sampling": "Sampling",
    "engine.batches.generator": "Completion",
    "engine.batches.speculate": "BatchPair SpeculationSettings open_batch_pair speculate",
    "engine.engine": "Engine Limits",
    "engine.open_engine": "open_engine",
    "errors": "EyasError",
    "extract.config": "ExtractConfig",
    "extract.extract": "extract",
    "extract.plan": "ExtractRequest",
    "models.draft": "Eagle3Draft",
    "models.load_draft": "load_draft",
    "models.placement": "place",
    "models.save_draft": "save_draft",
    "models.states": "StateSource States states_of_row",
    "models.target": "FrozenParts LiveStates Target",
    "models.target_folder": "resolve_target",
    "records.eval_record": "EvalRecord",
    "records.eval_rows": "EvalRow read_eval_rows",
    "replay.eval_config": "EvalConfig",
    "replay.evaluate": "evaluate evaluate_on_probe",
    "replay.infer": "infer_switches",
    "replay.predict": "predict",
    "replay.probe_pack": "PackStates make_probe read_probe",
    "replay.replay": "replay",
    "report.build": "build_report",
    "store": "StoreReader StoreRow StoreWriter",
    "talk": "Silent Talk",
    "train.config": "DraftShape TrainConfig",
    "train.preflight.examine": "plan_train",
    "train.request": "TrainRequest",
    "train.run.train": "train",
}
_HOMES = {name: f"eyas.{module}" for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_HOMES)  # noqa: PLE0605 - a list, made from the one table

# type of a parameter -> how to make it from a path
_READ_BY = {
    "Checkpoint": "read_checkpoint(PATH)",
    "DraftReading": "read_draft(api.read_checkpoint(PATH))",
    "DraftSpec": "open_draft(PATH)",
    "Eagle3Draft": "load_draft(PATH, ...)",
    "TargetSpec": "read_target(PATH)",
}


class ApiMisused(_EyasError):
    """A function of `eyas.api` got a path instead of an object read from it, or one path instead of a list."""

    code = "api-misused"


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        found = getattr(import_module(_HOMES[name]), name)
        return _door(found) if inspect.isfunction(found) else found
    raise AttributeError(f"eyas.api has no {name}; it has {', '.join(__all__)}")


@cache
def _door(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, made to take `str` for `Path`; a path given for another type raises an error that says so."""
    signature = inspect.signature(function)

    @wraps(function)
    def enter(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError:
            return function(*args, **kwargs)  # Python's own message names the function
        for name, value in given.arguments.items():
            where = f"api.{function.__name__}({name}=...)"
            given.arguments[name] = _let_in(value, signature.parameters[name].annotation, name, where)
        return function(*given.args, **given.kwargs)

    return enter


def _let_in(value: Any, wanted: Any, name: str, where: str) -> Any:
    """`value` as the parameter annotated `wanted` takes it."""
    kinds, is_path = _kinds(wanted), isinstance(value, str | Path)
    if Path in kinds:
        return Path(value) if isinstance(value, str) else value
    for item in (_kinds(get_args(kind)[0]) for kind in kinds if get_origin(kind) is Sequence):
        if Path in item and is_path:
            raise ApiMisused(f"{name} takes a list of paths, not one", where, f"it got {value!r}", f"give [{value!r}]")
        if Path in item and str not in item:
            return [Path(path) if isinstance(path, str) else path for path in value]
    for read in (_READ_BY.get(getattr(kind, "__name__", "")) for kind in kinds):
        if read is not None and is_path:
            raise ApiMisused(
                f"{name} is not a path: it is what was read from one",
                where,
                f"it got {value!r}",
                f"give api.{read.replace('PATH', repr(str(value)))}",
            )
    return value


def _kinds(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)


def __dir__() -> list[str]:
    return list(__all__)
