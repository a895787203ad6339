import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from eyas.cli.app import main
from eyas.records.fingerprint import of_files
from eyas.report.build import build_report
from eyas.report.documents import NothingToReport, RunFolderMissing
from eyas.shipped import draft_folder
from run_documents import HOSTILE, benchmark, evaluation, write_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def test_every_document_of_a_run_is_on_the_page(tmp_path: Path):
    page = build_report([write_run(tmp_path / "run")])

    assert page.count("1.52 × faster") == 1
    assert "same texts" in page
    assert page.count("<h2>Terms</h2>") == 1
    for heading in (
        "<h2>Speed <small>run/bench.json</small></h2>",
        "Accept length",
        "<h2>Training <small>run/draft/metrics.jsonl</small></h2>",
        "<h2>Ledger <small>run/check.json</small></h2>",
    ):
        assert heading in page
    assert "<h2>Start-up <small>run/timeline.json</small></h2>" in page
    assert "silent-damage (fatal)" in page
    assert len(page.encode()) < 1_000_000


def test_replays_while_training_have_a_curve_of_their_own_and_are_no_steps(tmp_path: Path):
    run = write_run(tmp_path / "run")
    without = build_report([run])
    replays = [
        {"schema": "eyas.held-out/1", "step": s, "tokens": 200 * s, "accept_length": a, "num_draft_tokens": 5}
        for s, a in ((3, 1.25), (6, 2.125))
    ]
    with (run / "draft" / "metrics.jsonl").open("a") as file:
        file.write("\n" + "\n".join(json.dumps(replay) for replay in replays))

    page = build_report([run])

    assert "Replay with 5 drafts a pass; highest: 2.125 after step 6" in page
    assert page.count("<svg") == without.count("<svg") + 1
    assert "7 steps; the loss went from" in page
    assert "are drawn" not in page


def test_metrics_that_begin_with_a_replay_are_metrics_all_the_same(tmp_path: Path):
    run = write_run(tmp_path / "run")
    replay = {"schema": "eyas.held-out/1", "step": 0, "tokens": 0, "accept_length": 1.5, "num_draft_tokens": 5}
    metrics = run / "draft" / "metrics.jsonl"
    metrics.write_text(json.dumps(replay) + "\n" + metrics.read_text().replace("null]", "null, 0.1, 0.1, 0.1, 0.1]"))

    page = build_report([run])

    assert "Replay with 5 drafts a pass; highest: 1.500 after step 0" in page
    assert "7 steps; the loss went from" in page
    assert "Accuracy per unrolled step (steps 0 to 3 of 7 are drawn)" in page


def test_trees_are_named_beside_chains(tmp_path: Path):
    tmp_path.joinpath("run").mkdir()
    bench, evaluated = benchmark(), {**evaluation(2.7), "tree": {"width": 4, "depth": 4, "num_nodes": 7}}
    bench["comparisons"] = [{**bench["comparisons"][0], "arm": arm} for arm in ("k=3", "tree=3x3x7", "k=auto")]
    (tmp_path / "run" / "bench.json").write_text(json.dumps(bench))
    (tmp_path / "run" / "eval.json").write_text(json.dumps(evaluated))

    page = build_report([tmp_path / "run"])

    for name in ("K = 3, all", "tree 3x3x7, all", "K = auto, all", "<td>tree 4x4x7</td>"):
        assert name in page


def test_hostile_text_of_a_run_stays_text(tmp_path: Path):
    page = build_report([write_run(tmp_path / "run")])

    assert "<script" not in page
    assert "<img" not in page
    assert "&lt;script&gt;" in page


def test_a_damaged_file_is_named_on_the_page_and_the_rest_is_shown(tmp_path: Path):
    run = write_run(tmp_path / "run")
    (run / "torn.json").write_text('{"schema": "eyas.ev')

    page = build_report([run])

    assert "run/torn.json" in page
    assert "JSONDecodeError" in page
    assert "Accept length" in page


def test_a_folder_without_documents_is_refused(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(NothingToReport):
        build_report([tmp_path])
    with pytest.raises(RunFolderMissing):
        build_report([tmp_path / "nowhere"])


def test_parts_of_different_drafts_are_told_apart_on_the_page_and_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run, out = write_run(tmp_path / "run"), tmp_path / "page.html"
    other = {**benchmark(), "draft": {"path": "elsewhere/draft", "fingerprint": "d" * 16}}
    (run / "bench.json").write_text(json.dumps(other))
    assert "different drafts" not in build_report([run])
    (run / "draft" / "model.safetensors").write_bytes(b"weights")
    trained = of_files([run / "draft" / "model.safetensors"])

    assert main(["report", str(run), "-o", str(out)]) == 0

    page, shown = out.read_text(), capsys.readouterr().err
    assert "<small>Draft: elsewhere/draft (dddddddddddddddd)</small>" in page
    for text in (page, shown):
        assert text.count("shows 2 different drafts (by") == 1
        assert f"run/draft ({trained}): run/draft/metrics.jsonl" in text
        assert (
            "elsewhere/draft (dddddddddddddddd): run/bench.json, run/eval-shipped.json, run/eval-trained.json" in text
        )


def test_the_command_writes_the_page_and_says_its_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run, out = write_run(tmp_path / "run"), tmp_path / "page.html"

    assert main(["report", str(run), "-o", str(out), "--json"]) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document == {"schema": "eyas.report/1", "page": str(out), "bytes": out.stat().st_size}


def test_what_check_itself_prints_is_a_ledger_on_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = tmp_path / "run"
    run.mkdir()
    assert main(["check", str(draft_folder()), "--for", "vllm==0.33.0", "--ledger", "--json"]) in (0, 1)
    (run / "check.json").write_text(capsys.readouterr().out.splitlines()[-1])

    page = build_report([run])

    assert "vllm==0.33.0 v2" in page
    assert "model.fc.weight" in page


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_a_real_browser_shows_the_page_and_runs_nothing_from_it(tmp_path: Path):
    page = tmp_path / "page.html"
    page.write_text(build_report([write_run(tmp_path / "run")], title="The run"))
    assert CHROMIUM is not None
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync",
        f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    dom = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout

    assert "<title>The run</title>" in dom, "the hostile text did not rename the page"
    assert HOSTILE.split("<script>")[0].replace("<", "&lt;").replace(">", "&gt;") in dom
    assert dom.count("<svg") >= 6
    assert dom.count('class="t d1"') >= 1


@pytest.mark.parametrize("schema", ["eval", "bench", "check", "timeline", "metrics", "rows"])
@pytest.mark.parametrize("content", [{}, {"accept_length": "x"}, {"findings": [None]}, {"records": []}, {"figures": 3}])
def test_a_document_that_breaks_its_schema_is_listed_and_the_rest_is_shown(tmp_path: Path, schema: str, content: dict):
    run = write_run(tmp_path / "run")
    whole = build_report([run])
    (run / "odd.json").write_text(json.dumps({"schema": f"eyas.{schema}/1", **content}))
    (run / "odder.jsonl").write_text(json.dumps({"schema": f"eyas.{schema}/1"}) + "\nnull\n")

    page = build_report([run])

    assert "run/odd.json" in page
    assert "run/odder.jsonl" in page
    assert page.count("<section") >= whole.count("<section")


def test_a_bomb_of_brackets_is_unreadable_and_no_crash(tmp_path: Path):
    run = write_run(tmp_path / "run")
    (run / "deep.json").write_text("[" * 100_000)
    assert "RecursionError" in build_report([run])


def test_a_page_that_cannot_be_written_is_told_before_the_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["report", str(write_run(tmp_path / "run")), "-o", str(tmp_path)]) == 3
    assert "it is a folder" in capsys.readouterr().err


def test_a_speedup_beyond_the_accept_length_is_not_a_headline(tmp_path: Path):
    run, bench = write_run(tmp_path / "run"), benchmark()
    bench["comparisons"] = [
        {**c, "speedup": 9.0, "speedup_low": 8.0, "speedup_high": 9.5} for c in bench["comparisons"]
    ]
    (run / "bench.json").write_text(json.dumps(bench))
    assert '<p class="figure">not valid</p>' in build_report([run])


@pytest.mark.parametrize(("low", "high", "figure"), [(0.5, 0.8, "0.70 ×"), (0.9, 1.2, "0.70 ×")])
def test_a_headline_says_slower_or_no_difference(tmp_path: Path, low: float, high: float, figure: str):
    run, bench = write_run(tmp_path / "run"), benchmark()
    changed = {"speedup": 0.7, "speedup_low": low, "speedup_high": high}
    bench["comparisons"] = [{**c, **changed} for c in bench["comparisons"]]
    (run / "bench.json").write_text(json.dumps(bench))
    page = build_report([run])
    assert f'<p class="figure">{figure}</p>' in page
    assert ("speculation is slower here" if high < 1 else "no difference from plain decoding can be shown") in page


def test_without_a_benchmark_the_accept_length_is_the_headline(tmp_path: Path):
    run = write_run(tmp_path / "run")
    (run / "bench.json").unlink()
    assert "tokens per verify pass by replay (accept length)" in build_report([run])


def test_names_that_are_not_valid_utf_8_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = Path(os.fsdecode(os.fsencode(tmp_path) + b"/r\xff"))
    write_run(run)
    out = Path(os.fsdecode(os.fsencode(tmp_path) + b"/p\xff.html"))
    assert main(["report", str(run), "-o", str(out), "--json"]) == 0
    assert "r\\udcff/bench.json" in out.read_text()
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["page"] == str(out)
