"""What is wrong with a draft's vocabulary map and head: `d2t` offsets, `t2d` mask, rows of `lm_head`."""

from eyas.contract.files.checkpoint import IntMap
from eyas.contract.files.int_map import is_absolute
from eyas.contract.spec.draft_reading import DraftReading
from eyas.contract.spec.draft_spec import HEAD_ROWS, DraftSpec
from eyas.diagnostic import Convert, Diagnostic, Edit, finding


def map_findings(reading: DraftReading) -> list[Diagnostic]:
    """Findings about d2t, t2d and a head that does not fit them."""
    spec, where = reading.spec, reading.checkpoint.where
    d2t, t2d = reading.int_maps.get("d2t"), reading.int_maps.get("t2d")
    findings = _head(spec, where)
    if "d2t" in spec.tensors and d2t is None:
        findings.append(finding("d2t-unreadable", "error", "d2t could not be read", where, *_UNREADABLE))
    if spec.has_vocab_map and "d2t" not in spec.tensors:
        findings.append(_no_d2t(spec, t2d, where))
    if d2t is not None:
        findings += _d2t(spec, d2t, t2d, where, reading.dialect)
    if t2d is not None:
        findings += _t2d(spec, d2t, t2d, where)
    return findings


_UNREADABLE = ("its bytes do not lie in one run (a strided view)", "save it with .contiguous()")


def _head(spec: DraftSpec, where: str) -> list[Diagnostic]:
    findings = []
    if spec.head != "own" and spec.has_vocab_map:
        findings.append(
            finding(
                "lm-head-missing",
                "fatal",
                f"no lm_head.weight, but a pruned vocabulary of {spec.draft_vocab_size}",
                where,
                f"SGLang keeps a random head; vLLM takes the first {spec.draft_vocab_size} rows of the target's:"
                " both accept nothing, in silence",
                "export the draft with its lm_head.weight",
            )
        )
    if spec.provenance.get("draft_vocab_size") == HEAD_ROWS and spec.has_vocab_map:
        findings.append(
            finding(
                "draft-vocab-size-missing",
                "error",
                f"config.json lacks draft_vocab_size; lm_head has {spec.draft_vocab_size} of {spec.vocab_size} rows",
                where,
                "SGLang stops at the missing key; vLLM takes vocab_size and does not fit the head",
                Edit("draft_vocab_size", spec.draft_vocab_size),
            )
        )
    return findings


def _no_d2t(spec: DraftSpec, t2d: IntMap | None, where: str) -> Diagnostic:
    can_derive = t2d is not None and t2d.num_true == spec.draft_vocab_size
    return finding(
        "d2t-missing",
        "fatal",
        f"no d2t, but a draft vocabulary of {spec.draft_vocab_size} of {spec.vocab_size}",
        where,
        f"engines take draft id i for target id i: only the first {spec.draft_vocab_size} ids can be proposed",
        "export the draft with its d2t"
        + (" (t2d is there: d2t follows from it if it was sorted)" if can_derive else ""),
    )


def _d2t(spec: DraftSpec, d2t: IntMap, t2d: IntMap | None, where: str, dialect: str) -> list[Diagnostic]:
    is_proven = is_absolute(d2t, t2d)
    looks_absolute = d2t.is_strictly_increasing and d2t.ids_maximum >= spec.vocab_size and d2t.maximum < spec.vocab_size
    if d2t.length > 1 and (is_proven or looks_absolute):
        why = "read as absolute ids it agrees with t2d" if is_proven else "its values increase strictly and fit as ids"
        is_fixable = is_proven and d2t.is_strictly_increasing
        return [
            finding(
                "d2t-absolute",
                "fatal",
                "d2t holds absolute target ids, not offsets",
                where,
                f"{why}; every engine computes i + d2t[i], here up to {d2t.ids_maximum} of {spec.vocab_size}",
                Convert(draft=where, to=dialect, fix="d2t-absolute") if is_fixable else "store d2t[i] - i",
            )
        ]
    if d2t.ids_minimum < 0 or d2t.ids_maximum >= spec.vocab_size:
        return [
            finding(
                "d2t-out-of-range",
                "fatal",
                f"d2t maps to ids {d2t.ids_minimum} ... {d2t.ids_maximum} of a vocabulary of {spec.vocab_size}",
                where,
                "target = i + d2t[i] must be a token id: engines gather out of range or propose wrong tokens",
                "build d2t again from the ids that the head's rows stand for",
            )
        ]
    findings = []
    if spec.has_vocab_map and d2t.length > 1 and d2t.minimum == 0 == d2t.maximum:
        findings.append(
            finding(
                "d2t-zero",
                "warning",
                "d2t is all zeros: draft id i is target id i",
                where,
                "right only if the draft vocabulary is the first ids; a map that was never filled looks the same",
                "compare with the ids the draft was trained on",
            )
        )
    elif spec.has_vocab_map and d2t.is_strictly_increasing and d2t.minimum == 0 and d2t.maximum == d2t.length - 1:
        findings.append(
            finding(
                "d2t-arange",
                "fatal",
                "d2t is 0, 1, 2 ...: draft id i becomes target id 2i",
                where,
                "a placeholder that was never filled; hardly any proposal can be right",
                "build d2t again from the ids that the head's rows stand for",
            )
        )
    elif not d2t.ids_strictly_increasing:
        findings.append(
            finding(
                "d2t-unsorted",
                "warning",
                "the target ids of d2t are not sorted and distinct",
                where,
                "every trainer writes them sorted; one id twice or a shuffled map is a sign of damage",
                "check that the head's rows are in the order of d2t",
            )
        )
    return findings


def _t2d(spec: DraftSpec, d2t: IntMap | None, t2d: IntMap, where: str) -> list[Diagnostic]:
    if not spec.has_vocab_map or (d2t is not None and d2t.digest == t2d.digest):
        return []
    if d2t is None:
        return []
    if d2t.digest_absolute == t2d.digest:
        return []  # d2t-absolute says it
    return [
        finding(
            "t2d-disagrees",
            "error",
            "t2d and d2t name different draft vocabularies",
            where,
            f"t2d is true at {t2d.num_true} ids, d2t gives {d2t.length}; the draft was trained on one of them",
            "find out which of them the head's rows follow and build the other from it",
        )
    ]
