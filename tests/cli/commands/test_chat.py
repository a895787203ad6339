"""`eyas chat` as a person meets it: one-shot, standard input, JSON, the keyboard."""

import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from byte_tokenizer import byte_tokenizer, save_target_with
from eyas.chat.session import ChatSession, ChatSettings
from eyas.cli.app import main
from eyas.cli.chat_loop import ChatScreen, talk_on
from eyas.cli.commands import chat as chat_command
from eyas.contract.spec.target_spec import read_target
from eyas.engine.engine import Engine
from eyas.models.save_draft import save_draft
from eyas.talk import Silent
from stub_models import StubTarget, right_draft
from stub_reader import letter_reader
from tiny_draft import tiny_draft
from tiny_target import tiny_target
from writing_target import save_writing_target


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `target`, which writes small letters, `draft`, and `bytes`, a target that writes any byte."""
    root = tmp_path_factory.mktemp("chat")
    target = save_writing_target(root / "target")
    save_target_with(root / "bytes")
    for folder, draft, seed in ((target, "draft", 3), (root / "bytes", "draft-bytes", 4)):
        spec = read_target(folder)
        size = {"vocab_size": spec.vocab_size, "draft_vocab_size": spec.vocab_size}
        module = tiny_draft(seed, hidden_size=32, target_hidden_size=32, embedding="target", head="target", **size)
        save_draft(module, root / draft, target_spec=spec)
    return root


def run(capsys: pytest.CaptureFixture[str], made: Path, *more: str, target: str = "target") -> tuple[int, str, str]:
    code = main(["chat", "--target", str(made / target), "--device", "cpu", "--max-new-tokens", "40", *more])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def document(capsys: pytest.CaptureFixture[str], made: Path, *more: str, target: str = "target") -> dict:
    code, out, _ = run(capsys, made, *more, "--json", target=target)
    assert code == 0
    assert len(out.splitlines()) == 1
    return json.loads(out)


@pytest.mark.parametrize("k", ["1", "4", "auto"])
@pytest.mark.parametrize(("target", "draft"), [("target", "draft"), ("bytes", "draft-bytes")])
@pytest.mark.parametrize("how", [(), ("--temperature", "0.8", "--seed", "3", "--top-k", "40")])
def test_with_a_draft_the_text_is_the_one_without(capsys, made, target, draft, k, how):
    turns = ("--prompt", "hello", "--prompt", "and you, 😀?")
    plain = document(capsys, made, *turns, *how, "--draft", "none", target=target)
    drafting = document(capsys, made, *turns, *how, "--draft", str(made / draft), "-k", k, target=target)

    assert len(plain["answers"]) == 2
    for expected, got in zip(plain["answers"], drafting["answers"], strict=True):
        same = ("prompt", "text", "ids", "finish", "seed", "num_prompt_tokens")
        assert {name: got[name] for name in same} == {name: expected[name] for name in same}
    assert (plain["draft"], plain["settings"]["num_draft_tokens"]) == (None, 0)
    assert drafting["draft"] == str(made / draft)


def test_the_document_has_the_counts_of_every_answer(capsys, made):
    found = document(capsys, made, "--prompt", "hello", "--draft", str(made / "draft"), "-k", "3")
    answer = found["answers"][0]

    assert found["schema"] == "eyas.chat/1"
    assert answer["rounds"] == len(answer["accepted"]) == len(answer["drafted"])
    assert len(answer["ids"]) == len(answer["origins"])
    assert answer["accept_length"] == pytest.approx(1 + sum(answer["accepted"]) / answer["rounds"])
    assert answer["first_token_s"] > 0
    assert answer["tokens_per_s"] == pytest.approx((len(answer["ids"]) - 1) / answer["decode_s"])
    assert found["settings"]["device"] == "cpu"


def test_the_answer_is_on_stdout_and_its_figures_are_on_stderr(capsys, made):
    expected = document(capsys, made, "--prompt", "hello", "--draft", "none")["answers"][0]["text"]
    code, out, err = run(capsys, made, "--prompt", "hello")

    assert (code, out) == (0, expected.rstrip("\n") + "\n")
    assert "note: no --draft: plain decoding" in err
    assert err.splitlines()[-1].startswith("[")
    assert ", plain decoding" in err.splitlines()[-1]
    assert "\x1b" not in out


def test_the_shipped_draft_is_used_for_its_target_and_said(tmp_path):
    talk = Silent()
    chosen = chat_command._draft_path(None, "smollm2-135m", talk)

    assert chosen is not None
    assert (chosen / "config.json").exists()
    assert talk.notes == [f"no --draft: using the one that ships with eyas, {chosen}"]
    assert chat_command._draft_path("none", "smollm2-135m", talk) is None
    assert chat_command._draft_path("d", "smollm2-135m", talk) == Path("d")


@pytest.mark.smollm2
def test_the_built_in_target_says_the_same_with_its_draft_and_accepts(capsys, smollm2_folder):
    common = ["chat", "--target", "smollm2-135m", "--device", "cpu", "--max-new-tokens", "24", "--json"]
    found = []
    for more in (["--draft", "none"], ["-k", "2"]):
        assert main([*common, *more, "--prompt", "Why is the sky blue?"]) == 0
        found.append(json.loads(capsys.readouterr().out)["answers"][0])

    assert found[0]["ids"] == found[1]["ids"]
    assert found[1]["accept_length"] > 1.2


def type_in(monkeypatch: pytest.MonkeyPatch, given: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given), encoding="utf-8"))


def test_standard_input_to_its_end_is_one_prompt(capsys, made, monkeypatch):
    type_in(monkeypatch, "hello\nyou 😀\n".encode())
    assert document(capsys, made)["answers"][0]["prompt"] == "hello\nyou 😀"


@pytest.mark.parametrize(
    ("given", "said"), [(b"", "the prompt is empty"), (b"\n \n", "the prompt is empty"), (b"a\xff", "not valid UTF-8")]
)
def test_standard_input_without_a_prompt_is_refused(capsys, made, monkeypatch, given, said):
    type_in(monkeypatch, given)
    code, _, err = run(capsys, made)
    assert code == 2
    assert said in err


def test_standard_input_without_an_end_is_refused(capsys, made, monkeypatch):
    with open("/dev/zero", "rb") as endless:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(endless, encoding="utf-8"))
        code, _, err = run(capsys, made)
    assert code == 2
    assert "error[chat-prompt-invalid]: standard input is longer than 64 MiB" in err


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (("--prompt", ""), 2, "error[chat-prompt-invalid]: the prompt is empty"),
        (("--prompt", "a", "-k", "3"), 2, "error[draft-missing]: 3 drafts per verify pass, but no draft"),
        (("--prompt", "a", "--temperature", "-1"), 2, "error[sampling-invalid]"),
        (("--prompt", "a", "-k", "some"), 2, "error[chat-config-invalid]: -k is 'some'"),
        (("--prompt", "a", "--temprature", "1"), 2, "error[usage]"),
        (("--prompt", "a" * 300), 2, "error[prompt-too-long]"),
        (("--prompt", "a", "--draft", "/nowhere"), 2, "error[checkpoint-not-found]"),
    ],
)
def test_what_cannot_be_meant_is_an_error(capsys, made, more, code, said):
    found, out, err = run(capsys, made, *more)
    assert (found, out) == (code, "")
    assert said in err


def test_a_draft_of_another_target_is_refused(capsys, made):
    code, _, err = run(capsys, made, "--prompt", "a", "--draft", str(made / "draft-bytes"))
    assert code == 2
    assert "the draft's vocabulary is 264, the target's 259" in err


def test_a_target_without_a_template_is_refused_with_a_way_out(capsys, tmp_path):
    save_target_with(tmp_path / "target", template=None)
    code, _, err = run(capsys, tmp_path, "--prompt", "a")
    assert code == 2
    assert "error[template-missing]" in err
    assert "= note: with --raw, the target continues each prompt as it is" in err

    found = document(capsys, tmp_path, "--prompt", "abc", "--raw")
    assert found["answers"][0]["num_prompt_tokens"] == 3


def test_a_tokenizer_that_knows_more_tokens_than_the_target_is_refused(capsys, tmp_path):
    byte_tokenizer().save_pretrained(tmp_path / "target")
    tiny_target("llama", vocab_size=257).save_pretrained(tmp_path / "target")  # no row for <|im_end|>, id 257
    code, out, err = run(capsys, tmp_path, "--prompt", "a")

    assert (code, out) == (2, "")
    assert "error[prompt-outside-vocabulary]: the prompt holds token id 257" in err
    assert "the target has the ids 0 … 256" in err


def test_a_stop_text_ends_the_answer_before_itself(capsys, made):
    text = document(capsys, made, "--prompt", "hello")["answers"][0]["text"]
    assert len(text) > 12
    stop = text[8:10]
    for more in ((), ("--draft", str(made / "draft"), "-k", "3")):
        answer = document(capsys, made, "--prompt", "hello", "--stop", stop, *more)["answers"][0]
        assert answer["text"] == text[: text.index(stop)]
        assert answer["finish"] == "stop"


def test_a_seed_is_drawn_and_said_where_one_is_needed(capsys, made):
    _, out, err = run(capsys, made, "--prompt", "hello", "--temperature", "0.9", "--json")
    seed = json.loads(out)["settings"]["seed"]
    assert f"note: sampling with --seed {seed}" in err
    again = document(capsys, made, "--prompt", "hello", "--temperature", "0.9", "--seed", str(seed))
    assert again["answers"][0]["ids"] == json.loads(out)["answers"][0]["ids"]


def test_sampling_options_without_effect_are_said(capsys, made):
    _, _, err = run(capsys, made, "--prompt", "hello", "--top-p", "0.5", "--seed", "1")
    assert "note: --top-p, --seed: no effect at temperature 0" in err


def test_a_context_that_cuts_the_answer_is_said(capsys, made):
    code, _, err = run(capsys, made, "--prompt", "a" * 200)
    assert code == 0
    assert "the target's context is 256" in err
    assert "cut off after" in err


# At the keyboard: the loop on stubs, then the whole command in a terminal.


def keyboard(*lines: str | type[BaseException]) -> Iterator:
    given = iter(lines)

    def read() -> str | None:
        line = next(given, None)
        if isinstance(line, type):
            raise line
        return line

    return read


def talk_with(*lines: str | type[BaseException], interrupt_at: int | None = None, **options) -> Silent:
    """The loop over a stub's session; Ctrl-C is pressed when so many pieces have been shown."""
    talk, num = Silent(), 0
    session = ChatSession(
        Engine(StubTarget(), right_draft()), letter_reader(), ChatSettings(depth=3, max_new_tokens=30, **options), talk
    )

    class Screen(ChatScreen):
        def show(self, piece) -> None:
            nonlocal num
            num += 1
            super().show(piece)
            if num == interrupt_at:
                signal.raise_signal(signal.SIGINT)

    talk_on(session, Screen(talk, shows_drafts=True), talk, keyboard(*lines))
    return talk


def test_ctrl_c_ends_the_answer_and_not_the_session(capsys):
    handler = signal.getsignal(signal.SIGINT)
    talk = talk_with("ab", "cd", interrupt_at=5)
    answers = [line for line in talk.lines if line.startswith("[")]

    assert answers[0].endswith("interrupted]")
    assert answers[1].startswith("[30 tokens")
    assert "interrupted" not in answers[1]
    assert signal.getsignal(signal.SIGINT) is handler


def test_a_second_ctrl_c_in_one_answer_ends_all_of_it():
    class Twice(ChatScreen):
        def show(self, piece) -> None:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    talk = Silent()
    session = ChatSession(Engine(StubTarget()), letter_reader(), ChatSettings(max_new_tokens=30), talk)
    with pytest.raises(KeyboardInterrupt):
        talk_on(session, Twice(talk, shows_drafts=False), talk, keyboard("ab", "cd"))


def test_ctrl_c_at_the_keyboard_gives_the_line_up(capsys):
    talk = talk_with(KeyboardInterrupt, "ab")
    assert sum(line.startswith("[") for line in talk.lines) == 1


def test_commands_are_obeyed_and_the_rest_is_said(capsys):
    talk = talk_with("/plain", "ab", "/Plain", "/RESET ", "  ", "/etc/passwd a", "/what", "/help", "/EXIT", "x")
    shown = "\n".join(talk.lines)

    assert [
        line
        for line in talk.lines
        if line in ("speculation is off", "speculation is on", "the conversation is forgotten")
    ] == [
        "speculation is off",
        "speculation is on",
        "the conversation is forgotten",
    ]
    answers = [line for line in talk.lines if line.startswith("[")]
    assert len(answers) == 2
    assert "plain decoding" in answers[0]
    assert "accept length 4.00" in answers[1] or "accept length 3." in answers[1]
    assert "/what is not a command" in shown
    assert shown.count("/reset  forget") == 2


@pytest.mark.parametrize(
    ("line", "said", "num_answers"),
    [
        ("/reset now", "/reset must stand alone on its line; ignored", 0),
        ("/re-set", "/re-set is not a command; try", 0),
        ("/tmp is full", "/tmp is not a command: taken as a prompt", 1),
    ],
)
def test_a_line_that_only_looks_like_a_command_is_told(capsys, line, said, num_answers):
    talk = talk_with(line)
    assert sum(text.startswith(said) for text in talk.lines) == 1
    assert sum(text.startswith("[") for text in talk.lines) == num_answers


def test_an_error_ends_the_answer_and_not_the_session(capsys):
    talk = talk_with("ab", "a\udcff", system="refuse")
    assert sum("error[template-failed]" in line for line in talk.lines) == 1
    assert sum("error[chat-prompt-invalid]" in line for line in talk.lines) == 1


def test_a_locale_without_utf_8_reads_our_own_files_all_the_same(made):
    command = [sys.executable, "-m", "eyas", "chat", "--target", str(made / "target"), "--device", "cpu"]
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, input="é".encode(), env=os.environ | locale, capture_output=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize(("no_colour", "style"), [("", "\x1b[4m"), ("1", "")])
def test_in_a_terminal_drafts_are_underlined_unless_colours_are_unwanted(made, no_colour, style):
    """The whole command in a terminal: a prompt, Ctrl-C at the keyboard, Ctrl-D."""
    command = [sys.executable, "-m", "eyas", "chat", "--target", str(made / "target"), "--device", "cpu"]
    command += ["--draft", str(made / "draft"), "-k", "4", "--max-new-tokens", "60"]
    ours, theirs = pty.openpty()
    environment = os.environ | {"NO_COLOR": no_colour, "TERM": "xterm", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    )
    os.close(theirs)
    try:
        seen = until(ours, "> ")
        os.write(ours, b"hello\n")
        seen += until(ours, "tokens", "> ")
        os.write(ours, b"/exit\n")
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert ("underlined: guessed by the draft" in seen) == bool(style)
    assert ("\x1b[4m" in seen) == bool(style)
    assert "accept length" in seen


def until(terminal: int, *marks: str, limit_s: float = 90.0) -> str:
    """What the terminal shows until all marks have come, in order."""
    seen, ends, at = "", time.monotonic() + limit_s, 0
    for mark in marks:
        while (found := seen.find(mark, at)) < 0:
            assert time.monotonic() < ends, f"{mark!r} has not come: {seen!r}"
            if select.select([terminal], [], [], 1.0)[0]:
                seen += os.read(terminal, 4096).decode(errors="replace")
        at = found + len(mark)
    return seen
