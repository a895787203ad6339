"""The stage behind `eyas parity`: ask a server, replay exactly what it emitted, compare counts by position."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from eyas.client.address import ServerAddress
from eyas.client.server_api import GenerationOptions
from eyas.models.draft import Eagle3Draft, required_boundaries
from eyas.models.states import StateSource, states_of_row
from eyas.parity.ask import Served, ask
from eyas.parity.compared import Compared, compare, compare_sampled
from eyas.parity.faults import Suspect, suspects
from eyas.parity.near_ties import count_on_path, decisions
from eyas.parity.recorded import ask_recorded
from eyas.parity.sampled_drafts import ExpectedCounts, accept_chances, expected_counts
from eyas.parity.signatures import signatures
from eyas.records.eval_rows import EvalRow, require_rounds
from eyas.replay.infer import THETAS
from eyas.replay.replay import check_vocabulary, walk_rounds
from eyas.replay.states import KeptStates, SomeRows
from eyas.talk import Talk, counted

if TYPE_CHECKING:
    import httpx

SCHEMA = "eyas.parity/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parity:
    """What was found.

    Attributes:
        compared: the two counts.
        served: what the server answered.
        suspects: faults that would give the server's counts; () when they are equal, or none of the known ones fits.
        left_out: prompts whose answer could not be replayed, and why.
        notes: what was assumed.
    """

    compared: Compared
    served: Served
    suspects: tuple[Suspect, ...]
    left_out: Mapping[str, str]
    notes: tuple[str, ...]

    def as_document(self, draft: Path, url: str) -> dict[str, Any]:
        """The result as a JSON object."""
        both = {"served": self.compared.served, "replayed": self.compared.replayed}
        return {
            "schema": SCHEMA,
            "url": url,
            "draft": str(draft),
            "verdict": self.compared.verdict,
            "first_different_position": self.compared.first_different_position,
            **{
                name: {
                    "accept_length": counts.accept_length,
                    "rounds": counts.rounds,
                    "accepted_at": list(counts.accepted_at),
                    "per_position": list(counts.per_position),
                }
                for name, counts in both.items()
            },
            "largest_difference_of_rounds": self.compared.largest_share,
            "near_ties": self.compared.near_ties,
            "open_ends": self.compared.open_ends,
            "allowed": list(self.compared.allowed),
            "counts_from": "counters" if self.served.by_row is None else "answers",
            "num_prompts": len(self.served.rows),
            "left_out": dict(self.left_out),
            "suspects": [
                {
                    "name": found.signature.name,
                    "faults": list(found.signature.faults),
                    "accept_length": found.signature.acceptance.accept_length,
                    "per_position": list(found.signature.acceptance.per_position),
                    "distance": found.distance,
                }
                for found in self.suspects
            ],
            "notes": list(self.notes),
            "rows": [{**asdict(row), "prompt_ids": list(row.prompt_ids)} for row in self.served.rows],
        }


def run_parity(
    http: "httpx.Client",
    address: ServerAddress,
    states: StateSource,
    draft: Eagle3Draft,
    prompts: Sequence[EvalRow],
    options: GenerationOptions,
    talk: Talk,
    *,
    server_dtype: str,
    concurrency: int = 1,
    boundaries_known: Sequence[int] = (),
    num_layers: int | None = None,
    recorded: bool = False,
    target_logits: Callable[[Tensor], Tensor] | None = None,
    target_embedding: Tensor | None = None,
) -> Parity:
    """Ask the server and hold its counts against the replay of its own ids.

    Args:
        states: of the target, for any text; or of recorded texts only (`recorded`).
        draft: as it was trained.
        prompts: rows to ask.
        options: `depth` is K.
        server_dtype: that the server computes in; it decides what counts as a near-tie.
        boundaries_known: boundaries for the faults that tap other layers; () = those are not tried.
        num_layers: of the target, for the boundaries that engines tap by default.
        recorded: `states` knows the recorded answers of `prompts` only: answers that leave them are left out.
        target_embedding: [V, H], for the fault that replaces the draft's own.
        target_logits: given where the server samples its drafts: ids [1, T] to the target's logits [T, V].

    Raises:
        what `ask` raises; EvalDataEmpty: no answer holds a round.
    """
    assert options.depth is not None
    notes = (
        [] if options.temperature == 0 else ["sampled answers: exact where the engine drafts greedily (the default)"]
    )

    def asked(rows: Sequence[EvalRow], limits: Sequence[int]) -> Served:
        return ask(http, address, rows, options, talk, concurrency=concurrency, limits=limits)

    left_out: dict[str, str] = {}
    if recorded:
        found = ask_recorded(prompts, asked, options.max_new_tokens, address.url)
        served, states = found.served, SomeRows(states, found.numbers)
        left_out = {prompts[number].id: why for number, why in found.left_out.items()}
        cut = counted(found.num_cut, "answer leaves its", "answers leave their")
        notes += [f"{cut} recorded text: asked again up to there"] if found.num_cut else []
    else:
        served = asked(prompts, [options.max_new_tokens] * len(prompts))
    rows, depth, states = served.rows, options.depth, KeptStates(states)
    require_rounds(rows, "eyas parity")
    if target_logits is not None:
        wanted = _expected(states, draft, rows, options, target_logits, talk)
        compared = compare_sampled(served.pooled, wanted, len(rows))
        return Parity(compared=compared, served=served, suspects=(), left_out=left_out, notes=tuple(notes))
    rounds, ties = _replayed(states, draft, rows, depth, server_dtype, talk)
    reaches_end = [_reaches_end(row, accepted) for row, accepted in zip(rows, rounds, strict=True)]
    compared = compare(served.pooled, rounds, reaches_end, ties)
    fitting: list[Suspect] = []
    if compared.verdict == "different":
        known = signatures(
            states,
            draft,
            rows,
            depth,
            talk,
            boundaries_known=boundaries_known,
            thetas=THETAS,
            num_layers=num_layers,
            target_embedding=target_embedding,
        )
        fitting = suspects(served.pooled, known)
    return Parity(compared=compared, served=served, suspects=tuple(fitting), left_out=left_out, notes=tuple(notes))


def _replayed(
    states: StateSource, draft: Eagle3Draft, rows: Sequence[EvalRow], depth: int, server_dtype: str, talk: Talk
) -> tuple[list[tuple[int, ...]], int]:
    """The rounds of each row, and the near-ties on the path of all of them. The target runs once a row."""
    rounds, ties = list[tuple[int, ...]](), 0
    for num_prompt, ids, aux in _read_texts(states, draft, rows, talk):
        decided = decisions(draft, ids, aux, depth, server_dtype)
        rounds.append(walk_rounds(decided.accepted.tolist(), num_prompt, ids.shape[1]))
        ties += count_on_path(decided.narrow, rounds[-1], num_prompt)
    return rounds, ties


def _expected(
    states: StateSource,
    draft: Eagle3Draft,
    rows: Sequence[EvalRow],
    options: GenerationOptions,
    target_logits: Callable[[Tensor], Tensor],
    talk: Talk,
) -> ExpectedCounts:
    """What a server that samples its drafts accepts over these answers, to expect."""
    assert options.depth is not None
    zeros = (0.0,) * (options.depth + 1)
    total = ExpectedCounts(mean=zeros, variance=zeros)
    for seed, (num_prompt, ids, aux) in enumerate(_read_texts(states, draft, rows, talk)):
        chances = accept_chances(draft, ids, aux, target_logits(ids), options.depth, options.temperature)
        total += expected_counts(chances, num_prompt, ids.shape[1], seed=seed)
    return total


def _read_texts(
    states: StateSource, draft: Eagle3Draft, rows: Sequence[EvalRow], talk: Talk
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """For each row: its prompt tokens, its ids [1, T], and the states that the draft reads."""
    with talk.progress("replay", len(rows), "answers") as bar:
        for number, row in enumerate(rows):
            check_vocabulary(row, states.vocab_size)
            text = [*row.prompt_ids, *row.response_ids]
            aux = states_of_row(states, number, text, required_boundaries(draft)).aux
            yield len(row.prompt_ids), torch.tensor([text], device=states.device), aux[None]
            bar.advance()


def _reaches_end(row: EvalRow, accepted: Sequence[int]) -> bool:
    """The last round accepted all that the text still had: the engine may have accepted more beyond it."""
    if not accepted:
        return False
    before = sum(n + 1 for n in accepted[:-1])
    return before + accepted[-1] == len(row.response_ids) - 1
