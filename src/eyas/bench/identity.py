"""Speculation must not change the text: compares answers token for token and judges the token at which they part."""

from collections.abc import Sequence

from eyas.bench.arm import Answer, BenchPrompt, Oracle
from eyas.errors import ExitCode, EyasError
from eyas.records.bench_record import Divergence

# A lower precision rounds logits of some 20 to steps of 1/8 (bfloat16) or 1/64 (float16); a few steps are a near-tie.
MAX_LOGIT_GAP = {"float32": 1e-4, "float16": 0.125, "bfloat16": 1.0}


class TextsDiffer(EyasError):
    """A speculative text differs from the plain one, and no near-tie excuses it."""

    code = "bench-texts-differ"
    exit_code = ExitCode.FINDINGS


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Index of the first different token (the shorter length if one ends early); None if they are the same."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return None if len(a) == len(b) else min(len(a), len(b))


def judge(
    prompt: BenchPrompt,
    plain: Answer,
    other: Answer,
    num_draft_tokens: int,
    oracle: Oracle,
    max_gap: float = MAX_LOGIT_GAP["float32"],
) -> Divergence | None:
    """None when the texts are the same, or the near-tie at which they part.

    Raises:
        TextsDiffer: one of the two tokens at the first difference lies `max_gap` or more below the target's best logit.
    """
    at = first_difference(plain.ids, other.ids)
    if at is None:
        return None
    tokens = [answer.ids[at] for answer in (plain, other) if at < len(answer.ids)]
    gap = oracle.logit_gap([*prompt.prompt_ids, *plain.ids[:at]], tokens)
    if gap >= max_gap or len(tokens) < 2:
        raise TextsDiffer(
            f"speculative decoding changed the text of prompt {prompt.id}",
            f"prompt {prompt.id}, K = {num_draft_tokens}, token {at}",
            f"plain has {_at(plain.ids, at)}, speculative has {_at(other.ids, at)}, and one of them lies {gap:.2e}"
            f" below the target's best logit (a near-tie is < {max_gap:g}): speed with another text is not a speedup",
            "report this with the prompt: it is a bug in the engine or its kernels",
        )
    return Divergence(id=prompt.id, num_draft_tokens=num_draft_tokens, at=at, logit_gap=gap)


def _at(ids: Sequence[int], index: int) -> str:
    return str(ids[index]) if index < len(ids) else "ended"
