"""Are the JSON documents of the test suite what they were? A script for rebuilding the house; words may differ.

    EYAS_DOCUMENTS=/tmp/before pytest -p same_documents    (with PYTHONPATH=tests; likewise /tmp/before2, /tmp/after)
    python tests/same_documents.py /tmp/before /tmp/before2 /tmp/after

Every document that a command prints in a test is written down under the test's name. Two recordings of the state before
say which leaves differ from run to run (times, paths, process ids): these, and words, are not compared.
"""

import json
import os
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

_FOLDER = os.environ.get("EYAS_DOCUMENTS", "")


@pytest.fixture(autouse=bool(_FOLDER))
def documents_are_written_down(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    from eyas.cli import output

    told: list[str] = []

    class Recording:
        @staticmethod
        def dumps(value: Any, **options: Any) -> str:
            told.append(json.dumps(value, **options))
            name = re.sub(r"[^\w.-]", "_", request.node.name)[:150]
            Path(_FOLDER).mkdir(parents=True, exist_ok=True)
            (Path(_FOLDER) / f"{name}.jsonl").write_text("\n".join(told) + "\n", encoding="utf-8", errors="replace")
            return told[-1]

    monkeypatch.setattr(output, "json_module", Recording)


def leaves(value: Any, at: str = "") -> dict[str, Any]:
    """Path of each leaf -> its value; a text with a space in it is words, of which only their being there counts."""
    if isinstance(value, dict):
        found = {f"{at}.{{}}": sorted(value)}
        for key, part in value.items():
            found |= leaves(part, f"{at}.{key}")
        return found
    if isinstance(value, list):
        found = {f"{at}[]": len(value)}
        for number, part in enumerate(value):
            found |= leaves(part, f"{at}[{number}]")
        return found
    return {at: "words" if isinstance(value, str) and " " in value.strip() else value}


def read(folder: Path) -> dict[str, list[dict[str, Any]]]:
    found = {}
    for path in sorted(folder.glob("*.jsonl")):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        found[path.stem] = [leaves(json.loads(line)) for line in lines]
    return found


def main(before: str, again: str, after: str) -> int:
    one, two, new = read(Path(before)), read(Path(again)), read(Path(after))
    differs = defaultdict(list)
    compared = 0
    for name in sorted(one.keys() & two.keys()):
        if name not in new:
            differs["tests that are gone or renamed"].append(name)
            continue
        if len(one[name]) != len(new[name]):
            differs["another number of documents"].append(name)
        for number, (a, b, c) in enumerate(zip(one[name], two[name], new[name], strict=False)):
            compared += 1
            for leaf, value in a.items():
                if b.get(leaf) == value and c.get(leaf) != value:
                    differs[name].append(f"{number}{leaf}: {value!r} -> {c.get(leaf)!r}")
    for name, lines in differs.items():
        print(name, *(f"    {line}" for line in lines), sep="\n")
    print(f"{compared} documents of {len(one)} tests compared, {len(differs)} places differ")
    return 1 if differs else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]))
