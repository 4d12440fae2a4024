"""One process of Claude Code: its lines handed on one by one, and its end told in words."""

from __future__ import annotations

from collections.abc import Callable

from legation.agents.native import read_lines
from legation.agents.output import Output
from legation.agents.rpc import OUTBOX_LIMIT, WRITE_TIMEOUT, Inbox
from legation.errors import LegationError
from legation.proc import Child


class ClaudeProcess(Output):
    """`take` gets each line with what is to be decoded of it, `over` is called when there will be no more."""

    def __init__(
        self,
        child: Child,
        inbox: Inbox,
        take: Callable[[bytes, bytes], None],
        over: Callable[[LegationError], None],
    ) -> None:
        super().__init__(child, self._read, trouble=inbox.trouble, over=over)
        self.child = child
        self._inbox = inbox
        self._take = take

    async def _read(self) -> None:
        await read_lines(self.child, self._take, self._room, self._inbox.trouble)

    async def _room(self) -> None:
        await self._inbox.room()
        if self.child.unsent > OUTBOX_LIMIT:
            await self.child.drain(WRITE_TIMEOUT)
