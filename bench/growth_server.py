"""A real `legation server` of any tree, on a folder that has grown: started, called, and asked what it took.

Its processor time is read from the kernel's clock of the process, user and system of all its threads, to the nanosecond;
the agents' processes are not in it. Memory is its proportional set size.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from bench.harness import ROOT

READY: Final = 120.0  # seconds for a server to answer: one that reads a grown record takes its time
ENDING: Final = 60.0  # seconds for it to end
CALL: Final = 120.0  # seconds for one answer
QUIET: Final = 0.02  # seconds between two looks at a process that may still be at work
AGENT, DEAF = "tiny", "deaf"  # of growth_agent.sh
LONG: Final = "long"  # the session that has all the events of a record
FOLDER: Final = "/usr"  # where the sessions work: it is everywhere, and a filled store may be moved
HOSTILE: Final = Path(__file__).with_name("hostile_server.py")

POLICY: Final = """\
name: bench
agent: "*"
loop: off
rules:
  - {id: asked, tools: "ask.*", action: human_approval}
  - {id: rest, tools: "*", action: allow}
"""


@dataclass(frozen=True, slots=True)
class Tree:
    """The source that is measured: its package, run by its own Python where it has one."""

    root: Path = ROOT

    @property
    def python(self) -> str:
        own = self.root / ".venv/bin/python"
        return str(own) if own.exists() else sys.executable

    def environment(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "PYTHONPATH": str(self.root / "src")}


@dataclass(slots=True)
class Home:
    """A folder with an installation in it, and how its servers are started."""

    folder: Path
    tree: Tree
    variables: dict[str, str] = field(default_factory=dict)  # settings, as the environment has them
    calls: int = 9  # of which the median counts
    others: Callable[[], list[int]] = list  # processes whose time is the server's too: those of its database

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def policy(self) -> Path:
        return self.folder / "policy.yaml"

    @property
    def output(self) -> Path:
        return self.folder / "output"

    def prepare(self, tool_url: str = "http://127.0.0.1:9/") -> None:
        self.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        agent = Path(__file__).with_name("growth_agent.sh")
        stanzas = [f'[agents.{name}]\ncommand = "sh {agent} {name}"\n' for name in (AGENT, DEAF)]
        (self.data / "agents.toml").write_text("".join(stanzas))
        if not self.policy.exists():
            self.policy.write_text(POLICY)
        (self.folder / "tools.yaml").write_text(
            f"tools:\n  - {{name: ask.me, url: {tool_url}, kind: edit}}\n"
        )
        (self.data / "server.json").unlink(missing_ok=True)

    def environment(self) -> dict[str, str]:
        own = {"HOME": str(self.folder), "LEGATION_FOLDERS": FOLDER, "LEGATION_DATA_DIR": str(self.data)}
        rules = {"LEGATION_POLICY": str(self.policy), "LEGATION_TOOLS": str(self.folder / "tools.yaml")}
        return {**self.tree.environment(), **own, **rules, **self.variables}


class Server:
    def __init__(self, process: subprocess.Popen[bytes], url: str, token: str, home: Home) -> None:
        self.process, self.home = process, home
        self.port = int(url.rpartition(":")[2])
        self.headers = {"content-type": "application/json", "authorization": f"Bearer {token}"}

    def call(self, method: str, path: str, body: object = None, **headers: str) -> Any:
        data = None if body is None else json.dumps(body).encode()
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=CALL)) as connection:
            connection.request(method, path, data, self.headers | headers)
            answer = connection.getresponse()
            told = answer.read()
        if answer.status >= http.client.BAD_REQUEST:
            raise RuntimeError(f"{method} {path} was answered with {answer.status} {told[:300]!r}")
        return json.loads(told) if told else None

    def cpu(self) -> float:
        return cpu(self.process.pid) + sum(map(_cpu_or_none, self.home.others()))

    def memory(self) -> float:
        """Megabytes, once nothing is to be done any more."""
        self.settle()
        rollup = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text()
        return next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) / 1000

    def settle(self) -> float:
        """Wait until it rests, and return its processor time then: what an answer leaves to be done is part of its price."""
        former, until = self.cpu(), time.monotonic() + CALL
        while time.monotonic() < until:
            time.sleep(QUIET)
            now = self.cpu()
            if now - former < QUIET / 20:
                return now
            former = now
        return former

    def spent(self, work: Callable[[], object]) -> float:
        """Seconds of its processor time that some work of ours takes it, to the end."""
        before = self.settle()
        work()
        return self.settle() - before

    def median_ms(self, work: Callable[[], object]) -> float:
        """The median of some calls, after one that warms up."""
        return statistics.median([self.spent(work) for _ in range(self.home.calls + 1)][1:]) * 1000

    def got_ms(self, path: str) -> float:
        """That of reading something: the least of three, for what is cheap also pays for what else the machine does."""
        return min(self.median_ms(partial(self.call, "GET", path)) for _ in range(3))

    def follow(self, path: str) -> LiveBody:
        return LiveBody(self, path)

    @contextmanager
    def turn(self, session: str) -> Iterator[Callable[[str], None]]:
        """What says something to a session and waits for the end of the turn: by its log, so that no projection is made."""
        head = self.call("GET", f"/v1/sessions/{session}")["eventCount"]
        with closing(self.follow(f"/v1/streams/{session}/sse?after={head}")) as body:

            def play(words: str = "say 1") -> None:
                self.call("POST", f"/v1/sessions/{session}/messages", {"message": words})
                body.until(b'"state":"idle"')

            yield play

    def play(self, session: str, words: str = "say 1") -> None:
        with self.turn(session) as play:
            play(words)

    def children(self) -> list[int]:
        found: list[int] = []
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            with suppress(OSError):
                found += map(int, (task / "children").read_text().split())
        return found

    def stop(self) -> tuple[float, float]:
        """Seconds from a TERM to its end, and of its processor time in them."""
        pid, before, began = self.process.pid, self.cpu(), time.perf_counter()
        last = before
        self.process.send_signal(signal.SIGTERM)
        while self.process.poll() is None:
            with suppress(OSError):
                last = max(last, cpu(pid))
            if time.perf_counter() - began > ENDING:
                raise RuntimeError(f"a server did not end within {ENDING:g} s")
            time.sleep(0.001)
        return time.perf_counter() - began, last - before


class LiveBody:
    """A body of server-sent events."""

    def __init__(self, server: Server, path: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=CALL)
        self._connection.request("GET", path, headers=server.headers)
        self._answer = self._connection.getresponse()
        if self._answer.status != http.client.OK:
            raise RuntimeError(
                f"{path} was answered with {self._answer.status} {self._answer.read()[:300]!r}"
            )

    def until(self, words: bytes) -> bytes:
        """The first line that has them."""
        while line := self._answer.readline():
            if words in line:
                return line
        raise RuntimeError(f"a live body ended before {words!r}")

    def close(self) -> None:
        self._answer.close()
        self._connection.close()


def cpu(pid: int) -> float:
    # As clock_getcpuclockid(3) makes it; /proc/PID/stat counts hundredths of a second, in which a call has no place.
    return time.clock_gettime((~pid << 3) | 2)


def _cpu_or_none(pid: int) -> float:
    try:
        return cpu(pid)
    except OSError:  # it has just ended
        return 0.0


@contextmanager
def running(
    home: Home, *, tool_url: str = "http://127.0.0.1:9/", watch: Path | None = None
) -> Iterator[Server]:
    """A server on that home. With a `watch` it runs on asyncio's loop, and that file gets its long slices."""
    home.prepare(tool_url)
    program = [str(HOSTILE), str(watch)] if watch else ["-m", "legation"]
    argv = [home.tree.python, *program, "server", "--port", "0"]
    with home.output.open("wb") as output:
        process = subprocess.Popen(
            argv,
            cwd=home.folder,
            env=home.environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        found = _until_ready(process, home)
        yield Server(process, found["url"], found["token"], home)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(ENDING)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _until_ready(process: subprocess.Popen[bytes], home: Home) -> Mapping[str, str]:
    until, found = time.monotonic() + READY, home.data / "server.json"
    while time.monotonic() < until and process.poll() is None:
        with suppress(FileNotFoundError, ValueError):
            told: dict[str, str] = json.loads(found.read_bytes())
            return told
        time.sleep(0.005)
    raise RuntimeError(f"cannot start {process.args!r}: {home.output.read_text()[-600:]}")


class _Tool(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", "4")
        self.end_headers()
        self.wfile.write(b"true")

    def log_message(self, *_: object) -> None: ...


@contextmanager
def tool_server() -> Iterator[str]:
    """The address of a tool that answers `true`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Tool)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
