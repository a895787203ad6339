"""`eyas extract`: parse, call, render."""

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from eyas.cli.failures import UsageError
from eyas.cli.output import JsonFlag, emit, require_outputs
from eyas.cli.target_option import TargetName, target_folder
from eyas.cli.terminal import Terminal
from eyas.extract.config import ExtractConfig
from eyas.extract.open_source import require_source
from eyas.records.atomic import require_place
from eyas.records.eval_rows import files_of
from eyas.records.rows import read_manifest
from eyas.talk import counted, say_loading

_DEFAULT = ExtractConfig()


def extract(
    *,
    target: TargetName,
    data: Annotated[Path, Parameter(name="--data")],
    out: Path | None = None,
    probe_only: Path | None = None,
    with_neighbours: Annotated[bool, Parameter(negative="")] = False,
    source: Annotated[str, Parameter(name="--from")] = "transformers",
    config: Annotated[ExtractConfig, Parameter(name="*")] = _DEFAULT,
    device: str = "auto",
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto",
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    recipe: Annotated[Path | None, Parameter(name="--config")] = None,
    json: JsonFlag = False,
) -> int:
    """Put a target's states over rows into a store, from which `eyas train --hidden-states` learns without the target.

    The source is proven first: a few rows are compared with the target through transformers (where it fits), with
    themselves in other batches, and with the tokens that the source writes. One row in a hundred is compared again
    while it runs. A mismatch stops the run and names the state that was found instead.

    The same command run again computes only what is missing. Several may fill one store at once.

    Parameters
    ----------
    data
        Folder of tokenised rows, made by `eyas prepare` with the same target. With --probe-only: the target's recorded
        answers (JSONL of `prompt_ids` and `response_ids`), or such a folder, of which the held-out rows are taken.
    out
        Folder of the store.
    probe_only
        In place of --out: write the states over the recorded answers into this one file, a probe pack, with which
        `eval`, `check` and `infer` judge drafts without the target.
    with_neighbours
        In the probe pack also keep the boundaries one below and one above each, as `eyas infer` wants them.
    source
        transformers: the target in this process. sglang://HOST:PORT or vllm://HOST:PORT: a server that `eyas serve
        --capture` started; several with commas.
    device
        Of a target in this process: cpu, cuda, cuda:N, or auto: the first GPU if there is one.
    dtype
        In which a target in this process computes; auto is bfloat16 on a GPU, float32 on a CPU.
    dry_run
        Say how much disk it takes, and stop.
    """
    assert recipe is None, "`cli.recipe_file` has put the recipe's options in its place"
    require_source(source)
    if (out is None) == (probe_only is None):
        raise UsageError(
            "the output is not named" if out is None else "--out and --probe-only are given",
            "eyas extract",
            "it writes a store (--out STORE) or a probe pack (--probe-only PACK)",
            "give one of the two",
        )
    talk = Terminal()
    if out is None:
        assert probe_only is not None, "checked above"
        files_of([data])
        require_outputs([probe_only], read=[data])
        options: dict[str, Any] = {"source": source, "device": device, "dtype": dtype}
        options |= {"with_neighbours": with_neighbours, "target": target_folder(target, talk)}
        return _probe(data, probe_only, config, talk, options, json=json)
    read_manifest(data)
    require_place(out, out)
    folder = target_folder(target, talk)
    say_loading(talk)
    from eyas.extract.extract import extract as extract_states
    from eyas.extract.extract import report
    from eyas.extract.plan import ExtractRequest

    request = ExtractRequest(target=folder, rows=data, out=out, source=source, device=device, dtype=dtype)
    done = extract_states(request, config, talk, dry_run=dry_run)
    document = {**done.as_document(), "out": str(out), "dry_run": dry_run}
    return emit(document, report(done, out, dry_run=dry_run), json=json)


def _probe(data: Path, out: Path, config: ExtractConfig, talk: Terminal, options: dict[str, Any], *, json: bool) -> int:
    say_loading(talk)
    from eyas.extract.probe import ProbeRequest, extract_probe

    pack, proof = extract_probe(ProbeRequest(data=[data], out=out, **options), config, talk)
    kept = list(pack.states)
    document = {
        "schema": "eyas.extract-probe/1",
        "out": str(out),
        "rows": len(pack.rows),
        "boundaries": kept,
        "bytes": pack.num_bytes,
        "proof": proof.as_document(),
    }
    text = f"wrote {out}: {counted(len(pack.rows), 'row')}, states at boundaries {', '.join(map(str, kept))}"
    return emit(document, text, json=json)
