"""Taking up a session that an agent already has: by loading its history, or by going on where it was.

Staged: until the agent has agreed and the store has it, nobody sees a change but `resuming`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from legation.errors import LegationError
from legation.host.agent import Agent
from legation.host.meta import SessionMeta
from legation.host.options import Limits
from legation.host.session import Session
from legation.host.stream import HostStream
from legation.wire import codec
from legation.wire.acp.mcp import McpServer
from legation.wire.acp.sessions import SessionSetup
from legation.wire.diagnostic import DiagnosticCode
from legation.wire.hoststream import SessionUpdated
from legation.wire.lifecycle import SessionReset

# What a resumed agent may say of its state before it answers; anything else would be history.
_STATE = frozenset(
    (
        "available-commands-update",
        "current-mode-update",
        "config-option-update",
        "session-info-update",
        "usage-update",
    )
)


class TakeUp:
    def __init__(
        self,
        *,
        agent: Agent,
        known: Session | None,
        make: Callable[[], Awaitable[Session]],
        meta: SessionMeta,
        mcp: tuple[McpServer, ...],
        limits: Limits,
        host: HostStream,
    ) -> None:
        """`make` gives the session its place, once there is something to place."""
        self._agent = agent
        self._known = known
        self._make = make
        self._meta = meta
        self._mcp = mcp
        self._limits = limits
        self._host = host

    async def load(self) -> SessionUpdated:
        live, name = self._agent.running(), self._meta.agent_session_id
        held = self._agent.router.hold(name)
        before = self._announce()
        try:
            setup = await live.load_session(
                name,
                self._meta.cwd,
                self._mcp,
                self._limits.start,
                additional_directories=self._meta.additional_directories,
                on_answer=held.mark,
            )
            session = self._known or await self._make()
            await session.stream.replace([codec.draft(SessionReset(reason="loaded")), *held.replay])
            await self._adopt(session, setup)
        except BaseException as error:
            self._abandon(before, error, DiagnosticCode.SESSION_LOAD_FAILED)
            raise
        return session.snapshot()

    async def resume(self) -> SessionUpdated:
        live, name = self._agent.running(), self._meta.agent_session_id
        held = self._agent.router.hold(name)
        before = self._announce()
        try:
            setup = await live.resume_session(
                name,
                self._meta.cwd,
                self._mcp,
                self._limits.start,
                additional_directories=self._meta.additional_directories,
                on_answer=held.mark,
            )
            session = self._known or await self._make()
            kept = [draft for draft in held.replay if draft.type in _STATE]
            await self._adopt(session, setup)
        except BaseException as error:
            self._abandon(before, error, DiagnosticCode.SESSION_RECOVERY_SKIPPED)
            raise
        if kept:
            session.updates(kept)
        return session.snapshot()

    def _announce(self) -> str | None:
        if self._known is None:
            return None
        before = self._known.status
        self._known.show("resuming")
        return before

    async def _adopt(self, session: Session, setup: SessionSetup) -> None:
        await session.keep(self._meta)
        active = session.attach(self._agent.id, self._agent.running(), setup, self._mcp)
        self._agent.router.open(session)
        self._agent.router.release(self._meta.agent_session_id)
        if active:
            await active

    def _abandon(self, before: str | None, error: BaseException, code: DiagnosticCode) -> None:
        self._agent.router.drop(self._meta.agent_session_id)
        if self._known is not None and before is not None and self._known.status == "resuming":
            self._known.show(before)  # type: ignore[arg-type]
        message = error.message if isinstance(error, LegationError) else type(error).__name__
        session_id = self._known.id if self._known else self._meta.agent_session_id
        self._host.diagnose(code, message, agent_id=self._agent.id, session_id=session_id)
