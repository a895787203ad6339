"""A fake SGLang with a real tiny model and our start-up module in it: it hands over states."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from eyas.contract.engines.capturing import python_path
from eyas.contract.engines.registry import engine_named

BOUNDARIES = (1, 2, 3)
FAKE = Path(__file__).parent / "fake_sglang"


class Server:
    """The fake engine with the start-up module, its spool and its port."""

    def __init__(self, folder: Path, target: Path, *, chunk: int = 16, limit: int = 1 << 20) -> None:
        self.target, self.spool, self.log, self.port = target, folder / "spool", folder / "log", free_port()
        self.spool.mkdir(exist_ok=True)
        self.chunk, self.limit = chunk, limit
        self.start()

    def start(self) -> None:
        layers = {"layer_ids": [b - 1 for b in BOUNDARIES], "boundaries": BOUNDARIES}
        sites = ":".join((*python_path(engine_named("sglang").folder), str(FAKE)))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sglang.launch_server", "--model-path", str(self.target), "--port", str(self.port)],
            env={
                **os.environ,
                "PYTHONPATH": sites,
                "FAKE_CHUNK": str(self.chunk),
                "EYAS_CAPTURE": json.dumps({**layers, "spool": str(self.spool), "limit": self.limit}),
            },
            stdout=self.log.open("ab"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def url(self) -> str:
        return f"sglang://127.0.0.1:{self.port}?spool={self.spool}"

    def wait(self) -> "Server":
        end = time.monotonic() + 90
        while b"fired up" not in self.log.read_bytes():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.05)
        return self

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.log.write_bytes(b"")


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
