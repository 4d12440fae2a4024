"""A person at the terminal: questions, answers and Ctrl-C, for every command that asks."""

from __future__ import annotations

import asyncio
import difflib
import os
import signal
import sys
import termios
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from legation.cli.command import Console, line, paint_diff, plain
from legation.wire.acp.updates import Diff
from legation.wire.action import Action, Ask, Decision, offers_only_always

if TYPE_CHECKING:
    from legation.wire.api.approvals import ApprovalDetail

ANSWERS = "[y]es [n]o [c]ancel the turn: "
QUESTION = f"Allow it, once? {ANSWERS}"
ALWAYS = f"The agent offers no single yes. Allow this tool for all of this session? {ANSWERS}"
GONE = "the terminal was closed"


def open_tty() -> TextIO | None:
    """Open the terminal somebody sits at, even when stdin and stdout are pipes; None where there is none."""
    try:
        fd = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None
    return os.fdopen(fd, "w", encoding="utf-8", errors="replace")


class TerminalApprover:
    """An approver that asks one question at a time; what was typed before a question was shown is no answer to it.

    Who answers `cancelled` wants the turn to end: that is for whoever asked."""

    def __init__(self, tty: TextIO) -> None:
        self._tty = tty
        self._out = Console(tty)
        self._one_at_a_time = asyncio.Lock()

    async def decide(self, ask: Ask) -> Decision:
        async with self._one_at_a_time:
            try:
                show_ask(self._out, ask.action, ask.title, _facts(ask.action), ask.diffs)
                termios.tcflush(self._tty.fileno(), termios.TCIFLUSH)
                return await self._answer(ALWAYS if offers_only_always(ask.options) else QUESTION)
            except (OSError, termios.error):
                return Decision("denied", _person(), GONE)
            except asyncio.CancelledError:
                self._out.say("(no longer asked)", "dim")
                raise

    async def _answer(self, question: str) -> Decision:
        while True:
            self._out.write(question, "yellow")
            typed = await read_line(self._tty)
            if typed is None:
                return Decision("denied", _person(), GONE)
            word = typed.lower()
            if word in ("y", "yes"):
                return Decision("approved", _person(), "yes, in the terminal")
            if word in ("n", "no"):
                return Decision("denied", _person(), "no, in the terminal")
            if word in ("c", "cancel"):
                return Decision("cancelled", _person(), "the turn was cancelled in the terminal")


def show_ask(
    out: Console, action: Action, title: str, facts: Iterable[tuple[str, str]], diffs: Iterable[Diff]
) -> None:
    out.say()
    out.say(f"{line(action.agent)} asks: {line(title)}", "bold")
    for name, value in facts:
        out.say(f"  {name} {indented(value)}")
    for diff in diffs:
        paint_diff(out, unified_diff(diff))


def show_asked(out: Console, asked: ApprovalDetail) -> None:
    """Show an approval to whoever is about to answer it: the command or the change itself, and why they are asked."""
    paths = [each.path for each in asked.diffs] or [each.path for each in asked.paths]
    about = asked.command or ", ".join(path.rpartition("/")[2] for path in paths) or asked.tool
    verb = "Run" if asked.command else asked.kind.capitalize() if paths else "Call"
    out.say(f"{line(asked.agent_id)} asks: {verb} {line(about)}", "bold")
    out.say(
        f"  why you: rule {line(asked.policy_rule)} asks a person; {line(asked.remaining)} left to answer"
    )
    changes = [each for each in asked.diffs if each.new_text is not None]
    for each in changes:
        paint_diff(
            out, unified_diff(Diff(path=each.path, old_text=each.old_text, new_text=each.new_text or ""))
        )
    for name, value in (asked.params or {}).items() if not changes and not asked.command else ():
        out.say(f"  {line(name)} {line(str(value))}")


def unified_diff(diff: Diff) -> str:
    """Make a diff of what the agent says it will do. Every line of it starts with a mark of ours."""
    old, new = _lines(diff.old_text or ""), _lines(diff.new_text)
    path = line(diff.path).lstrip("/")
    before = "/dev/null" if diff.old_text is None else f"a/{path}"
    return "\n".join(difflib.unified_diff(old, new, before, f"b/{path}", lineterm=""))


def _lines(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n") if text else []


def indented(text: str) -> str:
    """Indent the lines after the first, so that none of them can pass for one of ours."""
    return plain(text).replace("\n", "\n       ")


def _facts(action: Action) -> Iterator[tuple[str, str]]:
    for command in action.commands:
        yield "runs", command
    if action.paths:
        yield "in", ", ".join(action.paths)
    if action.urls:
        yield "reaches", ", ".join(action.urls)
    if action.unclear:
        yield "unclear", ", ".join(action.unclear)


def login() -> str:
    """Name whoever sits at the terminal."""
    return line(os.environ.get("USER", "")) or str(os.getuid())


def _person() -> str:
    return f"person {login()}"


async def read_line(tty: TextIO) -> str | None:
    """Read one line without a thread that nobody could stop; None where nobody sits there any more."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(tty.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(tty.fileno())
    try:
        typed = os.read(tty.fileno(), 4096).decode(errors="replace")
    except OSError:
        return None
    return typed.strip() if typed else None


@contextmanager
def interrupts(
    words: str, first: Callable[[], None], again: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Have the first Ctrl-C say so and call `first`; the next one calls `again`, and cancels this task."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        if interrupted:
            again()
            task.cancel()
        else:
            print(f"\nlegation: {words}", file=sys.stderr)
            interrupted = True
            first()

    before = signal.getsignal(signal.SIGINT)  # asyncio's own: it stops everything
    loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)
