"""`legation approvals watch` at a real pseudo-terminal: what is on the screen, and keys."""

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.cli.command import LIMIT, environment
from tests.cli.command_server import ForkedCommand
from tests.client.canned_door import TOKEN, CannedServer

from legation.cli.approvals_watch import ENTER, LEAVE

LOOK = 1.0  # seconds: how often a process that says nothing is looked after
OURS = re.compile(r"\x1b\[[0-9;]*m|\x1b\[K")


class AtScreen:
    """The command at a terminal of a size: what is on its screen, and keys. Without a server: that of the home."""

    def __init__(self, home: Path, server: CannedServer | None, rows: int = 30, columns: int = 100) -> None:
        self.raw = ""
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        place = {"LEGATION_URL": server.url, "LEGATION_TOKEN": TOKEN} if server else {}
        env = environment(home, TERM="xterm", **place)
        self._person, program = pty.openpty()
        self.resize(rows, columns)
        self.before = termios.tcgetattr(program)
        self.program = program  # kept open: how it was left is looked at afterwards
        self.process = ForkedCommand(("approvals", "watch"), env, home, stdin=program, stdout=program)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._person, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    @property
    def lines(self) -> list[str]:
        """Of the last frame that is complete."""
        whole, end, _ = self.raw.rpartition("\x1b[J")
        return OURS.sub("", whole.rpartition("\x1b[H")[2]).split("\r\n") if end else []

    @property
    def question(self) -> str:
        """The last line, with those that it goes on in."""
        first = max(
            (place for place, text in enumerate(self.lines) if not text.startswith(" .. ")), default=0
        )
        return "".join(text.removeprefix(" .. ") for text in self.lines[first:])

    def until(self, wanted: str | Callable[[list[str]], bool]) -> str:
        """Read until it is on the screen."""
        deadline = time.monotonic() + LIMIT
        while not (
            wanted(self.lines) if callable(wanted) else wanted in "\n".join((*self.lines, self.question))
        ):
            shown = "\n".join(self.lines)
            assert time.monotonic() < deadline, f"it is not on the screen: {wanted}\n{shown}"
            if select.select([self._person], [], [], LOOK)[0]:
                self._read()
            else:
                assert self.process.poll() is None, f"it ended: {self.errors()}\n{shown}"
        return "\n".join(self.lines)

    def _read(self) -> None:
        self.raw += self._decode(os.read(self._person, 65536))

    def asked(self, id_: str) -> None:
        self.until(lambda _: self.question.startswith(f"{id_}: [y]"))

    def type(self, text: str) -> None:
        os.write(self._person, text.encode())

    def end(self) -> int:
        """Its exit code; the terminal is as it was."""
        deadline = time.monotonic() + LIMIT
        while self.process.poll() is None:
            ready, _, _ = select.select([self._person], [], [], 0.05)
            if ready:
                self._read()
            assert time.monotonic() < deadline, "it does not end"
        while select.select([self._person], [], [], 0)[0]:
            self._read()
        assert termios.tcgetattr(self.program) == self.before
        assert self.raw.rstrip().endswith(LEAVE)
        assert self.raw.count(ENTER) == self.raw.count(LEAVE) == 1
        return self.process.wait(LIMIT)

    def hang_up(self) -> None:
        os.close(self._person)

    def errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(LIMIT)
        assert self.process.stderr is not None
        self.process.stderr.close()
        for descriptor in (self._person, self.program):
            with suppress(OSError):
                os.close(descriptor)


@contextmanager
def at_screen(
    home: Path, server: CannedServer | None, rows: int = 30, columns: int = 100
) -> Iterator[AtScreen]:
    screen = AtScreen(home, server, rows, columns)
    try:
        yield screen
    finally:
        screen.close()
