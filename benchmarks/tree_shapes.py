"""Trees beside chains: a Markdown table from what `eyas eval --json` and `eyas bench --json` wrote.

    python benchmarks/tree_shapes.py EVAL.json ... [--bench BENCH.json]

Accept lengths are the evaluations' (replay, all rows). With --bench, the times of the parts of a round stand beside
them, and what they allow: accept length * t(1 row) / (t(verify) + depth * t(draft pass)).
"""

import argparse
import json
from pathlib import Path
from typing import Any


def arm_of(record: dict[str, Any]) -> str:
    """`k=5` or `tree=4x5x16`, as a benchmark names its arms."""
    tree = record["tree"]
    if tree is None:
        return f"k={record['num_draft_tokens']}"
    return f"tree={tree['width']}x{tree['depth']}x{tree['num_nodes']}"


def rows_of(record: dict[str, Any]) -> int:
    """Rows of the target in one verify pass."""
    return 1 + (record["tree"]["num_nodes"] if record["tree"] else record["num_draft_tokens"])


def table(evals: list[dict[str, Any]], ceilings: dict[str, dict[str, float]]) -> str:
    """One line per evaluation, by rows of the verify pass."""
    sets = list(evals[0]["sets"])
    head = ["draft", "rows", "depth", "accept length", *sets, "rounds"]
    head += ["verify ms", "draft ms", "speedup allowed"] if ceilings else []
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for record in sorted(evals, key=lambda r: (rows_of(r), r["tree"] is not None)):
        depth = record["num_draft_tokens"]
        cells = [arm_of(record), str(rows_of(record)), str(depth), f"{record['accept_length']:.3f}"]
        cells += [f"{record['sets'][name]['accept_length']:.3f}" for name in sets] + [str(record["rounds"])]
        if ceilings:
            cells += timed(record["accept_length"], depth, ceilings.get(arm_of(record)))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def timed(accept_length: float, depth: int, parts: dict[str, float] | None) -> list[str]:
    """Verify, drafting, and the speedup that they allow; dashes where the benchmark had no such arm."""
    if parts is None:
        return ["–"] * 3
    drafting = depth * parts["draft_step_ms"]
    speedup = accept_length * parts["one_row_ms"] / (parts["verify_ms"] + drafting)
    return [f"{parts['verify_ms']:.0f}", f"{drafting:.0f}", f"{speedup:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("evals", nargs="+", type=Path)
    parser.add_argument("--bench", type=Path)
    arguments = parser.parse_args()
    evals = [json.loads(path.read_text().splitlines()[-1]) for path in arguments.evals]
    ceilings = {}
    if arguments.bench:
        comparisons = json.loads(arguments.bench.read_text())["comparisons"]
        ceilings = {c["arm"]: c["ceiling"] for c in comparisons if c["set"] == "all" and c["ceiling"]}
    print(table(evals, ceilings))


if __name__ == "__main__":
    main()
