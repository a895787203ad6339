"""`eyas prepare`: parse, call, render."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from eyas.cli.output import JsonFlag, emit, use_colour
from eyas.cli.target_option import TargetName, target_folder, target_headers
from eyas.cli.terminal import Terminal
from eyas.data.prepare_config import DATA, OUTPUT, PrepareConfig, WritingConfig
from eyas.records.rows import HELD_OUT

if TYPE_CHECKING:
    from eyas.data.prepare import Prepared

_DEFAULT, _WRITE_NOTHING = PrepareConfig(), WritingConfig()
_LONGEST_EXAMPLE = 1600  # characters of the example row that are shown


def prepare(
    *,
    target: TargetName,
    out: Path,
    data: Annotated[list[str] | None, Parameter(name="--data", group=DATA, consume_multiple=True, negative="")] = None,
    config: Annotated[PrepareConfig, Parameter(name="*")] = _DEFAULT,
    writing: Annotated[WritingConfig, Parameter(name="*")] = _WRITE_NOTHING,
    exclude: Annotated[list[Path] | None, Parameter(group=DATA, consume_multiple=True, negative="")] = None,
    dry_run: Annotated[bool, Parameter(group=OUTPUT, negative="")] = False,
    replace: Annotated[bool, Parameter(group=OUTPUT, negative="")] = False,
    recipe: Annotated[Path | None, Parameter(name="--config", group=OUTPUT)] = None,
    json: Annotated[JsonFlag, Parameter(group=OUTPUT)] = False,
) -> int:
    """Conversations to tokenised rows with an exact loss mask: only what the target wrote is learned.

    Shows one row with the supervised text marked, counts what is left out and why, and refuses masks that supervise
    nothing or everything. Running it again with the same data, target and options says that the rows are there.

    A draft learns best from what its own target writes. With --regenerate the target answers the user turns of --data
    itself; with --self-chat N it writes the user turns, too. Both are kept beside the rows (OUT.regenerated,
    OUT.self-chat), resume where they were killed, and can be used with --data again. With --url, servers of the target
    write, and neither its weights nor a tokenizer that eyas can load are needed here.

    Parameters
    ----------
    out
        Folder for the rows; written aside and renamed.
    data
        JSONL files (also .gz, .xz), parquet or arrow files, or folders of them; one record a conversation, as
        {"messages": [{"role": ..., "content": ...}]} or ShareGPT's {"conversations": [{"from": ..., "value": ...}]},
        or a server's log {"request": ..., "response": ...}. Answers with `weight: 0` or `train: false` are not learned.
        FILE:2 takes each of its rows twice, FILE:0.5 half of them.
    exclude
        Files of prompts that must not be learned (benchmarks): conversations that share 8 words in a row with a user
        turn, or with a `turns`, `prompt`, `question` or `prompt_ids` field, are left out and counted.
    dry_run
        Count and show, write nothing.
    replace
        Swap out a folder that holds other rows.
    recipe
        File (YAML, TOML, JSON) with a section per command; the command line wins.
    """
    assert recipe is None, "`cli.recipe_file` has put the recipe's options in its place"
    if writing.threads is not None:
        # The tokenizer reads it at its first use; there is no other way to set it.
        os.environ["RAYON_NUM_THREADS"] = str(writing.threads)
    talk = Terminal()
    from eyas.data.prepare import prepare as prepare_rows

    done = prepare_rows(
        _folder(target, talk, needs_weights=writing.writes and not writing.url),
        data or [],
        out,
        config,
        talk,
        writing=writing,
        exclude=exclude or [],
        dry_run=dry_run,
        replace=replace,
        api_key=os.environ.get("EYAS_API_KEY"),
    )
    document = {
        **done.manifest.as_document(),
        "schema": "eyas.prepare/1",
        "out": str(out),
        "was_there": done.was_there,
        "dry_run": dry_run,
    }
    return emit(document, _text(done, dry_run=dry_run, colour=use_colour()), json=json)


def _folder(name: str, talk: Terminal, *, needs_weights: bool) -> Path:
    """The target's folder: config and tokenizer are enough where the target writes nothing."""
    found = None if needs_weights else target_headers(name, talk)
    if found is None:
        return target_folder(name, talk)
    return found.parent if found.is_file() else found


def _text(done: "Prepared", *, dry_run: bool, colour: bool) -> str:
    manifest, lines = done.manifest, []
    if done.example:
        legend = "green" if colour else "between ⟦ and ⟧"
        lines += [f"One row; the supervised text is {legend}:", _example(done.example, colour), ""]
    share = manifest.num_supervised / manifest.num_tokens
    lines.append(
        f"{manifest.num_rows} rows, {manifest.num_tokens} tokens, {manifest.num_supervised} supervised ({share:.0%}),"
        f" longest {manifest.longest}"
    )
    for label, counts in (("left out or cut", manifest.dropped), ("not in the rows as given", manifest.lost)):
        for reason, count in sorted(counts.items()):
            first = f" (first: {done.first[reason]})" if reason in done.first else ""
            lines.append(f"  {label}: {count} × {_printable(reason + first)}")
    if not manifest.dropped and not manifest.lost:
        lines.append("  nothing left out")
    if len(manifest.sources) > 1 or any(source.weight != 1 for source in manifest.sources):
        lines += [
            f"  {source.num_rows} rows of {source.num_records} records, weight {source.weight:g}: {source.name}"
            for source in manifest.sources
        ]
    if manifest.num_as_written:
        lines.append(f"  {manifest.num_as_written} records with the very token ids that the target wrote")
    if manifest.num_held_out:
        lines.append(f"  {manifest.num_held_out} rows held out: {done.folder / HELD_OUT}")
    end = "there already" if done.was_there else "nothing written (--dry-run)" if dry_run else "written"
    lines.append(f"{done.folder}: {end}, fingerprint {manifest.fingerprint}")
    return "\n".join(lines)


def _example(pieces: tuple[tuple[str, bool], ...], colour: bool) -> str:
    before, after = ("\x1b[32m", "\x1b[0m") if colour else ("⟦", "⟧")
    shown, left = [], _LONGEST_EXAMPLE
    for text, is_supervised in pieces:
        part = _printable(text[:left])
        left -= len(text)
        shown.append(f"{before}{part}{after}" if is_supervised else part)
        if left <= 0:
            shown.append(" …")
            break
    return "".join(shown)


def _printable(text: str) -> str:
    """Control characters made harmless: data must not steer the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)
