"""Functions over static memory as CUDA graphs."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


class Graphs:
    """Captures functions; their graphs share memory for what lives within one of them, since they never run at once."""

    def __init__(self) -> None:
        self._pool: Any = None  # torch keeps the type of its handles to itself

    def captured(self, function: Callable[[], None], changed: Sequence[Tensor]) -> Callable[[], None]:
        """`function` as a graph.

        Args:
            function: waits for nothing, allocates nothing that outlives it; run once before capture, so that kernels
                are compiled.
            changed: what it changes, but for what it would write again when it is run again; put back afterwards.
        """
        saved = [tensor.clone() for tensor in changed]
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            function()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            function()
        self._pool = self._pool or graph.pool()
        for tensor, before in zip(changed, saved, strict=True):
            tensor.copy_(before)
        return graph.replay
