"""`eyas tune`: parse, call, render."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from eyas import shipped
from eyas.cli.output import JsonFlag, emit, files_of_checkpoint, require_outputs, save_document
from eyas.cli.target_option import TargetName, cache_folder, target_folder
from eyas.cli.terminal import Terminal
from eyas.contract.engines.launching.serve_options import Counting
from eyas.contract.files.read_checkpoint import require_checkpoint
from eyas.records.eval_rows import files_of
from eyas.talk import say_loading
from eyas.tune.tune_config import TuneConfig

_DEFAULT = TuneConfig()


def tune(
    *,
    target: TargetName,
    draft: Path,
    data: Annotated[list[Path] | None, Parameter(name="--data", consume_multiple=True, negative="")] = None,
    config: Annotated[TuneConfig, Parameter(name="*")] = _DEFAULT,
    out: Path | None = None,
    json: JsonFlag = False,
) -> int:
    """How many draft tokens (K) to use at which concurrency, and from where on speculation loses.

    Acceptance at every K comes from one replay, the cost of a pass from the clock; together they predict every setting.
    The best ones are then measured on eyas' own engine, with every text compared, and stand beside their prediction.

    Parameters
    ----------
    draft
        Folder (or weight file) of the draft, in any format that eyas reads.
    data
        JSONL files as `eyas eval` reads them. Default: the 16 rows that ship with eyas, by smollm2-135m.
    out
        Also write the JSON object to this file.
    """
    rows = data or [shipped.eval_rows_path()]
    require_outputs([out], read=[*files_of_checkpoint(draft), *rows])
    require_checkpoint(draft)
    files_of(data or ())
    talk = Terminal()
    folder = target_folder(target, talk)
    require_outputs([out], read=[folder])
    say_loading(talk)
    from eyas.tune.run import tune as run_tune

    if data is None:
        talk.note(f"no --data: using the rows that ship with eyas, {rows[0]}")
    document = run_tune(folder, draft, rows, config, cache=cache_folder(), talk=talk).as_document()
    save_document(document, out)
    return emit(document, render(document), json=json)


def render(document: Mapping[str, Any]) -> str:
    """Every setting in a table, then what to use."""
    lines = ["concurrency  K  accept length  pass ms  predicted  measured (min - max)"]
    for s in document["settings"]:
        measured = "-"
        if s["measured"] is not None:
            measured = f"{s['measured']:.2f} ({s['measured_low']:.2f} - {s['measured_high']:.2f})"
            measured += "" if s["is_close"] else "  not as predicted"
        line = f"{s['concurrency']:>11}  {s['num_draft_tokens']}  {s['accept_length']:>13.3f}  {s['pass_ms']:>7.2f}"
        lines.append(f"{line}  {s['speedup']:>9.2f}  {measured}")
    lines.append("")
    for level, k in document["chosen"].items():
        if k == 0:
            lines.append(f"concurrency {level}: no K is faster than plain decoding here; serve without a draft")
            continue
        found = next(s for s in document["settings"] if (str(s["concurrency"]), s["num_draft_tokens"]) == (level, k))
        lines.append(f"concurrency {level}: K = {k}, {found['measured']:.2f} times plain (eyas serve ... -k {k})")
    deepest = max(document["chosen"].values())
    lines += [document["break_even"], *([str(Counting.chain(deepest))] if deepest else [])]
    lines.append("measured on eyas' own engine: on another engine acceptance is the same, the cost of a pass is not")
    return "\n".join(lines)
