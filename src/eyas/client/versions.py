"""Engine versions compared as numbers: "0.5.15.post1" > "0.5.15" > "0.5.9". No network, no packaging library."""

import re

_PART = re.compile(r"\d+")
_POST = re.compile(r"\.?post(\d*)")
_PRE = re.compile(r"(\.?dev|a|b|rc)(\d*)")


def key(version: str) -> tuple[tuple[int, ...], int, int]:
    """Sort key of a version string: release numbers, then pre (-1) / final (0) / post (1), then its number.

    Local parts ("+cpu", "+cu130") are ignored.
    """
    public = version.strip().removeprefix("v").split("+")[0]
    release = re.match(r"\d+(\.\d+)*", public)
    numbers = tuple(int(n) for n in _PART.findall(release.group() if release else "0"))
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers = numbers[:-1]
    rest = public[release.end() :] if release else public
    if post := _POST.search(rest):
        return numbers, 1, int(post.group(1) or 0)
    if pre := _PRE.search(rest):
        return numbers, -1, int(pre.group(2) or 0)
    return numbers, 0, 0


def at_least(version: str | None, minimum: str) -> bool:
    """Whether `version` is `minimum` or newer; an unknown version (None) counts as the newest."""
    return version is None or key(version) >= key(minimum)
