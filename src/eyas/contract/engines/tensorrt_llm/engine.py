"""TensorRT-LLM as a `ServingEngine`: its PyTorch backend, one engine for target and draft."""

from functools import cached_property
from pathlib import Path

from eyas.client.server_api import ServerApi
from eyas.contract.engines.launching.known_flags import FlagTable
from eyas.contract.engines.releases import Releases
from eyas.contract.engines.serving_engine import Launching, Loading, LogKnowledge, ServingEngine
from eyas.contract.spec.target_spec import TargetSpec

_FOLDER = Path(__file__).parent


class TensorRTLLM:
    """TensorRT-LLM: each part is read when it is asked for."""

    name = "tensorrt-llm"
    title = "TensorRT-LLM"
    distributions = ("tensorrt-llm",)
    runners = ()

    @cached_property
    def releases(self) -> Releases:
        """Versions and grades."""
        return Releases.load(_FOLDER / "releases.toml")

    @cached_property
    def loading(self) -> Loading:
        """What becomes of a draft."""
        from eyas.contract.engines.tensorrt_llm.loading import TensorRTLLMLoading

        return TensorRTLLMLoading(self.releases, _FOLDER)

    @cached_property
    def launching(self) -> Launching:
        """Its command line."""
        from eyas.contract.engines.tensorrt_llm.launching import TensorRTLLMLaunching

        return TensorRTLLMLaunching(FlagTable.load(self.name, _FOLDER), self.loading.hooks)

    @cached_property
    def serving(self) -> ServerApi:
        """Its HTTP."""
        from eyas.contract.engines.tensorrt_llm.serving import SERVING

        return SERVING

    @cached_property
    def log(self) -> LogKnowledge:
        """Where its log tables are."""
        return LogKnowledge(folder=_FOLDER)

    def default_runner(self, version: str, target: TargetSpec | None) -> str | None:
        """There is only one."""
        return None


ENGINE: ServingEngine = TensorRTLLM()
