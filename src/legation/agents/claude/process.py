"""One process of Claude Code: its lines handed on one by one, and its end told in words."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from legation.agents.process import EXIT_LIMIT, REST_LIMIT, STDERR_SHOWN
from legation.agents.rpc import OUTBOX_LIMIT, WRITE_TIMEOUT, Inbox
from legation.errors import AgentExited, LegationError, TimedOut, TransportClosed
from legation.proc import Child, Exit
from legation.wire.diagnostic import DiagnosticCode

_log: Final = logging.getLogger(__name__)


class ClaudeProcess:
    """Reads from the start on. `take` gets each line, `over` is called when there will be no more. Whoever makes it
    stops it."""

    def __init__(
        self, child: Child, inbox: Inbox, take: Callable[[bytes], None], over: Callable[[LegationError], None]
    ) -> None:
        self.child = child
        self._inbox = inbox
        self._take = take
        self._over = over
        self._mute = False  # it closed its output and did not end
        self._reading = asyncio.create_task(self._live(), name=f"legation-claude-{child.pid}")

    @property
    def ended(self) -> bool:
        return self._reading.done()

    async def wait(self) -> Exit:
        """Until it has ended and everything it said was handed on."""
        found = await self.child.wait()
        await asyncio.wait({self._reading})
        return found

    async def stop(self, grace: float) -> Exit:
        found = await self.child.stop(grace)
        await asyncio.wait({self._reading}, timeout=REST_LIMIT)
        if not self._reading.done():
            _log.warning("cannot keep the last output of %r: the store takes no more", self.child.name)
            self._reading.cancel()
            await asyncio.wait({self._reading})
        return found

    def said(self) -> str:
        """What it wrote to its standard error last, for the end of a message."""
        tail = self.child.stderr_tail().strip()[-STDERR_SHOWN:]
        return f", having said:\n{tail}\n" if tail else ""

    async def _live(self) -> None:
        try:
            await self._read()
        except TimedOut as error:
            self._inbox.trouble(DiagnosticCode.AGENT_PROCESS_ERROR, error.message)
        except Exception:  # noqa: BLE001 - a task boundary; whoever waits for an answer is told below
            _log.exception("cannot go on reading the output of %r", self.child.name)
        ending = asyncio.ensure_future(self.child.wait())
        await asyncio.wait({ending}, timeout=EXIT_LIMIT)
        if not ending.done():
            self._mute = True
            with suppress(TimedOut):  # stuck in the kernel; whoever stops it is told
                await self.child.stop(grace=0)
        self._over(await self._end())

    async def _read(self) -> None:
        async for lines in self.child.lines():
            for line in lines:
                self._take(line)
            await self._inbox.room()
            if self.child.unsent > OUTBOX_LIMIT:
                await self.child.drain(WRITE_TIMEOUT)

    async def _end(self) -> LegationError:
        name = self.child.name
        if self._mute:
            return TransportClosed(
                f"cannot go on with {name!r}: it closed its output and went on{self.said()}; it was stopped: start it again"
            )
        found = await self.child.wait()
        return AgentExited(
            f"cannot go on with {name!r}: it ended with {found}{self.said()}",
            {"exitCode": found.code, "signal": found.signal},
        )
