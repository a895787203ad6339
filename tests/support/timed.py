"""Starts `timed_server` in a process of its own."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def timed(**script: Any) -> Iterator[str]:
    """Its URL, while the block lasts."""
    command = [sys.executable, "-S", str(Path(__file__).with_name("timed_server.py")), json.dumps(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.kill()
