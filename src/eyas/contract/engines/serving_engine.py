"""`ServingEngine`: all that eyas knows of one serving engine, behind one door. Code outside never compares names.

Each engine is a folder beside this file: code split by these parts, and data that changes with each release
(`releases.toml`, `flags.txt`, `target_hooks.json`, `markers.toml`, `failures.toml`, `experiments.toml`, `frames.toml`).
`registry.engine_named(name)` gives it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from eyas.client.server_api import ServerApi
from eyas.contract.engines.capturing import Capturing
from eyas.contract.engines.launching.known_flags import FlagTable
from eyas.contract.engines.launching.recipe import DraftLaunch, EngineCommand, Launch, Recipe
from eyas.contract.engines.loading.aux_states import AuxCapture
from eyas.contract.engines.loading.ledger import ParameterEntry, PositionLimit, Reason, Verdict
from eyas.contract.engines.loading.load_rules import LoadRules
from eyas.contract.engines.loading.load_tensors import Loaded
from eyas.contract.engines.loading.seen_config import SeenConfig
from eyas.contract.engines.loading.selection import Selection
from eyas.contract.engines.loading.target_hooks import Hooks, TargetHook
from eyas.contract.engines.releases import Releases
from eyas.contract.engines.version import EngineVersion
from eyas.contract.spec.target_spec import TargetSpec
from eyas.diagnostic import Diagnostic, Remedies


class Loading(Protocol):
    """What an engine does with a draft up to its first forward pass, beyond what `LoadRules` says as data.

    Attributes:
        rules: a set per draft class and version that changed it, oldest first within a class.
        hooks: which targets it can tap.
    """

    @property
    def rules(self) -> tuple[LoadRules, ...]: ...
    @property
    def hooks(self) -> Hooks: ...

    def default_runner(self, version: str, target: TargetSpec | None) -> str | None:
        """The model runner that a default launch of this version takes for this target; None if there is only one."""

    def select(self, engine: EngineVersion, config: Mapping[str, Any], where: str, algorithm: str) -> Selection:
        """The class that a draft's config.json selects, or the refusal.

        Args:
            where: of the draft, for a person.
            algorithm: of the launch, such as "EAGLE3".
        """

    def capture(
        self,
        engine: EngineVersion,
        runner: str | None,
        config: SeenConfig,
        hook: TargetHook,
        num_layers: int | None,
        trained: tuple[int, ...] | None,
    ) -> AuxCapture:
        """The boundaries that are tapped for this draft.

        Args:
            num_layers: of the target; None = unknown.
            trained: boundaries of training, for an engine that takes them from the launch; None = unknown.
        """

    def aux_remedy(self, trained: tuple[int, ...], runner: str | None, where: str) -> Remedies:
        """What to write where so that the boundaries of training are tapped."""

    def hook_fault(self, engine: EngineVersion, hook: TargetHook) -> tuple[Verdict, str, str] | None:
        """What a missing hook does at start: verdict, what, why; None if it does no harm."""

    def own_reasons(self, draft: "LoadedDraft") -> list[Reason]:
        """Faults that only this engine has, each with its stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedDraft:
    """A draft after an engine's pass over it.

    Attributes:
        where: of the draft, for a person.
        runner: model runner; None where the engine has only one.
        config: as the draft's class sees it.
        parameters: what each runtime parameter holds.
        algorithm: of the launch.
    """

    where: str
    engine: EngineVersion
    runner: str | None
    rules: LoadRules
    config: SeenConfig
    loaded: Loaded
    parameters: tuple[ParameterEntry, ...]
    target: TargetSpec | None
    algorithm: str


class Launching(Protocol):
    """How an engine is started with a draft.

    Attributes:
        package: what Python imports, such as "sglang".
        help_words: words after the interpreter that print its flags.
        default_port: of its HTTP server.
        memory_share: part of a GPU's memory that it takes for weights and caches; `memory_flag` sets another.
        speculation_flags: what its flags of speculation begin with; () = they are in a file, not on the command line.
        key_variable: environment variable that it reads an API key from; None = it needs a private file.
        flags: which flags each version knows.
    """

    @property
    def package(self) -> str: ...
    @property
    def help_words(self) -> tuple[str, ...]: ...
    @property
    def default_port(self) -> int: ...
    @property
    def memory_share(self) -> float: ...
    @property
    def memory_flag(self) -> str: ...
    @property
    def speculation_flags(self) -> tuple[str, ...]: ...
    @property
    def key_variable(self) -> str | None: ...
    @property
    def flags(self) -> FlagTable: ...

    def draft_launch(self, draft: DraftLaunch) -> Launch:
        """Flags, variables and hints that a draft needs, for a command that eyas does not compose."""

    def position_limit(self, draft: DraftLaunch) -> PositionLimit | None:
        """Where the draft's own length ends before the target's; None where the engine computes on as trained."""

    def command(self, recipe: Recipe) -> EngineCommand:
        """The whole command for this machine."""

    def bad_combinations(self, recipe: Recipe, environment: Mapping[str, str]) -> Iterator[Diagnostic]:
        """Flags, environment and models that conflict, beyond what `check` of a draft alone finds.

        Args:
            environment: all variables that the server would see.
        """

    def warning(self, version: str) -> str:
        """What to know of a running server of this version; "" if nothing."""


class ServingEngine(Protocol):
    """One serving engine.

    Attributes:
        name: in the registry and on the command line, such as "sglang".
        folder: with its data files; what its log says is there.
        releases: its title and packages; which versions are known, how well, and which entry answers for which version.
        loading: what becomes of a draft.
        launching: its command line, and what goes wrong with it.
        serving: its routes, counters and answers over HTTP.
        capturing: how it hands over a target's states; None where eyas knows no way.
    """

    @property
    def name(self) -> str: ...
    @property
    def folder(self) -> Path: ...
    @property
    def releases(self) -> Releases: ...
    @property
    def loading(self) -> Loading: ...
    @property
    def launching(self) -> Launching: ...
    @property
    def serving(self) -> ServerApi: ...
    @property
    def capturing(self) -> Capturing | None: ...


class EngineFolder:
    """The `ServingEngine` of a folder beside this file; each part is imported when it is asked for."""

    def __init__(self, name: str) -> None:
        self.name, package = name, name.replace("-", "_")
        self.folder, self._package = Path(__file__).parent / package, f"{__package__}.{package}"

    @cached_property
    def releases(self) -> Releases:
        """`releases.toml`."""
        return Releases.load(self.folder / "releases.toml")

    @cached_property
    def loading(self) -> Loading:
        """`LOADING` of its `loading.py`, made for this engine."""
        made: Loading = import_module(f"{self._package}.loading").LOADING(self)
        return made

    @cached_property
    def launching(self) -> Launching:
        """`LAUNCHING` of its `launching.py`, made for this engine."""
        made: Launching = import_module(f"{self._package}.launching").LAUNCHING(self)
        return made

    @cached_property
    def serving(self) -> ServerApi:
        """`SERVING` of its `serving.py`."""
        found: ServerApi = import_module(f"{self._package}.serving").SERVING
        return found

    @cached_property
    def capturing(self) -> Capturing | None:
        """`CAPTURING` of its `capturing.py`; None without one."""
        if not (self.folder / "capturing.py").exists():
            return None
        found: Capturing = import_module(f"{self._package}.capturing").CAPTURING
        return found
