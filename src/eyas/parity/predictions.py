"""The accept length that each engine will serve, before any is started: the draft on a probe pack, as each runs it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eyas.contract.engines.loading.ledger import Ledger
from eyas.errors import EyasError
from eyas.records.eval_record import Figures
from eyas.records.eval_rows import require_rounds
from eyas.replay.eval_config import ReplayConfig
from eyas.replay.evaluate import load_for_pack, prepare
from eyas.replay.predict import Prediction, as_trained, predict_each, predictions_document, replayed
from eyas.replay.probe_pack import PackStates, read_probe
from eyas.talk import Talk


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """A draft on a probe pack: as trained, and as each engine will run it.

    Attributes:
        trained: as it was trained; also what our own engine serves.
        engines: label -> prediction, or why there is none; "ours" is our own engine.
        num_rows, num_draft_tokens: texts replayed, K.
    """

    trained: Figures
    engines: Mapping[str, Prediction | EyasError]
    num_rows: int
    num_draft_tokens: int

    def as_document(self) -> dict[str, Any]:
        """The predictions as a JSON object."""
        return {
            "num_draft_tokens": self.num_draft_tokens,
            "num_rows": self.num_rows,
            "trained": asdict(self.trained),
            "engines": predictions_document(self.engines),
        }


def predict_on_probe(
    draft_path: Path,
    probe_path: Path,
    ledgers: Mapping[str, Ledger],
    config: ReplayConfig,
    talk: Talk,
    *,
    with_ours: bool = False,
) -> Predictions:
    """Predictions of all `ledgers` on a pack's texts: no target and no engine is needed.

    Args:
        draft_path: folder or file of the draft that the ledgers are about.
        config: K, dtype, device; `max_rows` takes the first rows of the pack.
        with_ours: our own engine too.

    Raises:
        ProbeUnreadable, ProbeLacksBoundary: the pack.
        what reading the draft raises (docs/errors.md).
    """
    placement, pack = prepare(config), read_probe(probe_path)
    draft = load_for_pack(draft_path, pack, probe_path, placement, talk)
    states, rows = PackStates(pack, placement.device), pack.rows[: config.max_rows]
    require_rounds(rows, "eyas check --probe")
    given = {"embedding": pack.embedding(placement.dtype).to(placement.device)}
    trained = replayed(states, draft, rows, config.num_draft_tokens, talk)
    engines = predict_each(states, draft, rows, ledgers, trained, talk, target=given)
    engines |= {"ours": as_trained("ours", trained)} if with_ours else {}
    return Predictions(trained=trained, engines=engines, num_rows=len(rows), num_draft_tokens=config.num_draft_tokens)
