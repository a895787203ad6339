"""How fast `eyas prepare --self-chat` does everything but generate: texts come out of a file instead of a model.

    python benchmarks/prepare_speed.py --target FOLDER --texts CONVERSATIONS.jsonl.xz [--num 100000] [--tiny]

The user turns and answers of the file stand for what the target would write, repeated (with a number in front) up to
`--num` conversations. Prints seconds by phase and in all, on as many cores as it is given (`taskset -c 0` for one).
"""

import argparse
import json
import lzma
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

from transformers import AutoTokenizer

from eyas.data.prepare import PrepareConfig, prepare
from eyas.data.prepare_config import WritingConfig
from eyas.data.text.tokenise import encode_many
from eyas.engine.batches.completions_file import complete_to_file
from eyas.engine.batches.generator import Completion, Request
from eyas.talk import Silent


class Recorded:
    """Answers requests with recorded ids, through the same file as the engine; its own time is kept apart."""

    def __init__(self, folder: Path, texts: Mapping[str, Sequence[tuple[int, ...]]], end: int) -> None:
        self._folder, self._texts, self._end = folder, texts, end
        self.phases: list[tuple[str, float]] = []

    def __call__(self, phase: str, requests: Sequence[Request]) -> Mapping[str, Completion]:
        begin = time.process_time()
        texts = self._texts[phase]
        done = {r.id: Completion(id=r.id, ids=texts[int(r.id.split("-")[1])], finish="stop") for r in requests}
        found = complete_to_file(
            self._folder / f"{phase}.completions",
            requests,
            lambda asked: (done[r.id] for r in asked),
            target="recorded",
            talk=Silent(),
        )
        self.phases.append((phase, time.process_time() - begin))
        return found


def texts_of(path: Path, tokenizer: object, num: int) -> dict[str, list[tuple[int, ...]]]:
    with lzma.open(path, "rt") as file:
        records = [json.loads(line)["messages"] for line in islice(file, num)]
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")  # type: ignore[attr-defined]
    users, answers = (
        [(*ids, end) for ids in encode_many(tokenizer, [m[i]["content"] for m in records])]  # type: ignore[arg-type]
        for i in (0, 1)
    )
    heads = encode_many(tokenizer, [f"{i} " for i in range(num)])  # type: ignore[arg-type]
    return {
        "user-1": [(*heads[i], *users[i % len(users)]) for i in range(num)],
        "answer-1": [answers[i % len(answers)] for i in range(num)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--exclude", type=Path, nargs="*", default=[])
    parser.add_argument("--num", type=int, default=100_000)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    num = 500 if given.tiny else given.num
    out = given.out or Path(tempfile.mkdtemp())
    tokenizer = AutoTokenizer.from_pretrained(given.target)
    texts = texts_of(given.texts, tokenizer, num)
    recorded: list[Recorded] = []

    def writer(folder: Path) -> Recorded:
        recorded.append(Recorded(folder, texts, tokenizer.eos_token_id))
        return recorded[-1]

    talk, begin, begin_cpu = Silent(), time.perf_counter(), time.process_time()
    done = prepare(
        given.target,
        [],
        out / "rows",
        PrepareConfig(held_out=min(256, num // 10)),
        talk,
        writing=WritingConfig(self_chat=num, device="cpu"),
        writer=writer,
        exclude=given.exclude,
    )
    seconds = time.perf_counter() - begin
    print(*talk.lines, sep="\n", file=sys.stderr)
    manifest = done.manifest
    document = {
        "conversations": num,
        "rows": manifest.num_rows,
        "tokens": manifest.num_tokens,
        "seconds": round(seconds, 2),
        "cpu_seconds": round(time.process_time() - begin_cpu, 2),
        "phases_through_file_cpu_s": {name: round(spent, 2) for name, spent in recorded[0].phases},
        "rows_bytes": (out / "rows" / "rows.safetensors").stat().st_size,
        "conversations_bytes": (out / "rows.self-chat" / "conversations.jsonl").stat().st_size,
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "dropped": dict(manifest.dropped),
    }
    print(json.dumps(document, indent=2))
    if given.out is None:
        shutil.rmtree(out)


if __name__ == "__main__":
    main()
