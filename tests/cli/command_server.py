"""Runs commands of `legation` for the tests of one process, each in a process of its own that is forked and not started anew: also those
that go on, such as a server, or wait for a person at a terminal.

Most of a command's time is the loading of its modules; here they are loaded once. The process that runs a command has nothing else of ours:
its session, folder, environment, streams and file mode are those that it was given. What depends on how Python itself is started
(`is_own_start`) is no work for this one.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FrameType
from typing import IO, Any

ROOT = Path(__file__).parents[2]
OWN_START = ("PYTHON", "LANG", "LC_", "LD_", "TZ")  # variables that are read at the start of Python
AS_IS = {"LANG": "C.UTF-8"}  # what the server itself was started with
COMMAND = str(ROOT / "src" / "legation" / "__main__.py")


BEGIN_LIMIT = 60.0  # seconds until a command is forked: the machine's time, with a lot to spare


def is_own_start(env: Mapping[str, str]) -> bool:
    """Whether that depends on how Python itself is started."""
    return any(name.startswith(OWN_START) and value != AS_IS.get(name) for name, value in env.items())


def run_command(
    argv: Sequence[str], env: Mapping[str, str], cwd: Path, stdin: str, limit: float
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` would: its output as text, its exit code; after `limit` seconds it is killed."""
    given, into = os.pipe()
    command = ForkedCommand(argv, env, cwd, stdin=given)
    os.close(given)
    out, err = command.exchange(into, stdin.encode(), limit)
    return subprocess.CompletedProcess([*argv], command.wait(limit), _text(out), _text(err))


class ForkedCommand:
    """A command that was forked, with the members of a `Popen` that tests use."""

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        *,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        terminal: bool = False,
    ) -> None:
        """Each of its streams is the one that is given, which stays open here; else it has nothing to read, and what it says
        is read from a pipe. With a `terminal` its stdin is the one that controls it."""
        self.argv = [*argv]
        self.returncode: int | None = None
        self.stdout, its_out = _output(stdout)
        self.stderr, its_err = _output(stderr)
        self._fate, its_fate = os.pipe()
        its_in = os.open(os.devnull, os.O_RDONLY) if stdin is None else os.dup(stdin)
        request = {
            "argv": [COMMAND, *argv],
            "env": dict(env),
            "cwd": str(cwd),
            "umask": _umask(),
            "terminal": terminal,
        }
        with os.fdopen(os.memfd_create("request"), "w+b") as file:
            file.write(json.dumps(request).encode())
            file.flush()
            socket.send_fds(_server(), [b"!"], [file.fileno(), its_in, its_out, its_err, its_fate])
        for fd in (its_in, its_out, its_err, its_fate):
            os.close(fd)
        self._told = b""  # its process, and then its exit code
        while b" " not in self._told:
            assert self._hear(time.monotonic() + BEGIN_LIMIT), "it was not forked in time"
        self.pid = int(self._told.split()[0])

    def _hear(self, deadline: float) -> bool:
        """Read how it is, until then; False where nothing came."""
        if not select.select([self._fate], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return False
        piece = os.read(self._fate, 64)
        self._told += piece
        if not piece:
            os.close(self._fate)
            self.returncode = int(self._told.split()[1])
        return True

    def poll(self) -> int | None:
        while self.returncode is None and self._hear(0.0):
            pass
        return self.returncode

    def wait(self, timeout: float) -> int:
        deadline = time.monotonic() + timeout
        while self.returncode is None:
            if not self._hear(deadline):
                raise subprocess.TimeoutExpired(self.argv, timeout)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended, and its end was not heard of yet
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float) -> tuple[bytes, bytes]:
        said = self.exchange(None, b"", timeout)
        self.wait(timeout)
        return said

    def exchange(self, into: int | None, given: bytes, limit: float) -> tuple[bytes, bytes]:
        """Write that to its stdin, and read all that it says until it has ended; after `limit` seconds it is killed."""
        assert self.stdout is not None
        assert self.stderr is not None
        pipes = [self.stdout.fileno(), self.stderr.fileno()]
        said, left = dict.fromkeys(pipes, b""), memoryview(given)
        deadline = time.monotonic() + limit
        with selectors.DefaultSelector() as open_:
            if into is not None:
                os.set_blocking(into, False)
                open_.register(into, selectors.EVENT_WRITE)
            for fd in pipes:
                open_.register(fd, selectors.EVENT_READ)
            while open_.get_map():
                ready = open_.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    os.killpg(self.pid, signal.SIGKILL)
                    self.close()
                    raise subprocess.TimeoutExpired(self.argv, limit, *(said[fd] for fd in pipes))
                for key, _ in ready:
                    if key.fd == into:
                        try:
                            left = left[os.write(into, left) :]
                        except BrokenPipeError:  # it need not read what it is given
                            left = left[:0]
                        more = bool(left)
                    else:
                        piece = os.read(key.fd, 65536)
                        said[key.fd] += piece
                        more = bool(piece)
                    if not more:
                        open_.unregister(key.fd)
                        if key.fd == into:
                            os.close(into)
        self.close()
        return said[pipes[0]], said[pipes[1]]

    def close(self) -> None:
        """Wait for its end, and read nothing of it any more."""
        self.wait(BEGIN_LIMIT)
        for pipe in (self.stdout, self.stderr):
            if pipe is not None:
                pipe.close()


def _output(given: int | None) -> tuple[IO[bytes] | None, int]:
    """What we read it from, and what it writes to: a pipe, unless one is given."""
    if given is not None:
        return None, os.dup(given)
    ours, its = os.pipe()
    return os.fdopen(ours, "rb"), its


def _umask() -> int:
    now = os.umask(0)
    os.umask(now)
    return now


def _text(data: bytes) -> str:
    return data.decode().replace("\r\n", "\n").replace("\r", "\n")


@cache
def _server() -> socket.socket:
    """It ends when nobody holds this end any more."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.cli.command_server", str(its.fileno())],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], **AS_IS},
        stdin=subprocess.DEVNULL,
        pass_fds=[its.fileno()],
        start_new_session=True,
    )
    its.close()

    def end() -> None:
        ours.close()
        server.wait()

    atexit.register(end)
    return ours


# The server.

# What commands load late: clients, servers, hosts of agents, and what most of those load of others.
LOADED = (
    *("legation.client.http", "legation.client.async_http", "legation.client.sessions"),
    *("legation.cli.sessions_follow", "legation.cli.approvals_watch"),
    *("legation.server.run", "legation.server.instance", "legation.server.routes"),
    *(
        "legation.server.sessions.options",
        "legation.server.sessions.client_handlers",
        "legation.server.acp.methods",
    ),
    *("legation.agents.acp", "legation.approvals.policy.load", "legation.store.blobs.folder"),
    *("legation.runner.config", "legation.runner.runner"),
    *("legation.store.secrets.passphrase", "asyncpg", "encodings.idna", "httpcore2", "rich.text", "yaml"),
)


def serve(door: socket.socket) -> None:
    from tests.sqlite_template import use_template

    from legation.cli.main import COMMANDS

    for place, _ in COMMANDS.values():
        importlib.import_module(place.partition(":")[0])
    for name in LOADED:
        importlib.import_module(name)
    use_template()
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, _reap)
    while True:
        said, fds, *_ = socket.recv_fds(door, 1, 5)
        if not said:
            return
        if os.fork() == 0:
            door.close()
            _keep(fds)
        for fd in fds:
            os.close(fd)


def _reap(_number: int, _frame: FrameType | None) -> None:
    """Nobody asks how a keeper ended; but the time of one that is not waited for would count nowhere."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _keep(fds: list[int]) -> None:
    """Start the command, and say what it is and how it ended. Goes on in the command's own process."""
    file, *streams, fate = fds
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with os.fdopen(file, "rb") as opened:
        opened.seek(0)
        request: dict[str, Any] = json.load(opened)
    command = os.fork()
    if command:
        for fd in streams:
            os.close(fd)
        os.write(fate, b"%d " % command)
        code = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
        os.write(fate, b"%d" % code)
        os._exit(0)
    os.setsid()
    if request["terminal"]:
        fcntl.ioctl(streams[0], termios.TIOCSCTTY, 0)
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
    os.closerange(3, max(fds) + 1)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    os.umask(request["umask"])
    sys.argv[:] = request["argv"]
    # As Python opens them in the locale of `environment`.
    sys.stdin = open(0, errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115

    from legation.cli.main import main

    ended_with: list[object] = []
    atexit.register(_leave, ended_with)  # called after all that the command registers itself
    try:
        main()
    except SystemExit as ended:
        ended_with.append(ended.code or 0)
        raise


def _leave(code: list[object]) -> None:
    """Leave before Python takes down every module, which is ten times the work of a short command. What it would say of an
    exception, or of an output that cannot be written, is left to it."""
    with suppress(Exception):
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        if code and isinstance(code[0], int):
            os._exit(code[0] & 0xFF)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
