"""A batch writes what each prompt would get alone; sequences join and leave; runs resume; memory is planned first."""

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from eyas.decode.chain import rule_for
from eyas.decode.sampling import Sampling
from eyas.engine.batches.batch_llama import BatchLlama, bytes_per_position
from eyas.engine.batches.batch_plan import BatchMemoryTooSmall, plan_batch
from eyas.engine.batches.batch_runner import BatchRunner, Pace, captured_pace
from eyas.engine.batches.batch_state import BatchState, NewRow
from eyas.engine.batches.complete_prompts import BatchSettings, complete_prompts, plan_for, runner_for
from eyas.engine.batches.completions_file import (
    CompletionsDamaged,
    CompletionsInUse,
    CompletionsOfAnotherRun,
    complete_to_file,
)
from eyas.engine.batches.generator import BatchGenerator, Completion, Request
from eyas.engine.batches.transformers_batch import cache_size
from eyas.engine.engine import Engine, Limits, PromptEmpty
from eyas.engine.llama.llama_target import LlamaTarget
from eyas.engine.llama.llama_weights import LlamaWeights, fuse_llama
from eyas.engine.transformers_target import TransformersTarget
from eyas.models.placement import place
from eyas.models.target import Target
from eyas.talk import Silent
from tiny_target import tiny_target

VOCAB = 64


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3"])
def weights(request: pytest.FixtureRequest) -> LlamaWeights:
    model = tiny_target(request.param)
    return fuse_llama(model.config.to_dict(), model.state_dict().get)


@pytest.fixture(scope="module")
def llama() -> LlamaWeights:
    model = tiny_target("llama")
    return fuse_llama(model.config.to_dict(), model.state_dict().get)


def decode(ids: Sequence[int]) -> str:
    return "".join(chr(ord("0") + i) for i in ids)


def requests(num: int, **settings: object) -> list[Request]:
    chance = random.Random(5)
    return [
        Request(
            id=f"r{i}",
            prompt_ids=tuple(chance.randrange(VOCAB) for _ in range(chance.randint(1, 45))),
            max_new_tokens=chance.randint(1, 12),
            **settings,  # type: ignore[arg-type]
        )
        for i in range(num)
    ]


def run(
    weights: LlamaWeights, asked: Sequence[Request], num_slots: int = 4, pace: Pace | None = None
) -> dict[str, Completion]:
    runner = BatchRunner(BatchLlama(weights, num_slots, 64), pace)
    generator = BatchGenerator(runner, decode, max_prefill_tokens=50)
    return {completion.id: completion for completion in generator.run(asked, Silent())}


def alone(weights: LlamaWeights, asked: Sequence[Request]) -> dict[str, Completion]:
    """What the single-stream engine writes."""
    engine, texts = Engine(LlamaTarget(weights)), {}
    for request in asked:
        limits = Limits(max_new_tokens=request.max_new_tokens, stop_ids=request.stop_ids)
        text = engine.generate(request.prompt_ids, limits, rule=rule_for(request.sampling))
        texts[request.id] = Completion(id=request.id, ids=tuple(text.ids), finish=text.finish)
    return texts


PACES = {
    "step by step": Pace(),
    "blocks read late": Pace(steps=3, lookahead=1, sizes=(1, 2, 4)),
    "blocks read later": Pace(steps=2, lookahead=3, sizes=(4,)),
    "prompts in pieces": Pace(steps=3, lookahead=1, sizes=(1, 2, 4), piece_sizes=(2, 3, 5)),
}


@pytest.mark.parametrize("pace", PACES.values(), ids=PACES.keys())
def test_every_text_is_that_of_its_prompt_alone(weights: LlamaWeights, pace: Pace):
    asked = requests(23, stop_ids=frozenset({7, 30}))

    found = run(weights, asked, pace=pace)

    assert found == alone(weights, asked)
    assert {c.finish for c in found.values()} == {"stop", "length"}, "the workload must show both"


@pytest.mark.parametrize("pace", PACES.values(), ids=PACES.keys())
def test_a_sampled_text_is_that_of_the_single_stream_engine(llama: LlamaWeights, pace: Pace):
    samplings = [
        Sampling(temperature=1.0, seed=1),
        Sampling(temperature=0.7, top_k=5, seed=2),
        Sampling(temperature=1.2, top_p=0.8, min_p=0.02, seed=3),
        Sampling(),
    ]
    asked = [replace(r, sampling=samplings[i % 4]) for i, r in enumerate(requests(12, stop_ids=frozenset({7})))]

    assert run(llama, asked, pace=pace) == alone(llama, asked)


def test_prompts_that_are_the_same_are_read_once_and_part_by_their_seeds(llama: LlamaWeights):
    asked = [
        Request(id=str(i), prompt_ids=(5, 9, 2), max_new_tokens=9, sampling=Sampling(temperature=1.0, seed=i))
        for i in range(7)
    ]
    asked.append(Request(id="other", prompt_ids=(5, 9), max_new_tokens=9))

    found = run(llama, asked, num_slots=8)

    assert found == alone(llama, asked)
    assert len({c.ids for c in found.values()}) > 4, "seeds must matter"


def test_a_step_runs_on_as_many_rows_as_there_are_sequences_left(llama: LlamaWeights):
    runner, sizes = BatchRunner(BatchLlama(llama, 4, 64), Pace(sizes=(1, 2, 4))), []
    forward = runner.model.forward

    def counted(tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        sizes.append(len(tokens))
        return forward(tokens, lengths)

    runner.model.forward = counted  # type: ignore[method-assign,assignment]
    asked = [Request(id=str(n), prompt_ids=(n,), max_new_tokens=n) for n in (3, 5, 5, 9)]

    list(BatchGenerator(runner, decode).run(asked, Silent()))

    assert sizes == [4, 4, 4, 4, 1, 1, 1, 1]


def test_a_sampled_text_depends_on_its_own_seed_and_not_on_its_neighbours(llama: LlamaWeights):
    asked = [
        Request(id=str(i), prompt_ids=(i, 3, 5), max_new_tokens=10, sampling=Sampling(temperature=0.9, seed=i, **extra))
        for i, extra in enumerate([{}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.1}, {}, {"top_k": 3}])
    ]
    asked.append(Request(id="greedy", prompt_ids=(9, 9), max_new_tokens=10))

    together, alone = run(llama, asked, num_slots=4), run(llama, asked, num_slots=1)

    assert together == alone
    other = Request(id="0", prompt_ids=(0, 3, 5), max_new_tokens=10, sampling=Sampling(temperature=0.9, seed=99))
    assert run(llama, [other])["0"].ids != together["0"].ids


def test_a_stop_string_ends_the_text_with_the_token_that_completes_it(llama: LlamaWeights):
    [free] = requests(1)
    free = Request(id="x", prompt_ids=free.prompt_ids, max_new_tokens=12)
    text = decode(run(llama, [free])["x"].ids)
    stop = text[3:5]
    stopped = Request(id="x", prompt_ids=free.prompt_ids, max_new_tokens=12, stop_strings=("no such", stop))

    found = run(llama, [stopped])["x"]

    assert found.finish == "stop"
    assert decode(found.ids) == text[: text.index(stop) + len(stop)]


class Watching(Silent):
    """Remembers what a progress bar said and how far it came."""

    def __init__(self) -> None:
        super().__init__()
        self.said, self.advanced, self.total = list[str](), 0.0, 0.0

    @contextmanager
    def progress(self, label: str, total: float | None, unit: str) -> Iterator["Watching"]:
        self.total = total or 0.0
        yield self

    def advance(self, amount: float = 1.0) -> None:
        self.advanced += amount

    def say(self, status: str) -> None:
        self.said.append(status)


def test_progress_tells_tokens_per_second_and_how_far_it_is(llama: LlamaWeights):
    clock, talk, asked = iter(range(10_000)), Watching(), requests(9)
    generator = BatchGenerator(BatchRunner(BatchLlama(llama, 4, 64)), decode, clock=lambda: float(next(clock)))

    found = list(generator.run(asked, talk))

    assert (talk.advanced, talk.total) == (9, 9), "what an ETA is made of"
    tokens, seconds = sum(len(c.ids) for c in found), next(clock) - 1
    assert talk.said[-1] == f"{tokens / seconds:.0f} tokens/s, 0 at a time"


def test_a_stop_string_may_be_longer_than_any_fixed_tail(llama: LlamaWeights):
    free = Request(id="x", prompt_ids=(4, 5), max_new_tokens=60)
    text = decode(run(llama, [free])["x"].ids)
    stop = text[5:45]

    for pace in PACES.values():
        found = run(llama, [replace(free, stop_strings=(stop,))], pace=pace)["x"]

        assert (found.finish, decode(found.ids)) == ("stop", text[: text.index(stop) + len(stop)])


def test_a_prompt_without_tokens_is_refused_before_anything_runs():
    with pytest.raises(PromptEmpty, match="'empty'"):
        Request(id="empty", prompt_ids=(), max_new_tokens=4)


def test_the_budget_decides_how_many_fit():
    plan = plan_batch(longest=100, num_requests=50, max_batch=16, position_bytes=1000, budget_bytes=950_000)

    assert (plan.num_slots, plan.capacity, plan.num_bytes) == (9, 100, 900_000)
    assert plan_batch(100, 50, 16, 1000, 10**9).num_slots == 16
    assert plan_batch(100, 3, 16, 1000, 10**9).num_slots == 3


def test_a_request_that_cannot_fit_is_refused_at_the_start():
    with pytest.raises(BatchMemoryTooSmall, match="batch-memory-too-small"):
        plan_batch(longest=100, num_requests=50, max_batch=16, position_bytes=1000, budget_bytes=99_999)


def test_bytes_of_a_position_are_those_of_the_cache(llama: LlamaWeights):
    model = BatchLlama(llama, num_slots=3, capacity=64)

    cache = model.cache.numel()
    assert 4 * cache == (3 + 1) * 64 * bytes_per_position(llama), "one slot is spare"


def test_the_cache_that_is_planned_is_the_one_that_is_made_its_spare_slot_included(llama: LlamaWeights):
    one = 64 * bytes_per_position(llama)

    plan = plan_for(llama, requests(9), BatchSettings(budget_bytes=4 * one))

    assert (plan.num_slots, plan.num_bytes) == (3, 4 * one)
    assert runner_for(llama, plan).model.cache.nbytes == plan.num_bytes
    with pytest.raises(BatchMemoryTooSmall):
        plan_for(llama, requests(9), BatchSettings(budget_bytes=2 * one - 1))


class Writer:
    """Answers each prompt with its own length, and can die after a few."""

    def __init__(self, dies_after: int | None = None) -> None:
        self.asked: list[str] = []
        self._dies_after = dies_after

    def __call__(self, asked: Sequence[Request]) -> Iterable[Completion]:
        for number, request in enumerate(asked):
            if number == self._dies_after:
                raise KeyboardInterrupt
            self.asked.append(request.id)
            yield Completion(id=request.id, ids=(len(request.prompt_ids),), finish="length")


def test_a_run_that_was_killed_goes_on_where_it_stopped(tmp_path: Path):
    out, asked = tmp_path / "answers.jsonl", requests(9)
    with pytest.raises(KeyboardInterrupt):
        complete_to_file(out, asked, Writer(dies_after=4), target="t", talk=Silent())
    with open(out, "ab") as file:
        file.write(b'{"id": "r4", "ids": [1')  # a line that the kill cut short

    second, talk = Writer(), Silent()
    found = complete_to_file(out, asked, second, target="t", talk=talk)

    assert second.asked == ["r4", "r5", "r6", "r7", "r8"]
    assert {i: c.ids for i, c in found.items()} == {r.id: (len(r.prompt_ids),) for r in asked}
    assert "4 of 9" in talk.lines[0]
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert sorted(line["id"] for line in lines[1:]) == sorted(r.id for r in asked)


@pytest.mark.parametrize("change", ["target", "settings"])
def test_answers_of_another_run_are_not_mixed_in(tmp_path: Path, change: str):
    out = tmp_path / "answers.jsonl"
    complete_to_file(out, requests(2), Writer(), target="t", talk=Silent())
    asked = requests(2, sampling=Sampling(temperature=1.0)) if change == "settings" else requests(2)

    with pytest.raises(CompletionsOfAnotherRun, match="completions-of-another-run"):
        complete_to_file(out, asked, Writer(), target="other" if change == "target" else "t", talk=Silent())


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\0\0",
        b"\xff\xfe",
        b"[]",
        b"[" * 100_000,
        b'{"id": "r0", "finish": "stop"}',
        b'{"id": ["r0"], "ids": [1], "finish": "stop"}',
        b'{"id": "r0", "ids": "abc", "finish": "stop"}',
        b'{"id": "r0", "ids": [], "finish": "stop"}',
        b'{"id": "r0", "ids": [-1], "finish": "stop"}',
        b'{"id": "r0", "ids": [1000000000000000000000], "finish": "stop"}',
        b'{"id": "r0", "ids": [1], "finish": "other"}',
    ],
)
@pytest.mark.parametrize("number", [1, 2])
def test_a_damaged_line_is_named_and_nothing_is_lost(tmp_path: Path, line: bytes, number: int):
    out = tmp_path / "answers.jsonl"
    complete_to_file(out, requests(3), Writer(), target="t", talk=Silent())
    lines = out.read_bytes().splitlines()
    out.write_bytes(b"\n".join([*lines[: number - 1], line, *lines[number:]]) + b"\n")
    damaged = out.read_bytes()

    with pytest.raises((CompletionsDamaged, CompletionsOfAnotherRun)) as caught:
        complete_to_file(out, requests(3), Writer(), target="t", talk=Silent())
    assert f"{out}" in str(caught.value)
    assert number == 1 or f"{out}:2" in str(caught.value)
    assert out.read_bytes() == damaged


def test_two_runs_do_not_write_one_file_at_once(tmp_path: Path):
    out, refused = tmp_path / "answers.jsonl", []

    class Meeting(Writer):
        def __call__(self, asked: Sequence[Request]) -> Iterable[Completion]:
            with pytest.raises(CompletionsInUse) as caught:
                complete_to_file(out, requests(3), Writer(), target="t", talk=Silent())
            refused.append(str(caught.value))
            return super().__call__(asked)

    found = complete_to_file(out, requests(3), Meeting(), target="t", talk=Silent())
    assert len(refused) == 1
    assert complete_to_file(out, requests(3), Writer(dies_after=0), target="t", talk=Silent()) == found


def test_from_a_folder_to_a_file(tmp_path: Path):
    tiny_target("llama").save_pretrained(tmp_path / "target")
    asked = requests(5)

    found = complete_prompts(
        tmp_path / "target",
        asked,
        tmp_path / "out" / "answers.jsonl",
        placement=place("float32", "cpu"),
        decode=decode,
        target="tiny",
        settings=BatchSettings(max_batch=2, budget_bytes=10**8),
        talk=Silent(),
    )

    assert found.keys() == {r.id for r in asked}


@pytest.mark.parametrize("kind", ["qwen3_moe", "gpt_oss", "deepseek_v3", "gemma3_text", "cohere"])
def test_a_target_outside_the_fast_path_is_answered_through_transformers(tmp_path: Path, kind: str):
    tiny_target(kind).save_pretrained(tmp_path / "target")
    asked = [replace(r, stop_ids=frozenset({7})) for r in requests(5)]
    asked[2] = replace(asked[2], sampling=Sampling(temperature=1.0, seed=4))
    talk, placement = Silent(), place("float32", "cpu")

    found = complete_prompts(
        tmp_path / "target",
        asked,
        tmp_path / "answers.jsonl",
        placement=placement,
        decode=decode,
        target="tiny",
        settings=BatchSettings(max_batch=3),
        talk=talk,
    )

    engine = Engine(TransformersTarget(Target.load(tmp_path / "target", placement)))
    for request in asked:
        limits = Limits(max_new_tokens=request.max_new_tokens, stop_ids=request.stop_ids)
        text = engine.generate(request.prompt_ids, limits, rule=rule_for(request.sampling))
        assert list(found[request.id].ids) == text.ids
    assert "through transformers" in talk.notes[0]


def complete(folder: Path, asked: Sequence[Request], **settings: int) -> tuple[dict[str, Completion], Silent]:
    talk, out = Silent(), folder.with_suffix(".jsonl")
    found = complete_prompts(
        folder,
        asked,
        out,
        placement=place("float32", "cpu"),
        decode=decode,
        target="tiny",
        settings=BatchSettings(**settings),
        talk=talk,
    )
    return found, talk


@pytest.mark.parametrize("kind", ["gpt_oss", "deepseek_v3", "qwen3_next", "gemma3"])
def test_memory_of_any_target_is_planned_and_prompts_are_read_in_parts(tmp_path: Path, kind: str):
    tiny_target(kind).save_pretrained(tmp_path / "target")
    asked = requests(7)
    longest = max(len(r.prompt_ids) + r.max_new_tokens for r in asked)
    widest = max(len(r.prompt_ids) for r in asked) + max(r.max_new_tokens for r in asked)
    size = cache_size(Target.load(tmp_path / "target", place("float32", "cpu")))

    whole, _ = complete(tmp_path / "target", asked)
    (tmp_path / "target.jsonl").unlink()
    parts, talk = complete(tmp_path / "target", asked, budget_bytes=3 * size.of(widest), max_prefill_tokens=1)

    assert parts == whole
    assert any(line.startswith("3 sequences at a time") for line in talk.lines)
    (tmp_path / "target.jsonl").unlink()
    with pytest.raises(BatchMemoryTooSmall, match=f"a sequence of {longest} tokens"):
        complete(tmp_path / "target", asked, budget_bytes=size.of(longest) - 1)


@pytest.mark.parametrize("kind", ["llama", "deepseek_v3", "gemma3_text", "lfm2"])
def test_the_cache_of_a_target_is_as_large_as_measured(kind: str):
    target = Target(tiny_target(kind))
    cache = target.new_cache()

    target.forward(torch.ones(3, 50, dtype=torch.long), cache=cache)

    held = [value for layer in cache.layers for value in vars(layer).values()]
    held += [inner for value in held if isinstance(value, dict) for inner in value.values()]
    assert 3 * cache_size(target).of(50) == sum(t.nbytes for t in held if isinstance(t, torch.Tensor))


def test_texts_that_outgrow_a_window_go_through_transformers_and_it_is_said(tmp_path: Path):
    tiny_target("mistral", sliding_window=16).save_pretrained(tmp_path / "target")
    asked = requests(5)

    found, talk = complete(tmp_path / "target", asked)

    engine = Engine(TransformersTarget(Target.load(tmp_path / "target", place("float32", "cpu"))))
    for request in asked:
        assert (
            list(found[request.id].ids)
            == engine.generate(request.prompt_ids, Limits(max_new_tokens=request.max_new_tokens)).ids
        )
    assert "window of 16" in talk.notes[0]


on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def mixed_requests() -> list[Request]:
    samplings = [Sampling(), Sampling(temperature=1.0, seed=1), Sampling(temperature=0.8, top_p=0.9, top_k=9, seed=2)]
    return [replace(r, sampling=samplings[i % 3]) for i, r in enumerate(requests(19, stop_ids=frozenset({7, 30})))]


@pytest.mark.gpu
@on_gpu
def test_a_gpu_writes_the_texts_of_the_cpu(tmp_path: Path):
    tiny_target("llama").save_pretrained(tmp_path / "target")
    texts = []
    for device in ("cpu", "cuda"):
        found = complete_prompts(
            tmp_path / "target",
            mixed_requests(),
            tmp_path / f"{device}.jsonl",
            placement=place("float32", device),
            decode=decode,
            target="tiny",
            settings=BatchSettings(max_batch=4, budget_bytes=10**8),
            talk=Silent(),
        )
        texts.append({name: c.ids for name, c in found.items()})

    assert texts[0] == texts[1]


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_captured_steps_write_what_the_same_steps_write_uncaptured(dtype: torch.dtype):
    from eyas.engine.batches.triton_batch_ops import TritonBatchOps

    model = tiny_target("llama").to("cuda", dtype)
    weights = fuse_llama(model.config.to_dict(), model.state_dict().get)
    texts = []
    for captures in (False, True):
        pace = replace(captured_pace(8, steps=3), captures=captures)
        runner = BatchRunner(BatchLlama(weights, 8, 64, TritonBatchOps()), pace)
        texts.append({c.id: c.ids for c in BatchGenerator(runner, decode).run(mixed_requests(), Silent())})

    assert texts[0] == texts[1]


@pytest.mark.parametrize("num", [1, 3])
def test_settings_of_several_tokens_a_row_lie_in_memory_as_kernels_read_them(num: int):
    state = BatchState(4, 2, 16, torch.device("cpu"), width=4)
    rows = [NewRow(row=i, length=3, sampling=Sampling(temperature=0.5 + i, top_k=i), num_drawn=5) for i in range(num)]
    state.join(rows)

    settings = state.settings(num, 4)

    for name in ("temperature", "top_k", "top_p", "min_p"):
        column = getattr(settings, name)
        assert column.is_contiguous(), name
        assert column.tolist() == pytest.approx([getattr(r.sampling, name) for r in rows for _ in range(4)]), name
