"""What `watch` does on the network: each errand ends as a happening in one queue, and none of them raises."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from legation.cli.approvals_dialog import Answer
from legation.cli.terminal import line
from legation.client.surface import STREAM
from legation.errors import LegationError, NotFound, Unavailable
from legation.wire.api.approvals import ApprovalView

if TYPE_CHECKING:
    from legation.client import AsyncLegation

TICK: Final = 1.0  # seconds between two looks at the time that is left
LIST_AGAIN: Final = 60.0  # seconds for which a change that never reached the stream goes unseen, at most
AGAIN_PAUSE: Final = 2.0  # seconds: the server's time to become well, or to make the stream
OVER: Final = "cannot go on watching: the server ended the stream of approvals; start it again"


class Listed(NamedTuple):
    known: list[str]  # when it was asked for
    pending: list[ApprovalView]


class Answered(NamedTuple):
    asked: tuple[str, ...]
    answered: tuple[str, ...]
    words: str


class Trouble(NamedTuple):
    """Told, and tried again; what cannot be mended is the LegationError itself."""

    words: str


class Outage(NamedTuple):
    """The server went away, or is back: told by the stream."""

    words: str
    away: bool


class Errands:
    def __init__(self, server: AsyncLegation, happened: asyncio.Queue[object]) -> None:
        self._server = server
        self._tell = happened.put_nowait

    async def head(self) -> int:
        """Of the stream. Before what is pending is listed, so that no change is missed in between."""
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
                self._tell(Listed(before, await self.pending()))
            except LegationError as error:
                self._tell(Trouble(line(error.message)))

    async def read(self, id_: str) -> None:
        while True:
            try:
                return self._tell(await self._server.approvals.get(id_))
            except LegationError as error:
                self._tell(Trouble(line(error.message)))
                await asyncio.sleep(AGAIN_PAUSE)

    async def answer(self, answer: Answer) -> None:
        done: Iterable[str] = ()
        try:
            done, words = await self._send(answer)
        except LegationError as error:
            words = f"{line(answer.ids[0])}: {line(error.message)}"
            await self._tell_who(answer.ids[0])
        self._tell(Answered(answer.ids, tuple(done), words))

    async def _tell_who(self, id_: str) -> None:
        """It may have been answered by somebody else a moment before."""
        try:
            self._tell(await self._server.approvals.get(id_))
        except LegationError:
            return

    async def _send(self, answer: Answer) -> tuple[Iterable[str], str]:
        """Which ones are answered now, and what to say."""
        approvals, id_, why = self._server.approvals, answer.ids[0], answer.reason
        if answer.verb == "escalate":
            await approvals.escalate(id_)
            return (), f"{answer.name}: left to a person"
        if answer.group is not None:
            done = await approvals.answer_group(answer.group, answer.verb, reasoning=why, message=why)
            refused = f", {len(done.refused)} not yours to answer" if done.refused else ""
            return done.answered, f"{answer.name}: {answer.past}, {len(done.answered)} in all{refused}"
        if answer.verb == "approve":
            await approvals.approve(id_, reasoning=why, message=why)
        else:
            await approvals.deny(id_, reasoning=why, message=why)
        return (id_,), f"{answer.name}: {answer.past} by you"
