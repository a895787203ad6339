"""Where metrics go besides `metrics.jsonl`, on request: TensorBoard, wandb."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from eyas.errors import EnvironmentMissing

_NOT_SHOWN = {"schema", "step"}


class Sink(Protocol):
    """Takes records while the run goes on."""

    def write(self, record: Mapping[str, Any]) -> None:
        """One record of metrics.jsonl, of any kind."""

    def close(self) -> None:
        """The run is over."""

    def runs(self) -> Mapping[str, str]:
        """Project -> id of the run there, for `open_sinks` of a resumed run; may be empty."""


def open_sinks(
    tensorboard: Path | None, wandb: str | None, name: str, about: Mapping[str, Any], known: Mapping[str, str]
) -> list[Sink]:
    """The sinks asked for.

    Args:
        tensorboard: folder for event files.
        wandb: project.
        name: of the run.
        about: its plan, as JSON has it.
        known: project -> run id of wandb, to resume; another project gets a new run.

    Raises:
        EnvironmentMissing: wandb refuses to start a run (not logged in).
    """
    sinks: list[Sink] = []
    if tensorboard is not None:
        sinks.append(_TensorBoard(tensorboard))
    if wandb is not None:
        sinks.append(_Wandb(wandb, name, about, known.get(wandb)))
    return sinks


def scalars_of(record: Mapping[str, Any]) -> dict[str, float]:
    """Tag -> value: numbers as they are, lists as `name/step_j`; held-out records under `held_out/`."""
    prefix = "held_out/" if "held-out" in record["schema"] else ""
    scalars: dict[str, float] = {}
    for name, value in record.items():
        if name in _NOT_SHOWN or isinstance(value, str | bool):
            continue
        parts: Sequence[Any] = value if isinstance(value, list | tuple) else [value]
        for j, part in enumerate(parts):
            tag = f"{name}/step_{j}" if isinstance(value, list | tuple) else name
            if isinstance(part, int | float):
                scalars[prefix + tag] = float(part)
    return scalars


class _TensorBoard:
    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder))

    def write(self, record: Mapping[str, Any]) -> None:
        for tag, value in scalars_of(record).items():
            self._writer.add_scalar(tag, value, record["step"])
        self._writer.flush()  # a run that is killed has shown all its steps

    def close(self) -> None:
        self._writer.close()

    def runs(self) -> Mapping[str, str]:
        return {}


class _Wandb:
    def __init__(self, project: str, name: str, about: Mapping[str, Any], run_id: str | None) -> None:
        import wandb  # type: ignore[import-not-found, unused-ignore]

        # "allow": a run that was deleted there meanwhile is started again under its id.
        again = {} if run_id is None else {"id": run_id, "resume": "allow"}
        self._project = project
        try:
            self._run: Any = wandb.init(project=project, name=name, config=dict(about), **again)
        except wandb.Error as error:
            raise EnvironmentMissing(
                "wandb does not start a run",
                f"--wandb {project}",
                str(error),
                "run `wandb login`, set WANDB_MODE=offline, or leave --wandb out: metrics.jsonl is always written",
            ) from error

    def write(self, record: Mapping[str, Any]) -> None:
        self._run.log(scalars_of(record), step=record["step"])

    def close(self) -> None:
        self._run.finish()

    def runs(self) -> Mapping[str, str]:
        return {self._project: str(self._run.id)}
