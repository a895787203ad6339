"""The probe pack: a target's states over a few held-out texts, so that a draft can be judged without the target.

One safetensors file:
    token_ids       I32 [N]        all rows one after the other, prompt and response
    row_starts      I64 [R + 1]    row r is token_ids[row_starts[r] : row_starts[r + 1]]
    num_prompt      I32 [R]        of its tokens, how many are the prompt
    state.B         float [N, Ht]  for each boundary B, the number of decoder layers applied
    last            float [N, Ht]  after the final norm
    embedding_ids   I32 [U]        the distinct ids of token_ids, ascending
    embedding_rows  float [U, Ht]  their rows of the target's embedding
and in its metadata, under `eyas`, the JSON object below (`eyas.probe/1`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from eyas.errors import EyasError

SCHEMA = "eyas.probe/1"
METADATA_KEY = "eyas"


class ProbeUnreadable(EyasError):
    """The file is not a probe pack, or it is damaged."""

    code = "probe-unreadable"


class ProbeLacksBoundary(EyasError):
    """The draft reads a target state that the pack does not hold."""

    code = "probe-lacks-boundary"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeAbout:
    """What a pack is.

    Attributes:
        target: its identity, with fingerprints.
        num_layers, vocab_size: of the target.
        boundaries: those of the draft that it was made for, in `fc` order; the pack may hold more.
        row_ids, row_sets: names of the rows.
        dtype: of the states, as the target computed them.
        fingerprint: of the token ids.
    """

    target: Mapping[str, Any]
    num_layers: int
    vocab_size: int
    boundaries: Sequence[int]
    row_ids: Sequence[str]
    row_sets: Sequence[str]
    dtype: str
    fingerprint: str

    def as_metadata(self) -> dict[str, str]:
        """As safetensors metadata: strings only."""
        return {METADATA_KEY: json.dumps({"schema": SCHEMA, **asdict(self)}, ensure_ascii=False)}


def read_about(metadata: Mapping[str, str], where: str) -> ProbeAbout:
    """The `ProbeAbout` in a safetensors file's metadata.

    Raises:
        ProbeUnreadable: there is none, or it is of another schema.
    """
    try:
        document = json.loads(metadata[METADATA_KEY])
        if document.pop("schema") != SCHEMA:
            raise ValueError(f"its schema is not {SCHEMA}")
        return ProbeAbout(**document)
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise unreadable(where, f"{type(error).__name__}: {error}") from error


def unreadable(where: str, why: str) -> ProbeUnreadable:
    """The error for a file that is not a pack."""
    return ProbeUnreadable(
        f"{where} is not a probe pack", where, why, "make one: eyas eval DRAFT --target T --write-probe PACK"
    )
