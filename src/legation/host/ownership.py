"""Who may use which terminal, whatever the handler behind it checks.

INV-T1  A terminal is reached only by the session that created it, from its creation to its release.
"""

from __future__ import annotations

from legation.agents.rpc import RpcFault
from legation.host.handlers import TerminalHandler
from legation.wire.acp.reverse import CreateTerminalRequest, TerminalExitStatus, TerminalOutputResponse
from legation.wire.acp.rpc import ErrorCode


class OwnedTerminals:
    """A `TerminalHandler` around another; a terminal of nobody's or another's never gets as far as that one."""

    def __init__(self, handler: TerminalHandler) -> None:
        self._handler = handler
        self._owned: dict[str, set[str]] = {}  # by session

    async def create(self, request: CreateTerminalRequest) -> str:
        session_id = request.session_id
        owned = self._owned.setdefault(session_id, set())
        terminal_id = await self._handler.create(request)
        if self._owned.get(session_id) is not owned:  # the session was cleaned up meanwhile, without this one
            await self._handler.release(session_id, terminal_id)
            raise RpcFault(ErrorCode.INVALID_PARAMS, "the session was closed")
        owned.add(terminal_id)
        return terminal_id

    async def output(self, session_id: str, terminal_id: str) -> TerminalOutputResponse:
        self._must_own(session_id, terminal_id)
        return await self._handler.output(session_id, terminal_id)

    async def wait_for_exit(self, session_id: str, terminal_id: str) -> TerminalExitStatus:
        self._must_own(session_id, terminal_id)
        return await self._handler.wait_for_exit(session_id, terminal_id)

    async def kill(self, session_id: str, terminal_id: str) -> None:
        self._must_own(session_id, terminal_id)
        await self._handler.kill(session_id, terminal_id)

    async def release(self, session_id: str, terminal_id: str) -> None:
        self._must_own(session_id, terminal_id)
        self._owned[session_id].remove(terminal_id)
        await self._handler.release(session_id, terminal_id)

    async def cleanup_session(self, session_id: str) -> None:
        self._owned.pop(session_id, None)
        await self._handler.cleanup_session(session_id)

    def _must_own(self, session_id: str, terminal_id: str) -> None:
        # The same words for another's and for none: its existence is nobody else's business.
        if terminal_id not in self._owned.get(session_id, ()):
            raise RpcFault(ErrorCode.INVALID_PARAMS, "the session has no such terminal")
