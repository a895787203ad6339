"""Times of a tree round's parts on one CPU thread, for `tree_shapes.py --bench`: CPU time, since machines are shared.

    OMP_NUM_THREADS=1 python benchmarks/tree_parts.py TARGET DRAFT --shapes 1x3x3,3x3x5,4x4x7 --out PARTS.json

A shape 1xKxK is the chain of K drafts, by the tree's own code. One thread's CPU time leaves out waiting for other
programs, not what they do to caches and memory.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import torch

from eyas.bench.engine_arm import TreePartTimer
from eyas.cli.target_option import cache_folder
from eyas.decode.tree_shape import TreeShape
from eyas.engine.open_engine import open_engine
from eyas.models.placement import place
from eyas.talk import Silent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--shapes", default="1x3x3,3x3x5,4x4x7")
    parser.add_argument("--length", type=int, default=200, help="tokens of text before the round")
    parser.add_argument("--samples", type=int, default=7)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    placement = place("float32", "cpu")
    opened = open_engine(
        arguments.target, arguments.draft, placement, cache=cache_folder(), num_threads=1, talk=Silent()
    )
    shapes = TreeShape.parse_all(arguments.shapes)
    ids = list(range(10, 10 + arguments.length))
    timer = TreePartTimer(opened.engine, ids, shapes, clock=time.thread_time)
    timer.sample(arguments.samples)
    comparisons = []
    for shape in shapes:
        arm = f"k={shape.depth}" if shape.width == 1 else f"tree={shape}"
        times = timer.times(shape)
        print(f"{arm}: {times}", file=sys.stderr)
        ceiling = times.ceiling(1.0, ())
        comparisons.append({"arm": arm, "set": "all", "ceiling": {k: getattr(ceiling, k) for k in _FIELDS}})
    arguments.out.write_text(json.dumps({"comparisons": comparisons}, indent=2) + "\n")


_FIELDS = ("one_row_ms", "verify_ms", "draft_step_ms")


if __name__ == "__main__":
    main()
