"""A server of one's own as a process: started, waited for, ended with everything in its process group.

It gets a pipe as stdin whose other end is ours alone: when this process is gone, however it went, the server
reads the end of the pipe and stops (`--exit-with-parent`). So no signal handler is needed; `atexit` covers a
program that forgets to close.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

from legation.client import spawn as spawning
from legation.client.spawn import Spawn
from legation.client.tail import Tail
from legation.errors import Cancelled, ConfigInvalid, StorageFailed, TimedOut, Unavailable
from legation.secret import Secret

POLL: Final = 0.2  # between two looks at a server that starts
PROBE_LIMIT: Final = 2.0  # the server's time to answer one look
STOP_LIMIT: Final = 5.0  # the server's time to end after TERM
KILL_LIMIT: Final = 5.0  # the kernel's time to carry out KILL
EXIT_LOOK: Final = 0.02


class ServerChild:
    def __init__(self, spawn: Spawn) -> None:
        """Decides on address and token; nothing runs yet."""
        self.token: Secret = spawning.make_token(spawn.token)
        self._spawn = spawn
        self._port = spawning.choose_port(spawn)
        self.url = spawning.url(spawn, self._port)
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._own_folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._tail: Tail | None = None

    def start(self) -> None:
        """Healthy on return; blocks until then. On any error nothing is left."""
        atexit.register(self.stop)
        try:
            with self._lock:
                self._launch()
            self._wait_until_healthy(self._spawn.wait)
        except BaseException:
            self.stop()
            raise

    def give_up(self) -> None:
        """Make a `start` in another thread end, with all that it began; does not wait for it."""
        self._stopped.set()

    def stop(self) -> None:
        """TERM, a bounded wait, KILL; both to the whole process group. Twice is as good as once."""
        if os.getpid() != self._owner:
            return  # a fork of us that exits: the server is not its own
        self.give_up()
        with self._lock:
            atexit.unregister(self.stop)
            if self._process is not None:
                _end(self._process)
            if self._tail is not None:
                self._tail.close()
            if self._own_folder is not None:
                shutil.rmtree(self._own_folder, ignore_errors=True)

    def _launch(self) -> None:
        if self._spawn.data_dir is None:
            self._own_folder = Path(tempfile.mkdtemp(prefix="legation-"))
        folder = (self._own_folder or self._spawn.data_dir or Path()).absolute()
        sink = _sink(self._spawn.log)
        try:
            self._process = self._run(folder)
        except BaseException:
            if sink is not None:
                os.close(sink)
            raise
        assert self._process.stdout is not None
        self._tail = Tail(self._process.stdout, sink, self.token)

    def _run(self, folder: Path) -> subprocess.Popen[bytes]:
        argv = spawning.command(self._spawn, self._port)
        try:
            return subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=spawning.environment(self._spawn, self.token, folder, os.environ),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "a word of it holds a NUL"
        # Raised out here, without a cause: frames of the cause hold the environment, and the token with it.
        raise ConfigInvalid(f"cannot start {argv[0]}: {why}; correct `binary` or LEGATION_BIN")

    def _wait_until_healthy(self, wait: float) -> None:
        deadline = time.monotonic() + wait
        while not self._healthy():
            self._refuse_if_ended()
            if time.monotonic() >= deadline:
                raise TimedOut(f"cannot use the server: not healthy within {wait:g} s{self._last_words()}")
            if self._stopped.wait(POLL):
                raise Cancelled("cannot use the server: it was stopped while it started")
        self._refuse_if_ended()

    def _healthy(self) -> bool:
        """Without the token: it is not certain yet who listens there."""
        from http.client import HTTPConnection, HTTPException
        from urllib.parse import urlsplit

        place = urlsplit(self.url)
        connection = HTTPConnection(place.hostname or "", place.port, timeout=PROBE_LIMIT)
        try:
            connection.request("GET", "/v1/health")
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()

    def _refuse_if_ended(self) -> None:
        process = self._process
        if process is not None and _has_ended(process):
            _end(process)  # what it left of its group
            code = process.returncode
            raise Unavailable(
                f"cannot use the server: it ended with code {code} before it was healthy{self._last_words()}",
                {"exitCode": code},
            )

    def _last_words(self) -> str:
        said = self._tail.read() if self._tail is not None else ""
        return f"; it said:\n{said}" if said else "; it said nothing; run it by hand to see why"


def _sink(log: str | Path) -> int | None:
    """A descriptor of its own to copy messages to."""
    if log == "silent":
        return None
    try:
        if log == "inherit":
            return os.dup(sys.__stderr__.fileno()) if sys.__stderr__ else None
        return os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StorageFailed(
            f"cannot write the server's log to {log}: {error.strerror}; choose another file"
        ) from error


def _end(process: subprocess.Popen[bytes]) -> None:
    _signal_group(process, signal.SIGTERM)
    if not _wait_for_end(process, STOP_LIMIT):
        _signal_group(process, signal.SIGKILL)
        _wait_for_end(process, KILL_LIMIT)
    _signal_group(process, signal.SIGKILL)  # what it left of its group
    if process.stdin is not None:
        process.stdin.close()  # not before: together with TERM it would look like being told twice, in haste
    if _has_ended(process):
        process.wait()


def _wait_for_end(process: subprocess.Popen[bytes], limit: float) -> bool:
    deadline = time.monotonic() + limit
    while not (ended := _has_ended(process)) and time.monotonic() < deadline:
        time.sleep(EXIT_LOOK)
    return ended


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Looks without reaping: as long as the process is not reaped, its group's number is nobody else's."""
    if process.returncode is not None:
        return True
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # reaped by somebody else
        process.poll()
        return True


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    if process.returncode is not None:
        return
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):
        return
