"""`check --deep`: what only the numbers show. Reads data in slices; knows nothing of engines."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from eyas.contract.files.checkpoint import Checkpoint, IntMap, TensorInfo
from eyas.contract.files.tensor_sample import Statistics, can_read, cosine, rows, statistics
from eyas.contract.spec.draft_spec import DraftReading
from eyas.diagnostic import Diagnostic, finding
from eyas.talk import counted

_SAMPLED_ROWS = 48
# mean cosine with the target's rows: a fine-tuned copy is far above, unrelated rows of real models far below
_RELATED, _EQUAL = 0.2, 0.999
_EMBEDDINGS = ("model.embed_tokens.weight", "embed_tokens.weight", "language_model.model.embed_tokens.weight",
               "model.language_model.embed_tokens.weight")  # fmt: skip
_HEADS = ("lm_head.weight", "language_model.lm_head.weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepReport:
    """What the data show.

    Attributes:
        findings: engine-independent.
        embedding_is_random: the draft's own embedding is unrelated to the target's; an engine that uses it
            drafts from noise. None = not compared.
    """

    findings: tuple[Diagnostic, ...]
    embedding_is_random: bool | None = None


def deep_check(reading: DraftReading, target: Checkpoint | None) -> DeepReport:
    """Everything that data say about the draft, and about it and `target` where its weights are there."""
    draft, spec = reading.checkpoint, reading.spec
    if draft.root is None:
        note = finding("deep-no-data", "note", "a header dump holds no data", draft.where, "nothing to read deeply")
        return DeepReport(findings=(note,))
    findings: list[Diagnostic] = []
    num_sampled = 0
    for name, info in spec.tensors.items():
        if can_read(draft, info) and 0 not in info.shape:
            found = statistics(draft, info)
            findings += _judge(name, info, found, draft.where)
            num_sampled += not found.is_complete
    if num_sampled:
        what = f"{counted(num_sampled, 'tensor was', 'tensors were')} looked at in samples"
        why = "numpy is not installed: a NaN between the samples is not seen"
        findings.append(finding("deep-sampled", "note", what, draft.where, why, "pip install numpy"))
    embedding, is_random = _embedding(reading, target)
    return DeepReport(
        findings=(*findings, *embedding, *_head(reading, target)),
        embedding_is_random=is_random,
    )


def _judge(name: str, info: TensorInfo, found: Statistics, where: str) -> list[Diagnostic]:
    place = f"{where}: {name}"
    if found.num_bad:
        what = f"{name} has {found.num_bad} values that are NaN or infinite"
        why = "one of them makes every logit NaN: nothing is accepted"
        do = "export an earlier checkpoint (speculators starts embeddings as NaN and fills them from the target)"
        return [finding("values-not-finite", "fatal", what, place, why, do)]
    is_norm = name.endswith("norm.weight") or ".fc_norm." in name or name.startswith("fc_norm.")
    if found.minimum == found.maximum:
        if is_norm and found.minimum == 1.0:
            why = "a norm that training never moved, or that was never loaded into the trainer's export"
            return [finding("norm-untouched", "note", f"{name} is all ones", place, why)]
        if name.endswith(".bias"):
            return []
        why = "a tensor that was allocated and never written, or a head that collapsed"
        what = f"{name} is constant: {found.minimum:g}"
        return [finding("values-constant", "error", what, place, why, "export the draft again")]
    return _looks_fresh(name, info, found, place) if len(info.shape) == 2 else []


def _looks_fresh(name: str, info: TensorInfo, found: Statistics, place: str) -> list[Diagnostic]:
    """A matrix with the exact distribution that torch gives a new Linear, or transformers a new weight."""
    if found.num_values < 4096 or abs(found.mean) > 0.02 * found.std:
        return []
    bound = 1 / math.sqrt(info.shape[1])
    is_uniform = abs(found.kurtosis - 1.8) < 0.02 and abs(max(-found.minimum, found.maximum) / bound - 1) < 0.02
    is_normal = abs(found.kurtosis - 3.0) < 0.03 and abs(found.std / 0.02 - 1) < 0.01
    if not is_uniform and not is_normal:
        return []
    kind = "torch.nn.Linear starts with" if is_uniform else "transformers starts with (normal, 0.02)"
    what = f"{name} has the distribution that {kind}"
    why = f"std {found.std:.4g}, kurtosis {found.kurtosis:.3f}: trained weights move away from it"
    do = "see whether the trainer loaded and saved this tensor"
    return [finding("values-look-untrained", "warning", what, place, why, do)]


def _weight(target: Checkpoint | None, names: Sequence[str]) -> TensorInfo | None:
    if target is None:
        return None
    return next((target.tensors[n] for n in names if n in target.tensors and can_read(target, target.tensors[n])), None)


def _spread(count: int) -> list[int]:
    step = max(1, count // _SAMPLED_ROWS)
    return list(range(step // 2, count, step))[:_SAMPLED_ROWS]


def _mean_cosine(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> float:
    found = [cosine(x, y) for x, y in zip(a, b, strict=True)]
    return sum(found) / max(1, len(found))


def _embedding(reading: DraftReading, target: Checkpoint | None) -> tuple[list[Diagnostic], bool | None]:
    draft, info = reading.checkpoint, reading.spec.tensors.get("embed_tokens.weight")
    theirs = _weight(target, _EMBEDDINGS)
    if info is None or target is None or theirs is None or not can_read(draft, info):
        return [], None
    if info.shape[1] != theirs.shape[1]:
        return [], None
    picked = _spread(min(info.shape[0], theirs.shape[0]))
    likeness = _mean_cosine(rows(draft, info, picked), rows(target, theirs, picked))
    place = f"{draft.where}: embed_tokens.weight"
    if likeness > _EQUAL:
        what = "the draft's embedding equals the target's"
        return [finding("embedding-equal", "note", what, place, "it need not be stored")], False
    if likeness > _RELATED:
        what = f"the draft has its own embedding (mean cosine {likeness:.2f} with the target's)"
        why = "vLLM uses it; SGLang overwrites it with the target's unless target_hidden_size differs"
        return [finding("embedding-own", "warning", what, place, why, "serve it with vLLM, or accept the loss")], False
    what = f"the draft's embedding is unrelated to the target's (mean cosine {likeness:.3f})"
    why = (
        "random rows exported by a trainer that used the target's (TorchSpec#38), or rows in another order; vLLM uses"
        " them, SGLang overwrites them"
    )
    do = "drop embed_tokens.weight from the checkpoint: engines then share the target's"
    return [finding("embedding-random", "error", what, place, why, do)], True


def _head(reading: DraftReading, target: Checkpoint | None) -> list[Diagnostic]:
    draft, info, d2t = reading.checkpoint, reading.spec.tensors.get("lm_head.weight"), reading.int_maps.get("d2t")
    if info is None or d2t is None or d2t.values is None or not can_read(draft, info):
        return []
    return [*_repeated(draft, info, d2t), *_against_target(reading, info, d2t, target)]


def _repeated(draft: Checkpoint, info: TensorInfo, d2t: IntMap) -> list[Diagnostic]:
    """TorchSpec's pruner takes offsets for ids: neighbours with one offset get the very same row."""
    assert d2t.values is not None, "_head says so"
    limit = min(info.shape[0], d2t.length) - 1
    pairs = [i for i in range(limit) if d2t.values[i] == d2t.values[i + 1]]
    picked = [pairs[i] for i in _spread(len(pairs))] if pairs else []
    if len(picked) < 4:
        return []
    first, second = rows(draft, info, picked), rows(draft, info, [i + 1 for i in picked])
    same = sum(tuple(a) == tuple(b) for a, b in zip(first, second, strict=True))
    if same < 0.9 * len(picked):
        return []
    what = "rows of lm_head repeat wherever two draft ids have the same offset"
    why = (
        f"{same} of {len(picked)} sampled neighbours are equal: lm_head[d2t] was taken with offsets as ids (TorchSpec's"
        " vocabulary pruning)"
    )
    do = "take lm_head[i + d2t[i]] from the unpruned checkpoint"
    return [finding("head-sliced-by-offsets", "fatal", what, f"{draft.where}: lm_head.weight", why, do)]


def _against_target(
    reading: DraftReading, info: TensorInfo, d2t: IntMap, target: Checkpoint | None
) -> list[Diagnostic]:
    theirs = _weight(target, _HEADS) or _weight(target, _EMBEDDINGS)
    if target is None or theirs is None or info.shape[1] != theirs.shape[1]:
        return []
    assert d2t.values is not None, "_head says so"
    picked = [i for i in _spread(min(info.shape[0], d2t.length)) if 0 <= i + d2t.values[i] < theirs.shape[0]]
    # the first ids often map to themselves: they tell nothing
    picked = [i for i in picked if d2t.values[i] > 0 and d2t.values[i] < theirs.shape[0]]
    if len(picked) < 8:
        return []
    ours = rows(reading.checkpoint, info, picked)
    offsets = d2t.values

    def likeness(ids: list[int]) -> float:
        return _mean_cosine(ours, rows(target, theirs, ids))

    as_mapped = likeness([i + offsets[i] for i in picked])
    by_offset = likeness([offsets[i] for i in picked])
    others = {"the target's first rows": likeness(picked), "the rows that d2t's offsets would name as ids": by_offset}
    name, best = max(others.items(), key=lambda item: item[1])
    place = f"{reading.checkpoint.where}: lm_head.weight"
    if best > max(_RELATED, as_mapped + 0.3):
        what = f"rows of lm_head are {name} (mean cosine {best:.2f}), not those that d2t names ({as_mapped:.2f})"
        why, do = "tokens are scored by other tokens' rows", "export lm_head and d2t from the same map"
        return [finding("head-rows-disagree", "fatal", what, place, why, do)]
    if as_mapped > _EQUAL:
        return [finding("head-frozen", "note", "rows of lm_head are the target's, by d2t", place, "a frozen head")]
    return []
