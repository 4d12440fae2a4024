"""Every shell line that can be read: by `split` where it can, else by shfmt's parser, a program of its own.

The program gets the line on its standard input and nothing else: no arguments of the agent's, no environment, no
settings of a folder. It has a bound on time and on what it says. Where it is not installed, breaks or is slow, the line
stays as unreadable as `split` found it.

`prepare` reads the lines of an action before it is decided, in threads of its own: a parser that is slow holds neither the
loop nor those who decide. What it read stands among the facts of that one decision.
"""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from legation.approvals.policy.shell.split import MAX_LINE, Parts, ShellLine, split
from legation.approvals.policy.shell.words import Unreadable

if TYPE_CHECKING:
    from legation.approvals.policy.facts import Facts
    from legation.wire.action import Action

T = TypeVar("T")

PACKAGE: Final = "shfmt-py"
_TIME: Final = 10.0  # seconds: the parser's, which takes some milliseconds; an agent waits for it
_MAX_TREE: Final = 2 * 1024 * 1024  # bytes of JSON; a line of a hundred commands has less than a tenth of it
_MAX_SCRIPTS: Final = 8  # texts within one line that are parsed on their own, as in `bash -c '...'`
_KEPT: Final = 8 * 1024 * 1024  # characters of lines and their parts that are remembered
_SPLIT_AT_ONCE: Final = (
    2048  # characters of an action's lines: a word of three may take 30 µs, they some 15 ms
)
_MOST_PARSED: Final = 16  # lines of one action: an honest call has one
_AT_ONCE: Final = 2  # parsers: more would take the processor from whoever else decides


class ShellLines:
    """A reader of lines that remembers the last of them. It may be used from several threads."""

    def __init__(self, program: Callable[[], Path | None], *, kept: int = _KEPT, time: float = _TIME) -> None:
        self._program, self._most, self._time = program, kept, time
        self._known: OrderedDict[str, ShellLine] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(_AT_ONCE, "shell-lines")  # none is started before it is needed

    def read(self, text: str) -> ShellLine:
        """Read a line. It may take a while: not for the loop."""
        found = self._at_once(text)
        return self._parsed(text) if found is None else found

    async def read_off_the_loop(self, text: str) -> ShellLine:
        found = self._at_once(text)
        if found is not None:
            return found
        return await self.in_thread(self._parsed, text)

    async def in_thread(self, work: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *args)

    def _at_once(self, text: str) -> ShellLine | None:
        """Read what needs no parser; None: it must be parsed."""
        line = split(text)
        if not line.unreadable or len(text) > MAX_LINE or "\0" in text:
            return line
        with self._lock:
            if text in self._known:
                self._known.move_to_end(text)
                return self._known[text]
        return line if self._program() is None else None

    def _parsed(self, text: str) -> ShellLine:
        program = self._program()
        if program is None:
            return split(text)
        try:
            line = _Reading(program, self._time).line(text)
        except (OSError, TimeoutError):  # nothing about the line: it may be read the next time
            return split(text)
        self._keep(text, line)
        return line

    def _keep(self, text: str, line: ShellLine) -> None:
        with self._lock:
            if text in self._known:
                return
            self._known[text] = line
            self._size += _size(text, line)
            while self._size > self._most:
                self._size -= _size(*self._known.popitem(last=False))


class _Reading:
    """The reading of one line, and of the texts in it that are for another shell."""

    def __init__(self, program: Path, time: float) -> None:
        # `split` reads most lines, without any tree: this and `ShellTree` load when one needs them.
        from legation.approvals.policy.shell.nodes import Variables

        self._program, self._time, self._left = program, time, _MAX_SCRIPTS
        self._variables = Variables()

    def line(self, text: str) -> ShellLine:
        parts = Parts(self._read)
        try:
            parts.read(text, 0)
        except Unreadable as error:
            return ShellLine(unreadable=str(error))
        except RecursionError:
            return ShellLine(unreadable="too many commands within commands")
        return parts.line

    def _read(self, parts: Parts, text: str, depth: int) -> None:
        from legation.approvals.policy.shell.syntax import ShellTree

        self._left -= 1
        if self._left < 0:
            raise Unreadable("too many commands within commands")
        try:
            source = text.encode()
            tree = msgspec.json.decode(parse(self._program, source, self._time))
        except (UnicodeEncodeError, msgspec.DecodeError):
            raise Unreadable("a text that is not known") from None
        try:
            ShellTree(tree, source, parts, depth, self._variables).read()
        except (AttributeError, LookupError, TypeError, ValueError):  # another release may build it otherwise
            raise Unreadable("a tree that is not known") from None


def parse(program: Path, source: bytes, time: float = _TIME) -> bytes:
    """Parse it into shfmt's tree, as JSON. Raises Unreadable where it is no bash, and TimeoutError."""
    # A file, for a pipe could be too small to take it all before the program reads.
    with tempfile.TemporaryFile() as given:
        given.write(source)
        given.seek(0)
        with subprocess.Popen(
            [program, "-ln=bash", "--to-json"],
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # it quotes the line
            env={},
            cwd="/",
        ) as process:
            slow = threading.Event()

            def end() -> None:
                slow.set()
                process.kill()

            timer = threading.Timer(time, end)
            timer.start()
            try:
                assert process.stdout is not None
                said = process.stdout.read(_MAX_TREE + 1)
                if len(said) > _MAX_TREE:
                    process.kill()
                    raise Unreadable("a tree that is too large")
                code = process.wait()
            finally:
                timer.cancel()
    if slow.is_set():
        raise TimeoutError
    if code < 0:
        raise OSError(f"the parser was ended by signal {-code}")
    if code:
        raise Unreadable("no bash, or a form of it that is not known")
    return said


def _size(text: str, line: ShellLine) -> int:
    return len(text) + sum(len(piece or "") + 64 for part in line.parts for piece in part) + 256


@cache
def program() -> Path | None:
    """Find the parser that came with Legation, and never one that the path happens to name; None: it is not installed."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        files = distribution(PACKAGE).files or []
    except PackageNotFoundError:
        return None
    found = (Path(str(file.locate())) for file in files if file.name in ("shfmt", "shfmt.exe"))
    return next((path.resolve() for path in found if path.is_file()), None)


LINES: Final = ShellLines(program)
"""The lines of this process: what one session's agent ran is often another's."""


async def prepare(action: Action, facts: Facts) -> Facts:
    """Make the facts for a decision on this action, with its commands read. A short line that `split` can read costs nothing
    here; a long one is split in a thread, since every word takes its time."""
    if is_long(action):
        return await LINES.in_thread(prepare_here, action, facts)
    for command in _unread(action):
        facts = facts.with_line(command, await LINES.read_off_the_loop(command))
    return facts


def prepare_here(action: Action, facts: Facts) -> Facts:
    """Do the same for whoever is in a thread, or alone."""
    for command in _unread(action):
        facts = facts.with_line(command, LINES.read(command))
    return facts


def is_long(action: Action) -> bool:
    """Tell whether to split its lines would hold up the loop."""
    return sum(map(len, action.commands)) > _SPLIT_AT_ONCE


def _unread(action: Action) -> list[str]:
    unread = [command for command in action.commands if split(command).unreadable]
    return unread[:_MOST_PARSED]  # the others stay unreadable, and fit no allow
