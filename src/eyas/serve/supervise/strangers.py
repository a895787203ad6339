"""Other servers, silent ports and programs found where an engine was expected."""

from dataclasses import dataclass

from eyas.contract.engines.registry import ENGINES
from eyas.serve.facts.evidence import WITHOUT_HEALTH, Observation

_NO_HTTP_S = 5.0  # a server that is just opening its port may drop a connection
_HOSTS = ("python", "pypy", "bash", "sh", "docker", "containerd", "tini", "srun", "ray", "torchrun", "mpirun", "uv")


@dataclass(slots=True)
class Strangers:
    """Remembers since when answers have come from a stranger, and since when none has come."""

    _odd_since: float | None = None
    _silent_since: float | None = None

    def odd_answer(self, seen: Observation) -> str:
        """Words for a /health that no starting engine gives: redirects, other codes, no HTTP at all; else ""."""
        health = seen.endpoints.get("/health")
        if health is None or seen.port != "open" or health.failure in ("refused", "timeout"):
            self._odd_since = None
            return ""
        self._odd_since = seen.at if self._odd_since is None else self._odd_since
        told = ", ".join(
            f"{path} gives {f'HTTP {a.code}' if a.code else 'no HTTP'}" for path, a in seen.endpoints.items()
        )
        return f"a server listens there, but {told}"

    def are_foreign(self, seen: Observation) -> bool:
        """Answers that neither an engine nor its proxy gives: missing routes, redirects, no HTTP at all."""
        codes = [answer.code for answer in seen.endpoints.values()]
        if codes[0] in WITHOUT_HEALTH and len(codes) == 1:
            return False  # its /v1/models has not answered yet
        if codes[0] == 0:
            return self._odd_since is not None and seen.at - self._odd_since >= _NO_HTTP_S
        return all(200 <= code < 500 and code not in (401, 403, 408, 429) for code in codes)

    def silent_s(self, seen: Observation) -> float:
        """For how long the port has accepted connections without an answer of /health."""
        health = seen.endpoints.get("/health")
        is_silent = seen.port == "open" and (health is None or health.failure == "timeout")
        self._silent_since = (self._silent_since or seen.at) if is_silent else None
        return 0.0 if self._silent_since is None else seen.at - self._silent_since


def is_other_program(seen: Observation) -> bool:
    """Whether the named process is not an engine: not Python or a launcher, without an engine's title or answer."""
    if not seen.processes or seen.endpoints:
        return False
    titles = [process.title.lower().replace("-", "") for process in seen.processes]
    is_engine = any(name.replace("-", "") in title for title in titles for name in ENGINES)
    is_labelled = any(process.label not in ("", "main") for process in seen.processes)
    return not (is_engine or is_labelled or any(process.name.startswith(_HOSTS) for process in seen.processes))
