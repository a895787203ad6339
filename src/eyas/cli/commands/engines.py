"""`eyas engines`: parse, call, render."""

from typing import Annotated, Any

from cyclopts import Parameter

from eyas.cli.output import JsonFlag, emit
from eyas.contract.engines.registry import EngineName


def engines(
    *,
    targets: Annotated[bool, Parameter(negative="")] = False,
    engine: EngineName | None = None,
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
    """
    from eyas.contract.engines.table import engine_rows, target_rows

    rows = [row for row in engine_rows() if engine in (None, row["engine"])]
    hooks = [row for row in target_rows() if engine in (None, row["engine"])] if targets else []
    document: dict[str, Any] = {"schema": "eyas.engines/1", "rules": rows, "targets": hooks}
    text = _rules_text(rows)
    if targets:
        text += "\n\n" + _targets_text(hooks)
    return emit(document, text, json=json)


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
