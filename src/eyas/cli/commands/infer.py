"""`eyas infer`: parse, call, render."""

import shlex
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from eyas import shipped
from eyas.cli.commands.eval import TargetChoice, require_one_source
from eyas.cli.output import JsonFlag, emit
from eyas.cli.target_option import target_folder
from eyas.cli.terminal import Terminal
from eyas.contract.files.read_checkpoint import require_checkpoint
from eyas.records.eval_record import LEAST_TO_INFER, InferRecord, Variant
from eyas.records.eval_rows import files_of
from eyas.replay.eval_config import ReplayConfig
from eyas.talk import say_loading

_DEFAULT = ReplayConfig()


def infer(
    draft: Path,
    *,
    target: TargetChoice = None,
    probe: Path | None = None,
    data: Annotated[list[Path] | None, Parameter(name="--data", consume_multiple=True, negative="")] = None,
    config: Annotated[ReplayConfig, Parameter(name="*")] = _DEFAULT,
    json: JsonFlag = False,
) -> int:
    """Which undocumented switches a draft was trained with: each reading of it is replayed, and the best one named.

    Tries the residual before or after its norm, the feedback state before or after the final norm, aux boundaries one
    layer off or reversed, RoPE theta and pairing, heads half or twice as wide, a state normed twice; none of these has
    a tensor to show for it. Exit code 1 when another reading than the stated one accepts clearly more, or when none
    accepts enough to tell.

    Parameters
    ----------
    draft
        Folder (or weight file) of the draft, in any format that eyas reads.
    probe
        A probe pack instead of target and data (eyas eval --write-probe PACK --probe-neighbours).
    data
        JSONL rows as for `eyas eval`. Default: the rows that ship with eyas, written by smollm2-135m.
    """
    require_one_source("eyas infer", target, probe, {"--data": data})
    require_checkpoint(draft)
    files_of(data or ())
    talk = Terminal()
    folder = None if target is None else target_folder(target, talk)
    say_loading(talk)
    from eyas.replay.infer import infer_on_probe, infer_with_target

    if probe is not None:
        record = infer_on_probe(draft, probe, config, talk)
    else:
        assert folder is not None, "checked above"
        record = infer_with_target(draft, folder, data or [shipped.eval_rows_path()], config, talk)
    return emit(
        record.as_document(),
        render(record),
        json=json,
        exit_code=1 if record.best.changes or not record.is_decided else 0,
    )


def render(record: InferRecord) -> str:
    """The readings, best first, and what to do."""
    lines = [f"accept length over {record.num_rows} rows, K = {record.num_draft_tokens}, by reading:"]
    lines += [f"  {variant.accept_length:.3f}  {_named(variant)}" for variant in record.variants]
    if not record.is_decided and len({variant.accept_length for variant in record.variants}) > 1:
        lines.append(
            f"No reading accepts more than {record.best.accept_length:.2f}, so none can be told from chance (at least"
            f" {LEAST_TO_INFER} is needed): the weights are untrained or damaged, the target is another one, or a"
            f" switch is wrong that has no other reading here. Check: eyas check --deep {shlex.quote(record.draft)}"
        )
    elif record.best.changes:
        better = f"{record.best.accept_length:.3f} instead of {record.stated.accept_length:.3f}"
        lines.append(f"The draft was not trained as its files state: {_named(record.best)} gives {better}.")
        if tied := [_named(variant) for variant in record.variants[1:] if variant.is_tied]:
            lines.append(f"These texts do not tell it from: {'; '.join(tied)}. More rows can.")
        if "hidden_norm" in record.best.changes:
            lines.append(
                "ModelOpt trains drafts so, and no engine computes it. Train the draft on as engines run it:"
                f" eyas train --init-from {shlex.quote(record.draft)}"
            )
    elif len(record.variants) > 1 and len({variant.accept_length for variant in record.variants}) == 1:
        lines.append(
            "All readings give the same accept length: the draft ignores its input, or the target accepts none of its"
            f" tokens. Check its weights: eyas check --deep {shlex.quote(record.draft)}"
        )
    else:
        lines.append("No other reading is clearly better than what its files state.")
    return "\n".join(lines)


def _named(variant: Variant) -> str:
    return ", ".join(f"{name} = {value}" for name, value in variant.changes.items()) or "as stated"
