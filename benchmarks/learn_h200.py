"""What a draft learns from the same tokens, by every option of training: one change at a time, then winners together.

    python benchmarks/learn_h200.py --target T --shared ../shared/data --out /tmp/learn --seconds 1300

--workers processes share one GPU; each loads the target once and trains arm after arm (`learn_arms.py`), judged by
replay (K = 5) of the target's recorded answers to MT-bench and GSM8K, those that repeat themselves left out. Meanwhile
the target writes more data. In order: all arms at --small tokens; three seeds of the better ones; winners together; the
same at --large tokens, once its data is there; then the draft with the winners over --passes of all data by `eyas
train`. Each result is a line of OUT/results.jsonl at once. Run again with the same OUT: it continues with what is
missing. `--report OUT` prints the tables of a finished folder.
"""

import argparse
import gc
import json
import multiprocessing
import os
import queue
import subprocess
import sys
import threading
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from learn_arms import NOT_SHIPPED, PLAIN, ROWS_ARMS, SHAPE, combined, group_of, single_arms

K = 5
SETS = ("mt_bench", "gsm8k")
HERE = Path(__file__).parent.parent


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", help="folder of smollm2-135m, or the alias")
    parser.add_argument("--shared", type=Path, help="folder with the conversations, questions and recorded answers")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=1300.0, help="of everything, the last training included")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--small", type=int, default=1_000_000)
    parser.add_argument("--large", type=int, default=15_000_000)
    parser.add_argument("--passes", type=int, default=5, help="of the last training over all data")
    parser.add_argument("--last-s", type=float, default=300.0, help="seconds kept for the last training")
    parser.add_argument("--self-chat", type=int, default=33_000)
    parser.add_argument("--long-prompts", type=int, default=4_000)
    parser.add_argument("--long-held-out", type=int, default=48, help="long prompts of each kind for judging")
    parser.add_argument("--longest", type=int, default=6000, help="characters of the text in a long prompt")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--report", type=Path, default=None)
    return parser.parse_args()


# ---- the data, made while the first arms train


def eyas(args: argparse.Namespace, *options: Any) -> None:
    """One command, its talk kept in OUT/eyas.log; raises where it fails."""
    command = [sys.executable, "-m", "eyas", *map(str, options)]
    with (args.out / "eyas.log").open("ab") as log:
        log.write(f"\n$ {' '.join(command)}\n".encode())
        log.flush()
        subprocess.run(command, stdout=log, stderr=log, check=True)


def prepare(args: argparse.Namespace, name: str, *options: Any) -> None:
    """`eyas prepare` into OUT/name, unless it is there."""
    if not (args.out / name / "manifest.json").exists():
        exclude = [args.shared / f"{s}.jsonl" for s in ("mt_bench", "gsm8k", "humaneval", "alpaca")]
        exclude = [path for path in exclude if path.exists()]
        more = ["--exclude", *exclude] if exclude else []
        eyas(args, "prepare", "--target", args.target, "--out", args.out / name, *options, *more)


def num_tokens(rows: Path) -> int:
    return int(json.loads((rows / "manifest.json").read_text())["num_tokens"])


def write_data(args: argparse.Namespace, found: dict[str, Path], errors: list[str]) -> None:
    """Everything else, in a thread: questions, conversations, long prompts, all of it mixed. What fails is left out."""
    given, prompts = args.shared / "smollm2_self_conversations.jsonl.xz", args.out / "prompts"
    share = max(0.05, min(1.0, args.small / 4 / num_tokens(args.out / "first")))
    writing = ["--max-cache-mib", 30_000, "--device", args.device, "--held-out", 0]
    mostly_greedy = ["--answer-temperature", 0, 0, 0.7]
    kinds = ("summary", "passages", "documents")

    def attempt(name: str, *options: Any) -> bool:
        for wait in (30, 60, 0):  # a writer that outlived an earlier start may still hold its file
            try:
                prepare(args, name, *options)
                return True
            except Exception as error:  # noqa: BLE001 - told at the end; the arms and the other data do not need it
                errors.append(f"{name}: {type(error).__name__}: {error}")
                time.sleep(wait)
        return False

    if attempt("quarter", "--data", f"{given}:{share:.4f}", "--held-out", 0):
        found["quarter"] = args.out / "quarter"
    maker = [sys.executable, HERE / "recipes/long_prompts.py", "--conversations", given, "--out", prompts]
    amounts = {"num": args.long_prompts, "held-out": args.long_held_out, "longest": args.longest}
    maker += [part for name, value in amounts.items() for part in (f"--{name}", value)]
    subprocess.run([*map(str, maker)], check=False)
    held_out = [prompts / "held-out" / f"{kind}.jsonl" for kind in kinds]
    attempt("long-held-out", "--data", *held_out, "--regenerate", "--answer-temperature", 0, "--max-length", 4096,
            "--max-answer-tokens", 256, *writing)  # fmt: skip
    sources = [given]
    questions = args.shared / "gsm8k_train_questions.jsonl"
    if attempt("gsm", "--data", questions, "--regenerate", *mostly_greedy, *writing):
        sources.append(args.out / "gsm.regenerated")
    chat = ["--self-chat", args.self_chat, "--max-user-tokens", 128, *mostly_greedy, "--seed", 7]
    if attempt("chat", *chat, *writing):
        sources.append(args.out / "chat.self-chat")
    if attempt("short", "--data", *sources, "--held-out", 256 if len(sources) == 3 else 8):
        found["short"] = args.out / "short"
    long = ["--data", *(prompts / f"{kind}.jsonl" for kind in kinds), "--regenerate", "--max-length", 4096]
    if attempt("long", *long, *mostly_greedy, *writing):
        sources.append(args.out / "long.regenerated")
    if attempt("mixed", "--data", *sources, "--held-out", 256 if len(sources) == 4 else 8, "--max-length", 4096):
        found["mixed"] = args.out / "mixed"
    found["all"] = args.out


# ---- a worker: one process, one target, arm after arm


def worker(number: int, args: argparse.Namespace, jobs: Any, results: Any) -> None:
    import torch

    torch.set_num_threads(2)
    bench = None
    while True:
        job = jobs.get()
        if job is None:
            return
        begin = time.monotonic()
        try:
            bench = bench or Bench(args)
            found = bench.run(job)
        except Exception as error:  # noqa: BLE001 - one bad arm must not end the others
            traceback.print_exc()
            found = {"failed": f"{type(error).__name__}: {error}"[:2000]}
            if "CUDA error" in str(error):  # the context is lost: the parent starts another process
                results.put({**job, **found, "lost": number})
                return
        results.put({**job, **found, "worker": number, "wall_s": round(time.monotonic() - begin, 2)})


class Bench:
    """A target in memory, and the rows that judge a draft."""

    def __init__(self, args: argparse.Namespace) -> None:
        from eyas.decode.repetition import REPETITIVE, repetition_share
        from eyas.models.placement import place
        from eyas.models.target import Target
        from eyas.records.eval_rows import EvalRow, read_eval_rows

        self.args, self.folder = args, Path(args.target)
        self.is_cuda = args.device.startswith("cuda")
        self.target = Target.load(self.folder, place("bfloat16" if self.is_cuda else "float32", args.device))
        read = read_eval_rows([args.shared / "smollm2_greedy_eval.jsonl"])
        rows = [row for row in read if isinstance(row, EvalRow) and row.set in SETS and len(row.response_ids) > 1]
        self.plain = [row for row in rows if repetition_share([row.response_ids]) <= REPETITIVE]
        self.all = rows
        self.replays: dict[Any, Any] = {}

    def replay_of(self, name: str, rows: list[Any], boundaries: Any) -> Any:
        """States are kept for the boundaries of one draft at a time."""
        from eyas.models.target import LiveStates
        from eyas.replay.states import KeptStates

        key = (name, boundaries)
        if key not in self.replays:
            for old in [old for old in self.replays if old[0] == name]:
                del self.replays[old]
            self.replays[key] = KeptStates(LiveStates(self.target))
        return self.replays[key]

    def measure(self, draft: Any, name: str, rows: list[Any]) -> dict[str, Any]:
        """Accept lengths by set, of the draft as its file would hold it."""
        import torch

        from eyas.replay.figures import figures_by_set
        from eyas.replay.replay import replay_states
        from eyas.talk import Silent
        from eyas.train.run.held_out_replay import as_written

        states = self.replay_of(name, rows, draft.spec.aux_boundaries)
        half = torch.autocast(self.args.device.split(":")[0], torch.bfloat16, enabled=self.is_cuda)
        with half, as_written(draft):
            found = replay_states(states, draft, rows, K, Silent(), batch_tokens=8192 if self.is_cuda else 1)
        by_set = figures_by_set(found, K)
        return {
            name: {"accept_length": f.accept_length, "rounds": f.rounds, "tokens": f.num_tokens, "rows": f.num_requests}
            for name, f in by_set.items()
        }

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """Train one arm and judge it."""
        from eyas.talk import Silent
        from eyas.train.preflight.starting_draft import starting_draft
        from eyas.train.preflight.train_plan import make_plan
        from eyas.train.request import TrainRequest

        rows = Path(job["rows"])
        config = config_of(job)
        if job.get("second"):
            config = replace(config, tokens=job["budget"] // 2)
        request = TrainRequest(
            target=self.folder, rows=rows, out=self.args.out / "none", device=self.args.device,
            init_from=Path(job["init_from"]) if job.get("init_from") else None,
        )  # fmt: skip
        plan = make_plan(request, config, self.args.device.split(":")[0])
        draft = starting_draft(request, config, plan, self.target.frozen, Silent())
        begin = time.monotonic()
        trainer = self.trainer(draft, config, plan)
        records = self.train(trainer, plan)
        if job.get("second"):
            config = replace(config, lr=config.lr / 2, seed=config.seed + 100)
            plan = self.second_plan(draft, plan, config, on_mistakes=job["second"] == "mistakes")
            trainer = self.trainer(draft, config, plan)
            records += self.train(trainer, plan)
        seconds = time.monotonic() - begin
        found: dict[str, Any] = {
            "steps": len(plan.batches), "tokens": plan.num_tokens, "batch_tokens": plan.resolved.batch_tokens,
            "lr": plan.resolved.lr, "train_s": round(seconds, 2), "tokens_per_s": round(plan.num_tokens / seconds),
            "captured": trainer.is_captured, "losses": records,
            "coverage": plan.vocabulary and plan.vocabulary.coverage,
        }  # fmt: skip
        with trainer.draft_as_served():
            found["plain"] = self.measure(draft, "plain", self.plain)
            if job.get("is_full"):
                found["all"] = self.measure(draft, "all", self.all)
                if kinds := self.kinds():
                    found["kinds"] = self.measure(draft, "kinds", kinds)
        if config.average_share:
            found["plain_without_average"] = self.measure(draft, "plain", self.plain)
        del trainer, draft, plan
        gc.collect()
        if self.is_cuda:
            import torch

            torch.cuda.empty_cache()
        return found

    def second_plan(self, draft: Any, plan: Any, config: Any, *, on_mistakes: bool) -> Any:
        """As many tokens again, of rows not seen yet: those that the draft accepts least of, or any."""
        from eyas.data.rows.selection import eval_row
        from eyas.train.rows.batch_plan import Batch, plan_batches

        seen = {row for batch in plan.batches for row in batch.rows}
        unseen = [row for row in range(len(plan.rows)) if row not in seen][: 3 * len(seen)]
        if on_mistakes:
            rows = [eval_row(plan.rows[row], str(row)) for row in unseen]
            lengths = {name: f["accept_length"] for name, f in self.each(draft, rows).items()}
            unseen = sorted(unseen, key=lambda row: lengths.get(str(row), 9.0))
        chosen, tokens = list[int](), 0
        while tokens < plan.num_tokens and len(chosen) < len(unseen):
            tokens += plan.rows.length(unseen[len(chosen)])
            chosen.append(unseen[len(chosen)])
        config = replace(config, tokens=None)
        batches = plan_batches([plan.rows.length(row) for row in chosen], config, plan.resolved.batch_tokens)
        batches = [Batch(tuple(chosen[row] for row in batch.rows), batch.num_tokens) for batch in batches]
        return replace(plan, batches=batches, num_tokens=tokens, resolved=replace(plan.resolved, lr=config.lr))

    def each(self, draft: Any, rows: list[Any]) -> dict[str, Any]:
        """Accept length of each row that makes a round, by its id."""
        rows = [replace(row, set=row.id) for row in rows if len(row.response_ids) > 1]
        self.replays = {key: kept for key, kept in self.replays.items() if key[0] != "second"}
        return self.measure(draft, "second", rows)

    def kinds(self) -> list[Any]:
        """Answers to the held-out long prompts, if they are written: set = kind."""
        from eyas.records.eval_rows import EvalRow

        folder, rows = self.args.out / "long-held-out.regenerated", []
        for path in sorted(folder.glob("*.jsonl")):
            for number, line in enumerate(path.read_text().splitlines()):
                written = json.loads(line)["written"][0]
                (begin, end), ids = written["answers"][0], written["ids"]
                if end - begin > 1:
                    kind = path.stem.split("-", 1)[-1]
                    rows.append(EvalRow(id=f"{kind}-{number}", set=kind, prompt_ids=tuple(ids[:begin]),
                                        response_ids=tuple(ids[begin:end])))  # fmt: skip
        return rows

    def trainer(self, draft: Any, config: Any, plan: Any) -> Any:
        from eyas.train.optimise.teaching import Teaching
        from eyas.train.optimise.trainer import Trainer
        from eyas.train.step.captured import CudaGraphs

        record = CudaGraphs(self.target.device) if self.is_cuda else None
        return Trainer(
            draft,
            Teaching.live(self.target, config),
            config,
            lr=plan.resolved.lr,
            num_steps=len(plan.batches),
            record=record,
        )

    def train(self, trainer: Any, plan: Any) -> list[float]:
        """All steps; about 20 losses of the run."""
        from eyas.train.optimise.step_outcome import read_steps

        losses, pending, every = [], [], max(1, min(50, len(plan.batches) // 20))
        for step, batch in enumerate(plan.batches):
            pending.append(trainer.start_step([plan.rows[row] for row in batch.rows], step))
            if (step + 1) % every == 0 or step + 1 == len(plan.batches):
                outcomes, error = read_steps(pending)
                if error is not None:
                    raise error
                losses.append(round(outcomes[-1].loss, 4))
                pending = []
        thin = max(1, len(losses) // 20)
        return losses[::thin]


def config_of(job: dict[str, Any]) -> Any:
    """The options of a job: PLAIN with its changes; factors are taken of the plain rules at its budget."""
    from eyas.train.config import DraftShape, TrainConfig, batch_tokens_for

    options = {**PLAIN, **job["changes"]}
    lr, batch = options.pop("lr_factor"), options.pop("batch_factor")
    shape = DraftShape(**{name: options.pop(name) for name in SHAPE if name in options})
    if "aux_boundaries" in options:
        options["aux_boundaries"] = tuple(options["aux_boundaries"])
    batch_tokens = max(64, int(batch_tokens_for(job["budget"]) * batch))
    base = 1e-3 * (0.2 if job.get("init_from") else 1.0)
    return TrainConfig(tokens=job["budget"], seed=job["seed"], lr=base * lr, batch_tokens=batch_tokens, shape=shape,
                       micro_batch_tokens=max(4096, min(16384, batch_tokens)), **options)  # fmt: skip


# ---- the order of things


def score(result: dict[str, Any]) -> float:
    """Mean of the two sets' accept lengths, without answers that repeat themselves."""
    return sum(result["plain"][name]["accept_length"] for name in SETS) / len(SETS)


class Board:
    """All results so far, and what to do next."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.path = args, args.out / "results.jsonl"
        self.done: dict[str, dict[str, Any]] = {}
        if self.path.exists():
            for line in self.path.read_text().splitlines():
                result = json.loads(line)
                if "key" in result and "failed" not in result:
                    self.done[result["key"]] = result
        self.asked = set(self.done)
        self.first_large: list[tuple[str, dict[str, Any]]] = []

    def add(self, result: dict[str, Any]) -> None:
        self.done[result["key"]] = result
        with self.path.open("a") as file:
            file.write(json.dumps(result) + "\n")
        shown = result.get("failed") or f"{score(result):.3f} at {result['tokens_per_s']} tokens/s"
        print(f"{result['key']}: {shown}", flush=True)

    def job(self, name: str, changes: dict[str, Any], budget: int, seed: int, rows: Path, **more: Any) -> Any:
        """A job that was not asked for yet, else None."""
        key = f"{name} | {budget} | {seed}"
        if key in self.asked:
            return None
        self.asked.add(key)
        return {"key": key, "name": name, "changes": changes, "budget": budget, "seed": seed, "rows": str(rows), **more}

    def mean(self, name: str, budget: int) -> float | None:
        found = [score(r) for r in self.done.values() if r["name"] == name and r["budget"] == budget and "plain" in r]
        return sum(found) / len(found) if found else None

    def ranking(self, budget: int) -> list[tuple[float, str]]:
        """Gain over plain of every single arm, the best first."""
        plain = self.mean("plain", budget)
        if plain is None:
            return []
        gains = [(m - plain, name) for name in single_arms() if (m := self.mean(name, budget)) is not None]
        return sorted(gains, reverse=True)

    def winners(self, budget: int, least: float = 0.01) -> list[str]:
        """The best arm of each group that gains at least this much, the largest gain first."""
        best: dict[str, str] = {}
        for gain, name in self.ranking(budget):
            if gain >= least:
                best.setdefault(group_of(name), name)
        return list(best.values())

    def together(self, budget: int) -> list[tuple[str, dict[str, Any]]]:
        """Winners together: the first two, three, ... and all but one. None that the shipped draft may not have."""
        names = [name for name in self.winners(budget) if group_of(name) not in NOT_SHIPPED]
        lists = [names[:n] for n in range(2, len(names) + 1)]
        lists += [[n for n in names if n != without] for without in names[: 5 if len(names) > 2 else 0]]
        return [("together: " + " + ".join(found), combined(found)) for found in reversed(lists)]

    def shipped(self) -> list[str]:
        """The arms of the best draft, less those that the shipped draft may not have: size, or what engines load."""
        budget = self.args.large if self.mean("plain", self.args.large) is not None else self.args.small
        tried = {
            r["name"] for r in self.done.values() if r["budget"] == budget and "plain" in r and not r.get("second")
        }
        tried -= set(ROWS_ARMS)
        best = max(tried, key=lambda name: self.mean(name, budget) or 0.0, default="plain")
        names = [] if best == "plain" else best.removeprefix("together: ").split(" + ")
        return [name for name in names if group_of(name) not in NOT_SHIPPED]


def wanted(board: Board, found: dict[str, Path]) -> Any:
    """The next job; None when nothing is left to do for now."""
    args = board.args
    rows = args.out / "first"
    small, large = args.small, args.large
    singles = [("plain", {}), *single_arms().items()]
    for name, changes in singles:
        if job := board.job(name, changes, small, 0, rows):
            return job
    large_rows = found.get("short")
    best = [name for gain, name in board.ranking(small)]
    half = best[: max(6, len(best) // 2)]
    plain = [("plain", {})]
    if large_rows:
        if not board.first_large:  # once: later results would change it, and with it what its seeds compare
            optimisers = [name for name in best if group_of(name) == "optimiser"][:2]
            names = dict.fromkeys([*optimisers, *board.winners(small)[:6]])
            together = board.together(small)[:1]
            board.first_large = [*plain, *together, *((name, single_arms()[name]) for name in names)]
        first = board.first_large
        main_arms = first[:2]
        for name, changes in first:
            if job := board.job(name, changes, large, 0, large_rows, is_full=True):
                return job
    for seed in (1, 2):
        for name in ["plain", *half]:
            if job := board.job(name, single_arms().get(name, {}), small, seed, rows):
                return job
    for name, source in ROWS_ARMS.items():
        folder = args.out / source
        for seed in (0, 1, 2):
            if source in found and (job := board.job(name, {}, small, seed, folder, is_full=source == "mixed")):
                return job
    for seed in (0, 1, 2):
        for second in ("mistakes", "any rows"):
            if job := board.job(f"second round: {second}", {}, small, seed, rows, second=second):
                return job
    for seed in (0, 1, 2):
        for name, changes in board.together(small):
            if job := board.job(name, changes, small, seed, rows, is_full=True):
                return job
    if large_rows:
        more = [(name, single_arms()[name]) for name in best if name not in dict(first)]
        tail = board.together(large)[:2]
        order = ((1, main_arms), (2, main_arms), (0, tail), (0, more[:8]), (1, tail), (2, tail), (1, first), (2, first))
        for seed, arms in order:
            for name, changes in arms:
                if job := board.job(name, changes, large, seed, large_rows, is_full=True):
                    return job
    return None


def expected_s(board: Board, job: dict[str, Any]) -> float:
    """Seconds that a job takes, by those of its budget that are done."""
    seen = [r["wall_s"] for r in board.done.values() if r["budget"] == job["budget"] and "wall_s" in r]
    return 1.3 * sorted(seen)[len(seen) // 2] if seen else 20.0 + job["budget"] / 150_000


def explore(board: Board, found: dict[str, Path], errors: list[str], deadline: float) -> None:
    """Keep all workers busy until the time is up or nothing is left."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    lines = [context.Queue() for _ in range(board.args.workers)]

    def started(number: int) -> Any:
        process = context.Process(target=worker, args=(number, board.args, lines[number], results))
        process.start()
        return process

    team, restarts = [started(number) for number in range(len(lines))], 3 * len(lines)
    busy: set[int] = set()
    while True:
        for number, process in enumerate(team):
            left = deadline - time.monotonic()
            if not process.is_alive() and restarts > 0 and left > 60:
                team[number], restarts = started(number), restarts - 1
                busy.discard(number)
            if number in busy or not team[number].is_alive() or left <= 0:
                continue
            job = wanted(board, found)
            if job is None or expected_s(board, job) > left:
                if job is not None:
                    board.asked.discard(job["key"])
                continue
            lines[number].put(job)
            busy.add(number)
        is_writing = "all" not in found
        if not busy and (deadline - time.monotonic() <= 0 or not is_writing):
            break
        try:
            result = results.get(timeout=2)
        except queue.Empty:
            busy -= {n for n in busy if not team[n].is_alive()}
            if not any(process.is_alive() for process in team):
                break
            if deadline + 60 < time.monotonic():
                break
            continue
        busy.discard(result.get("lost", result.get("worker")))
        board.add(result)
    for line in lines:
        line.put(None)
    for process in team:
        process.join(timeout=10)
        if process.is_alive():
            process.kill()


def last_draft(args: argparse.Namespace, board: Board, found: dict[str, Path], deadline: float) -> None:
    """`eyas train` with the winners over all data, then `recipes/ship_draft.py` and two halves of a tar."""
    rows = found.get("mixed") or found.get("short") or args.out / "first"
    num = num_tokens(rows)
    names = board.shipped()
    rates = [r["tokens_per_s"] for r in board.done.values() if r["budget"] == args.large and "tokens_per_s" in r]
    alone = 400_000 if args.device.startswith("cuda") else max([*rates, 100])
    left = deadline - time.monotonic() - 45
    budget = int(max(args.small, min(args.passes * num, left * alone * 0.85)))
    job = {"changes": combined(names), "budget": budget, "seed": 0}
    options = {**PLAIN, **job["changes"]}
    config = config_of(job)
    lr, batch = config.lr, config.batch_tokens
    del options["lr_factor"], options["batch_factor"]
    flags = [flag for name, value in options.items() for flag in (f"--{name.replace('_', '-')}", *listed(value))]
    out = args.out / "draft"
    board_line = {"last": names, "budget": budget, "lr": lr, "batch_tokens": batch, "rows": str(rows)}
    with board.path.open("a") as file:
        file.write(json.dumps(board_line) + "\n")
    held_out = ["--held-out-rows", 256, "--held-out-draft-tokens", K] if (rows / "held_out.jsonl").exists() else []
    if not out.exists():
        eyas(args, "train", "--target", args.target, "--data", rows, "--out", out, "--tokens", budget, "--lr", lr,
             "--batch-tokens", batch, "--micro-batch-tokens", config.micro_batch_tokens, "--device", args.device,
             "--eval-every", max(1, budget // batch // 14), *held_out, *flags)  # fmt: skip
    ship = [sys.executable, str(HERE / "recipes/ship_draft.py"), str(out), str(args.out / "ship")]
    subprocess.run(ship, check=True)
    subprocess.run(["tar", "-C", str(args.out), "-cf", str(args.out / "ship.tar"), "ship"], check=True)
    data = (args.out / "ship.tar").read_bytes()
    half = len(data) // 2
    (args.out / "learn_draft.tar.0").write_bytes(data[:half])
    (args.out / "learn_draft.tar.1").write_bytes(data[half:])
    for name, folder in (("last", out), ("shipped before", HERE / "src/eyas/shipped/draft")):
        try:
            judge(args, board, folder, name)
        except Exception:  # noqa: BLE001 - a trial with another target
            traceback.print_exc()


def listed(value: Any) -> list[Any]:
    """As words of a command line."""
    if value is True:
        return []
    return list(value) if isinstance(value, tuple | list) else [value]


def judge(args: argparse.Namespace, board: Board, folder: Path, name: str) -> None:
    """All sets of recorded answers and the long kinds, with a draft on disk."""
    from eyas.contract.spec.target_spec import read_target
    from eyas.models.load_draft import load_draft
    from eyas.models.placement import place

    bench = Bench(args)
    dtype = "bfloat16" if bench.is_cuda else "float32"
    parts = bench.target.parts
    draft = load_draft(folder, place(dtype, args.device), target_spec=read_target(bench.folder),
                       target_embedding=parts.embedding, target_head=parts.head)  # fmt: skip
    found = {"judged": name, "plain": bench.measure(draft, "plain", bench.plain)}
    found["all"] = bench.measure(draft, "all", bench.all)
    if kinds := bench.kinds():
        found["kinds"] = bench.measure(draft, "kinds", kinds)
    with board.path.open("a") as file:
        file.write(json.dumps(found) + "\n")
    print(json.dumps(found), flush=True)


def report(folder: Path) -> None:
    """Tables of the results as Markdown, and OUT/learn.json: what they are made of."""
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    runs = [line for line in lines if "plain" in line and "key" in line]
    for budget in sorted({r["budget"] for r in runs}):
        table(f"{budget / 1e6:g} M tokens", [r for r in runs if r["budget"] == budget])
    for line in lines:
        if "failed" in line:
            print(f"- failed: {line['key']}: {line['failed'][:200]}")
        elif "judged" in line or "last" in line:
            print(f"- {json.dumps(line)}")
    kept = ("name", "budget", "seed", "changes", "second", "batch_tokens", "lr", "steps", "tokens", "tokens_per_s",
            "plain", "plain_without_average", "all", "kinds", "failed")  # fmt: skip
    slim = [{k: line[k] for k in kept if k in line} if "key" in line else line for line in lines]
    (folder / "learn.json").write_text(json.dumps({"schema": "eyas.learn/1", "runs": slim}) + "\n")


def table(title: str, runs: list[dict[str, Any]]) -> None:
    """Arms, best first; the gain is over plain with the same seed (the same rows in the same order)."""
    plain = {r["seed"]: score(r) for r in runs if r["name"] == "plain"}
    arms: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        arms.setdefault(run["name"], []).append(run)

    def gains(found: list[dict[str, Any]]) -> list[float]:
        return sorted(score(r) - plain[r["seed"]] for r in found if r["seed"] in plain) or [0.0]

    print(f"\n### {title}\n\n| arm | seeds | MT-bench | GSM8K | gain | of each seed |\n|---|---|---|---|---|---|")
    for name in sorted(arms, key=lambda n: -sum(gains(arms[n])) / len(gains(arms[n]))):
        found = arms[name]
        mt, gsm = (sum(r["plain"][s]["accept_length"] for r in found) / len(found) for s in SETS)
        each = gains(found)
        shown = " ".join(f"{gain:+.3f}" for gain in each)
        print(f"| {name} | {len(found)} | {mt:.3f} | {gsm:.3f} | {sum(each) / len(each):+.3f} | {shown} |")


def main() -> None:
    args = parsed()
    if args.report:
        report(args.report)
        return
    begin = time.monotonic()
    args.out.mkdir(parents=True, exist_ok=True)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE / "src"), os.environ.get("PYTHONPATH", "")])
    sys.path.insert(0, str(HERE / "src"))
    if not Path(args.target).is_dir():
        from eyas.cli.target_option import target_folder
        from eyas.talk import Silent

        args.target = str(target_folder(args.target, Silent()))
    prepare(args, "first", "--data", args.shared / "smollm2_self_conversations.jsonl.xz", "--held-out", 0)
    board = Board(args)
    found: dict[str, Path] = {}
    errors: list[str] = []
    writer = threading.Thread(target=write_data, args=(args, found, errors), daemon=True)
    writer.start()
    explore(board, found, errors, begin + args.seconds - args.last_s)
    last_draft(args, board, found, begin + args.seconds)
    print(f"done after {time.monotonic() - begin:.0f} s; {errors or 'no errors'}", flush=True)


if __name__ == "__main__":
    main()
