"""An option that is out of range, as the user typed it: name, value, and what is wanted."""

from collections.abc import Sequence


def unwanted(name: str, value: object, wanted: str) -> str:
    """For the field `name` of a config with this `value`: "--ttt-steps is 99, wanted 1 … 16"."""
    shown = " ".join(map(str, value)) if isinstance(value, Sequence) and not isinstance(value, str) else value
    return f"--{name.replace('_', '-')} is {shown}, wanted {wanted}"
