"""`eyas watch`: parse, call, render."""

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from eyas.cli.output import JsonFlag, emit
from eyas.cli.server_view import server_view
from eyas.cli.terminal import Terminal
from eyas.errors import ExitCode, EyasError
from eyas.serve import compare as compare_module
from eyas.serve.compare import recorded_verdict
from eyas.serve.launch.stop import Interrupts
from eyas.serve.look import subject as subject_module
from eyas.serve.look.endpoints import require_sendable
from eyas.serve.supervise.views import final_text
from eyas.serve.watch import WatchConfig
from eyas.serve.watch import watch as watch_server

_DEFAULT = WatchConfig()


class WatchNothing(EyasError):
    """Neither a subject nor two runs."""

    code = "watch-nothing"
    exit_code = ExitCode.USAGE


def watch(
    subject: str | None = None,
    *,
    config: Annotated[WatchConfig, Parameter(name="*")] = _DEFAULT,
    compare: Annotated[tuple[Path, Path] | None, Parameter(name="--compare", negative="")] = None,
    json: JsonFlag = False,
) -> int:
    """What a server is doing now: starting (which phase), warming up, ready, stalled (where), crashed (why).

    Read-only: for a server that eyas did not start. The API key, if one is needed, is read from EYAS_API_KEY.

    Exit code: 0 = the state of --until was reached. Otherwise 10 + n, n by the state at the end: 10 starting,
    11 warming-up, 12 ready, 13 proven, 14 unhealthy, 15 draining, 16 stalled, 17 crashed, 18 stopped, 19 unreachable,
    20 no-engine. Without --until: 0, or 10 + n for what is unhealthy, stalled, crashed, unreachable or no engine at the
    end, and for a log that no process writes and that ends before it is ready.

    Parameters
    ----------
    subject
        URL (http://host:port), PID, log file or pipe (`-` = standard input), or a run folder of `eyas serve`.
    compare
        Two run folders or logs: what was changed between them, and where they part.
    """
    if compare is not None:
        if subject is not None:
            raise WatchNothing(
                "either a subject or --compare",
                f"eyas watch {subject} --compare ...",
                "two runs that are over are compared; nothing is watched meanwhile",
                "leave out one of the two",
            )
        first, second = (compare_module.load_run(p, engine=config.engine, version=config.version) for p in compare)
        comparison = compare_module.compare(first, second)
        return emit(comparison.as_document(), str(comparison), json=json)
    if subject is None:
        raise WatchNothing(
            "nothing to watch",
            "eyas watch",
            "neither a URL, PID or log was given, nor --compare with two runs",
            "eyas watch http://127.0.0.1:30000 --until ready",
        )
    api_key = os.environ.get("EYAS_API_KEY")
    require_sendable(api_key, "EYAS_API_KEY")
    found = subject_module.parse(subject, url=config.url, log=config.log)
    with Interrupts(grace_s=1.0) as interrupts:
        last, exit_code, folder = watch_server(
            found,
            config,
            server_view(Terminal(), json=json),
            api_key=api_key,
            interrupted=interrupts.asked,
        )
    verdict = recorded_verdict(Path(subject))
    document = last.as_document() | {"exit_code": exit_code, "run_folder": None if folder is None else str(folder)}
    document |= {"recorded_verdict": verdict}
    text = final_text(last, where=str(folder or ""))
    text += f"\nverdict of its first minute: {verdict['words']}" if verdict else ""
    return emit(document, text, json=json, exit_code=exit_code, was_interrupted=interrupts.asked())
