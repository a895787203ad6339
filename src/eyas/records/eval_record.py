"""What `eyas eval` measured (`eyas.eval/1`) and `eyas infer` found (`eyas.infer/1`), as JSON objects."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

SCHEMA = "eyas.eval/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResult:
    """One row's rounds.

    Attributes:
        id, set: of the row.
        accepted: per round, how many drafts were accepted inside the recorded text.
    """

    id: str
    set: str
    accepted: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of one set, or of all rows.

    Attributes:
        accept_length: tokens per verify pass, bonus included, pooled over rounds; nan without rounds.
        accept_length_request_mean: unweighted mean of the rows' accept lengths.
        per_position: entry k = share of rounds in which drafts 1 … k+1 were all accepted (joint).
        per_position_conditional: the same, given that all drafts before were accepted.
        accepted_at: the counts behind `per_position`.
        rounds: verify passes.
        num_tokens: tokens gained in them, bonus tokens included.
        num_requests: rows.
        num_draft_tokens: K, drafts per verify pass, bonus excluded; of a tree its depth, the most that can be accepted.
    """

    accept_length: float
    accept_length_request_mean: float
    per_position: tuple[float, ...]
    per_position_conditional: tuple[float, ...]
    accepted_at: tuple[int, ...]
    rounds: int
    num_tokens: int
    num_requests: int
    num_draft_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NotRepetitive:
    """Figures of the rows whose answers do not repeat themselves: repeated text flatters every draft.

    Attributes:
        limit: largest share of tokens that end a 4-gram seen before in the same answer.
        figures: of all such rows.
        sets: by set; sets without such a row are left out.
    """

    limit: float
    figures: Figures
    sets: Mapping[str, Figures]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRecord:
    """An evaluation.

    Attributes:
        figures: of all rows.
        sets: name -> figures, in order of first appearance in the data.
        prompt_lengths: by prompt tokens ("under 256", "256 … 1023", "1024 or more"), those that occur.
        rows: in the data's order.
        not_repetitive: the same figures without the answers that repeat themselves.
        tree: width, depth, num_nodes of the trees drafted; None for chains.
        draft, target, data: what was evaluated, on what, with fingerprints.
        settings: dtype, device, versions, seconds.
        notes: what was defaulted, skipped or generated.
        predicted: engine -> what it will serve, as `eyas check --probe` has it; {} if no engine was asked for.
    """

    figures: Figures
    tree: Mapping[str, int] | None = None
    sets: Mapping[str, Figures]
    prompt_lengths: Mapping[str, Figures]
    not_repetitive: NotRepetitive
    draft: Mapping[str, Any]
    target: Mapping[str, Any]
    data: Mapping[str, Any]
    settings: Mapping[str, Any]
    notes: Sequence[str] = ()
    predicted: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rows: Sequence[RowResult]

    def as_document(self) -> dict[str, Any]:
        """The evaluation as a JSON object: the figures of all rows at its top, those of the sets under `sets`."""
        document = _json_of(asdict(self))
        plain = document["not_repetitive"]
        document["not_repetitive"] = {"limit": plain["limit"], **plain["figures"], "sets": plain["sets"]}
        return {"schema": SCHEMA, **document.pop("figures"), **document}


def _json_of(value: Any) -> Any:
    """As JSON has it: null for NaN, where there was nothing to divide by."""
    if isinstance(value, dict):
        return {name: _json_of(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_of(item) for item in value]
    return None if value != value else value


INFER_SCHEMA = "eyas.infer/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One reading of a draft, and what it accepts.

    Attributes:
        changes: switch -> value, where it differs from what the draft's files state; empty = as stated.
        accept_length: bonus included, pooled over the rows; nan without a round.
        rounds: verify passes counted.
        is_tied: the best reading is not clearly better than this one: the texts do not tell them apart.
    """

    changes: Mapping[str, Any]
    accept_length: float
    rounds: int
    is_tied: bool = False


# Below it, chance decides which reading is best: a draft of random weights reaches 1.0x under any of them.
LEAST_TO_INFER = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class InferRecord:
    """The readings that were tried, best first.

    Attributes:
        variants: all of them; the one without changes is what the files state.
        num_draft_tokens: K.
        num_rows: texts replayed.
        draft: its path.
    """

    variants: Sequence[Variant]
    num_draft_tokens: int
    num_rows: int
    draft: str

    @property
    def best(self) -> Variant:
        """The reading that accepts most; what the files state, where nothing beats it."""
        return self.variants[0]

    @property
    def is_decided(self) -> bool:
        """Some reading accepts enough to tell readings apart: a draft of random weights never does."""
        return self.best.accept_length >= LEAST_TO_INFER

    @property
    def stated(self) -> Variant:
        """The reading that the files state."""
        return next(variant for variant in self.variants if not variant.changes)

    def as_document(self) -> dict[str, Any]:
        """The record as a JSON object."""
        return {
            "schema": INFER_SCHEMA,
            "draft": self.draft,
            "num_draft_tokens": self.num_draft_tokens,
            "num_rows": self.num_rows,
            "is_decided": self.is_decided,
            "stated_is_best": not self.best.changes,
            "variants": [asdict(variant) for variant in self.variants],
        }
