"""What an agent's process says, read to its end by one task; and that end, told in words."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from legation.errors import AgentExited, LegationError, TimedOut, TransportClosed
from legation.proc import Child, Exit
from legation.wire.diagnostic import DiagnosticCode

EXIT_LIMIT = 10.0  # seconds from the end of an agent's output to its exit: the kernel's and the sweep's time
REST_LIMIT = 5.0  # seconds for a stopped agent's last words to be taken: the store's time
STDERR_SHOWN = 2000  # characters of it in an error

_log = logging.getLogger(__name__)


class Output:
    """`read` takes all of it, from the start on. When that is over the process has ended, or is made to: an agent that
    can say nothing any more is none. `over` is told then. Whoever makes it stops it."""

    def __init__(
        self,
        child: Child,
        read: Callable[[], Awaitable[None]],
        *,
        trouble: Callable[[DiagnosticCode, str], None],
        over: Callable[[LegationError], None] | None = None,
    ) -> None:
        self._child = child
        self._trouble = trouble
        self._over = over
        self._mute = False  # it closed its output and did not end
        self._reading = asyncio.create_task(self._live(read), name=f"legation-output-{child.pid}")

    @property
    def ended(self) -> bool:
        return self._reading.done()

    async def wait(self) -> Exit:
        """Until the process has ended and everything it said was handed on."""
        found = await self._child.wait()
        await asyncio.wait({self._reading})
        return found

    async def stop(self, grace: float) -> Exit:
        found = await self._child.stop(grace)
        await asyncio.wait({self._reading}, timeout=REST_LIMIT)
        if not self._reading.done():
            _log.warning("cannot keep the last output of %r: the store takes no more", self._child.name)
            self._reading.cancel()
            await asyncio.wait({self._reading})
        return found

    def said(self) -> str:
        """What it wrote to its standard error last, for the end of a message."""
        tail = self._child.stderr_tail().strip()[-STDERR_SHOWN:]
        return f", having said:\n{tail}\n" if tail else ""

    async def end(self, doing: str) -> LegationError:
        """Why that cannot be done any more, when the reading is over."""
        await asyncio.wait({self._reading})
        return await self._error(doing)

    async def _live(self, read: Callable[[], Awaitable[None]]) -> None:
        try:
            await read()
        except TimedOut as error:  # it does not take what it is written
            self._trouble(DiagnosticCode.AGENT_PROCESS_ERROR, error.message)
        except Exception:  # noqa: BLE001 - a task boundary; whoever waits for an answer is told of the end
            _log.exception("cannot go on reading the output of %r", self._child.name)
        ending = asyncio.ensure_future(self._child.wait())
        await asyncio.wait({ending}, timeout=EXIT_LIMIT)
        if not ending.done():
            self._mute = True
            with suppress(TimedOut):  # stuck in the kernel; whoever stops it is told
                await self._child.stop(grace=0)
        if self._over is not None:
            self._over(await self._error("go on"))

    async def _error(self, doing: str) -> LegationError:
        name = self._child.name
        if self._mute:
            return TransportClosed(
                f"cannot {doing}: {name!r} closed its output and went on{self.said()}; it was stopped: start it again"
            )
        found = await self._child.wait()
        error = AgentExited(
            f"cannot {doing}: {name!r} ended with {found}{self.said()}",
            {"exitCode": found.code, "signal": found.signal},
        )
        error.stderr = self._child.stderr_tail()
        return error
