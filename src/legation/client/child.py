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
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from legation.client.request import Spawn
from legation.errors import Cancelled, ConfigInvalid, Conflict, StorageFailed, TimedOut, Unavailable
from legation.secret import Secret

POLL: Final = 0.2  # between two looks at a server that starts
PROBE_LIMIT: Final = 2.0  # the server's time to answer one look
STOP_LIMIT: Final = 5.0  # the server's time to end after TERM
KILL_LIMIT: Final = 5.0  # the kernel's time to carry out KILL
EXIT_LOOK: Final = 0.02


class ServerChild:
    def __init__(self, spawn: Spawn) -> None:
        """Decides on address and token; nothing runs yet."""
        self.token: Secret = make_token(spawn.token)
        self._spawn = spawn
        self._port = choose_port(spawn)
        self.url = url(spawn, self._port)
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
        argv = command(self._spawn, self._port)
        try:
            return subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment(self._spawn, self.token, folder, os.environ),
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
        """Ask without the token: it is not certain yet who listens there."""
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


# How a server of one's own is started: the options, its command line and its environment.

TOKEN_BYTES: Final = 24
BINARY_VARIABLE: Final = "LEGATION_BIN"
TOKEN_VARIABLE: Final = "LEGATION_TOKEN"  # noqa: S105 - the name of it
DATA_DIR_VARIABLE: Final = "LEGATION_DATA_DIR"

# Where programs are, how text looks, where files go. No keys, no proxies: what else it needs goes in `env`.
INHERITED: Final = frozenset({"PATH", "HOME", "LANG", "TMPDIR", "TZ", "XDG_CONFIG_HOME"})
INHERITED_PREFIXES: Final = ("LC_", "LEGATION_")


def make_token(given: str | Secret | None) -> Secret:
    if isinstance(given, Secret):
        return given
    import secrets

    return Secret(secrets.token_urlsafe(TOKEN_BYTES) if given is None else given, "token")


def command(spawn: Spawn, port: int) -> list[str]:
    return [*_program(spawn), "server", "--host", spawn.host, "--port", str(port), "--exit-with-parent"]


def environment(spawn: Spawn, token: Secret, data_dir: Path, base: Mapping[str, str]) -> dict[str, str]:
    """The token goes here, not on the command line, which every user of the machine can read."""
    inherited = {name: value for name, value in base.items() if _is_inherited(name)}
    inherited.setdefault("PATH", os.defpath)
    return {**inherited, **spawn.env, TOKEN_VARIABLE: token.reveal(), DATA_DIR_VARIABLE: str(data_dir)}


def choose_port(spawn: Spawn) -> int:
    """A port that nobody listens on now: else the stranger there would be taken for our server, and get its token."""
    import socket

    family = socket.AF_INET6 if ":" in spawn.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((spawn.host, spawn.port or 0))
        except OSError as error:
            where = f"{spawn.host}:{spawn.port}" if spawn.port else spawn.host
            raise Conflict(
                f"cannot start a server on {where}: {error.strerror}; choose another port or let one be found"
            ) from error
        chosen: int = probe.getsockname()[1]
    return chosen


def url(spawn: Spawn, port: int) -> str:
    """Make the address to reach it from here; one that listens everywhere is reached on loopback too."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(spawn.host, spawn.host)  # noqa: S104 - read, not bound
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _program(spawn: Spawn) -> list[str]:
    if isinstance(spawn.binary, str):
        return [spawn.binary]
    if spawn.binary is not None:
        return [*spawn.binary]
    if chosen := os.environ.get(BINARY_VARIABLE):
        return [chosen]
    if not sys.executable:
        raise ConfigInvalid(f"cannot find the legation command: set {BINARY_VARIABLE} to its path")
    return [sys.executable, "-P", "-m", "legation"]  # -P: the current folder must not replace our modules


def _is_inherited(name: str) -> bool:
    return name != BINARY_VARIABLE and (name in INHERITED or name.startswith(INHERITED_PREFIXES))


# The last words of a child: its output is always drained, copied to where it is wanted, and its end kept.

KEPT: Final = 8 * 1024
CHUNK: Final = 64 * 1024
# The pipe's time to give what an ended child wrote; a grandchild may hold it open for ever.
DRAIN_LIMIT: Final = 1.0


class Tail:
    def __init__(self, pipe: IO[bytes], sink: int | None, secret: Secret) -> None:
        """Takes over the pipe and the sink, and closes both when the pipe ends."""
        self._pipe = pipe
        self._sink = sink
        self._secret = secret
        self._kept = b""
        self._thread = threading.Thread(target=self._drain, name="legation-server-log", daemon=True)
        self._thread.start()

    def read(self) -> str:
        """Read all that is kept of a child that ended, without the secret."""
        self._thread.join(DRAIN_LIMIT)
        text = self._kept[-KEPT:].decode("utf-8", "replace").strip()
        return text.replace(self._secret.reveal(), repr(self._secret))

    def close(self) -> None:
        self._thread.join(DRAIN_LIMIT)

    def _drain(self) -> None:
        try:
            while chunk := os.read(self._pipe.fileno(), CHUNK):
                self._kept = (self._kept + chunk)[-2 * KEPT :]
                self._copy(chunk)
        finally:
            self._pipe.close()
            if self._sink is not None:
                os.close(self._sink)

    def _copy(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        if self._sink is None:
            return
        with suppress(OSError):  # a full disk must not stop the server
            while view:
                view = view[os.write(self._sink, view) :]
