"""Compare a ledger with what a real engine's loader did (a recorded outcome of benchmarks/conformance_engine.py)."""

from typing import Any

from eyas.contract.engines.loading.ledger import Ledger
from eyas.contract.spec.layer_ids import default_boundaries

# the loader itself is run, not the launch: what the target's hook or the first forward pass would stop is out of reach
_AFTER_LOADING = ("aux-count", "target-hook-missing", "target-hidden-size", "target-head-quantised")


def disagreements(ledger: Ledger, outcome: dict[str, Any]) -> list[str]:
    """Every point at which the recorded outcome contradicts the ledger; [] = they agree."""
    stops = [r for r in ledger.reasons if r.verdict in ("refuses", "crash") and r.code not in _AFTER_LOADING]
    if bool(outcome["error"]) != bool(stops):
        said = "; ".join(r.diagnostic.what for r in stops) or ledger.verdict
        return [f"the engine: {outcome['error'] or 'loaded'}; the ledger: {said}"]
    if stops:
        return _stop(ledger, outcome)
    return [*_class(ledger, outcome), *_parameters(ledger, outcome), *_aux(ledger, outcome)]


def _stop(ledger: Ledger, outcome: dict[str, Any]) -> list[str]:
    refused = any(r.verdict == "refuses" for r in ledger.reasons)
    if refused != (outcome["stage"] == "config"):
        return [f"stopped at {outcome['stage']}, the ledger says {ledger.verdict}"]
    crash = next((r for r in ledger.reasons if r.code == "loader-crash"), None)
    if crash is not None and "no module or parameter named" in outcome["error"]:
        named = outcome["error"].split("named '")[1].split("'")[0]
        if named not in crash.diagnostic.why:
            return [f"raised at {named!r}, the ledger says {crash.diagnostic.why}"]
    return []


def _class(ledger: Ledger, outcome: dict[str, Any]) -> list[str]:
    return [] if outcome["class"] == ledger.draft_class else [f"class {outcome['class']}, not {ledger.draft_class}"]


def _aux(ledger: Ledger, outcome: dict[str, Any]) -> list[str]:
    """Layer ids as the engine's own code takes them from the config; None there = the target's default."""
    flags = outcome["flags"]
    taken = flags.get("aux") or flags.get(f"aux_{ledger.runner}") or default_boundaries(30)
    if ledger.aux is None or sorted(set(taken)) == list(ledger.aux):
        return []
    return [f"taps {taken}, the ledger says {ledger.aux}"]


def _parameters(ledger: Ledger, outcome: dict[str, Any]) -> list[str]:
    """A parameter is written if some checkpoint tensor went into it, whatever becomes of it afterwards."""
    wrong = []
    shares, initial = outcome["parameters"], outcome["initial"]
    loaded = {p.name: p for p in ledger.parameters}
    into = {t.parameter for t in ledger.tensors if t.parameter}
    for name, share in shares.items():
        entry = loaded.get(name)
        if entry is None:
            if share > 0 or name not in ("draft_id_to_target_id",):
                wrong.append(f"{name} is not in the ledger (share written {share})")
            continue
        expected = 0.0 if name not in into else 1.0
        if entry.state == "partly" and "missing" in entry.remark:
            if not 0.0 < share < 1.0:
                wrong.append(f"{name}: {share} written, the ledger says {entry.state} ({entry.remark})")
        elif entry.name in into and entry.remark.startswith("no tensor for"):
            if not 0.0 < share < 1.0:
                wrong.append(f"{name}: {share} written, the ledger says {entry.remark}")
        elif share != expected:
            wrong.append(f"{name}: {share} written, the ledger says {entry.state}")
        if entry.state in ("ones", "zeros") and initial[name] != entry.state:
            wrong.append(f"{name} starts as {initial[name]}, the ledger says {entry.state}")
    missing = [n for n in into if n not in shares and n not in ("hot_token_id", "mask_hidden")]
    return wrong + [f"{n} does not exist in the engine" for n in missing]
