"""The real target and the compiled kernels, both kept in the user's cache; tests skip where they cannot be had."""

from pathlib import Path

import pytest

from eyas.cli.target_option import cache_folder, target_folder
from eyas.engine.llama.native import NativeKernels, load_kernels
from eyas.errors import EnvironmentMissing
from eyas.talk import Silent


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    try:
        return target_folder("smollm2-135m", Silent())
    except EnvironmentMissing as missing:
        pytest.skip(f"the target smollm2-135m is not in the cache and cannot be fetched: {missing.why}")


@pytest.fixture(scope="session")
def kernels() -> NativeKernels:
    loaded = load_kernels(cache_folder(), Silent())
    if loaded is None:
        pytest.skip("no C compiler on this machine")
    return loaded
