"""The real target, fetched once into the user's cache; tests that need it skip where it is absent."""

from pathlib import Path

import pytest
import torch

from eyas.cli.target_option import target_folder
from eyas.errors import EnvironmentMissing
from eyas.models.placement import place
from eyas.models.target import Target
from eyas.talk import Silent


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    try:
        return target_folder("smollm2-135m", Silent())
    except EnvironmentMissing as missing:
        pytest.skip(f"the target smollm2-135m is not in the cache and cannot be fetched: {missing.why}")


@pytest.fixture(scope="session")
def smollm2(smollm2_folder: Path) -> Target:
    torch.manual_seed(0)
    return Target.load(smollm2_folder, place("float32", "cpu"))
