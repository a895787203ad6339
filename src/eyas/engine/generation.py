"""What a generation yields: ids with their origins, counts per round, times."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from eyas.decode.accept_length import Acceptance

if TYPE_CHECKING:
    from eyas.engine.engine import Limits

PREFILL = -1
BONUS = 0

# Called with each round's ids; True ends the text there.
OnTokens = Callable[[Sequence[int]], bool | None]


@dataclass(slots=True, kw_only=True)
class Generation:
    """One generated text.

    Attributes:
        ids: new token ids; a stop id is the last one.
        origins: per id: 1 … K = accepted draft at that depth, `BONUS` (0), `PREFILL` (-1, the first token).
        num_draft_tokens: K, the depth asked for; the most where depth adapts.
        accepted: per round, accepted drafts *inside the text* (a round that runs past a stop id or the limit counts
            what lies before it; its bonus token counts always).
        drafted: per round, how many drafts were verified; 0 = an undrafted round, a plain step.
        finish: why it ended; `caller` = `on_tokens` returned True.
        prefill_s, decode_s: seconds until the first token, and from there to the last.
    """

    ids: list[int] = field(default_factory=list)
    origins: list[int] = field(default_factory=list)
    num_draft_tokens: int
    accepted: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    finish: Literal["stop", "length", "caller"] = "length"
    prefill_s: float = 0.0
    decode_s: float = 0.0

    @property
    def acceptance(self) -> Acceptance:
        """The rounds, counted by the one definition."""
        return Acceptance.of_rounds(self.accepted, self.num_draft_tokens, self.drafted)

    def begin(self, first_id: int, limits: "Limits", on_tokens: OnTokens | None = None) -> bool:
        """The prompt's own token, which belongs to no round; True when the text has ended with it."""
        self.ids.append(first_id)
        self.origins.append(PREFILL)
        self.finish = "stop" if first_id in limits.stop_ids else "length"
        return self._tell(on_tokens, 0, self.finish == "stop" or limits.max_new_tokens == 1)

    def add(
        self,
        ids: Sequence[int],
        num_accepted_drafts: int,
        limits: "Limits",
        on_tokens: OnTokens | None = None,
        *,
        num_drafted: int | None = None,
    ) -> bool:
        """Append a round's ids up to the end of the text; True when it has ended.

        Args:
            ids: accepted drafts, then the bonus token.
            num_accepted_drafts: number of leading `ids` that are accepted drafts.
            limits: when the text ends; a stop id is its last.
            on_tokens: called with what was appended.
            num_drafted: drafts verified; None for K.
        """
        before, stop_ids = len(self.ids), limits.stop_ids
        num_room = limits.max_new_tokens - before
        kept = next((i + 1 for i, token in enumerate(ids) if token in stop_ids), len(ids))
        self.finish = "stop" if kept <= num_room and ids[kept - 1] in stop_ids else "length"
        kept = min(kept, num_room)
        self.ids += ids[:kept]
        self.origins += [i + 1 if i < num_accepted_drafts else BONUS for i in range(kept)]
        self.accepted.append(min(kept, num_accepted_drafts))
        self.drafted.append(self.num_draft_tokens if num_drafted is None else num_drafted)
        return self._tell(on_tokens, before, self.finish == "stop" or len(self.ids) >= limits.max_new_tokens)

    def _tell(self, on_tokens: OnTokens | None, begin: int, has_ended: bool) -> bool:
        """Call `on_tokens` with the ids from `begin` on; True if the text has ended for any reason."""
        wants_end = on_tokens is not None and bool(on_tokens(tuple(self.ids[begin:])))
        if wants_end and not has_ended:
            self.finish = "caller"
        return has_ended or wants_end

    def cut(self, num_ids: int) -> None:
        """Keep the first `num_ids` ids; what is dropped must lie in the last round (its bonus token counts always)."""
        if dropped := self.origins[num_ids:]:
            assert dropped[0] != PREFILL, "the prompt's own token stays"
            self.accepted[-1] -= sum(origin > BONUS for origin in dropped)
        del self.ids[num_ids:], self.origins[num_ids:]
