"""Arms in process: our engine, and transformers' own `generate` beside its plain arm. Imports torch when used."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from eyas.bench.arm import Answer, BenchPrompt
from eyas.bench.compare import PartTimes

if TYPE_CHECKING:
    from eyas.engine.adaptive import AdaptiveDepth
    from eyas.engine.engine import Engine, FastPath, Limits


class EngineArm:
    """Our engine with K drafts per pass; K = 0 is the plain arm, by the same code. Or with a depth that adapts."""

    def __init__(
        self, engine: "Engine", limits: "Limits", num_draft_tokens: int, adaptive: "AdaptiveDepth | None" = None
    ) -> None:
        self._engine, self._limits, self._adaptive = engine, limits, adaptive
        self.num_draft_tokens = num_draft_tokens if adaptive is None else adaptive.most
        self.name = "k=auto" if adaptive else f"k={num_draft_tokens}" if num_draft_tokens else "plain"

    def answer(self, prompt: BenchPrompt) -> Answer:
        """See `Arm.answer`."""
        depth = 0 if self._adaptive else self.num_draft_tokens
        text = self._engine.generate(prompt.prompt_ids, self._limits, num_draft_tokens=depth, adaptive=self._adaptive)
        return Answer(
            ids=tuple(text.ids),
            origins=tuple(text.origins),
            accepted=tuple(text.accepted) if self.num_draft_tokens else None,
            drafted=tuple(text.drafted) if self._adaptive else None,
            prefill_s=text.prefill_s,
            decode_s=text.decode_s,
        )


class EngineOracle:
    """The engine's target, asked about near-ties."""

    def __init__(self, engine: "Engine") -> None:
        self._target = engine.target

    def logit_gap(self, ids: Sequence[int], tokens: Sequence[int]) -> float:
        """See `Oracle.logit_gap`."""
        self._target.start(len(ids) + 1, ())
        logits = self._target.prefill(list(ids)).logits[0].float()
        return float(logits.max() - logits[list(tokens)].min())


class TransformersArm:
    """`transformers` greedy `generate`, as a user would call it: the peer of the plain arm.

    Args:
        folder: of the target.
        limits: as for the other arms.
        dtype, device: by name.
        num_threads: what torch uses when nobody interferes.
    """

    name, num_draft_tokens = "transformers", 0

    def __init__(self, folder: Path, limits: "Limits", dtype: str, device: str, num_threads: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self._torch, self._limits, self._num_threads = torch, limits, num_threads
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), local_files_only=True)
        self._model = model.to(device).eval()

    def answer(self, prompt: BenchPrompt) -> Answer:
        """See `Arm.answer`; the time of the first token is that of its arrival at a streamer."""
        torch, times = self._torch, []

        class Streamer:
            def put(self, value: Any) -> None:
                times.append(time.perf_counter())

            def end(self) -> None:
                return None

        ids = torch.tensor([prompt.prompt_ids], device=self._model.device)
        of_engine = torch.get_num_threads()
        torch.set_num_threads(self._num_threads)  # the engine may have chosen fewer for itself
        started = time.perf_counter()
        out = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=self._limits.max_new_tokens,
            eos_token_id=sorted(self._limits.stop_ids) or None,
            pad_token_id=next(iter(self._limits.stop_ids), 0),
            streamer=Streamer(),
        )
        ended = time.perf_counter()
        torch.set_num_threads(of_engine)
        first = times[1]  # times[0] is the prompt's own echo
        new_ids = out[0, ids.shape[1] :].tolist()
        return Answer(ids=tuple(new_ids), prefill_s=first - started, decode_s=ended - first)


class PartTimer:
    """Times the parts of a round by themselves, for the ceiling; where rounds are captured, the captured parts.

    Args:
        engine: with a draft.
        ids: a text of typical length: attention reads all of it.
        depths: every K to time a verify pass for.
    """

    def __init__(self, engine: "Engine", ids: Sequence[int], depths: Sequence[int]) -> None:
        assert engine.draft is not None, "the parts of a round include a draft"
        self._target, self._draft, self._fast = engine.target, engine.draft, engine.fast
        self._ids, self._depths = list(ids), sorted(set(depths))
        self._rows: dict[int, list[float]] = {rows: [] for rows in (1, *(k + 1 for k in self._depths))}
        self._steps: list[float] = []

    def sample(self, num_repeats: int) -> None:
        """Time every part `num_repeats` times, in turns; call it before and after what the ceiling is held against."""
        if self._fast is not None:
            self._sample_fast(self._fast, num_repeats)
            return
        deepest = self._depths[-1]
        capacity = len(self._ids) + deepest + 2 + num_repeats  # each timed step lengthens the draft's text by one
        self._target.start(capacity, self._draft.aux_boundaries)
        output = self._target.prefill(self._ids)
        next_id = int(output.logits[-1].argmax())
        self._draft.start(capacity)
        self._draft.read([*self._ids[1:], next_id], output.aux_states)
        rows_ids = [next_id] * (deepest + 1)
        for _ in range(num_repeats):
            for rows, times in self._rows.items():
                times.append(_timed(lambda rows=rows: self._target.forward(rows_ids[:rows])))  # type: ignore[misc]
                self._target.truncate(len(self._ids))
            self._steps.append(_timed(lambda: self._draft.step(next_id)))

    def _sample_fast(self, fast: "FastPath", num_repeats: int) -> None:
        for _ in range(num_repeats):
            one_row, verify, step = fast.measure_parts(len(self._ids), self._depths)
            self._rows[1].append(one_row)
            for depth, seconds in verify.items():
                self._rows[depth + 1].append(seconds)
            self._steps.append(step)

    @property
    def times(self) -> PartTimes:
        """Medians of all samples."""
        return PartTimes(
            one_row=median(self._rows[1]),
            verify={k: median(self._rows[k + 1]) for k in self._depths},
            draft_step=median(self._steps),
        )


def _timed(part: Callable[[], Any]) -> float:
    started = time.perf_counter()
    part()
    return time.perf_counter() - started
