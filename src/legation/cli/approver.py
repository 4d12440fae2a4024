"""A person at the terminal decides. Used by every command that asks."""

from __future__ import annotations

import asyncio
import difflib
import os
import termios
from collections.abc import Callable, Iterator
from typing import TextIO

from legation.cli.terminal import Terminal, line, paint_diff, plain
from legation.wire.acp.toolcall import Diff
from legation.wire.action import Action
from legation.wire.ask import Ask, Decision

QUESTION = "Allow it, once? [y]es [n]o [c]ancel the turn: "
CLOSED = "\x04"


def open_tty() -> TextIO | None:
    """The terminal somebody sits at, even when stdin and stdout are pipes; None where there is none."""
    try:
        fd = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None
    return os.fdopen(fd, "w", encoding="utf-8", errors="replace")


class TerminalApprover:
    """Asks one question at a time; what was typed before a question was shown is no answer to it."""

    def __init__(self, tty: TextIO, cancel_turn: Callable[[], None]) -> None:
        self._tty = tty
        self._out = Terminal(tty)
        self._cancel_turn = cancel_turn
        self._one_at_a_time = asyncio.Lock()

    async def decide(self, ask: Ask) -> Decision:
        async with self._one_at_a_time:
            self._show(ask)
            termios.tcflush(self._tty.fileno(), termios.TCIFLUSH)
            try:
                return await self._answer()
            except asyncio.CancelledError:
                self._out.say("(no longer asked)", "dim")
                raise

    def _show(self, ask: Ask) -> None:
        self._out.say()
        self._out.say(f"{line(ask.action.agent)} asks: {line(ask.title)}", "bold")
        for name, value in _facts(ask.action):
            self._out.say(f"  {name} {plain(value)}")
        for diff in ask.diffs:
            paint_diff(self._out, unified_diff(diff))

    async def _answer(self) -> Decision:
        while True:
            self._out.write(QUESTION, "yellow")
            word = await _read_line(self._tty)
            if word in ("y", "yes"):
                return Decision("approved", _person(), "yes, in the terminal")
            if word in ("n", "no"):
                return Decision("denied", _person(), "no, in the terminal")
            if word == CLOSED:
                return Decision("denied", _person(), "the terminal was closed")
            if word in ("c", "cancel"):
                self._cancel_turn()
                return Decision("cancelled", _person(), "the turn was cancelled in the terminal")


def unified_diff(diff: Diff) -> str:
    old, new = (diff.old_text or "").splitlines(keepends=True), diff.new_text.splitlines(keepends=True)
    before = "/dev/null" if diff.old_text is None else f"a/{diff.path.lstrip('/')}"
    return "".join(difflib.unified_diff(old, new, before, f"b/{diff.path.lstrip('/')}"))


def _facts(action: Action) -> Iterator[tuple[str, str]]:
    if action.command:
        yield "runs", action.command
    if action.paths:
        yield "in", ", ".join(action.paths)
    if action.urls:
        yield "reaches", ", ".join(action.urls)


def _person() -> str:
    return f"person {os.environ.get('USER') or os.getuid()}"


async def _read_line(tty: TextIO) -> str:
    """One line in lower case, read without a thread that nobody could stop."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(tty.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(tty.fileno())
    try:
        typed = os.read(tty.fileno(), 4096).decode(errors="replace")
    except OSError:
        return CLOSED
    return typed.strip().lower() if typed else CLOSED
