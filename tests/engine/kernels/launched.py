"""In Triton's interpreter: what a launcher launches, and what it only asks for while it compiles ahead."""

import torch
import triton
import triton.language as tl

from eyas.engine.captured.kernel_launcher import Launcher
from eyas.talk import Silent


@triton.jit
def fill_kernel(x_ptr, VALUE: tl.constexpr):
    """x[program] = VALUE."""
    tl.store(x_ptr + tl.program_id(0), VALUE)


def launched() -> dict[str, list[int]]:
    """What stands in memory after compiling ahead, after a launch, and after a launch that follows a failure."""
    launch, x = Launcher(), torch.zeros(4, dtype=torch.int32)
    launch.compile_ahead([lambda: launch(fill_kernel, (4,))(x, VALUE=1)], Silent())
    ahead = x.tolist()
    launch(fill_kernel, (4,))(x, VALUE=2)
    after = x.tolist()
    try:
        launch.compile_ahead([lambda: 1 // 0], Silent())  # type: ignore[list-item,func-returns-value]
    except ZeroDivisionError:
        launch(fill_kernel, (4,))(x, VALUE=3)
    return {"ahead": ahead, "after": after, "after a failure": x.tolist()}
