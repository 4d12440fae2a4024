"""Runs commands of `legation` for the tests of one process, each in a process of its own that is forked and not started anew.

Most of a command's time is the loading of its modules; here they are loaded once. The process that runs a command has nothing else of ours:
its session, folder, environment, streams and file mode are those that it was given. What depends on how Python itself is started
(`OWN_START`) is no work for this one.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
OWN_START = ("PYTHON", "LANG", "LC_", "LD_", "TZ")  # variables that are read at the start of Python
COMMAND = str(ROOT / "src" / "legation" / "__main__.py")


def run_command(
    argv: Sequence[str], env: Mapping[str, str], cwd: Path, stdin: str, limit: float
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` would: its output as text, its exit code; after `limit` seconds it is killed."""
    request = {"argv": [COMMAND, *argv], "env": dict(env), "cwd": str(cwd), "umask": _umask()}
    pipes = [os.pipe() for _ in range(4)]  # its stdin, stdout and stderr, and what became of it
    (given, into), (out, its_out), (err, its_err), (fate, its_fate) = pipes
    with os.fdopen(os.memfd_create("request"), "w+b") as file:
        file.write(json.dumps(request).encode())
        file.flush()
        ours = [file.fileno(), given, its_out, its_err, its_fate]
        socket.send_fds(_server(), [b"!"], ours)
        for fd in ours[1:]:
            os.close(fd)
    said = _exchange(into, stdin.encode(), [out, err, fate], limit, [*argv])
    shown = [_text(said[fd]) for fd in (out, err)]
    return subprocess.CompletedProcess([*argv], int(said[fate].split()[1]), *shown)


def _umask() -> int:
    now = os.umask(0)
    os.umask(now)
    return now


def _exchange(into: int, given: bytes, pipes: list[int], limit: float, argv: list[str]) -> dict[int, bytes]:
    """All that comes from these pipes until each has ended; the last one says the process, and then its exit code."""
    said, left = dict.fromkeys(pipes, b""), memoryview(given)
    deadline = time.monotonic() + limit
    os.set_blocking(into, False)
    with selectors.DefaultSelector() as open_:
        open_.register(into, selectors.EVENT_WRITE)
        for fd in pipes:
            open_.register(fd, selectors.EVENT_READ)
        while open_.get_map():
            ready = open_.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                if begun := said[pipes[-1]].split():
                    os.killpg(int(begun[0]), signal.SIGKILL)
                raise subprocess.TimeoutExpired(argv, limit, said[pipes[0]], said[pipes[1]])
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
                    os.close(key.fd)
    return said


def _text(data: bytes) -> str:
    return data.decode().replace("\r\n", "\n").replace("\r", "\n")


@cache
def _server() -> socket.socket:
    """It ends when nobody holds this end any more."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.cli.command_server", str(its.fileno())],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8"},
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


def serve(door: socket.socket) -> None:
    from legation.cli.main import COMMANDS

    for place, _ in COMMANDS.values():
        importlib.import_module(place.partition(":")[0])
    for name in ("legation.client.http", "httpcore2"):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a keeper ended
    while True:
        said, fds, *_ = socket.recv_fds(door, 1, 5)
        if not said:
            return
        if os.fork() == 0:
            door.close()
            _keep(fds)
        for fd in fds:
            os.close(fd)


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

    main()


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
