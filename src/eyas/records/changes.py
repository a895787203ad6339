"""What differs between two descriptions of how something was made, in words."""

import json
from collections.abc import Mapping
from typing import Any


def what_changed(then: Mapping[str, Any] | None, now: Mapping[str, Any]) -> str:
    """Each key with both values; nested objects by their own keys. Values are compared as JSON would keep them.

    Args:
        then: read from a file; None where it was not recorded yet.
    """
    if then is None:
        return "its inputs were not recorded, and they differ now"
    then, now = _flat(then), _flat(json.loads(json.dumps(now)))
    changed = [key for key in {**then, **now} if key not in then or key not in now or then[key] != now[key]]
    found = [f"{key}: {_shown(then, key)} then, {_shown(now, key)} now" for key in changed]
    return "; ".join(found) or "an input that was not recorded then differs"


def _flat(described: Mapping[str, Any]) -> dict[str, Any]:
    flat = dict[str, Any]()
    for key, value in described.items():
        flat |= _flat(value) if isinstance(value, Mapping) and value else {key: value}
    return flat


def _shown(described: Mapping[str, Any], key: str) -> str:
    return repr(described[key]) if key in described else "unknown"
