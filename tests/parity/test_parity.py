"""A server over our own engine: its counts equal the replay of its ids; a server that runs another draft is told."""

import json
from itertools import count
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from eyas.cli.app import main
from eyas.cli.target_option import cache_folder
from eyas.client.server_api import Counters
from eyas.contract.spec.target_spec import read_target
from eyas.decode.chain import rule_for
from eyas.decode.sampling import Sampling
from eyas.engine.engine import Limits
from eyas.engine.open_engine import open_engine
from eyas.models.placement import place
from eyas.models.save_draft import save_draft
from eyas.parity import ask as ask_module
from eyas.serve.verdict import parity_step
from eyas.serve.verdict.parity_step import ParityStep, source_of
from eyas.talk import Silent
from stub_server import Script, StubServer
from tiny_draft import tiny_draft
from tiny_target import tiny_target

CPU = place("float32", "cpu")
K = 3


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pair")
    tiny_target(vocab_size=6, seed=3).save_pretrained(folder / "target")
    draft = tiny_draft(vocab_size=6, draft_vocab_size=5, target_hidden_size=32, aux_boundaries=(1, 2, 4))
    save_draft(draft, folder / "draft", target_spec=read_target(folder / "target"))
    return folder / "target", folder / "draft"


@pytest.fixture(scope="module")
def prompts(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    rows = [{"prompt_ids": [a, b, c], "response_ids": [1]} for a in range(4) for b in (1, 4) for c in (2, 5)]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return path


def playing(target: Path, draft: Path):
    """A server's answers and rounds, by our engine."""
    engine = open_engine(target, draft, CPU, cache=cache_folder(), num_threads=1, talk=Silent()).engine

    def play(ids: list[int], limit: int) -> tuple[list[int], list[int]]:
        text = engine.generate(ids, Limits(max_new_tokens=limit), num_draft_tokens=K)
        return list(text.ids), list(text.accepted)

    return play


def sampling(target: Path, draft: Path, drafts: str):
    """A server that samples answers at temperature 1, each with a seed of its own."""
    engine = open_engine(target, draft, CPU, cache=cache_folder(), num_threads=1, talk=Silent()).engine
    seeds = count()

    def play(ids: list[int], limit: int) -> tuple[list[int], list[int]]:
        rule = rule_for(Sampling(temperature=1.0, seed=next(seeds)), drafts)
        text = engine.generate(ids, Limits(max_new_tokens=limit), num_draft_tokens=K, rule=rule)
        return list(text.ids), list(text.accepted)

    return play


def asked(capsys, *arguments: str) -> tuple[int, dict]:
    code = main(["parity", *arguments, "-k", str(K), "--max-new-tokens", "24", "--device", "cpu", "--json"])
    return code, json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.mark.parametrize(("engine", "source"), [("sglang", "answers"), ("vllm", "counters")])
def test_a_server_that_runs_the_draft_as_trained_is_equal(pair, prompts, engine, source, capsys):
    target, draft = pair
    with StubServer(Script(engine=engine, depth=K, play=playing(target, draft))) as server:
        code, found = asked(capsys, server.url, "--draft", str(draft), "--target", str(target), "--data", str(prompts))

    assert (code, found["verdict"], found["counts_from"]) == (0, "equal", source)
    assert found["served"] == found["replayed"]
    assert found["served"]["rounds"] > 20
    assert found["served"]["accepted_at"][1] > 0
    assert found["suspects"] == []


def test_a_server_that_lost_tensors_is_different_and_the_lost_part_is_named(pair, prompts, tmp_path, capsys):
    target, draft = pair
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for file in draft.iterdir():
        (damaged / file.name).write_bytes(file.read_bytes())
    tensors = load_file(damaged / "model.safetensors")
    name = next(n for n in tensors if n.endswith("self_attn.o_proj.weight"))
    tensors[name] = tensors[name] * 0
    save_file(tensors, damaged / "model.safetensors")
    with StubServer(Script(depth=K, play=playing(target, damaged))) as server:
        code, found = asked(capsys, server.url, "--draft", str(draft), "--target", str(target), "--data", str(prompts))

    assert (code, found["verdict"]) == (1, "different")
    assert found["served"] != found["replayed"]
    nearest = found["suspects"][0]["faults"]
    assert nearest[:2] == ["layers.0.self_attn.v_proj not loaded", "layers.0.self_attn.o_proj not loaded"], nearest


@pytest.mark.soak
def test_the_verdict_of_serve_replays_in_a_process_of_its_own(pair, prompts, tmp_path, monkeypatch):
    target, draft = pair
    with StubServer(Script(engine="sglang", depth=K, play=playing(target, draft))) as server:
        step = ParityStep(
            url=server.url, api_key=None, draft=draft, num_draft_tokens=K, folder=tmp_path,
            source=("--target", str(target)),
        )  # fmt: skip
        words = step._command(tmp_path / "parity.json")
        words[words.index("--data") + 1] = str(prompts)  # the tiny target has no chat template for questions
        monkeypatch.setattr(ParityStep, "_command", lambda self, out: words)
        found = step.run(120)

    assert found.verdict in ("equal", "within-near-ties"), found.words
    assert found.document["schema"] == "eyas.parity/1"


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_on_a_pack_answers_that_leave_its_texts_are_asked_again_up_to_there(pair, prompts, tmp_path, engine, capsys):
    target, draft = pair
    play = playing(target, draft)
    rows = [json.loads(line) for line in prompts.read_text().splitlines()]
    for number, row in enumerate(rows):
        row["response_ids"] = play(row["prompt_ids"], 24)[0]
        if number in (2, 3):  # one leaves its text in the middle, one at its second token
            at = 5 if number == 2 else 1
            row["response_ids"][at] = (row["response_ids"][at] + 1) % 6
    recorded, pack = tmp_path / "recorded.jsonl", tmp_path / "pack.safetensors"
    recorded.write_text("\n".join(map(json.dumps, rows)) + "\n")
    main(["eval", str(draft), "--target", str(target), "--data", str(recorded), "--write-probe", str(pack)])
    with StubServer(Script(engine=engine, depth=K, play=play)) as server:
        code, found = asked(capsys, server.url, "--draft", str(draft), "--probe", str(pack))

    assert (code, found["verdict"]) == (0, "equal")
    assert list(found["left_out"].values()) == ["the answer leaves the recorded text at token 1"]
    assert "1 answer leaves its recorded text: asked again up to there" in found["notes"]
    assert sorted(len(row["response_ids"]) for row in found["rows"])[0] == 5
    assert found["num_prompts"] == len(rows) - 1


def test_answers_that_never_come_again_cannot_be_told_apart_in_counters(pair, prompts, tmp_path, capsys):
    target, draft = pair
    rows = [json.loads(line) for line in prompts.read_text().splitlines()]
    for row in rows:
        row["response_ids"] = [1] * 24
    recorded, pack = tmp_path / "recorded.jsonl", tmp_path / "pack.safetensors"
    recorded.write_text("\n".join(map(json.dumps, rows)) + "\n")
    main(["eval", str(draft), "--target", str(target), "--data", str(recorded), "--write-probe", str(pack)])
    limits = count(20)

    def unsteady(ids: list[int], limit: int) -> tuple[list[int], list[int]]:
        keeps = min(limit - 1, 20 - next(limits) % 3)  # always leaves the text before its limit
        return [1] * keeps + [2] * (limit - keeps), [0] * (limit - 1)

    with StubServer(Script(engine="vllm", depth=K, play=unsteady)) as server:
        code, found = asked(capsys, server.url, "--draft", str(draft), "--probe", str(pack))

    assert (code, found["code"]) == (1, "answers-leave-pack")


def test_a_server_without_speculation_is_refused_by_name(pair, prompts, capsys):
    target, draft = pair
    with StubServer(Script(depth=K, speculates=False)) as server:
        code, found = asked(capsys, server.url, "--draft", str(draft), "--target", str(target), "--data", str(prompts))

    assert (code, found["code"]) == (1, "server-gives-no-counts")


def test_sampled_answers_are_replayed_exactly_where_drafts_are_greedy(pair, prompts, capsys):
    target, draft = pair
    with StubServer(Script(depth=K, play=sampling(target, draft, "greedy"))) as server:
        code, found = asked(
            capsys, server.url, "--draft", str(draft), "--target", str(target), "--data", str(prompts),
            "--temperature", "1", "--max-rows", "16",
        )  # fmt: skip

    assert (code, found["verdict"]) == (0, "equal")
    assert found["served"] == found["replayed"]


def test_where_drafts_are_sampled_the_expected_counts_hold(pair, prompts, capsys):
    target, draft = pair
    arguments = ["--draft", str(draft), "--target", str(target), "--data", str(prompts), "--temperature", "1"]
    with StubServer(Script(depth=K, play=sampling(target, draft, "sampled"))) as server:
        code, found = asked(capsys, server.url, *arguments, "--drafts", "sampled")
        assert (code, found["verdict"] in ("equal", "within-noise")) == (0, True)
        assert abs(found["served"]["rounds"] - found["replayed"]["rounds"]) < 0.1 * found["served"]["rounds"]
        assert found["served"]["accepted_at"][1] > 5

        code, found = asked(capsys, server.url, *arguments, "--drafts", "greedy")
        assert (code, found["verdict"]) == (1, "different")


def test_sampled_drafts_need_the_target(pair, tmp_path, capsys):
    _, draft = pair
    (tmp_path / "pack").write_bytes(b"")
    options = ["--probe", str(tmp_path / "pack"), "--temperature", "1", "--drafts", "sampled"]
    code, found = asked(capsys, "http://127.0.0.1:9", "--draft", str(draft), *options)

    assert (code, found["code"]) == (2, "parity-config-invalid")


def test_the_verdict_of_serve_asks_in_these_words(pair, prompts, tmp_path):
    """`ParityStep` runs the command in another process; here its words, in this one."""
    target, draft = pair
    play, pack = playing(target, draft), tmp_path / "pack.safetensors"
    rows = [json.loads(line) for line in prompts.read_text().splitlines()]
    for row in rows:
        row["response_ids"] = play(row["prompt_ids"], 128)[0]
    recorded = tmp_path / "recorded.jsonl"
    recorded.write_text("\n".join(map(json.dumps, rows)) + "\n")
    main(["eval", str(draft), "--target", str(target), "--data", str(recorded), "--write-probe", str(pack)])
    source, _ = source_of(pack, None, is_tree=False, is_quantised=False)
    with StubServer(Script(engine="vllm", depth=K, play=play)) as server:
        step = ParityStep(url=server.url, api_key=None, draft=draft, num_draft_tokens=K, source=source, folder=tmp_path)
        code = main(step._command(tmp_path / "parity.json")[3:])
    found = parity_step._read(tmp_path / "parity.json", code, errors=tmp_path)

    assert (found.verdict, found.served) == ("equal", found.replayed), found.words


def test_counters_that_hold_other_requests_are_not_compared(pair, prompts, capsys, monkeypatch):
    target, draft = pair
    readings = iter([Counters(generated_tokens=0.0), Counters(generated_tokens=1e6)])
    monkeypatch.setattr(ask_module.counters, "read", lambda *a, **k: next(readings))
    with StubServer(Script(engine="vllm", depth=K, play=playing(target, draft))) as server:
        code, found = asked(capsys, server.url, "--draft", str(draft), "--target", str(target), "--data", str(prompts))

    assert (code, found["code"]) == (1, "server-not-idle")
    assert "1000000 tokens" in found["why"]
