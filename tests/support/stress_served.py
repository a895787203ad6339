"""What a real engine accepted with a spoiled draft, beside what the ledger's emulation accepts on the same ids."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eyas.contract.check.check import check
from eyas.contract.engines.loading.ledger import Ledger
from eyas.contract.engines.registry import parse_engine
from eyas.contract.files.read_checkpoint import read_checkpoint, read_target_checkpoint
from eyas.contract.reading.open_draft import open_draft
from eyas.contract.spec.target_spec import read_target
from eyas.decode.accept_length import Acceptance
from eyas.models.draft import Eagle3Draft, required_boundaries
from eyas.models.load_draft import read_tensors
from eyas.models.states import StateSource, states_of_row
from eyas.models.target import LiveStates, Target
from eyas.parity.compared import Compared, compare
from eyas.parity.near_ties import count_on_path, decisions
from eyas.records.eval_rows import EvalRow
from eyas.replay.emulate import FILLS, emulate
from eyas.replay.replay import replay_states
from eyas.replay.states import KeptStates
from eyas.talk import Silent


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One row.

    Attributes:
        by_fill: what uninitialised memory may hold -> the comparison; "exact" alone where nothing is uninitialised.
    """

    by_fill: Mapping[str, Compared]

    @property
    def served(self) -> Acceptance:
        """The engine's own counts."""
        return next(iter(self.by_fill.values())).served

    @property
    def is_as_predicted(self) -> bool:
        """Every count is the predicted one, or explained by near-ties; of a range: it lies within, 3 % to spare."""
        if any(one.verdict != "different" for one in self.by_fill.values()):
            return True
        if len(self.by_fill) == 1:
            return False
        shares = [one.replayed.per_position for one in self.by_fill.values()]
        ranges = [(min(column) - 0.03, max(column) + 0.03) for column in zip(*shares, strict=True)]
        return all(low <= share <= high for (low, high), share in zip(ranges, self.served.per_position, strict=True))


def ledger_of(folder: Path, target: Path, engine: str) -> Ledger:
    """What `engine` does with the draft in `folder`."""
    (ledger,) = check(read_checkpoint(folder), read_target_checkpoint(target), [parse_engine(engine)]).ledgers.values()
    return ledger


def loads(ledger: Ledger) -> bool:
    """The ledger says that the engine constructs and loads the draft, and gets the states that it reads."""
    return bool(ledger.tensors) and all(ledger.stages[s][0] not in ("refuses", "crash") for s in ("load", "capture"))


@torch.no_grad()
def as_stored(folder: Path, target: Path, model: Target) -> Eagle3Draft:
    """The draft as its files read, sound or not: zeros where a tensor is missing, cut where one is too long."""
    spec = open_draft(folder, read_target(target), strict=False)
    draft = Eagle3Draft(spec, target_embedding=model.parts.embedding, target_head=model.parts.head)
    state = draft.state_dict()
    for tensor in state.values():
        tensor.zero_()
    for name, stored in read_tensors(spec, folder):
        if name in state:
            part = tuple(slice(0, min(a, b)) for a, b in zip(stored.shape, state[name].shape, strict=True))
            state[name][part] = stored[part].to(state[name].dtype)
    return draft.to(model.device, model.parts.embedding.dtype).eval()


@torch.no_grad()
def judge(
    folder: Path,
    target: Path,
    model: Target,
    engine: str,
    served: Mapping[str, Any],
    prompts: Sequence[EvalRow],
    dtype: str,
    states: StateSource | None = None,
) -> Judged:
    """Replay the ids in `served` (of benchmarks/stress_engine.py) with the draft as `engine`'s ledger has it.

    Args:
        dtype: that the engine computed in.
        states: of the target over the same ids, where they are kept; by default the target runs.

    Raises:
        EmulationImpossible: there is no prediction for this row.
    """
    rows = [
        EvalRow(id=row.id, set=row.set, prompt_ids=row.prompt_ids, response_ids=tuple(ids))
        for row, ids in zip(prompts, served["ids"], strict=True)
    ]
    draft, ledger = as_stored(folder, target, model), ledger_of(folder, target, engine)
    given = {"embedding": model.parts.embedding, "head": model.parts.head}
    is_open = any(entry.state in ("uninitialised", "partly") for entry in ledger.parameters)
    by_fill = {}
    for fill in FILLS if is_open else FILLS[:1]:
        seen = emulate(draft, ledger, fill, target=given).draft
        by_fill[fill if is_open else "exact"] = _compared(
            seen, states or KeptStates(LiveStates(model)), rows, served, dtype
        )
    return Judged(by_fill=by_fill)


def _compared(
    draft: Eagle3Draft, states: StateSource, rows: Sequence[EvalRow], served: Mapping[str, Any], dtype: str
) -> Compared:
    depth = len(served["accepted_at"])
    counts = Acceptance(served["rounds"], tuple(served["accepted_at"]), (served["rounds"],) * depth)
    rounds = [row.accepted for row in replay_states(states, draft, rows, depth, Silent(), batch_tokens=4096)]
    ends = [sum(n + 1 for n in one) >= len(row.response_ids) for one, row in zip(rounds, rows, strict=True)]
    found = compare(counts, rounds, ends, 0)
    if not any(found.excess):
        return found
    ties = 0
    for number, row in enumerate(rows):
        text = [*row.prompt_ids, *row.response_ids]
        aux = states_of_row(states, number, text, required_boundaries(draft)).aux[None]
        decided = decisions(draft, torch.tensor([text], device=states.device), aux, depth, dtype)
        ties += count_on_path(decided.narrow, rounds[number], len(row.prompt_ids))
    return compare(counts, rounds, ends, ties)
