"""Servers write the answers: their own ids, from several at once, through every fault, resumed after a kill."""

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from byte_tokenizer import CHATML, THINKING, byte_tokenizer, save_target_with
from eyas.client.address import ServerUnreachable
from eyas.client.balanced import AnswersMissing
from eyas.data.prepare import PrepareConfig, Prepared, prepare
from eyas.data.prepare_config import ConfigInvalid, WritingConfig
from eyas.data.rows.row_store import Rows
from eyas.data.text.server_tokenizer import OtherTokenizer
from eyas.data.writing.open_servers import ServersDiffer
from eyas.data.writing.server_writer import ServerReadsOtherwise
from eyas.data.writing.written_data import NothingWritten
from eyas.models.chat_prompt import TokenizerUnloadable
from eyas.talk import Silent
from published_targets import make_tokenizer_code
from writing_server import Writer, WritingServer

TOKENIZER = byte_tokenizer()
KINDS = ["sglang", "vllm", "openai"]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Config and tokenizer, and no weights."""
    folder = save_target_with(tmp_path_factory.mktemp("target"))
    for weights in folder.glob("*.safetensors"):
        weights.unlink()
    return folder


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tokenizer is code in the folder, as Kimi's is; template and special tokens are data."""
    return without_tokenizer(save_target_with(tmp_path_factory.mktemp("foreign")))


def without_tokenizer(folder: Path) -> Path:
    for weights in folder.glob("*.safetensors"):
        weights.unlink()
    make_tokenizer_code(folder)
    return folder


def questions(path: Path, num: int, turns: int = 1) -> Path:
    def record(i: int) -> dict[str, Any]:
        asked = [{"role": "user", "content": f"question {i}, part {turn}"} for turn in range(turns)]
        return {"messages": [m for q in asked for m in (q, {"role": "assistant", "content": "Recorded."})]}

    path.write_text("".join(json.dumps(record(i)) + "\n" for i in range(num)))
    return path


def run(target: Path, data: Path | None, out: Path, *urls: str, talk: Silent | None = None, **options: Any) -> Prepared:
    writing = WritingConfig(**{"regenerate": data is not None, "concurrency": 8, "url": urls, **options})
    return prepare(target, [data] if data else [], out, PrepareConfig(held_out=0), talk or Silent(), writing=writing)


def texts(folder: Path) -> list[str]:
    return [TOKENIZER.decode(row.token_ids) for row in Rows(folder)]


def answers_only(folder: Path) -> list[str]:
    rows = list(Rows(folder))
    return [TOKENIZER.decode([i for i, s in zip(r.token_ids, r.is_supervised, strict=True) if s]) for r in rows]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_hold_what_the_server_wrote_turn_by_turn(target: Path, tmp_path: Path, kind: str):
    data = questions(tmp_path / "d.jsonl", 12, turns=2)
    with WritingServer(Writer(engine=kind)) as server:
        done = run(target, data, tmp_path / "rows", server.url)

    assert done.manifest.num_rows == done.manifest.num_as_written == 12
    assert sorted(answers_only(tmp_path / "rows"))[0] == (
        "re: question 0, part 0<|im_end|>re: question 0, part 1<|im_end|>"
    )
    assert all(count == 1 for count in server.writer.asked.values())
    assert len(server.writer.asked) == 24


@pytest.mark.parametrize("kind", ["sglang", "vllm"])
def test_a_request_names_every_setting_that_a_server_could_set_otherwise(target: Path, tmp_path: Path, kind: str):
    with WritingServer(Writer(engine=kind)) as server:
        run(target, questions(tmp_path / "d.jsonl", 1), tmp_path / "rows", server.url)
    (body,) = server.writer.bodies
    sampling = body["sampling_params"] if kind == "sglang" else body

    assert sampling["temperature"] == 0.0
    assert (sampling["min_p"], sampling["repetition_penalty"]) == (0.0, 1.0)
    assert sampling["top_k"] == (-1 if kind == "sglang" else 0)
    assert sampling["skip_special_tokens"] is sampling["spaces_between_special_tokens"] is False
    assert server.end in sampling["stop_token_ids"]
    assert body.get("input_ids") or all(isinstance(i, int) for i in body["prompt"])


def test_text_alone_is_tokenised_here_and_said(target: Path, tmp_path: Path):
    talk = Silent()
    with WritingServer(Writer(engine="openai", fault=lambda n, ids: "count" if n % 4 == 0 else None)) as server:
        run(target, questions(tmp_path / "d.jsonl", 8), tmp_path / "rows", server.url, talk=talk, concurrency=1)

    (said,) = [note for note in talk.notes if "came as text" in note]
    assert said.startswith("8 answers came as text and were tokenised here: 2 of 8 have another number of tokens")
    assert any("has no /tokenize that eyas knows" in note for note in talk.notes)
    assert all(answer.endswith("<|im_end|>") for answer in answers_only(tmp_path / "rows"))


FAULTS = ["500", "429", "drop", "half", "ids", "many", "count", "abort", "huge"]


@pytest.mark.parametrize("kind", ["sglang", "vllm"])
def test_no_fault_of_a_server_loses_or_doubles_an_answer(target: Path, tmp_path: Path, kind: str):
    data = questions(tmp_path / "d.jsonl", 60)
    with WritingServer(Writer(engine=kind)) as good:
        run(target, data, tmp_path / "good", good.url)

    def fault(number: int, ids: list[int]) -> str | None:
        return FAULTS[number // 3 % len(FAULTS)] if number % 3 == 0 and number < 90 else None

    with WritingServer(Writer(engine=kind, fault=fault)) as bad, WritingServer(Writer(engine=kind)) as other:
        run(target, data, tmp_path / "bad", bad.url, other.url)

    assert texts(tmp_path / "bad") == texts(tmp_path / "good")
    assert sum((bad.writer.asked + other.writer.asked).values()) == 60


def test_a_server_that_dies_for_good_leaves_its_work_to_the_others(target: Path, tmp_path: Path):
    data, talk = questions(tmp_path / "d.jsonl", 80), Silent()
    with WritingServer(Writer(pause_s=0.01)) as first, WritingServer(Writer(pause_s=0.01)) as second:

        def kill() -> None:
            while sum(first.writer.asked.values()) < 10:
                time.sleep(0.002)
            first.die()

        threading.Thread(target=kill, daemon=True).start()
        done = run(target, data, tmp_path / "rows", first.url, second.url, talk=talk)

    assert done.manifest.num_rows == 80
    assert any("its requests go to the others" in line for line in talk.lines)
    assert sum(second.writer.asked.values()) >= 80 - sum(first.writer.asked.values())


def test_a_restarted_server_is_used_again(target: Path, tmp_path: Path):
    data, talk = questions(tmp_path / "d.jsonl", 40), Silent()
    with WritingServer(Writer(pause_s=0.02)) as server:

        def restart() -> None:
            while sum(server.writer.asked.values()) < 10:
                time.sleep(0.002)
            server.die()
            time.sleep(0.5)
            server.rise()

        threading.Thread(target=restart, daemon=True).start()
        done = run(target, data, tmp_path / "rows", server.url, talk=talk)

    assert done.manifest.num_rows == 40
    assert any(line.endswith("answers again") for line in talk.lines)


def test_killed_and_run_again_asks_only_what_is_open(target: Path, tmp_path: Path):
    data, out = questions(tmp_path / "d.jsonl", 40), tmp_path / "rows"
    with WritingServer(Writer(pause_s=0.04)) as server:
        kept = killed(target, data, out, server, 12)
        assert 12 <= kept < 40, "the run was over before it could be killed"
        server.writer.asked.clear()

        run(target, data, out, server.url)

    assert sum(server.writer.asked.values()) == 40 - kept
    assert len(Rows(out)) == 40
    assert len(set(texts(out))) == 40


def killed(target: Path, data: Path, out: Path, server: WritingServer, after: int) -> int:
    """Answers that a run had kept when it was killed, some time after `after` of them."""
    file = out.with_name(f"{out.name}.regenerated") / "answer-1.completions"
    child = os.fork()  # a new interpreter would load torch first
    if child == 0:
        run(target, data, out, server.url, concurrency=4)
        os._exit(0)
    while not (file.exists() and file.read_bytes().count(b"\n") > after):
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    time.sleep(0.1)  # what was in flight ends
    return file.read_bytes().count(b"\n") - 1


@pytest.mark.soak
def test_twenty_kills_lose_nothing_and_write_nothing_twice(target: Path, tmp_path: Path):
    data, out = questions(tmp_path / "d.jsonl", 220), tmp_path / "rows"
    with WritingServer(Writer(pause_s=0.02)) as server:
        kept = [killed(target, data, out, server, 10 * (i + 1)) for i in range(20)]
        run(target, data, out, server.url)

    assert kept == sorted(kept)
    assert len(Rows(out)) == len(set(texts(out))) == 220
    # A kill loses what was in flight: 4 at a time.
    assert 220 <= sum(server.writer.asked.values()) <= 220 + 20 * 4


def test_ctrl_c_while_every_answer_is_awaited_ends_at_once(target: Path, tmp_path: Path):
    data, out = questions(tmp_path / "d.jsonl", 4), tmp_path / "rows"
    with WritingServer(Writer(pause_s=60)) as server:
        struck = []

        def strike() -> None:
            while len(server.writer.bodies) < 4:
                time.sleep(0.01)
            struck.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=strike, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            run(target, data, out, server.url)
        assert time.monotonic() - struck[0] < 1.5


def test_what_a_server_refuses_is_left_out_and_counted(target: Path, tmp_path: Path):
    def fault(number: int, ids: list[int]) -> str | None:
        return "400" if "question 3," in TOKENIZER.decode(ids) else None

    talk = Silent()
    with WritingServer(Writer(fault=fault)) as server:
        done = run(target, questions(tmp_path / "d.jsonl", 6), tmp_path / "rows", server.url, talk=talk)

    assert done.manifest.num_rows == 5
    assert any("1 × a prompt that the server refused" in line for line in talk.lines)
    assert any("1-4 is left out, the server refuses it: HTTP 400" in note for note in talk.notes)


def test_what_no_server_can_answer_ends_the_run_and_the_rest_is_kept(target: Path, tmp_path: Path):
    sick = [True]

    def fault(number: int, ids: list[int]) -> str | None:
        return "500" if sick[0] and "question 3," in TOKENIZER.decode(ids) else None

    data = questions(tmp_path / "d.jsonl", 6)
    with WritingServer(Writer(fault=fault)) as server:
        with pytest.raises(AnswersMissing, match="1 request of 6 had no answer"):
            run(target, data, tmp_path / "rows", server.url)
        sick[0] = False
        run(target, data, tmp_path / "rows", server.url)

    assert sum(server.writer.asked.values()) == 6
    assert len(Rows(tmp_path / "rows")) == 6


def test_an_answer_without_its_end_gets_the_templates(target: Path, tmp_path: Path):
    talk = Silent()
    with WritingServer(Writer(engine="vllm", fault=lambda n, ids: "no-end")) as server:
        run(target, questions(tmp_path / "d.jsonl", 3), tmp_path / "rows", server.url, talk=talk)

    assert all(answer.endswith("0<|im_end|>") for answer in answers_only(tmp_path / "rows"))
    assert any("3 answers came without the token that ended them" in note for note in talk.notes)


def test_a_server_that_reads_other_tokens_is_refused(target: Path, tmp_path: Path):
    with (
        WritingServer(Writer(fault=lambda n, ids: "prompt")) as server,
        pytest.raises(ServerReadsOtherwise, match=r"read \d+ tokens where \d+ were sent"),
    ):
        run(target, questions(tmp_path / "d.jsonl", 3), tmp_path / "rows", server.url)


def test_servers_of_different_models_are_refused(target: Path, tmp_path: Path):
    data = questions(tmp_path / "d.jsonl", 3)
    with WritingServer(Writer()) as first, WritingServer(Writer(model="other")) as second:
        with pytest.raises(ServersDiffer, match="the model other"):
            run(target, data, tmp_path / "rows", first.url, second.url)
        second.tokenizer.add_tokens(["Twelve"])
        second.writer.model = "tiny"
        with pytest.raises(OtherTokenizer, match="has another tokenizer than the target's folder"):
            run(target, data, tmp_path / "rows", first.url, second.url)


def test_a_context_shorter_than_the_rows_is_refused_before_anything_is_asked(target: Path, tmp_path: Path):
    with (
        WritingServer(Writer(max_model_len=512)) as server,
        pytest.raises(ConfigInvalid, match="--max-length 2048 is more than"),
    ):
        run(target, questions(tmp_path / "d.jsonl", 3), tmp_path / "rows", server.url)
    assert not server.writer.bodies


def test_a_url_where_nothing_listens(target: Path, tmp_path: Path):
    data, talk = questions(tmp_path / "d.jsonl", 3), Silent()
    with pytest.raises(ServerUnreachable):
        run(target, data, tmp_path / "rows", "http://127.0.0.1:9")
    with WritingServer(Writer()) as server:
        run(target, data, tmp_path / "rows", "http://127.0.0.1:9", server.url, talk=talk)
    assert any("the run starts without it" in note for note in talk.notes)


@pytest.mark.parametrize(
    "options",
    [
        {"url": ("localhost:8000",)},
        {"concurrency": 0},
        {"answer_timeout": 0},
        {"url": ("http://a",), "dtype": "float32"},
    ],
)
def test_options_that_cannot_be(options: dict[str, Any]):
    with pytest.raises(ConfigInvalid):
        WritingConfig(regenerate=True, **options)


@pytest.mark.parametrize(("kind", "version"), [("sglang", "0.5.15.post1"), ("sglang", "0.5.9"), ("vllm", "0.33.0")])
def test_a_tokenizer_that_is_code_is_the_servers(foreign: Path, target: Path, tmp_path: Path, kind: str, version: str):
    data, talk = questions(tmp_path / "d.jsonl", 10, turns=2), Silent()
    with WritingServer(Writer(engine=kind, version=version)) as server:
        done = run(foreign, data, tmp_path / "there", server.url, talk=talk)
        run(target, data, tmp_path / "here", server.url)

    assert texts(tmp_path / "there") == texts(tmp_path / "here")
    assert [r.is_supervised for r in Rows(tmp_path / "there")] == [r.is_supervised for r in Rows(tmp_path / "here")]
    assert done.example is not None
    assert "".join(text for text, _ in done.example) == texts(tmp_path / "here")[0]
    assert any("texts are tokenised by" in note for note in talk.notes)
    assert any("does not render messages" in note for note in talk.notes) == (version == "0.5.9")


def test_the_servers_own_template_decides_its_prompts(tmp_path: Path):
    folder = without_tokenizer(save_target_with(tmp_path / "t", CHATML.replace("assistant", "ASSISTANT")))
    with WritingServer(Writer(engine="vllm")) as server:
        run(folder, questions(tmp_path / "d.jsonl", 2), tmp_path / "rows", server.url)

    assert all("<|im_start|>assistant\n" in text for text in texts(tmp_path / "rows"))


def test_a_template_that_drops_reasoning_begins_a_new_row(tmp_path: Path):
    folder = without_tokenizer(save_target_with(tmp_path / "t", THINKING))
    with WritingServer(Writer(engine="vllm", template=THINKING)) as server:
        done = run(folder, questions(tmp_path / "d.jsonl", 2, turns=2), tmp_path / "rows", server.url)

    assert done.manifest.num_rows in (2, 4)
    assert sum(answer.count("<|im_end|>") for answer in answers_only(tmp_path / "rows")) == 4


def test_self_chat_of_a_target_whose_tokenizer_is_code(foreign: Path, tmp_path: Path):
    def text(prompt: str) -> str:
        return "an answer" if prompt.endswith("assistant\n") else f"what is a bird number {hash(prompt) % 7}"

    with WritingServer(Writer(engine="sglang", text=text)) as server:
        run(foreign, None, tmp_path / "rows", server.url, self_chat=3, chat_turns=2)
    first = texts(tmp_path / "rows")[0]

    assert first.startswith("<|im_start|>user\nwhat is a bird number")
    assert "<|im_start|>assistant\nan answer<|im_end|>" in first


def test_text_data_is_tokenised_by_a_server(foreign: Path, target: Path, tmp_path: Path):
    data = questions(tmp_path / "d.jsonl", 5)
    with WritingServer(Writer(engine="vllm")) as server:
        writing = WritingConfig(url=(server.url,), concurrency=2)
        prepare(foreign, [data], tmp_path / "there", PrepareConfig(), Silent(), writing=writing)
    prepare(target, [data], tmp_path / "here", PrepareConfig(), Silent())

    assert texts(tmp_path / "there") == texts(tmp_path / "here")
    assert not server.writer.bodies


def test_without_a_server_that_tokenises_the_folders_fault_is_told(foreign: Path, tmp_path: Path):
    data = questions(tmp_path / "d.jsonl", 2)
    with WritingServer(Writer(engine="openai")) as server, pytest.raises(TokenizerUnloadable):
        run(foreign, data, tmp_path / "rows", server.url)


def test_nothing_kept_is_an_error(target: Path, tmp_path: Path):
    with WritingServer(Writer(text=lambda prompt: " ")) as server, pytest.raises(NothingWritten):
        run(target, questions(tmp_path / "d.jsonl", 2), tmp_path / "rows", server.url)
