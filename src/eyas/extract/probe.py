"""A probe pack from any source: the states over a few held-out texts, proven like those of a store."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas.contract.spec.target_spec import read_target
from eyas.extract.config import ExtractConfig
from eyas.extract.open_source import open_source
from eyas.extract.plan import boundaries_of, identity_of
from eyas.extract.proof import Proof
from eyas.extract.proving import place_of_parts, prove, prover_of, spread_by_length
from eyas.extract.source import AskedRow, ExtractSource, Wanted
from eyas.extract.tensors import as_tensor
from eyas.models.placement import place
from eyas.models.states import States
from eyas.models.target import FrozenParts
from eyas.records.eval_rows import EvalDataEmpty, EvalRow, files_of, read_eval_rows
from eyas.replay.probe_pack import ProbePack, assemble_probe, kept_boundaries, write_probe
from eyas.replay.replay import check_vocabulary
from eyas.talk import Talk


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRequest:
    """Inputs, output and device.

    Attributes:
        target: folder of the target.
        data: files of recorded answers (`records.eval_rows`), or folders of `eyas prepare` with held-out rows.
        out: file for the pack.
        source, device, dtype: as in `ExtractRequest`.
        with_neighbours: also keep the boundaries one below and one above each.
    """

    target: Path
    data: Sequence[Path]
    out: Path
    source: str = "transformers"
    device: str = "auto"
    dtype: str = "auto"
    with_neighbours: bool = False


def extract_probe(request: ProbeRequest, config: ExtractConfig, talk: Talk) -> tuple[ProbePack, Proof]:
    """Write a pack of the recorded answers in `request.data`.

    Raises:
        EvalDataMissing, EvalRowMalformed, EvalDataEmpty, RowOutsideVocabulary: the rows.
        StatesMismatch: the source gives other states than the target's.
        SourceUnsupported, SourceFailed, and what `Target.load` and `FrozenParts.load` raise.
    """
    rows, spec, placement = (
        _recorded(request.data, talk),
        read_target(request.target),
        place(request.dtype, request.device),
    )
    boundaries = boundaries_of(spec, config)
    kept = kept_boundaries(boundaries, spec.num_layers, with_neighbours=request.with_neighbours)
    wanted = Wanted(folder=request.target, target=spec, boundaries=tuple(kept))
    source = open_source(
        request.source, wanted, placement, talk.note, most_tokens=config.batch_tokens, gpus=config.gpus
    )
    try:
        for said in source.probe():
            talk.line(said)
        parts = FrozenParts.load(request.target, place_of_parts(source, placement))
        for row in rows:
            check_vocabulary(row, parts.vocab_size)
        asked = [AskedRow(token_ids=(*row.prompt_ids, *row.response_ids)) for row in rows]
        chosen = spread_by_length([len(row.token_ids) for row in asked], config.proof_rows)
        prover = prover_of(source, wanted, placement, config, talk)
        proof = prove(prover, source, [asked[at] for at in chosen], placement, talk)
        states = _states(source, asked, parts, talk)
        identity = identity_of(spec, request.target)
        pack = assemble_probe(states, kept, rows, boundaries, identity, parts.embedding, spec.num_layers)
        write_probe(pack, request.out)
        return pack, proof
    finally:
        source.close()


def _recorded(data: Sequence[Path], talk: Talk) -> list[EvalRow]:
    files = files_of(data)
    found = read_eval_rows(files, talk=talk)
    rows = [row for row in found if isinstance(row, EvalRow)]
    if left := len(found) - len(rows):
        talk.note(f"{left} prompts without the target's own answer left out; `eyas eval --save-rows` answers them")
    if not rows:
        raise EvalDataEmpty(
            "there is no recorded answer",
            ", ".join(map(str, files)),
            "a pack holds the states over the target's own answers (`prompt_ids` and `response_ids`)",
            "record them: eyas eval DRAFT --target T --data F --save-rows FILE; or prepare rows with held-out ones",
        )
    return rows


def _states(source: ExtractSource, rows: Sequence[AskedRow], parts: FrozenParts, talk: Talk) -> list[States]:
    """Of each row, in order; the last state after the final norm."""
    found: dict[int, States] = {}
    width = parts.hidden_size
    with talk.progress("probe", sum(len(row.token_ids) for row in rows), "tokens") as bar:
        for row in source.states(rows):
            values: Any = as_tensor(row.states, source.dtype)
            last = values[:, -width:]
            if source.last == "pre-norm":
                last = parts.final_norm(last.to(parts.device, parts.dtype)).to(values.device, values.dtype)
            found[row.number] = States(aux=values[:, :-width], last=last)
            bar.advance(len(values))
    return [found[number] for number in range(len(rows))]
