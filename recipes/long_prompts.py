"""Questions over long texts, for a target to answer: what conversations of a model with itself never hold.

    python recipes/long_prompts.py --conversations CONVERSATIONS.jsonl[.xz] ... --out FOLDER --num 6000

Writes FOLDER/{summary,passages,documents}.jsonl (to learn from, one user turn a line) and FOLDER/held-out/ with the same
names, made of other texts. The texts are the target's own earlier answers in CONVERSATIONS, and the documentation of
Python's standard library:
- summary: one text of 1 to 8 answers, and the request for a summary;
- passages: 3 to 10 answers with numbers, one of them to the question that is asked again;
- documents: docstrings of a module, and a request for a summary, an explanation or a list.
A text has up to --longest 6000 characters, about 1500 tokens. `eyas prepare --regenerate` lets the target answer.
"""

import argparse
import importlib
import inspect
import json
import lzma
import random
from collections.abc import Iterator
from pathlib import Path

SHORTEST = 800  # characters of a text, but at most half of --longest
HELD_OUT_SHARE = 0.05  # of the conversations and modules
SUMMARY = (
    "Summarize the following text in two or three sentences.",
    "Give me a short summary of this text.",
    "What are the main points of the text below?",
    "Write one paragraph that sums up the following.",
    "Read this and tell me in a few words what it is about.",
    "Summarise the text below as a list of key points.",
)
PASSAGES = (
    "Answer the question, using the passages below.",
    "Use the following passages to answer the question at the end.",
    "Here are some documents that were found for a question. Answer it from them.",
)
DOCUMENTS = (
    "Summarize the documentation below.",
    "Explain to a beginner what this module does.",
    "List what can be done with the module that is described below.",
    "What is the most important thing in this documentation?",
)
MODULES = (
    "abc argparse array ast asyncio base64 bisect calendar cmath collections colorsys configparser contextlib copy csv"
    " datetime decimal difflib dis email enum fileinput fnmatch fractions functools getopt getpass gettext glob graphlib"
    " gzip hashlib heapq hmac html http inspect io ipaddress itertools json keyword linecache locale logging lzma mailbox"
    " math mimetypes numbers operator os pathlib pickle pkgutil platform plistlib pprint profile queue random re"
    " sched secrets selectors shelve shlex shutil signal smtplib socket sqlite3 statistics string struct subprocess"
    " tarfile tempfile textwrap threading timeit token tokenize traceback types typing unittest urllib uuid venv warnings"
    " weakref xml zipfile zlib"
).split()


def conversations(paths: list[Path]) -> list[tuple[str, str]]:
    """(question, answer) of the first turns, whose answers are long enough to be a passage."""
    found = []
    for path in paths:
        with lzma.open(path, "rt") if path.suffix == ".xz" else path.open() as file:
            for line in file:
                turns = [turn["content"] for turn in json.loads(line)["messages"] if turn["role"] != "system"]
                if len(turns) >= 2 and len(turns[1]) >= 300:
                    found.append((turns[0], turns[1]))
    return found


def documents(longest: int) -> list[str]:
    """Docstrings of each module, its own first, cut into texts of `longest` characters."""
    found = []
    for name in MODULES:
        try:
            module = importlib.import_module(name)
        except ImportError:  # built without it, or gone from a later Python
            continue
        members = [m for _, m in sorted(vars(module).items(), key=lambda item: item[0]) if callable(m)]
        docs = [inspect.getdoc(module), *map(inspect.getdoc, members)]
        text = "\n\n".join(dict.fromkeys(doc for doc in docs if doc))
        found += [text[at : at + longest] for at in range(0, min(len(text), 4 * longest), longest)]
    return [text for text in found if len(text) >= longest / 8]


def length(longest: int, drawn: random.Random) -> int:
    """Of a text, in characters: short more often than long."""
    shortest = min(SHORTEST, longest // 2)
    return int(shortest * (longest / shortest) ** drawn.random())


def text_of(answers: list[tuple[str, str]], longest: int, drawn: random.Random) -> str:
    """Answers one after the other."""
    wanted, text = length(longest, drawn), ""
    while len(text) < wanted:
        text += drawn.choice(answers)[1] + "\n\n"
    return text[:longest].strip()


def passages_of(answers: list[tuple[str, str]], longest: int, drawn: random.Random) -> str:
    """Numbered passages, and a question that one of them answers."""
    chosen = drawn.sample(answers, min(len(answers), drawn.randint(3, 10)))
    most = longest // len(chosen)
    listed = "\n\n".join(f"Passage {n}: {answer[:most]}" for n, (_, answer) in enumerate(chosen, start=1))
    return f"{listed}\n\nQuestion: {drawn.choice(chosen)[0]}"


def prompts(
    kind: str, answers: list[tuple[str, str]], texts: list[str], longest: int, drawn: random.Random
) -> Iterator[str]:
    """Without end."""
    while True:
        if kind == "summary":
            yield f"{drawn.choice(SUMMARY)}\n\n{text_of(answers, longest, drawn)}"
        elif kind == "passages":
            yield f"{drawn.choice(PASSAGES)}\n\n{passages_of(answers, longest, drawn)}"
        else:
            text = drawn.choice(texts)
            begin = drawn.randrange(0, len(text) // 2)
            yield f"{drawn.choice(DOCUMENTS)}\n\n{text[begin : begin + length(longest, drawn)]}"


def write(path: Path, kind: str, lines: Iterator[str], num: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        for number, prompt in zip(range(num), lines, strict=False):
            record = {"id": f"{kind}-{number}", "messages": [{"role": "user", "content": prompt}]}
            file.write(json.dumps(record) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--num", type=int, default=6000, help="prompts to learn from, all kinds together")
    parser.add_argument("--held-out", type=int, default=48, help="prompts of each kind that are kept out")
    parser.add_argument("--longest", type=int, default=6000, help="characters of a text, at most")
    given = parser.parse_args()
    drawn = random.Random(0)
    sources: list[list] = [conversations(given.conversations), documents(given.longest)]
    kept, learned = [], []
    for source in sources:
        drawn.shuffle(source)
        cut = max(3, int(HELD_OUT_SHARE * len(source)))
        kept.append(source[:cut])
        learned.append(source[cut:])
    shares = {"summary": 0.4, "passages": 0.4, "documents": 0.2}
    for kind, share in shares.items():
        write(given.out / f"{kind}.jsonl", kind, prompts(kind, *learned, given.longest, drawn), int(share * given.num))
        write(
            given.out / "held-out" / f"{kind}.jsonl", kind, prompts(kind, *kept, given.longest, drawn), given.held_out
        )


if __name__ == "__main__":
    main()
