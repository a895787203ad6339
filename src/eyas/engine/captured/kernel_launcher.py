"""Launching Triton kernels, and compiling those of whole rounds before the first launch, many at once.

A depth needs some fifteen kernels of about half a second each. Compiled where they are first launched they take the
first user a minute for five depths, on one core; afterwards they lie in Triton's cache on disk.

Importing this needs Triton.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from functools import partial
from typing import Any

import triton

from eyas.talk import Talk

_MOST_THREADS = 16


class Launcher:
    """Launches kernels; while it compiles ahead it only asks for them."""

    def __init__(self) -> None:
        self._only_compiles = False

    def __call__(self, kernel: Any, grid: tuple[int, ...]) -> Callable[..., object]:
        """`kernel[grid]`: what takes the arguments."""
        launch: Callable[..., object] = partial(kernel.warmup, grid=grid) if self._only_compiles else kernel[grid]
        return launch

    def compile_ahead(self, functions: Sequence[Callable[[], None]], talk: Talk) -> None:
        """Call functions that only launch kernels through this, without launching: it compiles their kernels.

        Args:
            functions: all kernels of all of them are compiled at once.
            talk: progress.
        """
        pool = _Recording(max_workers=min(_MOST_THREADS, os.cpu_count() or 1))
        self._only_compiles = True
        try:
            with triton.AsyncCompileMode(pool):
                for function in functions:
                    function()
                self._only_compiles = False
                with talk.progress("compile kernels", len(pool.futures), "kernels") as progress:
                    for _ in as_completed(pool.futures):
                        progress.advance()
        finally:
            self._only_compiles = False
            pool.shutdown(cancel_futures=True)


class _Recording(ThreadPoolExecutor):
    """A thread pool that records its futures; Triton hides its own."""

    def __init__(self, max_workers: int) -> None:
        super().__init__(max_workers)
        self.futures: list[Future[Any]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """As the base class."""
        future = super().submit(fn, *args, **kwargs)
        self.futures.append(future)
        return future
