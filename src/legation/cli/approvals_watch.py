"""`legation approvals watch` at a terminal: one queue of happenings, each drawn before the next is looked at.

INV-A3  A key answers the approval whose question was on the screen when it was typed, or nothing. The question is
        drawn `SETTLE` after the approval itself was; what was typed until then is thrown away, unread bytes too. The id
        is taken from the question, never from the list.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import sys
import termios
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple, TextIO

from legation.cli.approvals_board import (
    AnswerDialog,
    Board,
    BoardAnswer,
    KeyPress,
    KeyReader,
    ScreenFrame,
    ScreenSize,
    frame,
)
from legation.cli.command import Console, line, outage
from legation.client.connection import STREAM, NumberedChange
from legation.errors import LegationError, NotFound, Unavailable
from legation.wire.api.approvals import ApprovalDetail, ApprovalView

if TYPE_CHECKING:
    from legation.client import AsyncLegation
    from legation.client.request import Outages


SETTLE: Final = 0.4  # seconds: a person's time to see that another question is asked
GONE: Final = 128 + signal.SIGHUP  # exit code: the terminal was closed
FALLBACK: Final = ScreenSize(80, 24)  # of a terminal that does not say
TICK: Final = 1.0  # seconds between two looks at the time that is left
LIST_AGAIN: Final = 60.0  # seconds for which a change that never reached the stream goes unseen, at most
AGAIN_PAUSE: Final = 2.0  # seconds: the server's time to become well, or to make the stream
OVER: Final = "cannot go on watching: the server ended the stream of approvals; start it again"

# Another screen, no cursor, no line wrapping, pasted text marked as such; and all of it back.
ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[?2004h"
LEAVE: Final = "\x1b[?2004l\x1b[?7h\x1b[?25h\x1b[?1049l"
CHUNK: Final = 4096


class PendingListed(NamedTuple):
    known: list[str]  # when it was asked for
    pending: list[ApprovalView]


class AnswerSent(NamedTuple):
    asked: tuple[str, ...]
    answered: tuple[str, ...]
    words: str


class ErrandFailed(NamedTuple):
    """A failure that is told and tried again; what cannot be mended is the LegationError itself."""

    words: str


class Outage(NamedTuple):
    """The server went away, or is back: told by the stream."""

    words: str
    away: bool


class Typed(NamedTuple):
    keys: list[KeyPress]
    question: int  # how many questions had been asked then


class WatchEnded(NamedTuple):
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
        self._dialog = AnswerDialog(self._board)
        self._keys = KeyReader()
        self._out = Console()
        self._drawn: ScreenFrame | None = None
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
            loop.add_signal_handler(number, self._happened.put_nowait, WatchEnded(128 + number))
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
            if isinstance(happening, WatchEnded):
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
            case PendingListed():
                board.compare(happening.known, happening.pending, now)
            case ErrandFailed():
                board.notice(happening.words)
            case Outage():
                board.reach(away=happening.away)
                board.notice(happening.words)
                self._read = None
            case AnswerSent():
                board.end_answer(happening.asked, happening.answered)
                board.notice(happening.words)
            case NumberedChange():
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

    def _begin(self, answer: BoardAnswer) -> None:
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
            self._happened.put_nowait(WatchEnded(GONE))
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


def _size() -> ScreenSize:
    try:
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        return FALLBACK
    return ScreenSize(columns or FALLBACK.columns, rows or FALLBACK.rows)


class Errands:
    """The work of `watch` on the network: each errand ends as a happening in one queue, and none of them raises."""

    def __init__(self, server: AsyncLegation, happened: asyncio.Queue[object]) -> None:
        self._server = server
        self._tell = happened.put_nowait

    async def head(self) -> int:
        """Read the head of the stream, before what is pending is listed, so that no change is missed in between."""
        async for each in self._server.streams.list(STREAM):
            if each.name == STREAM:
                return each.head
        return 0

    async def pending(self) -> list[ApprovalView]:
        return [view async for view in self._server.approvals.list("pending")]

    async def tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            self._tell(None)

    async def follow(self, after: int) -> None:
        while True:
            try:
                async for change in self._server.approvals.follow(after):
                    after = change.seq
                    self._tell(change)
                return self._tell(Unavailable(OVER))
            except NotFound:  # nobody ever asked for anything
                await asyncio.sleep(AGAIN_PAUSE)
            except LegationError as error:
                return self._tell(error)

    async def list_again(self, known: Callable[[], list[str]]) -> None:
        while True:
            await asyncio.sleep(LIST_AGAIN)
            before = known()
            try:
                self._tell(PendingListed(before, await self.pending()))
            except LegationError as error:
                self._tell(ErrandFailed(line(error.message)))

    async def read(self, id_: str) -> None:
        while True:
            try:
                return self._tell(await self._server.approvals.get(id_))
            except LegationError as error:
                self._tell(ErrandFailed(line(error.message)))
                await asyncio.sleep(AGAIN_PAUSE)

    async def answer(self, answer: BoardAnswer) -> None:
        done: Iterable[str] = ()
        try:
            done, words = await self._send(answer)
        except LegationError as error:
            words = f"{line(answer.ids[0])}: {line(error.message)}"
            await self._tell_who(answer.ids[0])
        self._tell(AnswerSent(answer.ids, tuple(done), words))

    async def _tell_who(self, id_: str) -> None:
        """It may have been answered by somebody else a moment before."""
        try:
            self._tell(await self._server.approvals.get(id_))
        except LegationError:
            return

    async def _send(self, answer: BoardAnswer) -> tuple[Iterable[str], str]:
        """Send an answer; gives which ones are answered now, and what to say."""
        approvals, id_, why = self._server.approvals, answer.ids[0], answer.reason
        if answer.verb == "escalate":
            await approvals.escalate(id_)
            return (), f"{answer.name}: left to a person"
        if answer.group is not None:
            done = await approvals.answer_group(answer.group, answer.verb, reasoning=why, message=why)
            refused = f", {len(done.refused)} not yours to answer" if done.refused else ""
            return done.answered, f"{answer.name}: {answer.past}, {len(done.answered)} in all{refused}"
        if answer.verb == "approve":
            await approvals.approve(id_, reasoning=why, message=why, digest=answer.digest)
        else:
            await approvals.deny(id_, reasoning=why, message=why, digest=answer.digest)
        return (id_,), f"{answer.name}: {answer.past} by you"


@contextmanager
def every_key(descriptor: int, out: TextIO) -> Iterator[None]:
    """Have every key at once, on a screen of our own; the terminal is as it was afterwards, whatever happens in between.

    Ctrl-C still interrupts; Ctrl-Z does nothing: it would leave the terminal as it is here."""
    before = termios.tcgetattr(descriptor)
    changed = termios.tcgetattr(descriptor)
    changed[3] &= ~(termios.ICANON | termios.ECHO)
    changed[6][termios.VSUSP] = b"\x00"
    changed[6][termios.VMIN], changed[6][termios.VTIME] = 1, 0
    try:
        termios.tcsetattr(descriptor, termios.TCSANOW, changed)
        out.write(ENTER)
        out.flush()
        yield
    finally:
        _restore(descriptor, before, out)


def _restore(descriptor: int, before: list[object], out: TextIO) -> None:
    """Each step for itself: a terminal that was closed must not keep us from the rest."""
    with contextlib.suppress(OSError, ValueError):
        out.write(LEAVE)
        out.flush()
    with contextlib.suppress(termios.error):
        termios.tcflush(descriptor, termios.TCIFLUSH)  # keys meant for us are no commands for the shell
    with contextlib.suppress(termios.error):
        termios.tcsetattr(descriptor, termios.TCSANOW, before)  # type: ignore[arg-type]


def is_typed(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])


def read_typed(descriptor: int) -> bytes:
    """Read what was typed; nothing: the terminal was closed."""
    try:
        return os.read(descriptor, CHUNK)
    except OSError:
        return b""
