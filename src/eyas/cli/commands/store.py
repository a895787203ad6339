"""`eyas store`: parse, call, render."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from eyas.cli.failures import UsageError
from eyas.cli.output import JsonFlag, emit
from eyas.cli.terminal import Terminal
from eyas.errors import ExitCode
from eyas.talk import counted, gigabytes


def store(
    action: Literal["verify", "stats", "merge", "drop"],
    stores: Annotated[tuple[Path, ...], Parameter(negative="")],
    *,
    out: Path | None = None,
    damaged: Annotated[bool, Parameter(negative="")] = False,
    repeated: Annotated[bool, Parameter(negative="")] = False,
    all_rows: Annotated[bool, Parameter(name="--all", negative="")] = False,
    json: JsonFlag = False,
) -> int:
    """Look after stores of a target's states, as `eyas extract` writes them.

    verify: read everything and compare each row with its hash; exit code 1 if something is damaged.
    stats: what is in a store, without reading the states.
    merge: several stores into a new one (--out), by links where the file system allows.
    drop: remove rows: --damaged, --repeated, or --all, which deletes the store.

    Parameters
    ----------
    action
        What to do.
    stores
        Folders of stores; several for merge only.
    out
        Folder for the merged store; it must not exist.
    damaged
        Drop rows that are not as they were written. `eyas extract` computes them again.
    repeated
        Drop rows that stand in an earlier shard too.
    all_rows
        Delete the store.
    """
    drops = [name for name, is_on in (("--damaged", damaged), ("--repeated", repeated), ("--all", all_rows)) if is_on]
    _require_fitting(action, stores, out, drops)
    if action == "merge":
        from eyas.store.upkeep import merge

        assert out is not None, "checked above"
        document = merge(stores, out)
        return emit(document, f"{_stats_text(document)}\nwrote {out}", json=json)
    if action == "stats":
        from eyas.store.upkeep import stats

        document = stats(stores[0])
        return emit(document, _stats_text(document), json=json)
    if action == "verify":
        return _verify(stores[0], json=json)
    return _drop(stores[0], drops, json=json)


def _require_fitting(action: str, stores: tuple[Path, ...], out: Path | None, drops: list[str]) -> None:
    why = None
    if (action == "merge") != (out is not None):
        why = "merge wants --out OUT" if out is None else "--out belongs to merge"
    elif len(stores) != 1 and action != "merge":
        why = f"{action} takes one store, not {len(stores)}"
    elif (action == "drop") != bool(drops) or ("--all" in drops and len(drops) > 1):
        why = "drop wants --damaged, --repeated or --all" if action == "drop" else f"{drops[0]} belongs to drop"
    if why is not None:
        raise UsageError(why, f"eyas store {action}", "what to do would be a guess", "see `eyas store --help`")


def _verify(folder: Path, *, json: bool) -> int:
    from eyas.store.verify import verify

    found = verify(folder, Terminal())
    lines = [str(fault) for fault in found.faults]
    if (more := found.num_faults - len(found.faults)) > 0:
        lines.append(f"... and {more} more")
    lines.append(
        f"{counted(found.num_rows, 'row')} ({gigabytes(found.num_bytes)}) as written, {found.num_faults} damaged"
    )
    if found.num_faults:
        lines.append(f"remove them with: eyas store drop {folder} --damaged")
    emit({**found.as_document(), "store": str(folder)}, "\n".join(lines), json=json)
    return int(ExitCode.FINDINGS if found.num_faults else ExitCode.GOOD)


def _drop(folder: Path, drops: list[str], *, json: bool) -> int:
    from eyas.store.upkeep import drop, drop_all

    document: dict[str, Any] = {"schema": "eyas.store-drop/1", "store": str(folder), "dropped": drops}
    if "--all" in drops:
        left = drop_all(folder)
        text = f"deleted {folder}" if not left else f"deleted the store; not its own, kept: {', '.join(left)}"
        return emit({**document, "kept_files": list(left)}, text, json=json)
    num = drop(folder, Terminal(), damaged_rows="--damaged" in drops, repeated="--repeated" in drops)
    return emit({**document, "rows": num}, f"dropped {counted(num, 'row')} of {folder}", json=json)


def _stats_text(found: Mapping[str, Any]) -> str:
    about = found["about"]
    name = about["target"].get("name_or_path") or ", ".join(map(str, about["target"].get("architectures") or ["?"]))
    growing = f", {found['growing_shards']} still growing" if found["growing_shards"] else ""
    lines = [
        f"states of {name}: boundaries {', '.join(map(str, about['boundaries']))} of {about['num_layers']}, the last"
        f" one {about['last']}; {about['hidden_size']} wide, {about['dtype']}",
        f"{counted(found['rows'], 'row')}, {found['tokens']} tokens ({found['supervised_tokens']} supervised), longest"
        f" {found['longest']}; states at {found['positions']} positions",
        f"{gigabytes(found['disk_bytes'])} in {counted(found['shards'], 'finished shard')}{growing}",
    ]
    if found["repeated_rows"]:
        lines.append(f"{found['repeated_rows']} rows stand there twice: eyas store drop STORE --repeated")
    lines += [f"computed by {source}: {counted(num, 'row')}" for source, num in found["rows_by_source"].items()]
    return "\n".join(lines)
