"""What every test may ask for. Nothing here needs the network."""

from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real inputs beside the repository; tests that use it skip where it is absent."""
    folder = REPO.parent / "shared"
    if not (folder / "drafts").is_dir():
        pytest.skip("the shared folder of real drafts, logs and cases is not beside the repository")
    return folder
