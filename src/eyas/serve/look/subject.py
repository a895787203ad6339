"""What is watched: a process, a URL, a log, or several of them at once. Finds the one from the other where it can."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from eyas.errors import ExitCode, EyasError

if TYPE_CHECKING:
    from eyas.serve.look.engine_process import EngineProcess


class SubjectUnknown(EyasError):
    """What was given is not a URL, a living process or a readable file."""

    code = "watch-subject-unknown"
    exit_code = ExitCode.USAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is watched; at least one of the three is known.

    Attributes:
        pid: root of the server's process tree. url: base URL. log: the file that its output goes to.
        process: set when we started it: then its exit code can be known.
    """

    pid: int | None = None
    url: str | None = None
    log: Path | None = None
    process: "EngineProcess | None" = None

    @property
    def log_only(self) -> bool:
        """Nothing but a log."""
        return self.pid is None and self.url is None

    @classmethod
    def of_process(cls, process: "EngineProcess", *, url: str | None = None) -> "Subject":
        """A server that we started."""
        return cls(pid=process.pid, url=url, log=process.log_path, process=process)


def parse(text: str, *, url: str | None = None, log: Path | None = None) -> Subject:
    """The subject that a command line means.

    Args:
        text: "http://host:port" or "host:port", a PID, a log file or pipe, or a run folder.
        url, log: further evidence, given beside it.

    Raises:
        SubjectUnknown: none of these, or a URL without a host or with an impossible port.
    """
    path = Path(text)
    if url is not None:
        _require_url(url)
    if text.startswith(("http://", "https://")):
        return Subject(url=_require_url(text.rstrip("/")), log=log)
    if text.isascii() and text.isdigit() and not path.exists():
        return of_pid(int(text), url=url, log=log)
    if path.is_dir() and (path / "engine.log").exists():
        return Subject(log=path / "engine.log", url=url)
    if path.is_file() or path.is_fifo():
        return Subject(log=path, url=url)
    if text == "/dev/stdin":
        why = "standard input is a terminal, or closed"
        raise SubjectUnknown(
            "there is no log on standard input", text, why, "pipe one in: journalctl -u llm | eyas watch -"
        )
    host, colon, port = text.rpartition(":")
    if colon and port.isascii() and port.isdigit() and "/" not in host:
        return Subject(url=_require_url(f"http://{host or '127.0.0.1'}:{port}"), log=log)
    raise SubjectUnknown(
        f"cannot tell what {text!r} is",
        text,
        "it is neither a URL (http://host:port), nor a process number, nor an existing file or run folder",
        "give one of these; for a server that is not started yet, its URL",
    )


def _require_url(url: str) -> str:
    """`url` if its host and port are valid; checked now, since later a bad URL looks like a silent server."""
    try:
        parts = urlsplit(url)
        is_plain = url.isprintable() and " " not in url
        if is_plain and parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return url
        why = "it wants http:// or https://, a host, and no port or one of 1 - 65535; no blanks, no control characters"
    except ValueError as error:  # of the port, or of an address in brackets
        why = str(error)
    raise SubjectUnknown(f"{url!r} is not the URL of a server", url, why, "give it as http://host:port")


def of_pid(pid: int, *, url: str | None = None, log: Path | None = None) -> Subject:
    """A living process: its log where stdout is a file, its URL where it or a child listens.

    Raises:
        SubjectUnknown: no such process.
    """
    from eyas.serve.look.process_tree import is_alive

    if not is_alive(pid):
        raise SubjectUnknown(
            f"there is no process {pid}", str(pid), "it has ended, or lives on another machine", "give its log instead"
        )
    return Subject(pid=pid, url=url or listening_url(pid), log=log or output_file(pid))


def output_file(pid: int) -> Path | None:
    """The regular file that the process writes stdout or stderr to, if it does."""
    for descriptor in (2, 1):
        try:
            target = Path(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
        except OSError:
            continue
        if target.is_file():
            return target
    return None


def listeners_of(port: int) -> set[int]:
    """The processes that listen on this machine's TCP port; those of other users may be missing."""
    import psutil

    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return set()
    listening = (c for c in connections if c.status == psutil.CONN_LISTEN)
    return {c.pid for c in listening if getattr(c.laddr, "port", None) == port and c.pid is not None}


def listening_url(pid: int) -> str | None:
    """The address on which the process or a child listens, if exactly one answers to HTTP's usual shape."""
    import psutil

    from eyas.serve.look.process_tree import tree_of

    addresses: list[tuple[int, str, int]] = []
    for facts in tree_of(pid):
        try:
            connections = psutil.Process(facts.pid).net_connections(kind="tcp")
        except psutil.Error:
            continue
        for connection in connections:
            if connection.status == psutil.CONN_LISTEN:
                addresses.append((facts.pid, connection.laddr.ip, connection.laddr.port))
    # The API server is the root or near it; engine processes listen on other ports for each other.
    for owner, ip, port in sorted(addresses):
        host = "127.0.0.1" if ip in ("0.0.0.0", "::", "") else ip
        if owner == min(a[0] for a in addresses):
            return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    return None
