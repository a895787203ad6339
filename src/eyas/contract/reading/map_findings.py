"""What is wrong with a draft's vocabulary map and head: `d2t` offsets, `t2d` mask, rows of `lm_head`."""

from eyas.contract.files.checkpoint import IntMap
from eyas.contract.files.int_map import absolute_evidence, is_absolute, map_problem
from eyas.contract.spec.draft_spec import HEAD_ROWS, DraftReading, DraftSpec
from eyas.diagnostic import Convert, Diagnostic, Edit, Remedies, finding

_REBUILD = "build d2t again from the ids that the head's rows stand for"


def map_findings(reading: DraftReading) -> list[Diagnostic]:
    """Findings about d2t, t2d and a head that does not fit them."""
    spec, where = reading.spec, reading.checkpoint.where
    d2t, t2d = reading.int_maps.get("d2t"), reading.int_maps.get("t2d")
    findings = _head(spec, where)
    findings += [
        _unreadable(name, reading, where)
        for name in ("d2t", "t2d")
        if name in spec.tensors and name not in reading.int_maps
    ]
    if spec.has_vocab_map and "d2t" not in spec.tensors:
        findings.append(_no_d2t(spec, t2d, where))
    if d2t is not None:
        findings += _d2t(spec, d2t, t2d, where, reading.dialect)
    if d2t is not None and t2d is not None:
        findings += _t2d(spec, d2t, t2d, where)
    return findings


def _head(spec: DraftSpec, where: str) -> list[Diagnostic]:
    findings = []
    if spec.head != "own" and spec.has_vocab_map:
        what = f"no lm_head.weight, but a pruned vocabulary of {spec.draft_vocab_size}"
        why = (
            f"SGLang keeps a random head; vLLM takes the first {spec.draft_vocab_size} rows of the target's:"
            " both accept nothing, in silence"
        )
        findings.append(
            finding("lm-head-missing", "fatal", what, where, why, "export the draft with its lm_head.weight")
        )
    if spec.provenance.get("draft_vocab_size") == HEAD_ROWS and spec.has_vocab_map:
        what = f"config.json lacks draft_vocab_size; lm_head has {spec.draft_vocab_size} of {spec.vocab_size} rows"
        why = "SGLang stops at the missing key; vLLM takes vocab_size and does not fit the head"
        do = Edit("draft_vocab_size", spec.draft_vocab_size)
        findings.append(finding("draft-vocab-size-missing", "error", what, where, why, do))
    return findings


def _unreadable(name: str, reading: DraftReading, where: str) -> Diagnostic:
    info, what = reading.spec.tensors[name], f"{name} could not be read"
    if problem := map_problem(info.dtype, info.shape):
        return finding("d2t-unreadable", "error", what, where, problem, f"store {name} as I64 of one dimension")
    if reading.checkpoint.kind == "dump" and not reading.checkpoint.int_maps:
        return finding("d2t-unreadable", "note", what, where, "it holds names and shapes only", ())
    why = "its bytes do not lie in one run (a strided view)"
    return finding("d2t-unreadable", "error", what, where, why, "save it contiguous")


def _no_d2t(spec: DraftSpec, t2d: IntMap | None, where: str) -> Diagnostic:
    can_derive = t2d is not None and t2d.num_true == spec.draft_vocab_size
    what = f"no d2t, but a draft vocabulary of {spec.draft_vocab_size} of {spec.vocab_size}"
    why = f"engines take draft id i for target id i: only the first {spec.draft_vocab_size} ids can be proposed"
    more = " (t2d is there: d2t follows from it if it was sorted)" if can_derive else ""
    return finding("d2t-missing", "fatal", what, where, why, f"export the draft with its d2t{more}")


def _d2t(spec: DraftSpec, d2t: IntMap, t2d: IntMap | None, where: str, dialect: str) -> list[Diagnostic]:
    is_proven = is_absolute(d2t, t2d)
    looks_absolute = d2t.is_strictly_increasing and d2t.ids_maximum >= spec.vocab_size and d2t.maximum < spec.vocab_size
    if d2t.length > 1 and (is_proven or looks_absolute):
        evidence = absolute_evidence(d2t, t2d, spec.vocab_size)
        seen = evidence or "its values fit as ids"
        why = f"{seen}; every engine computes i + d2t[i], here up to {d2t.ids_maximum} of {spec.vocab_size}"
        do: Remedies = "store d2t[i] - i"
        if evidence is not None:
            do = Convert(draft=where, to=dialect, fix="d2t-absolute")
        return [finding("d2t-absolute", "fatal", "d2t holds absolute target ids, not offsets", where, why, do)]
    if d2t.ids_minimum < 0 or d2t.ids_maximum >= spec.vocab_size:
        what = f"d2t maps to ids {d2t.ids_minimum} ... {d2t.ids_maximum} of a vocabulary of {spec.vocab_size}"
        why = "target = i + d2t[i] must be a token id: engines gather out of range or propose wrong tokens"
        return [finding("d2t-out-of-range", "fatal", what, where, why, _REBUILD)]
    if spec.has_vocab_map and d2t.length > 1 and d2t.minimum == 0 == d2t.maximum:
        what = "d2t is all zeros: draft id i is target id i"
        why = "right only if the draft vocabulary is the first ids; a map that was never filled looks the same"
        do = "compare with the ids the draft was trained on"
        if t2d is not None and t2d.digest == d2t.digest:
            why = f"t2d marks the first {d2t.length} ids too: the draft was trained so, and never proposes a later id"
            do = "choose the draft vocabulary by frequency when you train again (`eyas train` does)"
        return [finding("d2t-zero", "warning", what, where, why, do)]
    if spec.has_vocab_map and d2t.is_strictly_increasing and d2t.minimum == 0 and d2t.maximum == d2t.length - 1:
        what = "d2t is 0, 1, 2 ...: draft id i becomes target id 2i"
        why = "a placeholder that was never filled; hardly any proposal can be right"
        return [finding("d2t-arange", "fatal", what, where, why, _REBUILD)]
    if not d2t.ids_strictly_increasing:
        why = "every trainer writes them sorted; one id twice or a shuffled map is a sign of damage"
        do = "check that the head's rows are in the order of d2t"
        return [finding("d2t-unsorted", "warning", "the target ids of d2t are not sorted and distinct", where, why, do)]
    return []


def _t2d(spec: DraftSpec, d2t: IntMap, t2d: IntMap, where: str) -> list[Diagnostic]:
    if not spec.has_vocab_map or t2d.digest in (d2t.digest, d2t.digest_absolute):  # d2t-absolute says the latter
        return []
    what = "t2d and d2t name different draft vocabularies"
    why = f"t2d is true at {t2d.num_true} ids, d2t gives {d2t.length}; the draft was trained on one of them"
    do = "find out which of them the head's rows follow and build the other from it"
    return [finding("t2d-disagrees", "error", what, where, why, do)]
