"""A real `legation up` or `legation server`, in its own process, with a home of its own."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from tests.cli.command import LIMIT, environment
from tests.cli.command_server import ForkedCommand, is_own_start

from legation.wire.api.server import ServerFile

_UP = re.compile(rb"(Legation is up|listening on http|ready; worker).*\n")


PROGRAM = ("-m", "legation")


class Running:
    program: Sequence[str] = PROGRAM
    started_in: Path | None = None  # its home, unless said

    def __init__(self, home: Path, *argv: str, **env: str) -> None:
        self.home = home
        self.said = b""
        given = environment(home, **{"LEGATION_REHEARSAL_EXECUTES": "true", **env})
        place = self.started_in or home
        self.process: ForkedCommand | subprocess.Popen[bytes]
        if self.program == PROGRAM and not is_own_start(given):
            self.process = ForkedCommand(argv, given, place)
            return
        self.process = subprocess.Popen(
            [sys.executable, *self.program, *argv],
            env=given,
            cwd=place,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    @property
    def data_dir(self) -> Path:
        return self.home / ".local/share/legation"

    def line(self) -> str:
        """What it says until it is up, on either of its outputs."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        said = {self.process.stdout.fileno(): b"", self.process.stderr.fileno(): b""}
        deadline = time.monotonic() + LIMIT
        while not any(_UP.search(text) for text in said.values()):
            ready, _, _ = select.select(list(said), [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"it said nothing in time: {said}"
            for fd in ready:
                piece = os.read(fd, 65536)
                if not piece and self.process.wait(LIMIT) is not None:
                    raise AssertionError(f"it ended: {said}")
                said[fd] += piece
        return b"".join(said.values()).decode()

    def server_file(self) -> ServerFile:
        return msgspec.json.decode((self.data_dir / "server.json").read_bytes(), type=ServerFile)

    def stop_and_read(self) -> None:
        """End it, and keep all that it said since."""
        self.process.terminate()
        out, err = self.process.communicate(timeout=LIMIT)
        self.said += out + err

    def stop(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(LIMIT)
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
        return code


@contextmanager
def running(home: Path, *argv: str, **env: str) -> Iterator[Running]:
    """On any free port, unless one is given."""
    args = argv or ("up",)
    port = () if "--port" in args else ("--port", "0")
    server = Running(home, *args, *port, **env)
    try:
        yield server
    finally:
        server.stop(signal.SIGKILL)
