"""SGLang as a `ServingEngine`."""

from functools import cached_property
from importlib import resources

from eyas.contract.engines.releases import Releases
from eyas.contract.engines.serving_engine import LogKnowledge, ServingEngine

_FOLDER = resources.files("eyas.contract.engines.sglang")


class SGLang:
    """SGLang: parts are read when they are asked for."""

    name = "sglang"
    title = "SGLang"
    distributions = ("sglang",)

    @cached_property
    def releases(self) -> Releases:
        """Versions and grades."""
        return Releases.load(_FOLDER / "releases.toml")

    @cached_property
    def log(self) -> LogKnowledge:
        """Where its log tables are."""
        return LogKnowledge(folder=_FOLDER)

    def runner(self, version: str, distribution: str, wanted: str | None) -> tuple[str | None, bool]:
        """SGLang has one model runner."""
        return None, True


ENGINE: ServingEngine = SGLang()
