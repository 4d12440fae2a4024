"""A session of the server followed at the terminal, as `legation exec` shows its own: from the same log, by the same
renderer, over as many connections as it takes; and what its agent asks, put to whoever sits there.

INV-K1  One question at a time, and what was typed before it was shown is no answer to it. What somebody else answers
        meanwhile is taken back. The first answer stands, and the server says which that was.
INV-K2  Nothing is asked while the server is away: the answer would go nowhere. When it is back, and all that happened
        meanwhile was seen, what is still open is asked again.
"""

from __future__ import annotations

import asyncio
import sys
import termios
from collections.abc import Awaitable, Callable, Container
from contextlib import asynccontextmanager, suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Self, TextIO, TypeAlias

from legation.cli.approver import ALWAYS, indented, interrupts, open_tty, read_line, show_ask
from legation.cli.command import Console, PlaceFlags, connect_async, line, say, tell_outage
from legation.cli.view import SessionView, view_of
from legation.clock import new_id
from legation.errors import STATUS, Code, InvalidParams, LegationError, NotFound
from legation.wire import event_types
from legation.wire.action import offers_only_always
from legation.wire.event_types import (
    PermissionAnswered,
    PermissionAsked,
    PromptFinished,
    PromptStarted,
    QuestionAnswered,
    QuestionAsked,
    SessionStatus,
)
from legation.wire.universal.asks import FormField, fields_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from legation.client import AsyncLegation
    from legation.client.async_http import AsyncCaller
    from legation.client.sessions import ClientSession


Answer: TypeAlias = Literal["once", "reject"]
QUESTION: Final = "Allow it? [y]es, once [a]lways in this session [n]o [c]ancel the turn: "
NOT_YET: Final = 0.1  # seconds: the door's time to judge what was just asked; doubled each time
NOT_YET_MOST: Final = 2.0
INTERRUPTED: Final = "cancelling the turn; Ctrl-C again to stop waiting for it"
AWAY: Final = "no longer asked: the server went away"
_OVER: Final = "no longer asked"
_WORDS: Final[dict[str, Literal["once", "always", "reject", "cancel"]]] = {
    **dict.fromkeys(("y", "yes"), "once"),
    **dict.fromkeys(("a", "always"), "always"),
    **dict.fromkeys(("n", "no"), "reject"),
    **dict.fromkeys(("c", "cancel"), "cancel"),
}
_GONE = ("closed", "deleted")
# How the host ends what it says of a session that cannot be taken up.
CONTINUED = "in a new session that continues this one"


def follow_turn(flags: PlaceFlags | None, session: str, text: str, *, json: bool) -> int:
    """The exit code: 0 only when the agent ended its turn by itself."""
    finished = asyncio.run(follow_turn_of(flags, session, text, view_of(json=json)))
    if not json:
        say(f"to go on: {_ways_on(line(session), finished)}", "dim")
    return exit_code(finished)


def _ways_on(session: str, finished: PromptFinished | None) -> str:
    """One that was terminated, or that its agent has lost, goes on in another."""
    again, anew = f"legation sessions send {session} ...", f"legation sessions continue {session} ..."
    if finished is None:
        return anew
    lost = finished.error is not None and finished.error.message.endswith(CONTINUED)
    return f"{again}, or {anew}" if lost else again


def follow_session(flags: PlaceFlags | None, session: str, after: int, *, json: bool) -> None:
    asyncio.run(_tail(flags, session, after, view_of(json=json)))


def exit_code(finished: PromptFinished | None) -> int:
    if finished is None or finished.error:
        return STATUS[Code.AGENT_ERROR].exit
    if finished.stop_reason == "cancelled":
        return STATUS[Code.CANCELLED].exit
    return 0 if finished.stop_reason == "end_turn" else STATUS[Code.AGENT_ERROR].exit


async def follow_turn_of(
    flags: PlaceFlags | None, id_: str, text: str, view: SessionView, *, answer: Answer | None = None
) -> PromptFinished | None:
    """Send a message and show its turn; None: the session was terminated before. `answer` is given to all that is asked,
    instead of asking whoever sits here."""
    outages = Outages()
    async with connect_async(flags, outages) as server:
        session = await server.sessions.get(id_)
        after = await head(server, id_)
        async with _asking(server, session, view, outages, answer) as asker:
            try:
                # Ctrl-C once cancels the turn; twice leaves it alone and ends the command.
                with interrupts(INTERRUPTED, asker.cancel_turn):
                    message = new_id("msg")
                    await session.send(text, message_id=message)
                    return await _until_finished(server, id_, after, message, view, asker)
            except asyncio.CancelledError:
                raise KeyboardInterrupt from None


async def _tail(flags: PlaceFlags | None, id_: str, after: int, view: SessionView) -> None:
    outages = Outages()
    async with connect_async(flags, outages) as server:
        session = await server.sessions.get(id_)
        async with (
            _asking(server, session, view, outages) as asker,
            server.streams.follow(id_, after) as events,
        ):
            async for event in events:
                view.show(event)
                payload = event_types.decode(event)
                asker.saw(payload, event.seq)
                if isinstance(payload, SessionStatus) and payload.status in _GONE:
                    return


async def _until_finished(
    server: AsyncLegation, id_: str, after: int, message: str, view: SessionView, asker: Asker
) -> PromptFinished | None:
    """Messages wait for each other: other turns may come before that of ours."""
    turn: str | None = None
    async with server.streams.follow(id_, after) as events:
        async for event in events:
            view.show(event)
            payload = event_types.decode(event)
            asker.saw(payload, event.seq)
            if isinstance(payload, PromptStarted) and payload.message == message:
                turn = payload.turn
            elif isinstance(payload, PromptFinished) and payload.turn == turn:
                return payload
            elif isinstance(payload, SessionStatus) and payload.status in _GONE:
                return None
    return None


class Outages:
    """A listener that tells of outages on standard error; a question at the terminal is taken back first."""

    asker: Asker | None = None

    def __call__(self, error: LegationError | None) -> None:
        if self.asker is not None and error is not None:
            self.asker.away()
        tell_outage(error)
        if self.asker is not None and error is None:
            self.asker.back()


@asynccontextmanager
async def _asking(
    server: AsyncLegation,
    session: ClientSession[AsyncCaller],
    view: SessionView,
    outages: Outages,
    answer: Answer | None = None,
) -> AsyncIterator[Asker]:
    tty = open_tty() if answer is None else None
    try:
        async with Asker(server, session, tty, view.pause, answer) as asker:
            outages.asker = asker
            yield asker
    finally:
        view.end()
        if tty is not None:
            tty.close()


class Closed(Exception):
    """Nobody sits there any more."""


class Asker:
    """The questions of one session. Without a terminal it says how to answer elsewhere."""

    def __init__(
        self,
        server: AsyncLegation,
        session: ClientSession[AsyncCaller],
        tty: TextIO | None,
        pause: Callable[[], None],
        answer: Answer | None = None,
    ) -> None:
        """`answer` is given to every permission, and questions are rejected then: nobody is asked."""
        self._given = answer
        self._server = server
        self._session = session
        self._tty = tty
        self._out = Console(tty or sys.stderr)
        self._pause = pause
        self._one_at_a_time = asyncio.Lock()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._asking: set[str] = set()  # whose answer is not on its way yet
        self._answered: set[str] = set()
        self._open: dict[str, Callable[[], Awaitable[None]]] = {}  # what was asked and not answered yet
        self._why: dict[asyncio.Task[None] | None, str] = {}  # what is said where its question is taken back
        self._away = False
        self._seen = 0  # the last event
        self._news = asyncio.Event()
        self._again: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wait_no_more()
        for id_, task in self._tasks.items():
            if error is not None or id_ in self._asking:
                task.cancel()
        ended = await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        for defect in ended:
            if isinstance(defect, Exception) and error is None:
                raise defect

    def saw(self, payload: object, seq: int) -> None:
        """An event of the session, already shown."""
        if isinstance(payload, PermissionAsked):
            self._ask_about(payload.id, partial(self._permission, payload))
        elif isinstance(payload, QuestionAsked):
            self._ask_about(payload.id, partial(self._question, payload))
        elif isinstance(payload, PermissionAnswered | QuestionAnswered):
            self._answered.add(payload.id)
            self._open.pop(payload.id, None)
            if payload.id in self._asking:
                self._take_back(payload.id, _over(payload))
        self._seen = seq
        self._news.set()

    def cancel_turn(self) -> None:
        self._begin("", self._session.cancel)

    def away(self) -> None:
        """The server cannot be reached."""
        self._away = True
        self._wait_no_more()
        for id_ in list(self._asking):
            self._take_back(id_, AWAY)

    def back(self) -> None:
        self._again = asyncio.create_task(self._ask_again())

    async def _ask_again(self) -> None:
        with suppress(LegationError):  # it is away once more, and that is told
            last = await head(self._server, self._session.id)
            while self._seen < last:
                self._news.clear()
                await self._news.wait()
            self._away = False
            for id_, ask in list(self._open.items()):
                self._ask_about(id_, ask)

    def _wait_no_more(self) -> None:
        if self._again is not None:
            self._again.cancel()

    def _take_back(self, id_: str, why: str) -> None:
        task = self._tasks[id_]
        self._why[task] = why
        task.cancel()

    def _ask_about(self, id_: str, ask: Callable[[], Awaitable[None]]) -> None:
        self._open[id_] = ask
        if self._away:
            return
        self._asking.add(id_)
        self._begin(id_, ask)
        self._tasks[id_].add_done_callback(lambda _: self._asking.discard(id_))

    def _begin(self, id_: str, ask: Callable[[], Awaitable[None]]) -> None:
        self._tasks[id_] = asyncio.create_task(self._told(ask))

    async def _told(self, ask: Callable[[], Awaitable[None]]) -> None:
        """An answer that comes too late, or from one who may not: the following goes on."""
        try:
            await ask()
        except LegationError as error:
            self._out.say(f"legation: {line(error.message)}", "yellow")
        except (Closed, OSError, termios.error):
            self._tty, self._out = None, Console(sys.stderr)
            with suppress(LegationError, OSError):
                self._out.say()
                await ask()  # says how to answer elsewhere, now that there is no terminal

    async def _permission(self, asked: PermissionAsked) -> None:
        if not await self._waits(asked.id):
            return
        if self._given is not None:
            self._asking.discard(asked.id)
            await self._session.answer(asked.id, self._given)
            return
        if self._tty is None:
            self._out.say(f"legation: it waits for an answer: legation approvals show {line(asked.id)}")
            return
        async with self._one_at_a_time:
            self._show(asked)
            question = ALWAYS if offers_only_always(asked.options) else QUESTION
            answer = _WORDS[await self._choose(question, _WORDS)]
        self._asking.discard(asked.id)
        if answer == "cancel":
            await self._session.cancel()
        else:
            await self._session.answer(asked.id, answer)

    async def _waits(self, approval: str) -> bool:
        """Whether somebody has to answer: what a rule decides is no question. It is judged while we look."""
        pause = NOT_YET
        while True:
            try:
                return (await self._server.approvals.get(approval)).status == "pending"
            except NotFound:
                await asyncio.sleep(pause)  # ends at the latest with its answer
                pause = min(2 * pause, NOT_YET_MOST)

    async def _question(self, asked: QuestionAsked) -> None:
        if self._given is not None:
            self._asking.discard(asked.id)
            await self._session.reject(asked.id)
            return
        if self._tty is None:
            self._out.say("legation: the agent waits for an answer: follow the session at a terminal")
            return
        while asked.id not in self._answered:
            self._asking.add(asked.id)
            answers = await self._put(asked)
            self._asking.discard(asked.id)
            try:
                await self._answer(asked.id, answers)
            except InvalidParams as error:  # it does not fit what was asked for: once more
                self._out.say(f"legation: {line(error.message)}", "yellow")
            else:
                return

    async def _answer(self, question: str, answers: list[list[str]] | None) -> None:
        if answers is None:
            await self._session.reject(question)
        else:
            await self._session.reply(question, answers)

    async def _put(self, asked: QuestionAsked) -> list[list[str]] | None:
        async with self._one_at_a_time:
            self._pause()
            self._out.say()
            self._out.say(f"asked: {indented(asked.message)}", "bold")
            if asked.url is not None:
                self._out.say(f"  see {line(asked.url)}")
            return await self._fill_in(fields_of(asked.requested_schema))

    async def _fill_in(self, fields: tuple[FormField, ...]) -> list[list[str]] | None:
        """None: it is not to be answered."""
        if not fields:
            typed = await self._choose("Done? [y]es [n]o: ", ("y", "yes", "n", "no"))
            return [] if typed.startswith("y") else None
        answers: list[list[str]] = []
        for field in fields:
            kind = " | ".join(line(choice.label) for choice in field.choices) or line(field.type)
            typed = await self._ask(f"  {line(field.title)} ({kind}; nothing: no answer): ")
            if not typed:
                return None
            answers.append([each.strip() for each in typed.split(",")] if field.many else [typed])
        return answers

    def _show(self, asked: PermissionAsked) -> None:
        action = asked.action
        facts = {
            "runs": "\n".join(action.commands),
            "in": ", ".join(action.paths),
            "reaches": ", ".join(action.urls),
            "unclear": ", ".join(action.unclear),
        }
        known = [(name, value) for name, value in facts.items() if value]
        self._pause()
        show_ask(self._out, action, asked.title, known, asked.diffs)

    async def _choose(self, question: str, words: Container[str]) -> str:
        while True:
            typed = (await self._ask(question)).lower()
            if typed in words:
                return typed

    async def _ask(self, question: str) -> str:
        if self._tty is None:
            raise Closed
        termios.tcflush(self._tty.fileno(), termios.TCIFLUSH)
        self._out.write(question, "yellow")
        try:
            typed = await read_line(self._tty)
        except asyncio.CancelledError:
            why = self._why.get(asyncio.current_task(), _OVER)
            self._out.say(f"({line(why)})", "dim")
            raise
        if typed is None:
            raise Closed
        return typed


async def head(server: AsyncLegation, stream: str) -> int:
    """The number of its last event. Names come in order: its own is the first that begins so."""
    found = (await server.streams.list(stream, limit=1).page()).items
    return found[0].head if found and found[0].name == stream else 0


def _over(answered: PermissionAnswered | QuestionAnswered) -> str:
    """Say why a question is open no more; whoever answered it needs no word here."""
    withdrawn = answered.outcome in ("superseded", "cancelled", "expired") and answered.reason
    return f"{_OVER}: {answered.reason}" if withdrawn else _OVER
