"""`eyas engines`: parse, call, render."""

from collections.abc import Iterator
from typing import Annotated, Any

from cyclopts import Parameter

from eyas.cli.output import JsonFlag, emit
from eyas.contract.engines.registry import EngineName


def engines(
    *,
    targets: Annotated[bool, Parameter(negative="")] = False,
    engine: EngineName | None = None,
    diff: Annotated[tuple[str, str] | None, Parameter(negative="")] = None,
    json: JsonFlag = False,
) -> int:
    """The load rules that `eyas check` knows, by engine and version, each with its source and grade.

    A version between two rows behaves as the row before it. Grades: ran = the engine's own loader was run and agreed;
    read = its source was read; inferred = from its neighbours.

    Parameters
    ----------
    targets
        List the target architectures too: from which version on an engine can tap them for EAGLE-3.
    engine
        Only this engine.
    diff
        What changed between two versions of one engine: --diff sglang==0.5.12 sglang==0.5.23.
    """
    if diff is not None:
        return _diff(*diff, json=json)
    from eyas.contract.engines.table import engine_rows, target_rows

    rows = [row for row in engine_rows() if engine in (None, row["engine"])]
    hooks = [row for row in target_rows() if engine in (None, row["engine"])] if targets else []
    document: dict[str, Any] = {"schema": "eyas.engines/1", "rules": rows, "targets": hooks}
    text = _rules_text(rows)
    if targets:
        text += "\n\n" + _targets_text(hooks)
    return emit(document, text, json=json)


def _diff(first: str, second: str, *, json: bool) -> int:
    from eyas.cli.failures import UsageError
    from eyas.contract.engines.difference import difference
    from eyas.contract.engines.registry import parse_engine

    a, b = parse_engine(first, flag="--diff"), parse_engine(second, flag="--diff")
    if a.engine != b.engine:
        raise UsageError(
            f"{a.label} and {b.label} are different engines",
            "--diff",
            "each engine has rules of its own; only versions of one engine can be compared",
            f"give two versions of one engine: --diff {a.label} {a.distribution}==VERSION",
        )
    found = difference(a, b)
    document = {"schema": "eyas.engines-diff/1", "from": a.label, "to": b.label, **found}
    return emit(document, "\n".join(_diff_lines(a.label, b.label, found)), json=json)


def _diff_lines(first: str, second: str, found: dict[str, Any]) -> Iterator[str]:
    yield f"from {first} to {second}"
    if found["transformers"]:
        yield f"transformers: {' -> '.join(found['transformers'])}"
    for name in dict.fromkeys(row["draft_class"] for row in found["rules"]):
        yield f"draft class {name}"
        rows = [row for row in found["rules"] if row["draft_class"] == name]
        yield from (f"  {row['field'] or 'class'}: {row['from']} -> {row['to']}" for row in rows)
    if found["targets"]:
        yield "targets (unregistered: unknown to it; absent: known, cannot be tapped; ids: how it reads layer ids)"
        yield from (f"  {row['architecture']}: {row['from']} -> {row['to']}" for row in found["targets"])
    parts = {"flags": found["flags"], "launch": found["launch"]} | {f"log: {k}": v for k, v in found["log"].items()}
    for title, change in parts.items():
        if any(change.values()):
            yield title
            yield from (f"  + {name}" for name in change["added"])
            yield from (f"  - {name}" for name in change["gone"])
    if not any([found["transformers"], found["rules"], found["targets"], *(any(p.values()) for p in parts.values())]):
        yield "nothing that eyas knows of changed"


def _rules_text(rows: list[dict[str, Any]]) -> str:
    lines = ["engine  since    draft class and what it does"]
    for row in rows:
        lines.append(f"{row['engine']:<7} {row['since']:<8} {row['draft_class']}")
        lines += [f"{'':<17}{fact}" for fact in row["facts"]]
        lines.append(f"{'':<17}source: {row['source']}")
        lines.append(f"{'':<17}grades: {', '.join(f'{v} {g}' for v, g in row['versions'].items())}")
    return "\n".join(lines)


def _targets_text(rows: list[dict[str, Any]]) -> str:
    width = max((len(row["architecture"]) for row in rows), default=0)
    lines = ["targets that can be tapped"]
    for row in rows:
        steps = ", ".join(f"{s['since']}: {s['state']}" for s in row["steps"])
        lines.append(f"{row['engine']:<7} {row['architecture']:<{width}}  {steps}")
    return "\n".join(lines)
