"""`eyas demo`: the main job end to end: runs the commands that a user would type, and prints each."""

import io
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from eyas import shipped
from eyas.cli.output import JsonFlag, emit
from eyas.decode.accept_length import DEFAULT_DRAFT_TOKENS
from eyas.errors import EyasError
from eyas.records.atomic import write_text
from eyas.talk import printable

TARGET = shipped.TARGET


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoConfig:
    """Sizes of the demo."""

    out: Path = Path("demo-run")
    """Folder for everything it makes; running it again resumes where it stopped."""

    train_tokens: int = 10_000
    """Training tokens of the two-minute draft."""

    num_draft_tokens: Annotated[int, Parameter(name=["--num-draft-tokens", "-k"])] = DEFAULT_DRAFT_TOKENS
    """Drafts per verify pass (K), bonus token excluded, in the replay and the speed measurement."""

    bench_prompts: int = 4
    """Prompts of each kind of text in the speed measurement."""

    bench_new_tokens: int = 48
    """Longest answer in the speed measurement, in tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One command of the demo.

    Attributes:
        done: exists once the step has succeeded.
        keeps: file for the command's JSON document; None if the command writes its own files.
        hint: what to expect, printed before the step runs.
    """

    title: str
    arguments: Sequence[str]
    done: Path
    keeps: Path | None = None
    hint: str = ""


class DemoStepFailed(EyasError):
    """A command of the demo ended with an error."""

    code = "demo-step-failed"


def demo(*, config: Annotated[DemoConfig, Parameter(name="*")] = DemoConfig(), json: JsonFlag = False) -> int:
    """The main job end to end, on a real target and a real draft: prepare, train, eval, check, convert, bench, report.

    Runs the commands that you would type and prints each. It takes three minutes on two idle cores, eight on busy ones.
    The draft that ships with eyas is checked, converted, evaluated and timed; a second draft is trained for two minutes
    on the CPU and evaluated too. The result is one page: demo-run/report.html.
    """
    steps = demo_steps(config)
    _require_usable(steps)
    start = time.monotonic()
    for number, step in enumerate(steps, 1):
        _run_step(f"[{number}/{len(steps)}] {step.title}", step)
    page = config.out / "report.html"
    spent = time.monotonic() - start
    document = {"schema": "eyas.demo/1", "report": str(page), "seconds": round(spent, 1)}
    return emit(document, _closing(spent, page), json=json)


def _closing(spent_s: float, page: Path) -> str:
    command = "python -m eyas" if Path(sys.argv[0]).name == "__main__.py" else sys.argv[0]
    return (
        f"\nDone in {spent_s / 60:.1f} min. Look at {page}\n"
        f"Next: run the same commands on your own draft, such as `{command} check DRAFT --target T --for vllm==0.33.0`"
    )


def demo_steps(config: DemoConfig) -> list[Step]:
    """The demo as commands, in order."""
    out, draft, k = config.out, shipped.draft_folder(), str(config.num_draft_tokens)
    rows, trained, eval_rows = out / "rows", out / "draft", shipped.eval_rows_path()
    as_speculators, back = out / "draft-speculators", out / "draft-sglang"
    replay = ["--target", TARGET, "--data", str(eval_rows), "-k", k, "--json"]
    return [
        Step(
            title="conversations to tokenised rows with an exact loss mask",
            arguments=["prepare", "--target", TARGET, "--data", str(shipped.conversations_path()), "--out", str(rows)],
            done=rows,
        ),
        Step(
            title="train a draft for two minutes on the CPU",
            arguments=[
                *["train", "--target", TARGET, "--data", str(rows), "--out", str(trained)],
                *["--tokens", str(config.train_tokens), "--checkpoint-every-s", "20"],
            ],
            done=trained,
            hint=f"{config.train_tokens} tokens are few: expect a loss that rises, then falls, an accept length just"
            " above 1.00 (nothing accepted). The draft that ships with eyas learned from 90 million.",
        ),
        _kept(
            "accept length of the shipped draft, by replay", ["eval", str(draft), *replay], out / "eval-shipped.json"
        ),
        _kept("accept length of the two-minute draft", ["eval", str(trained), *replay], out / "eval-trained.json"),
        _kept(
            "what SGLang and vLLM will do with the shipped draft",
            [
                *["check", str(draft), "--target", TARGET, "--for", "sglang==0.5.23", "--for", "vllm==0.33.0"],
                "--json",
            ],
            out / "check.json",
        ),
        Step(
            title="convert to the speculators format, with the embedding from the target",
            arguments=["convert", str(draft), "--to", "speculators", str(as_speculators), "--target", TARGET],
            done=as_speculators,
        ),
        Step(
            title="convert back to SGLang's format",
            arguments=["convert", str(as_speculators), "--to", "sglang", str(back), "--target", TARGET],
            done=back,
        ),
        _kept(
            "speed of plain and speculative decoding, with the ceiling",
            [
                *["bench", "--engine", "eyas", "--target", TARGET, "--draft", str(draft), "--data", str(eval_rows)],
                *["-k", k, "--max-prompts", str(config.bench_prompts)],
                *["--max-new-tokens", str(config.bench_new_tokens), "--json"],
            ],
            out / "bench.json",
        ),
        Step(
            title="one page with all results",
            arguments=["report", str(out), "-o", str(out / "report.html")],
            done=out / "report.html.never",  # cheap, so it is made again each time
        ),
    ]


def _require_usable(steps: Sequence[Step]) -> None:
    """Parse every command before the first one runs: an option out of range must not show up after minutes of work."""
    from eyas.cli.app import build_app

    app = build_app()
    for step in steps:
        try:
            app.parse_args(list(step.arguments), exit_on_error=False, print_error=False)
        except EyasError as error:
            error.add_note(f"in a step of the demo: {shlex.join(['eyas', *step.arguments])}")
            raise


def _kept(title: str, arguments: Sequence[str], keeps: Path) -> Step:
    return Step(title=title, arguments=arguments, done=keeps, keeps=keeps)


def _run_step(title: str, step: Step) -> None:
    _say(f"\n{title}")
    if step.done.exists():
        _say(f"  already done: {step.done} (delete it to repeat this step)")
        return
    command = shlex.join(["eyas", *step.arguments])
    _say(f"  $ {command}" + (f" > {step.keeps}" if step.keeps else ""))
    if step.hint:
        _say(f"  {step.hint}")
    _run_command(step.arguments, step.keeps)


def _run_command(
    arguments: Sequence[str], keeps: Path | None, run: Callable[[Sequence[str]], int] | None = None
) -> None:
    from eyas.cli.app import main

    output = io.StringIO()
    with redirect_stdout(output if keeps else sys.stderr):
        code = (run or main)(arguments)
    if code == 130:
        raise KeyboardInterrupt
    if code != 0:
        raise DemoStepFailed(
            f"`eyas {arguments[0]}` ended with exit code {code}",
            shlex.join(["eyas", *arguments]),
            "see its own message above",
            "fix that and run `eyas demo` again; finished steps are kept",
        )
    if keeps:
        write_text(keeps, output.getvalue().strip().splitlines()[-1] + "\n")


def _say(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)
