"""`eyas report`: one self-contained HTML page of a run."""

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from eyas.cli.output import JsonFlag, emit, require_outputs
from eyas.cli.terminal import Terminal
from eyas.records.atomic import write_text


def report(
    *runs: Annotated[Path, Parameter(help="Folders of runs, or JSON documents that eyas wrote.")],
    out: Annotated[Path, Parameter(name=["--out", "-o"], help="Where the page goes.")] = Path("report.html"),
    title: Annotated[str | None, Parameter(help="Heading of the page; default: the folders' names.")] = None,
    json: JsonFlag = False,
) -> int:
    """One self-contained HTML page of a run: verdict, speed, acceptance, losses, ledger, start-up, provenance.

    Reads every JSON document of eyas in the folders (three levels deep), whatever the file names. The page is under
    1 MB and needs no network.
    """
    from eyas.report.build import build_report

    # A page may lie in a run's folder and be made again; nothing else in there is replaced.
    is_new = out.suffix == ".html" or not os.path.lexists(out)
    require_outputs([out], read=[run for run in runs if os.path.isfile(run) or not is_new])
    page = build_report(runs, title, Terminal())
    write_text(out, page)
    size = len(page.encode())
    document = {"schema": "eyas.report/1", "page": str(out), "bytes": size}
    return emit(document, f"{out}: {size / 1000:.0f} kB", json=json)
