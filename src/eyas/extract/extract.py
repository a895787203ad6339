"""The stage behind `eyas extract`: rows through a source into a store, proven before and while it runs."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas.extract.config import ExtractConfig
from eyas.extract.fill import Filling
from eyas.extract.forecast import Forecast
from eyas.extract.open_source import open_source
from eyas.extract.plan import ExtractRequest, RowPlan, about_of, forecast_of, missing_rows, plan_rows
from eyas.extract.proof import Proof
from eyas.extract.proving import prove, prover_of, spread_by_length
from eyas.extract.source import Wanted
from eyas.models.placement import place
from eyas.store import StoreAbout
from eyas.talk import Talk, counted, seconds

# Measured, see docs/extract.md.
_FP8 = (
    "fp8 states: the shipped draft's accept length over them is 2.338, over bf16 ones 2.326 (16 rows, 773 rounds): no"
    " cost that these can show"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extracted:
    """A run that ended well.

    Attributes:
        about: of the store.
        forecast: of the rows that were missing.
        proof: None where nothing was missing, or it was a dry run.
        num_rows, num_tokens: written by this run.
        num_rechecked: of them.
        seconds: that writing them took.
    """

    about: StoreAbout
    forecast: Forecast
    proof: Proof | None
    num_rows: int = 0
    num_tokens: int = 0
    num_rechecked: int = 0
    seconds: float = 0.0

    def as_document(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "schema": "eyas.extract/1",
            "store": self.about.as_document(),
            "needed_bytes": self.forecast.needed_bytes,
            "free_bytes": self.forecast.free_bytes,
            "proof": None if self.proof is None else self.proof.as_document(),
            "rows": self.num_rows,
            "tokens": self.num_tokens,
            "rechecked_rows": self.num_rechecked,
            "seconds": self.seconds,
            "tokens_per_s": self.num_tokens / self.seconds if self.seconds else None,
        }


def extract(request: ExtractRequest, config: ExtractConfig, talk: Talk, *, dry_run: bool = False) -> Extracted:
    """Put the states of all rows into the store in `request.out`; rows that it holds are not computed again.

    Args:
        dry_run: stop after the forecast.

    Raises:
        StoreTooLarge: the states do not fit the disk; nothing was written.
        StatesMismatch: the source gives other states than the target's.
        SourceUnsupported, SourceFailed, and what `plan_rows`, `StoreWriter.open` and `Target.load` raise.
    """
    plan, placement = plan_rows(request, config), place(request.dtype, request.device)
    if plan.num_repeated:
        talk.note(f"{counted(plan.num_repeated, 'row')} of {request.rows} repeat others: their states are kept once")
    wanted = Wanted(
        folder=request.target,
        target=plan.spec,
        boundaries=plan.boundaries,
        dtype=None if config.store_dtype == "auto" else config.store_dtype,
    )
    source = open_source(
        request.source, wanted, placement, talk.note, most_tokens=config.batch_tokens, gpus=config.gpus
    )
    try:
        about = about_of(plan, config, source, request.target)
        rows = missing_rows(plan, about, request.out)
        expected = forecast_of(rows, about, request.out)
        if rows:
            talk.line(f"{request.out}: {expected}")
        expected.require_fits(request.out)
        if dry_run or not rows:
            return Extracted(about=about, forecast=expected, proof=None)
        _say_options(about, plan, talk)
        for said in source.probe():
            talk.line(said)
        prover = prover_of(source, wanted, placement, config, talk)
        chosen = [rows[at] for at in spread_by_length([row.num_tokens for row in rows], config.proof_rows)]
        proof = prove(prover, source, [plan.asked(row) for row in chosen], placement, talk)
        started = time.monotonic()
        run = Filling(source, plan, about, prover, config, talk)
        run.fill(request.out, rows)
        spent = time.monotonic() - started
        return Extracted(
            about=about,
            forecast=expected,
            proof=proof,
            num_rows=run.num_rows,
            num_tokens=run.num_tokens,
            num_rechecked=run.num_rechecked,
            seconds=spent,
        )
    finally:
        source.close()


def _say_options(about: StoreAbout, plan: RowPlan, talk: Talk) -> None:
    talk.line(
        f"states at boundaries {', '.join(map(str, about.boundaries))} of {about.num_layers} and the last one"
        f" ({about.last}), {about.dtype}"
    )
    if about.has_scales:
        talk.note(_FP8)
    if about.keep_prompt is not None:
        cut = sum(row.first for row in plan.rows)
        talk.note(
            f"--keep-prompt {about.keep_prompt}: {cut} tokens of prompts are not kept; a draft that is trained on these"
            " states does not see them"
        )


def report(done: Extracted, out: Path, *, dry_run: bool = False) -> str:
    """What a run did, for a person."""
    if dry_run:
        return str(done.forecast)
    if not done.num_rows:
        return f"{out} holds all rows"
    speed = done.num_tokens / max(done.seconds, 1e-9)
    return (
        f"{counted(done.num_rows, 'row')}, {done.num_tokens} tokens in {seconds(done.seconds)} ({speed:.0f} tokens/s);"
        f" {counted(done.num_rechecked, 'row')} compared again\nwrote {out}"
    )
