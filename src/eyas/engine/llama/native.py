"""Compiles `cpu_kernels.c` once per machine and calls it. Knows ctypes and the compiler; nothing of models.

Without a C compiler there are no native kernels: callers then use torch, which is several times slower, and say so.
"""

import ctypes
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from eyas.records import fingerprint
from eyas.records.atomic import WriteFailed, atomic_file, write_text
from eyas.records.json_lines import read_regular
from eyas.talk import Talk

SOURCE = Path(__file__).with_name("cpu_kernels.c")
MAX_ROWS = 8  # MAX_ROWS of cpu_kernels.c
_FLAGS = ("-O2", "-march=native", "-ffp-contract=fast", "-fopenmp", "-shared", "-fPIC")


class ShapeStruct(ctypes.Structure):
    """`Shape` of cpu_kernels.c."""

    _fields_ = (
        *((name, ctypes.c_long) for name in ("hidden", "in_width", "heads", "kv_heads", "head_dim", "rotary_dim")),
        *((name, ctypes.c_long) for name in ("intermediate", "capacity", "window")),
        ("eps", ctypes.c_double),
    )


_LAYER_FIELDS = ("input_norm", "qkv", "qkv_bias", "q_norm", "k_norm", "o", "post_norm", "gate_up", "down")


class LayerStruct(ctypes.Structure):
    """`Layer` of cpu_kernels.c: addresses of fp32 data; the tensors behind them must be kept alive."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in (*_LAYER_FIELDS, "keys", "values"))


class ScratchStruct(ctypes.Structure):
    """`Scratch` of cpu_kernels.c."""

    _fields_ = (
        *((n, ctypes.c_void_p) for n in ("normed", "qkv", "attention", "gate_up", "mlp", "scores", "cos", "sin")),
        ("normed_stride", ctypes.c_long),
    )


class TreeStruct(ctypes.Structure):
    """`Tree` of cpu_kernels.c."""

    _fields_ = (
        ("base", ctypes.c_long),
        ("stride", ctypes.c_long),
        ("depth", ctypes.c_void_p),
        ("paths", ctypes.c_void_p),
    )


@dataclass(frozen=True)
class NativeKernels:
    """The compiled library; its functions take addresses (ints) and sizes."""

    path: Path

    @cached_property
    def _library(self) -> ctypes.CDLL:
        library = ctypes.CDLL(str(self.path))
        pointer, number, integer = ctypes.c_void_p, ctypes.c_long, ctypes.c_int
        library.eyas_blocks.argtypes = [
            pointer, pointer, integer, pointer, pointer, pointer, integer, number, pointer, integer
        ]  # fmt: skip
        library.eyas_linear.argtypes = [pointer] * 3 + [number, number, integer, integer]
        for function in (library.eyas_blocks, library.eyas_linear):
            function.restype = None
        return library

    def load(self) -> None:
        """Load the library now; raises `OSError` if the system refuses."""
        _ = self._library

    @cached_property
    def blocks(self) -> "ctypes._NamedFuncPointer":
        """(shapes, layers, num, scratch, input, residual, rows, start, tree, threads): decoder blocks in one call."""
        return self._library.eyas_blocks

    @cached_property
    def linear(self) -> "ctypes._NamedFuncPointer":
        """(weight, x, y, n, k, rows, threads): y = x · weightᵀ."""
        return self._library.eyas_linear


def load_kernels(cache: Path, talk: Talk) -> NativeKernels | None:
    """The kernels, compiled for this machine's processor into `cache/kernels` on the first call (about a second).

    Args:
        cache: eyas' cache folder.
        talk: told when the slow path will be used, and why.

    Returns:
        None without a compiler, if it fails, or if the cache folder cannot hold a library.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        talk.note("no C compiler (cc, gcc, clang): the engine uses torch's own kernels, several times slower")
        return None
    runtime = _openmp_runtime()
    key = fingerprint.of_json([SOURCE.read_text("utf-8"), _FLAGS, compiler, str(runtime), _processor()])
    path = cache / "kernels" / f"eyas-{key}.so"
    kernels = NativeKernels(path)
    try:
        failure = None if _is_whole(path) else _compile(compiler, runtime, path)
        if failure is None:
            kernels.load()
            return kernels
    except (OSError, WriteFailed) as error:  # a folder that cannot be written, or from which nothing may be run
        failure = error.why if isinstance(error, WriteFailed) else str(error)
    talk.note(f"{compiler} could not compile the kernels ({failure}): the engine uses torch's own, slower")
    return None


def _compile(compiler: str, runtime: Path | None, path: Path) -> str | None:
    """Compile into `path`; gives the compiler's complaint if it fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.o")
    libraries = [str(runtime)] if runtime else []
    command = [compiler, *_FLAGS, str(SOURCE), "-o", str(aside), *libraries, "-lm"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        if result.returncode != 0:
            return (result.stderr.strip().splitlines() or ["no message"])[0]
        library = aside.read_bytes()
        with atomic_file(path) as file:
            file.write(library)
        write_text(_print_of(path), fingerprint.of_bytes(library))
        return None
    finally:
        aside.unlink(missing_ok=True)


def _is_whole(path: Path) -> bool:
    """Whether the library is there in full: the system kills a process that loads a truncated one."""
    try:
        return fingerprint.of_bytes(read_regular(path)) == read_regular(_print_of(path)).decode("ascii", "replace")
    except OSError:
        return False


def _print_of(path: Path) -> Path:
    return path.with_suffix(".fingerprint")


def _openmp_runtime() -> Path | None:
    """The OpenMP library that torch has loaded: a second one beside it would mean two sets of spinning threads."""
    for line in _lines(Path("/proc/self/maps")):
        name = line.split(maxsplit=5)[-1].strip()
        if "libgomp" in Path(name).name and Path(name).exists():
            return Path(name)
    return None


def _processor() -> Sequence[str]:
    """What `-march=native` depends on: a cache on a shared disk serves several machines."""
    wanted = ("model name", "flags", "Features", "CPU part")
    found = {line.strip() for line in _lines(Path("/proc/cpuinfo")) if line.startswith(wanted)}
    return sorted(found) or [platform.machine()]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace", encoding="utf-8").splitlines()
    except OSError:
        return []
