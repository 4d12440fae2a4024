"""`watch` at a terminal: one queue of happenings, one at a time, each drawn before the next is looked at.

INV-A3  A key answers the approval whose question was on the screen when it was typed, or nothing. The question is
        drawn `SETTLE` after the approval itself was; what was typed until then is thrown away, unread bytes too. The id
        is taken from the question, never from the list.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from legation.cli.approvals_board import Board
from legation.cli.approvals_dialog import Answer, Dialog
from legation.cli.approvals_errands import Answered, Errands, Listed, Outage, Trouble
from legation.cli.approvals_keys import Key, Keys, every_key, is_typed, read_typed
from legation.cli.approvals_screen import Frame, Size, frame
from legation.cli.connection import outage
from legation.cli.terminal import Terminal
from legation.client.surface import Change
from legation.errors import LegationError
from legation.wire.api.approvals import ApprovalDetail

if TYPE_CHECKING:
    from legation.client import AsyncLegation
    from legation.client.request import Outages

SETTLE: Final = 0.4  # seconds: a person's time to see that another question is asked
GONE: Final = 128 + signal.SIGHUP  # exit code: the terminal was closed
FALLBACK: Final = Size(80, 24)  # of a terminal that does not say


class Typed(NamedTuple):
    keys: list[Key]
    question: int  # how many questions had been asked then


class Ended(NamedTuple):
    code: int


async def live(connect: Callable[[Outages], AsyncLegation]) -> int:
    happened: asyncio.Queue[object] = asyncio.Queue()

    def outages(error: LegationError | None) -> None:
        happened.put_nowait(Outage(outage(error), away=error is not None))

    async with connect(outages) as server:
        return await Live(server, sys.stdin.fileno(), happened).run()


class Live:
    def __init__(self, server: AsyncLegation, descriptor: int, happened: asyncio.Queue[object]) -> None:
        self._server = server
        self._descriptor = descriptor
        self._happened = happened  # None: time went on, or the size is another
        self._errands = Errands(server, self._happened)
        self._board = Board()
        self._dialog = Dialog(self._board)
        self._keys = Keys()
        self._out = Terminal()
        self._drawn: Frame | None = None
        self._questions = 0
        self._shown: tuple[str | None, float] = (None, 0.0)  # which approval is on the screen, since when
        self._read: str | None = None  # the last that was asked for
        self._tasks = asyncio.TaskGroup()
        self._reading: asyncio.Task[None] | None = None
        self._answers: set[asyncio.Task[None]] = set()
        self._failure: LegationError | None = None

    async def run(self) -> int:
        after = await self._errands.head()
        self._board.fill(await self._errands.pending(), time.monotonic())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._happened.put_nowait, Ended(128 + number))
        loop.add_signal_handler(signal.SIGWINCH, self._happened.put_nowait, None)
        with every_key(self._descriptor, sys.stdout):  # after the signals: none may leave it so
            loop.add_reader(self._descriptor, self._typed)
            try:
                code = await self._until_over(after)
            finally:
                loop.remove_reader(self._descriptor)
        if self._failure is not None:
            raise self._failure
        return code

    async def _until_over(self, after: int) -> int:
        errands = self._errands
        work = (errands.follow(after), errands.tick(), errands.list_again(lambda: list(self._board.rows)))
        async with self._tasks:
            background = [self._tasks.create_task(each) for each in work]
            try:
                code = await self._loop()
            except OSError:  # nobody can see it any more
                code = GONE
            if self._reading is not None:
                background.append(self._reading)
            for task in background if code == 0 else (*background, *self._answers):
                task.cancel()  # answers that were given are still sent, unless a signal says to go
        return code

    async def _loop(self) -> int:
        self._draw()
        while True:
            happening = await self._happened.get()
            if isinstance(happening, Ended):
                return happening.code
            if isinstance(happening, LegationError):
                self._failure = happening
                return happening.status.exit
            if isinstance(happening, Typed):
                if self._press(happening):
                    return 0
            else:
                self._take(happening)
            self._draw()

    def _take(self, happening: object) -> None:
        now, board = time.monotonic(), self._board
        match happening:
            case ApprovalDetail():
                board.found(happening, now)
            case Listed():
                board.compare(happening.known, happening.pending, now)
            case Trouble():
                board.notice(happening.words)
            case Outage():
                board.reach(away=happening.away)
                board.notice(happening.words)
                self._read = None
            case Answered():
                board.end_answer(happening.asked, happening.answered)
                board.notice(happening.words)
            case Change():
                board.apply(happening.approval, happening.at, now)
                if happening.approval.id == board.focus:
                    self._read = None  # escalated or claimed: read it again
        self._dialog.check()

    def _press(self, typed: Typed) -> bool:
        """Whether it is over."""
        if typed.question != self._questions:
            return False  # typed before the question that is on the screen
        for key in typed.keys:
            if key.name in ("q", "end") and not self._dialog.is_open:
                return True
            focus = self._board.focus
            answer = self._dialog.press(key)
            if answer is not None:
                self._begin(answer)
            if answer is not None or self._board.focus != focus:
                break  # what was typed after it was typed before the next question
        return False

    def _begin(self, answer: Answer) -> None:
        self._board.begin_answer(answer.ids)
        task = self._tasks.create_task(self._errands.answer(answer))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    def _typed(self) -> bool:
        """Whether the terminal is still there."""
        data = read_typed(self._descriptor)
        if data:
            self._happened.put_nowait(Typed(self._keys.feed(data), self._questions))
        else:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            self._happened.put_nowait(Ended(GONE))
        return bool(data)

    # What is drawn, and when a key begins to count.

    def _draw(self) -> None:
        now, dialog = time.monotonic(), self._dialog
        self._look()
        self._ask(now)
        drawn = frame(
            self._board,
            _size(),
            now,
            question=dialog.question,
            scroll=dialog.scroll,
            help_=dialog.help,
            place=self._server.url,
        )
        dialog.saw(drawn.arguments, drawn.shown)
        if drawn == self._drawn:
            return
        self._drawn = drawn
        painted = (self._out.paint(text, style) + "\x1b[K" for text, style in drawn.lines)
        self._out.write("\x1b[H" + "\n".join(painted) + "\x1b[J")

    def _look(self) -> None:
        """Reads the one that is looked at, if it was not read yet."""
        focus = self._board.focus
        if focus is None or self._board.gone is not None or self._read == focus or self._board.away:
            return
        self._read = focus
        if self._reading is not None:
            self._reading.cancel()
        self._reading = self._tasks.create_task(self._errands.read(focus))

    def _ask(self, now: float) -> None:
        row = self._board.answerable
        shown = row.id if row is not None else None
        if shown != self._shown[0]:
            self._shown = (shown, now)
            self._dialog.ask(None)
            if shown is not None:
                asyncio.get_running_loop().call_later(SETTLE, self._happened.put_nowait, None)
        elif row is not None and not self._dialog.asked and now - self._shown[1] >= SETTLE:
            while is_typed(self._descriptor) and self._typed():
                pass  # read, so that a paste that goes on after this is still known as one
            self._questions += 1
            self._dialog.ask(row)


def _size() -> Size:
    try:
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        return FALLBACK
    return Size(columns or FALLBACK.columns, rows or FALLBACK.rows)
