"""Every number that a command takes, given as nonsense: a clear error or accepted, never a traceback, never a hang."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import cyclopts
import pytest

from eyas.cli.app import COMMANDS, _takes, build_app, main
from eyas.cli.commands import demo as demo_command
from eyas.contract.spec.target_spec import read_target
from eyas.models.save_draft import save_draft
from tiny_draft import tiny_draft
from tiny_target import tiny_target
from tiny_tokenizer import tiny_tokenizer

VALUES = ("nan", "inf", "-1", "1e309", "", "ä", str(10**30), str(2**63 - 1))
NUMBERS_AS_TEXT = ("-k", "--num-draft-tokens", "--tree", "--batch")
LIMIT_S = 20


class Hung(BaseException):
    """The command did not end in time."""


def numeric(argument: cyclopts.Argument) -> bool:
    is_number = _takes(int, argument.hint) or _takes(float, argument.hint)
    return is_number or any(name in NUMBERS_AS_TEXT for name in argument.names)


def cases() -> list[tuple[str, str, str]]:
    """(command, option, value) of all."""
    app = build_app()
    found = []
    for command in COMMANDS:
        for argument in app[command].assemble_argument_collection():
            if numeric(argument) and argument.name.startswith("-"):
                found += [(command, argument.name, value) for value in VALUES]
    return found


ALL = cases()
SAMPLE = ALL[:: len(VALUES) + 1]  # each option about once, with another value each time


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Per command a short run over tiny models, without the option under test."""
    root = tmp_path_factory.mktemp("sweep")
    tiny_target(seed=5).save_pretrained(root / "target")
    tiny_tokenizer().save_pretrained(root / "target")
    draft = tiny_draft(hidden_size=32, target_hidden_size=32, vocab_size=64, draft_vocab_size=64)
    save_draft(draft, root / "draft", target_spec=read_target(root / "target"))
    row = {"id": "r", "set": "s", "prompt_ids": [1, 7], "response_ids": list(range(3, 20))}
    (root / "rows.jsonl").write_text(json.dumps(row))
    chat = [{"role": "user", "content": "w1 w2"}, {"role": "assistant", "content": "w3 w4 w5"}]
    (root / "talks.jsonl").write_text("\n".join(json.dumps({"messages": chat}) for _ in range(4)))
    target, made = ["--target", str(root / "target")], root / "rows"
    cpu = ["--device", "cpu", "--threads", "1"]
    assert main(["prepare", *target, "--data", str(root / "talks.jsonl"), "--out", str(made), *cpu]) == 0
    pair, rows = [*target, "--draft", str(root / "draft")], ["--data", str(root / "rows.jsonl")]
    short = ["--max-new-tokens", "4"]
    return {
        "demo": ["--out", str(root / "demo")],
        "prepare": [*target, "--data", str(root / "talks.jsonl"), "--out", str(root / "new"), *cpu],
        "train": [*target, "--data", str(made), "--out", str(root / "trained"), "--dry-run", "--steps", "3", *cpu],
        "eval": [str(root / "draft"), *target, *rows, *short, *cpu],
        "infer": [str(root / "draft"), *target, *rows, *short, *cpu],
        "check": [str(root / "draft"), "--for", "vllm==0.33.0"],
        "bench": [*pair, *rows, *short, "--repeats", "1", *cpu],
        "chat": [*pair, "--prompt", "w1", *short, *cpu],
        "parity": [str(root / "draft"), *target, *rows, "--url", "http://127.0.0.1:9", *short],
        "serve": [*pair, "--print", "--engine", "vllm", "--engine-version", "0.33.0"],
        "watch": ["http://127.0.0.1:9", "--no-follow"],
    }


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def end(*_: object) -> None:
        raise Hung

    monkeypatch.setattr(demo_command, "_run_step", lambda title, step: None)
    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(LIMIT_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def run(lines: dict[str, list[str]], command: str, option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = list(lines.get(command, []))
    if option in line:
        del line[line.index(option) : line.index(option) + 2]
    code = main([command, *line, f"{option}={value}"])
    shown = capsys.readouterr().err
    assert code in (0, 1, 2, 3, *range(10, 21)), shown
    assert "Traceback" not in shown
    assert "this is a bug" not in shown
    assert code == 0 or "error[" in shown or code >= 10 or code == 1, shown
    for made in (Path(line[line.index("--out") + 1]),) if "--out" in line else ():
        if made.is_dir():
            made.rename(made.with_name(f"{made.name}-{option}-{VALUES.index(value)}"))


@pytest.mark.parametrize(("command", "option", "value"), SAMPLE)
def test_a_sample_of_nonsense_is_refused_or_accepted(lines, limited, capsys, command: str, option: str, value: str):
    run(lines, command, option, value, capsys)


@pytest.mark.soak
@pytest.mark.parametrize(("command", "option", "value"), ALL)
def test_all_nonsense_is_refused_or_accepted(lines, limited, capsys, command: str, option: str, value: str):
    run(lines, command, option, value, capsys)
