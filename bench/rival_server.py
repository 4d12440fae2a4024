"""Both servers as they are installed, each started the same way: a clean environment, a home of its own, loopback.

What is counted of a server are its processes without the agents: those below it whose command line does not name the
agent of the benchmark.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Literal

from tests import real_agents

READY = 30.0  # seconds for a server to answer, on a loaded machine
ENDING = 15.0  # seconds for it to end
AGENT = "bench-rival-agent"  # in the command line of every agent's process
NAME = "bench"
LEGATION = (sys.executable, "-m", "legation")

Side = Literal["sandbox-agent", "legation-acp", "legation-sessions"]


class Server:
    """`folder` is where its agents work."""

    def __init__(self, pid: int, folder: Path, port: int, token: str = "") -> None:
        self.pid, self.folder, self.port = pid, folder, port
        self.headers = {"content-type": "application/json"}
        if token:
            self.headers["authorization"] = f"Bearer {token}"

    def call(self, method: str, path: str, body: object = None, limit: float = READY) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=limit)
        with closing(connection):
            connection.request(method, path, data, self.headers)
            answer = connection.getresponse()
            told = answer.read()
        if answer.status >= http.client.BAD_REQUEST:
            raise RuntimeError(f"{method} {path} was answered with {answer.status} {told[:300]!r}")
        return told

    def reading(self, path: str) -> bytes:
        """The request for a live body."""
        headers = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items() if name[0] == "a")
        return (
            f"GET {path} HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n{headers}\r\n".encode()
        )

    def cpu(self) -> float:
        """Seconds, user and system, of the server's processes."""
        return sum(_cpu(pid) for pid in _family(self.pid))

    def written(self) -> int:
        """Bytes that the server's processes have handed to the kernel: into files, pipes and answers alike."""
        return sum(_written(pid) for pid in _family(self.pid))

    def memory(self) -> float:
        """Kilobytes (PSS) of the server's processes."""
        return sum(_pss(pid) for pid in _family(self.pid))


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _written(pid: int) -> int:
    counts = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(counts["wchar"])


def _pss(pid: int) -> float:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return float(next(line.split()[1] for line in rollup.splitlines() if line.startswith("Pss:")))


def _family(pid: int) -> Iterator[int]:
    if AGENT.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
        return
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            for child in (task / "children").read_text().split():
                yield from _family(int(child))


@contextmanager
def started(
    side: Side,
    home: Path,
    agent: tuple[str, ...],
    program: tuple[str, ...] = LEGATION,
    settings: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """`agent` is the command that both of them start, for every session; `program` is Legation's own, and so are the
    `settings`."""
    (home / "work").mkdir(parents=True, exist_ok=True)
    launcher = home / AGENT
    launcher.write_text(f"#!/bin/sh\nexec {' '.join(agent)} {AGENT}\n")
    launcher.chmod(0o755)
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8"}
    if side == "sandbox-agent":
        starting = _sandbox_agent(home, launcher, environment)
    else:
        starting = _legation(home, launcher, {**environment, **(settings or {})}, program)
    with starting as server:
        yield server


@contextmanager
def _running(argv: list[str], environment: dict[str, str], home: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (home / "output").open("ab") as output:
        process = subprocess.Popen(argv, cwd=home, env=environment, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(ENDING)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def _sandbox_agent(home: Path, launcher: Path, environment: dict[str, str]) -> Iterator[Server]:
    """Its `mock` is whatever stands in that place, which is how its own tests do it."""
    binary = home / "sandbox-agent"
    if not binary.exists():
        package = real_agents.INSTALLED / "sandbox-agent-sdk" / "node_modules" / "@sandbox-agent"
        shutil.copyfile(next(package.glob("cli-linux-*")) / "bin" / "sandbox-agent", binary)
        binary.chmod(0o755)
        place = home / ".local/share/sandbox-agent/bin/agent_processes"
        place.mkdir(parents=True)
        (place / "mock-acp").symlink_to(launcher)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    quiet = {"SANDBOX_AGENT_LOG_HTTP": "0", "SANDBOX_AGENT_REQUIRE_PREINSTALL": "1"}
    argv = [str(binary), "server", "--no-token", "--no-telemetry", "--host", "127.0.0.1", "--port", str(port)]
    with _running(argv, environment | quiet, home) as process:
        server = Server(process.pid, home / "work", port)
        _until_healthy(server, process)
        yield server


@contextmanager
def _legation(
    home: Path, launcher: Path, environment: dict[str, str], program: tuple[str, ...]
) -> Iterator[Server]:
    data = home / "data"
    data.mkdir(mode=0o700, exist_ok=True)
    (data / "agents.toml").write_text(f'[agents.{NAME}]\ncommand = "{launcher}"\n')
    found = data / "server.json"
    paths = {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
    argv = [*program, "server", "--port", "0", "--data-dir", str(data)]
    with _running(argv, environment | paths, home) as process:
        until = time.monotonic() + READY
        while not found.exists():
            _must_run(process, until)
        told = json.loads(found.read_bytes())
        yield Server(process.pid, home / "work", int(told["url"].rpartition(":")[2]), told["token"])


def _until_healthy(server: Server, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + READY
    while True:
        with suppress(OSError):
            server.call("GET", "/v1/health")
            return
        _must_run(process, until)


def _must_run(process: subprocess.Popen[bytes], until: float) -> None:
    if process.poll() is not None or time.monotonic() > until:
        raise RuntimeError(f"cannot start {process.args!r}; look at `output` in its home")
    time.sleep(0.02)
