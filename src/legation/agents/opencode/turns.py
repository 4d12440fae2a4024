"""The turns of one session, one at a time: how each is sent, ended and, where OpenCode cannot begin it, sent again."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from legation.agents.native import Reply
from legation.agents.opencode import refusals
from legation.agents.opencode.messages import NativeError
from legation.agents.opencode.remote import PROMPT_LIMIT, Remote
from legation.agents.opencode.tasks import Tasks
from legation.agents.opencode.turn import Turn
from legation.agents.rpc import AgentRefused
from legation.errors import AgentError, LegationError
from legation.wire.acp.sessions import PromptResponse

BUSY_LIMIT: Final = 5.0  # seconds from a prompt that was taken to its beginning: the server's time
ABORT_TRIES: Final = 3  # an abort that comes before the turn has begun is lost
ABORT_PAUSE: Final = (
    2.0  # seconds from an abort to the turn's end, before it is tried again: the server's time
)
DOUBT_PAUSE: Final = 0.3  # seconds for the second idle, which is the one that counts: the server's time
USERS_KEPT: Final = 64  # ids of the user's messages, by which late news of them are told from a new turn


class Course(Protocol):
    """Whoever is told how a turn goes."""

    def begins(self) -> None:
        """Before anything of it is sent."""

    def is_cancelled(self) -> None:
        """By the host, which answers what is asked in it."""

    def ends(self) -> None:
        """It is over, or we end it: nobody need answer any more."""


class Turns:
    def __init__(self, remote: Remote, name: str, course: Course) -> None:
        self.now: Turn | None = None
        self._remote = remote
        self._course = course
        self._users: deque[str] = deque(maxlen=USERS_KEPT)
        self._gone: LegationError | None = None
        self._prompt: dict[str, object] = {}
        self._revived = False
        self._taken = asyncio.Event()  # the server has the prompt
        self._busy = asyncio.Event()
        self._over = asyncio.Event()
        self._tasks = Tasks(name)

    @property
    def ending(self) -> bool:
        """Nothing of the turn that runs is waited for but its end."""
        return self.now is not None and self.now.ending

    async def run(
        self,
        prompt: dict[str, object],
        on_answer: Callable[[PromptResponse | AgentError], None] | None,
    ) -> PromptResponse:
        """In its first step the turn begins, so that a cancel after it finds one."""
        if self._gone is not None:
            raise self._gone
        reply: Reply[PromptResponse] = Reply(on_answer)
        self._begin(Turn(reply, frozenset(self._users)))
        self._prompt = prompt
        self._revived = False
        self._tasks.start(self._post())
        return await reply.value()

    def cancel(self) -> None:
        if self.now is not None and not self.now.cancelled:
            self.now.cancelled = True
            self._course.is_cancelled()
            self._tasks.start(self._end_turn(self.now))

    def cut(self, why: AgentRefused) -> None:
        if self.now is not None and not self.now.ending:
            self.now.cut = why
            self._abort()

    def cut_if_due(self) -> None:
        turn = self.now
        if turn is not None and turn.cut is not None and not turn.cancelled:
            self._abort()

    async def end(self, timeout: float) -> None:
        if self.now is not None:
            self.cancel()
            await self.until_over(timeout)

    def lost(self, error: LegationError) -> None:
        """The server is gone."""
        self._gone = error
        turn, self.now = self.now, None
        self._course.ends()
        if turn is not None:
            turn.reply.lose(error)
        self._over.set()

    async def close(self) -> None:
        await self._tasks.close()

    def remember(self, user_message: str) -> None:
        """One of a turn that is over."""
        self._users.append(user_message)

    async def until_over(self, seconds: float) -> bool:
        return await self._within(self._over, seconds)

    # What OpenCode says of it.

    def busy(self) -> None:
        self._busy.set()

    def idle(self) -> None:
        if self.now is None:
            return
        match self.now.idle():
            case "over":
                self._finish()
            case "doubtful":
                self._tasks.start(self._doubt(self.now))

    def failed(self, error: NativeError) -> None:
        if self.now is not None:
            self.now.failed(error)

    async def look(self) -> None:
        """Events were missed: it may be over."""
        if self.now is not None and self.now.users and not await self._remote.is_busy():
            self._finish()

    # Its course.

    def _begin(self, turn: Turn) -> None:
        self.now = turn
        self._course.begins()
        for each in (self._taken, self._busy, self._over):
            each.clear()

    async def _post(self) -> None:
        turn = self.now
        try:
            await self._remote.prompt(self._prompt)
            self._taken.set()
        except LegationError as error:
            if turn is not None and self.now is turn:
                self.now = None
                turn.reply.give(error) if isinstance(error, AgentError) else turn.reply.lose(error)
                self._over.set()

    def _finish(self) -> None:
        turn = self.now
        if turn is None:
            return
        error = turn.error.data.message if turn.error else None
        if error and refusals.POISONED in error and not turn.ending and not self._revived:
            self._revived = True
            self._tasks.start(self._begin_again(turn))
            return
        self.now = None
        self._users.extend(turn.users)
        self._course.ends()
        turn.reply.give(turn.outcome())
        self._over.set()

    async def _begin_again(self, turn: Turn) -> None:
        """An abort has hit the start of what OpenCode holds for the folder: it is made to hold it anew."""
        with suppress(LegationError):
            await self._remote.forget_folder()
        if self.now is turn and not turn.ending:
            self._users.extend(turn.users)
            self._begin(Turn(turn.reply, frozenset(self._users)))
            await self._post()

    async def _doubt(self, turn: Turn) -> None:
        """INV-O9."""
        await self.until_over(DOUBT_PAUSE)
        if self.now is turn and not await self._remote.is_busy() and self.now is turn:
            self._finish()

    def _abort(self) -> None:
        self._course.ends()
        if self.now is not None:
            self._tasks.start(self._end_turn(self.now))

    async def _end_turn(self, turn: Turn) -> None:
        await self._within(self._taken, PROMPT_LIMIT)
        await self._within(self._busy, BUSY_LIMIT)
        for _ in range(ABORT_TRIES):
            if self.now is not turn:
                return
            with suppress(LegationError):
                await self._remote.abort()
            if await self.until_over(ABORT_PAUSE):
                return
        if self.now is turn and turn.cut is not None:
            self._finish()  # nobody else waits for it to obey

    async def _within(self, event: asyncio.Event, seconds: float) -> bool:
        """Or the turn is over."""
        waits = [asyncio.ensure_future(each.wait()) for each in (event, self._over)]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
        return event.is_set()
