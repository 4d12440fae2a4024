"""An agent's process and the connection to it, whatever is said over it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from legation.agents.rpc import AgentRefused, Inbox, RpcPeer
from legation.errors import AgentError, AgentExited, LegationError, TimedOut, TransportClosed
from legation.proc import Child, Exit
from legation.wire.acp.rpc import RpcError

EXIT_LIMIT = 10.0  # seconds from the end of an agent's output to its exit: the kernel's and the sweep's time
REST_LIMIT = 5.0  # seconds for a stopped agent's last words to be taken: the store's time
STDERR_SHOWN = 2000  # characters of it in an error
ANSWER_LIMIT = 1024 * 1024  # bytes that a program says when it is asked for its version or help

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


async def all_said(child: Child) -> bytes:
    """What a program says that is only asked something, to its end. Raises where it does not stop talking."""
    said: list[bytes] = []
    length = 0
    async for lines in child.lines():
        said += lines
        length += sum(map(len, lines)) + len(lines)
        if length > ANSWER_LIMIT:
            raise AgentError(
                f"cannot use {child.name!r}: asked what it is, it said more than {ANSWER_LIMIT} bytes; run it by hand"
            )
    return b"\n".join(said)


class AgentProcess:
    """Reads from the start on. Whoever makes it stops it."""

    def __init__(self, child: Child, inbox: Inbox) -> None:
        self.child = child
        self._peer = RpcPeer(child, inbox)
        self._reading = asyncio.create_task(self._read(), name=f"legation-acp-{child.pid}")
        self._mute = False  # it closed its output and did not end

    async def call(
        self,
        method: str,
        params: object,
        read: Callable[[bytes | RpcError], _T | AgentError],
        timeout: float | None,
        on_answer: Callable[[_T | AgentError], None] | None = None,
    ) -> _T:
        """The answer is read once, in its place among the updates; `on_answer` is called there with what is
        returned or raised later."""
        found: list[_T | AgentError] = []

        def answered(raw: bytes | RpcError) -> None:
            found.append(read(raw))
            if on_answer:
                on_answer(found[0])

        try:
            await self._peer.call(method, params, timeout=timeout, on_answer=answered)
        except TransportClosed:
            raise await self._exited(method) from None
        except AgentRefused:
            pass  # as `read` puts it
        if isinstance(found[0], AgentError):
            raise found[0]
        return found[0]

    async def notify(self, method: str, params: object) -> None:
        await self._peer.notify(method, params)

    async def wait(self) -> Exit:
        """Until the process has ended and everything it said was handed on."""
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

    async def _read(self) -> None:
        """An agent that can say nothing any more has ended, or is made to."""
        try:
            await self._peer.run()
        except Exception:  # noqa: BLE001 - a task boundary; whoever waits for an answer is told by the peer
            _log.exception("cannot go on reading the output of %r", self.child.name)
        ending = asyncio.ensure_future(self.child.wait())
        await asyncio.wait({ending}, timeout=EXIT_LIMIT)
        if not ending.done():
            self._mute = True
            with suppress(TimedOut):  # stuck in the kernel; whoever stops it is told
                await self.child.stop(grace=0)

    async def _exited(self, method: str) -> LegationError:
        await asyncio.wait({self._reading})
        if self._mute:
            return TransportClosed(
                f"cannot complete {method}: {self.child.name!r} closed its output and went on"
                f"{self.said()}; it was stopped: start it again"
            )
        found = await self.child.wait()
        return AgentExited(
            f"cannot complete {method}: {self.child.name!r} ended with {found}{self.said()}",
            {"exitCode": found.code, "signal": found.signal},
        )
