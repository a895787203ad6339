"""CUDA graphs: which devices have them, which blocks they can hold, and how a function becomes one."""

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from eyas.errors import EyasError


class FastPathUnsupported(EyasError):
    """This target or draft has a block that captured passes do not compute."""

    code = "fast-path-unsupported"


def why_not_captured(device: torch.device) -> str | None:
    """Why passes cannot be captured on this device, in words; None where they can."""
    if device.type != "cuda":
        return f"{device} has no CUDA graphs"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "its matrix units do not support bf16"
    return None


class Graphs:
    """Captures functions; their graphs share memory for what lives within one of them, since they never run at once."""

    def __init__(self) -> None:
        self._pool: Any = None  # torch keeps the type of its handles to itself

    def captured(self, function: Callable[[], None], changed: Sequence[Tensor]) -> Callable[[], None]:
        """`function` as a graph.

        Args:
            function: must not synchronise, nor allocate what outlives it; it runs once before capture, so that
                kernels are compiled.
            changed: tensors that it updates in place; restored after capture. Plain outputs may be left out.
        """
        saved = [tensor.clone() for tensor in changed]
        _warm_up(function, 1)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            function()
        self._pool = self._pool or graph.pool()
        for tensor, before in zip(changed, saved, strict=True):
            tensor.copy_(before)
        return graph.replay


def captured(function: Callable[[], None]) -> Callable[[], None]:
    """`function` as a graph of its own; it runs before capture: kernels are compiled, scratch memory is made."""
    _warm_up(function, 2)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph.replay


def _warm_up(function: Callable[[], None], times: int) -> None:
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(times):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
