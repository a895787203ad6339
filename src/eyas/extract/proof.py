"""Is a source what it says? Checked before it is used, and on one row in a hundred while it is.

- Against transformers, where the target fits: the error of each state, beside the errors of its neighbours. A wrong one
  is looked for among all boundaries and shifts, so that the message can say which state it is.
- Against itself: a row alone, among others, and after its own beginning was asked for (batches, prefix caches, chunks).
- Against the tokens that it writes: argmax(head(norm(last))). This needs the head only, so it works for any size.

Errors are relative, per position: |found - wanted| / |wanted| over the Ht values. Shapes: n tokens, N layers, A
boundaries, Ht hidden size.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from eyas.errors import ExitCode, EyasError
from eyas.extract.agreement import Agreement, compare, same
from eyas.extract.source import AskedRow, ExtractedRow, ExtractSource, Wanted
from eyas.extract.tensors import as_tensor
from eyas.models.target import Target
from eyas.models.target.frozen_parts import FrozenParts

# Median error of a right state. bf16 through other kernels: 1 to 3 % at depth.
_TOLERANCE = {"float32": 1e-3, "float16": 0.05, "bfloat16": 0.08, "float8_e4m3": 0.1}
_NEAR_TIE = 0.02  # of the span from the mean logit to the largest
_MOST_TOKENS = 256  # of a row through the reference


class StatesMismatch(EyasError):
    """A source gives other states than the target computes, or other ones for the same row."""

    code = "states-mismatch"
    exit_code = ExitCode.FINDINGS


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What was found.

    Attributes:
        num_rows, num_tokens: that were compared.
        reference: against what, None where the target fits nowhere.
        states: each boundary and the last state against the reference; () without one.
        itself: against the same rows asked for in another way.
        num_greedy, num_greedy_right, num_near_ties: rows whose next token the source was asked for, those whose head
            gives it, and those of them where two tokens are equally likely.
        faults: in words; () when it is proven.
    """

    num_rows: int
    num_tokens: int
    reference: str | None
    states: Sequence[Agreement]
    itself: Sequence[Agreement]
    num_greedy: int
    num_greedy_right: int
    num_near_ties: int
    faults: Sequence[str]

    def as_document(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"schema": "eyas.extract-proof/1", **asdict(self)}

    def text(self) -> str:
        """As a table."""
        lines = [f"{self.num_rows} rows, {self.num_tokens} tokens; relative error per position (median)"]
        if self.reference is not None:
            lines.append(
                f"{'state':<14} {'error':>9} {'far off':>8}  one layer less  one more   against {self.reference}"
            )
        for state in self.states:
            neighbours = [f"{value:.4f}" if value is not None else "–" for value in (state.below, state.above)]
            is_right = state.fault or "right"
            lines.append(
                f"{state.name:<14} {state.error:>9.5f} {state.far:>8.1%}  {neighbours[0]:>14}  {neighbours[1]:>8}   "
                f"{is_right}"
            )
        lines += [f"{a.name}: error {a.error:.5f}, {a.fault or 'the same'}" for a in self.itself]
        if self.num_greedy:
            ties = f" ({self.num_near_ties} of them near ties)" if self.num_near_ties else ""
            lines.append(
                f"the head over the last state gives the source's own token: {self.num_greedy_right} of"
                f" {self.num_greedy}{ties}"
            )
        return "\n".join(lines)


class Prover:
    """Compares a source with a reference, itself and its tokens.

    Args:
        parts: head and final norm of the target; None where they cannot be read (then no tokens are checked).
        reference: the target through transformers; None where it does not fit.
    """

    def __init__(
        self, source: ExtractSource, wanted: Wanted, parts: FrozenParts | None, reference: Target | None
    ) -> None:
        self._source, self._wanted, self._parts, self._reference = source, wanted, parts, reference
        self._advance: Callable[[float], None] = lambda _: None

    def prove(self, rows: Sequence[AskedRow], advance: Callable[[float], None] = lambda _: None) -> Proof:
        """Ask for `rows` in several ways and compare; nothing is raised for what disagrees.

        Args:
            advance: told of tokens that were asked for; `num_asked` of them in all.
        """
        self._advance = advance
        whole = [AskedRow(token_ids=row.token_ids) for row in rows]
        together = self._ask(whole)
        states = self._against_reference([row.token_ids for row in whole], together)
        itself = self._against_itself(whole, together)
        right, near, asked = self._greedy(whole, together)
        faults = [f"{a.name}: {a.fault}" for a in (*states, *itself) if a.fault is not None]
        if asked > right:
            faults.append(
                f"the head over the last state gives another token than the source wrote in {asked - right} of {asked}"
                " rows: the last state is of another position, or not what the head reads"
            )
        faults += self._form_faults(together)
        return Proof(
            num_rows=len(rows),
            num_tokens=sum(len(row.token_ids) for row in rows),
            reference=None if self._reference is None else self._reference_name,
            states=states,
            itself=itself,
            num_greedy=asked,
            num_greedy_right=right,
            num_near_ties=near,
            faults=faults,
        )

    def recheck(self, row: AskedRow, found: ExtractedRow) -> None:
        """Compare one row of a run with the reference, or where there is none with the row asked for again, alone.

        Raises:
            StatesMismatch: it differs.
        """
        values = self._values(found)
        if self._reference is not None:
            states = self._judge(values, self._all_states(row.token_ids), found.first)
        else:
            again = self._ask([AskedRow(token_ids=row.token_ids)])[0][found.first :]
            states = [same("asked for again alone", values, again, self._tolerance)]
        if faults := [f"{state.name}: {state.fault}" for state in states if state.fault is not None]:
            raise mismatch(self._source.name, faults, "a row of the run, compared after it was extracted")

    @property
    def _reference_name(self) -> str:
        assert self._reference is not None
        dtype = str(self._reference.parts.embedding.dtype).removeprefix("torch.")
        return f"transformers in {dtype} on {self._reference.device.type}"

    @property
    def _tolerance(self) -> float:
        dtypes: list[str] = [self._source.dtype]
        if self._reference is not None:
            dtypes.append(str(self._reference.parts.embedding.dtype).removeprefix("torch."))
        return max(_TOLERANCE[dtype] for dtype in dtypes)

    def _ask(self, rows: Sequence[AskedRow]) -> list[Tensor]:
        """[n, A + 1, Ht] float32 of each row, in the order of `rows`."""
        found: dict[int, Tensor] = {}
        for extracted in self._source.states(rows):
            found[extracted.number] = self._values(extracted)
            self._advance(len(rows[extracted.number].token_ids))
        return [found[number] for number in range(len(rows))]

    def _values(self, row: ExtractedRow) -> Tensor:
        dtype = "float8_e4m3" if row.scales is not None else self._source.dtype
        values = as_tensor(row.states, dtype, row.scales).float()
        return values.reshape(len(values), len(self._wanted.boundaries) + 1, -1)

    def _against_reference(self, rows: Sequence[tuple[int, ...]], found: Sequence[Tensor]) -> list[Agreement]:
        if self._reference is None:
            return []
        cut = [ids[:_MOST_TOKENS] for ids in rows]
        wanted = [self._all_states(ids) for ids in cut]
        # rows end to end; a shift across the seam of two rows costs one position
        return self._judge(torch.cat([f[: len(ids)] for f, ids in zip(found, cut, strict=True)]), torch.cat(wanted), 0)

    @torch.no_grad()
    def _all_states(self, token_ids: Sequence[int]) -> Tensor:
        """[n, N + 2, Ht] float32 of the reference: boundaries 0 … N, then the last state."""
        assert self._reference is not None
        target = self._reference
        ids = torch.tensor([list(token_ids)], device=target.device)
        states = target.forward(ids, range(target.num_layers + 1))
        both = torch.cat([states.aux[0], states.last[0]], -1)
        return both.reshape(len(both), target.num_layers + 2, -1).float().cpu()

    def _judge(self, found: Tensor, wanted: Tensor, first: int) -> list[Agreement]:
        """Each state of `found` [P, A + 1, Ht] against the reference's [n, N + 2, Ht]."""
        wanted = wanted[first:]
        num_layers = wanted.shape[1] - 2
        places = [*self._wanted.boundaries, num_layers + (1 if self._source.last == "post-norm" else 0)]
        names = [*(f"boundary {b}" for b in self._wanted.boundaries), "last"]
        return [
            compare(name, found[:, i], wanted, place, self._tolerance)
            for i, (name, place) in enumerate(zip(names, places, strict=True))
        ]

    def _against_itself(self, rows: Sequence[AskedRow], together: Sequence[Tensor]) -> list[Agreement]:
        tolerance = self._tolerance
        alone = [self._ask([row])[0] for row in rows]
        longest = max(range(len(rows)), key=lambda n: len(rows[n].token_ids))
        half = _half(len(rows[longest].token_ids))
        beginning = self._ask([AskedRow(token_ids=rows[longest].token_ids[:half])])[0]
        again = self._ask([rows[longest]])[0]
        return [
            same("a row alone and among others", torch.cat(list(alone)), torch.cat(list(together)), tolerance),
            same("a row after its own beginning was asked for", again, together[longest], tolerance),
            same("the beginning of a row and the whole row", beginning, together[longest][:half], tolerance),
        ]

    @torch.no_grad()
    def _greedy(self, rows: Sequence[AskedRow], found: Sequence[Tensor]) -> tuple[int, int, int]:
        """Rows whose head gives the source's own token, near ties among them, and rows asked."""
        tokens = None if self._parts is None else self._source.greedy(rows)
        if tokens is None or self._parts is None:
            return 0, 0, 0
        parts = self._parts
        last = torch.stack([states[-1, -1] for states in found]).to(parts.device, parts.dtype)
        logits = parts.logits(last if self._source.last == "post-norm" else parts.final_norm(last)).float()
        ids = torch.tensor(list(tokens), device=logits.device)
        largest, own = logits.max(-1).values, logits.gather(-1, ids[:, None])[:, 0]
        is_right = largest - own <= _NEAR_TIE * (largest - logits.mean(-1))
        is_exact = logits.argmax(-1) == ids
        return int((is_right | is_exact).sum()), int((is_right & ~is_exact).sum()), len(rows)

    def _form_faults(self, found: Sequence[Tensor]) -> list[str]:
        """Faults that need no reference: rounded values, and a last state that has not seen the norm."""
        values = torch.cat(list(found))
        faults = [
            f"all values are {name} numbers, and the source says that it gives {self._source.dtype}: they were rounded"
            " on their way"
            for name in _narrower(self._source.dtype)
            if self._source.dtype != "float8_e4m3" and _is_exact(values, name)
        ]
        if self._reference is None and self._parts is not None and self._source.last == "post-norm":
            faults += _norm_faults(self._parts, values[:, -1])
        return faults[:2]


def num_asked(lengths: Sequence[int]) -> int:
    """Tokens that `Prover.prove` asks for, given rows of these lengths."""
    return 2 * sum(lengths) + max(lengths) + _half(max(lengths))


def _half(length: int) -> int:
    return max(1, length // 2)


def mismatch(source: str, faults: Sequence[str], where: str) -> StatesMismatch:
    """The error for a source that gives other states."""
    return StatesMismatch(
        f"{source} does not give the target's states",
        where,
        "; ".join(faults),
        "do not train on these states: start the engine as `eyas serve --capture` does, or report its version; "
        "`eyas store drop STORE --all` deletes what was written",
    )


def _narrower(dtype: str) -> tuple[str, ...]:
    return {"float32": ("bfloat16", "float16")}.get(dtype, ("float8_e4m3fn", "float8_e5m2"))


def _is_exact(values: Tensor, dtype: str) -> bool:
    return bool((values.to(getattr(torch, dtype)).float() == values).all())


def _norm_faults(parts: FrozenParts, last: Tensor) -> list[str]:
    """A state after an RMS norm, divided by the norm's weights, has a mean square of 1."""
    ones = torch.ones(parts.hidden_size, device=parts.device, dtype=parts.dtype)
    weight = parts.final_norm(ones).float().cpu()
    if not bool((weight.abs() > 1e-6).all()):  # a norm of another kind
        return []
    size = float((last / weight).square().mean(-1).sqrt().median())
    if abs(size - 1) < 0.1:
        return []
    return [
        f"last: divided by the norm's weights, its values have a root mean square of {size:.2f}, not 1: it looks like "
        "the state before the final norm"
    ]
