"""`eyas parity`: parse, call, render."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from eyas.cli.commands.eval import TargetChoice, require_one_source
from eyas.cli.output import JsonFlag, emit, files_of_checkpoint, require_outputs, save_document
from eyas.cli.target_option import target_folder
from eyas.cli.terminal import Terminal
from eyas.contract.files.read_checkpoint import require_checkpoint
from eyas.errors import ExitCode
from eyas.parity.config import ParityConfig
from eyas.talk import say_loading

if TYPE_CHECKING:
    from eyas.parity.run import Parity

_DEFAULT = ParityConfig()
_VERDICTS = {
    "equal": "EQUAL: the server accepts what the draft's replay accepts",
    "within-near-ties": "EQUAL within near-ties: the counts differ by no more than tied decisions explain",
    "within-noise": "EQUAL within the noise of sampled drafts",
    "different": "DIFFERENT: the server does not run the draft as it was trained",
    "too-few-rounds": "TOO FEW ROUNDS to decide: ask more prompts, or longer answers",
}


def parity(
    url: str,
    *,
    draft: Path,
    target: TargetChoice = None,
    probe: Path | None = None,
    data: Annotated[list[Path] | None, Parameter(name="--data", consume_multiple=True, negative="")] = None,
    config: Annotated[ParityConfig, Parameter(name="*")] = _DEFAULT,
    out: Path | None = None,
    json: JsonFlag = False,
) -> int:
    """Does a running server accept as many drafts as replay predicts? Its token ids, replayed, beside its counts.

    Sends prompts to the server, takes the token ids that it emits and what it says it accepted, replays the draft over
    exactly those ids, and compares the counts position by position. Where they differ, known faults are planted in the
    draft one after the other, and those that give the server's counts are named. Exit code 1 when the counts differ.
    An API key is read from the environment variable EYAS_API_KEY.

    Parameters
    ----------
    url
        The server: http://host:port.
    draft
        Folder (or weight file) of the draft that the server runs, as it was trained.
    probe
        A probe pack instead of target and data: its prompts are asked, and answers that leave the recorded texts are
        asked again up to there. A server that computes in another precision leaves them often: --target has no such
        limit.
    data
        JSONL files with prompts: `messages`, `turns`, or `prompt_ids`. Default: the 16 rows that ship with eyas, which
        are token ids of smollm2-135m.
    out
        Also write the JSON object to this file.
    """
    require_one_source("eyas parity", target, probe, {"--data": data})
    require_outputs([out], read=[*files_of_checkpoint(draft), *(data or ()), *([probe] if probe else ())])
    require_checkpoint(draft)
    talk = Terminal()
    folder = None if target is None else target_folder(target, talk)
    say_loading(talk)
    from eyas.parity.stage import parity_on_probe, parity_with_target

    key = os.environ.get("EYAS_API_KEY")
    if probe is not None:
        found = parity_on_probe(url, draft, probe, config, key, talk)
    else:
        assert folder is not None, "checked above"
        found = parity_with_target(url, draft, folder, data, config, key, talk)
    document = found.as_document(draft, url)
    save_document(document, out)
    code = ExitCode.FINDINGS if found.compared.verdict in ("different", "too-few-rounds") else ExitCode.GOOD
    return emit(document, render(found), json=json, exit_code=int(code))


def render(found: "Parity") -> str:
    """The two counts as a table, the verdict, and what explains a difference."""
    both = found.compared
    depth = len(both.served.accepted_at)
    lines = [
        f"{'':<10}  accept length  rounds  accepted up to position 1 … {depth}",
        *(
            f"{name:<10}  {counts.accept_length:>13.3f}  {counts.rounds:>6}  {' '.join(map(str, counts.accepted_at))}"
            for name, counts in (("served", both.served), ("replayed", both.replayed))
        ),
        f"{len(found.served.rows)} answers compared; {both.near_ties} near-ties on their path,"
        f" {both.open_ends} answers may have ended inside a round",
        _VERDICTS[both.verdict],
    ]
    if both.verdict == "different":
        lines += _explained(found)
    lines += [f"  - {reason}: {row}" for row, reason in list(found.left_out.items())[:5]]
    if len(found.left_out) > 5:
        lines.append(f"  - and {len(found.left_out) - 5} more answers left out (--json lists them)")
    return "\n".join([*lines, *(f"  - {note}" for note in found.notes)])


def _explained(found: "Parity") -> list[str]:
    position = found.compared.first_different_position
    lines = [f"  the counts part at position {position}"] if position else ["  the number of rounds differs"]
    if not found.suspects:
        return [*lines, "  none of the known faults gives these counts; see `eyas check` and the server's log"]
    lines.append("  faults that give the server's counts, the nearest first:")
    found_here = [suspect.signature for suspect in found.suspects]
    return lines + [f"    {one.name}: accept length {one.acceptance.accept_length:.3f}" for one in found_here]
