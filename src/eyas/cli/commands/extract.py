"""`eyas extract`: parse, call, render."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from eyas.cli.output import JsonFlag, emit
from eyas.cli.target_option import TargetName, target_folder
from eyas.cli.terminal import Terminal
from eyas.extract.config import ExtractConfig
from eyas.extract.open_source import require_source
from eyas.records.atomic import require_place
from eyas.records.rows import read_manifest
from eyas.talk import say_loading

_DEFAULT = ExtractConfig()


def extract(
    *,
    target: TargetName,
    data: Annotated[Path, Parameter(name="--data")],
    out: Path,
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
        Folder of tokenised rows, made by `eyas prepare` with the same target.
    out
        Folder of the store.
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
    read_manifest(data)
    require_place(out, out)
    talk = Terminal()
    folder = target_folder(target, talk)
    say_loading(talk)
    from eyas.extract.extract import extract as extract_states
    from eyas.extract.extract import report
    from eyas.extract.plan import ExtractRequest

    request = ExtractRequest(target=folder, rows=data, out=out, source=source, device=device, dtype=dtype)
    done = extract_states(request, config, talk, dry_run=dry_run)
    document = {**done.as_document(), "out": str(out), "dry_run": dry_run}
    return emit(document, report(done, out, dry_run=dry_run), json=json)
