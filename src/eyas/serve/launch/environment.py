"""The environment a server starts with: all of the caller's; which part is shown, and what in it would do harm."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from eyas.diagnostic import Diagnostic
from eyas.serve.facts.run_folder import redact_environment

_SHOWN = re.compile(r"^(NCCL_|GLOO_|TORCH_NCCL|CUDA_|VLLM_|SGLANG_|SGL_|HF_|PYTHONPATH$|LD_PRELOAD$)")
_PROXIES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
_LOCAL = ("127.0.0.1", "localhost")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerEnvironment:
    """A server's environment.

    Attributes:
        variables: all that it is started with.
        shown: those that decide how it runs, secrets redacted: for launch.json and people.
        findings: what in it would do harm.
    """

    variables: Mapping[str, str]
    shown: Mapping[str, str]
    findings: tuple[Diagnostic, ...] = ()


def server_environment(
    caller: Mapping[str, str],
    added: Mapping[str, str],
    *,
    key: tuple[str | None, str | None],
    pythonpath: str | None,
) -> ServerEnvironment:
    """The environment to start an engine with.

    Args:
        caller: eyas' own environment; passed through whole.
        added: what the launch needs; wins over the caller's.
        key: name of the caller's variable that holds the API key, and of that which the engine reads it from.
        pythonpath: folders put before the caller's PYTHONPATH (an engine unpacked into a folder).
    """
    variables = {**caller, **added, "PYTHONUNBUFFERED": "1"}
    if pythonpath:
        variables["PYTHONPATH"] = ":".join(p for p in (pythonpath, caller.get("PYTHONPATH", "")) if p)
    if key[0] and key[1]:
        variables[key[1]] = caller[key[0]]
    shown = {name: value for name, value in variables.items() if _SHOWN.match(name) or name in added}
    return ServerEnvironment(variables=variables, shown=redact_environment(shown), findings=tuple(_findings(variables)))


def _findings(variables: Mapping[str, str]) -> list[Diagnostic]:
    proxies = [name for name in _PROXIES if variables.get(name)]
    exempt = f"{variables.get('no_proxy', '')},{variables.get('NO_PROXY', '')}".split(",")
    if not proxies or all(any(local == e.strip() or e.strip() == "*" for e in exempt) for local in _LOCAL):
        return []
    return [
        Diagnostic(
            code="proxy-catches-localhost",
            severity="warning",
            what=f"{' and '.join(proxies)} would catch requests to this machine",
            where=f"environment: {', '.join(proxies)} without no_proxy",
            why="an engine's own warm-up request may go through the proxy, get a 502 and end the server (sglang#16855)",
            do=f"export no_proxy={','.join(_LOCAL)}",
        )
    ]
