"""An agent's process and the connection to it, whatever is said over it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from legation.agents.output import Output, Stray
from legation.agents.rpc import AgentRefused, Inbox, RpcPeer
from legation.errors import AgentError, TransportClosed
from legation.proc import Child, Exit
from legation.wire.acp.rpc import RpcError

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
        stray = Stray()
        self._peer = RpcPeer(child, inbox, stray)
        self._output = Output(child, self._peer.run, trouble=inbox.trouble, stray=stray)

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
            raise await self._output.end(f"complete {method}") from None
        except AgentRefused:
            pass  # as `read` puts it
        if isinstance(found[0], AgentError):
            raise found[0]
        return found[0]

    async def notify(self, method: str, params: object) -> None:
        await self._peer.notify(method, params)

    async def wait(self) -> Exit:
        """Until the process has ended and everything it said was handed on."""
        return await self._output.wait()

    async def stop(self, grace: float) -> Exit:
        return await self._output.stop(grace)

    def said(self) -> str:
        """What it wrote that is no message, for the end of one of ours."""
        return self._output.said()
