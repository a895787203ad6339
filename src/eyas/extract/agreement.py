"""How far states are from those that they should be, and which others they look like.

Errors are relative, per position: |found - wanted| / |wanted| over the Ht values. Shapes: P positions, N layers, Ht
hidden size; a reference holds boundaries 0 … N, then the last state after the final norm.
"""

from dataclasses import dataclass

from torch import Tensor

_FAR = 4.0  # tolerances: a position beyond them is another state (or a near-tie of a router)
_MOST_FAR = 0.05  # of positions
_SHIFTS = (0, -2, -1, 1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How one state compares.

    Attributes:
        name: "boundary 3" or "last".
        error: median over positions.
        far: share of positions that are another state.
        below, above: median error against the boundaries one less and one more; None where there is none.
        fault: what it looks like instead; None where it is right.
    """

    name: str
    error: float
    far: float
    below: float | None = None
    above: float | None = None
    fault: str | None = None


def compare(name: str, found: Tensor, wanted: Tensor, place: int, tolerance: float) -> Agreement:
    """One state [P, Ht] against the reference's [P, N + 2, Ht].

    Args:
        place: of the state that it should be, in the reference.
        tolerance: median error of a right state.
    """
    error, far = _distance(found, wanted[:, place], tolerance)
    num_layers = wanted.shape[1] - 2
    below = _distance(found, wanted[:, place - 1], tolerance)[0] if place > 0 else None
    above = _distance(found, wanted[:, place + 1], tolerance)[0] if place < num_layers else None
    nearest = min(value for value in (below, above, float("inf")) if value is not None)
    fault = None
    if not bool(found.isfinite().all()):
        fault = "it holds NaN or infinities"
    elif error > tolerance or nearest <= error:
        fault = _looks_like(found, wanted, error, tolerance)
    elif far > _MOST_FAR:
        fault = f"{far:.0%} of the positions are other states: rows are mixed, cut or computed with another context"
    return Agreement(name=name, error=error, far=far, below=below, above=above, fault=fault)


def same(name: str, found: Tensor, wanted: Tensor, tolerance: float) -> Agreement:
    """States [P, S, Ht] that should be the same ones, computed in two ways."""
    error, far = _distance(found.flatten(0, 1), wanted.flatten(0, 1), tolerance)
    fault = None if far <= _MOST_FAR and error <= tolerance else f"{far:.0%} of the states differ"
    return Agreement(name=name, error=error, far=far, fault=fault)


def _distance(found: Tensor, wanted: Tensor, tolerance: float) -> tuple[float, float]:
    """Median error, and the share of positions that are far off."""
    errors = (found - wanted).norm(dim=-1) / wanted.norm(dim=-1).clamp(min=1e-20)
    if not len(errors):
        return float("inf"), 1.0
    return float(errors.nan_to_num(nan=float("inf")).median()), float((~(errors <= _FAR * tolerance)).float().mean())


def _looks_like(found: Tensor, wanted: Tensor, own: float, tolerance: float) -> str:
    """The state and position that `found` is nearest to."""
    best, words = float("inf"), "none"
    for place in range(wanted.shape[1]):
        for shift in _SHIFTS:
            error = _distance(*_shifted(found, wanted[:, place], shift), tolerance)[0]
            if error < best:
                best, words = error, _words(place, shift, wanted.shape[1] - 2)
    if best <= tolerance and best < own:
        return f"it looks like {words} (error {best:.4f})"
    return f"it looks like none of the target's states (error {own:.4f}; nearest: {words}, {best:.4f})"


def _shifted(found: Tensor, wanted: Tensor, shift: int) -> tuple[Tensor, Tensor]:
    """Position t of the one beside position t + shift of the other."""
    num = max(0, len(found) - abs(shift))
    return (found[:num], wanted[shift:]) if shift >= 0 else (found[-shift:], wanted[:num])


def _words(place: int, shift: int, num_layers: int) -> str:
    state = f"boundary {place}" if place <= num_layers else "the last state after the final norm"
    if place == num_layers:
        state = f"boundary {place}, the state before the final norm"
    if shift == 0:
        return state
    return f"{state} of {abs(shift)} token{'s' * (abs(shift) > 1)} {'later' if shift > 0 else 'earlier'}"
