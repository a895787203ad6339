"""Engine versions sort as releases do."""

import pytest

from eyas.client.versions import at_least, key


def test_versions_sort_as_they_were_released():
    released = ["0.5.9", "0.5.12rc1", "0.5.12", "0.5.15", "0.5.15.post1", "0.5.15.post2", "0.5.20", "0.25.1", "0.33.0"]

    shuffled = [released[i] for i in (3, 0, 7, 5, 1, 8, 6, 2, 4)]

    assert sorted(shuffled, key=key) == released


@pytest.mark.parametrize(("same", "as_this"), [("0.32.0+cpu", "0.32"), ("v0.5.9", "0.5.9"), ("0.33.0", "0.33")])
def test_local_parts_and_trailing_zeros_do_not_matter(same: str, as_this: str):
    assert key(same) == key(as_this)


def test_an_unknown_version_counts_as_the_newest():
    assert at_least(None, "99.0")
    assert not at_least("0.5.9", "0.5.10")
