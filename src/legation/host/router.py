"""Where an agent's messages find their session. Updates that come before their session is known wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from legation.agents.rpc import RpcFault
from legation.errors import AgentError, LegationError
from legation.host.files import SessionFiles
from legation.host.session import Session
from legation.store.log import EventLog
from legation.wire import jsontext
from legation.wire.acp.permission import RequestPermissionRequest
from legation.wire.acp.reverse import ReadTextFileRequest, ReadTextFileResponse, WriteTextFileRequest
from legation.wire.acp.rpc import ClientMethod, ErrorCode
from legation.wire.acp.sessions import SessionRequest
from legation.wire.diagnostic import Diagnostic, DiagnosticCode
from legation.wire.events import Draft
from legation.wire.lifecycle import AgentExited

EARLY_KEPT = 10_000  # updates kept for sessions that nobody has opened yet
EARLY_BYTES = 16 * 1024 * 1024  # of them

_T = TypeVar("_T")
_Handler = Callable[[bytes], Awaitable[object]]


class Router:
    """The `Inbox` of one agent."""

    def __init__(self, log: EventLog, report: Callable[[Diagnostic], None]) -> None:
        self._log = log
        self._report = report
        self._sessions: dict[str, Session] = {}
        self._files: dict[str, SessionFiles] = {}
        self._early: dict[str, list[Draft]] = {}
        self._early_count = self._early_bytes = 0
        self._exited: AgentExited | None = None
        self._handlers: dict[str, _Handler] = {
            ClientMethod.REQUEST_PERMISSION: self._permission,
            ClientMethod.READ_TEXT_FILE: self._read,
            ClientMethod.WRITE_TEXT_FILE: self._write,
        }

    def open(self, session: Session, files: SessionFiles) -> None:
        """From now on the session gets its messages, first those that came too early."""
        name = session.agent_session_id
        if name in self._sessions:
            raise AgentError(
                "cannot open the session: the agent gave it an id that is in use; start it again"
            )
        self._sessions[name], self._files[name] = session, files
        early = self._early.pop(name, [])
        self._early_count -= len(early)
        self._early_bytes -= _size(early)
        self._deliver(session, early)
        if self._exited:
            session.note(self._exited)

    def exited(self, event: AgentExited) -> None:
        """Every session says that its agent has ended; also one that is opened too late to see it."""
        self._exited = event
        for session in self._sessions.values():
            session.note(event)

    def updates(self, session_id: str, drafts: list[Draft]) -> None:
        session = self._sessions.get(session_id)
        if session is not None:
            self._deliver(session, drafts)
        elif self._early_count < EARLY_KEPT and self._early_bytes < EARLY_BYTES:
            self._early.setdefault(session_id, []).extend(drafts)
            self._early_count += len(drafts)
            self._early_bytes += _size(drafts)
        else:
            what = f"dropped {len(drafts)} updates for a session that nobody opened"
            self.trouble(DiagnosticCode.AGENT_UNKNOWN_SESSION, what)

    def _deliver(self, session: Session, drafts: list[Draft]) -> None:
        """A session that takes no more must not end the reading of the others' messages."""
        if not drafts:
            return
        try:
            session.updates(drafts)
        except LegationError as error:
            what = f"dropped {len(drafts)} updates: {error.message}"
            self.trouble(DiagnosticCode.AGENT_UNKNOWN_SESSION, what)

    def trouble(self, code: DiagnosticCode, message: str) -> None:
        diagnostic = Diagnostic(code=code, message=message)
        self._report(diagnostic)
        for session in self._sessions.values():
            session.heard()
            session.note(diagnostic)

    def notification(self, method: str, params: bytes) -> None:
        """None concerns us yet; the protocol says to ignore unknown ones."""

    def request(self, method: str, params: bytes) -> Awaitable[object]:
        handler = self._handlers.get(method)
        if handler is None:
            raise RpcFault(ErrorCode.METHOD_NOT_FOUND, f"{method} is not offered")
        return handler(params)

    async def room(self) -> None:
        await self._log.room()

    def _permission(self, params: bytes) -> Awaitable[object]:
        return self._session(params).permission(_decode(params, RequestPermissionRequest))

    async def _read(self, params: bytes) -> ReadTextFileResponse:
        request = _decode(params, ReadTextFileRequest)
        return await asyncio.to_thread(self._files_of(params).read, request)

    async def _write(self, params: bytes) -> dict[str, object]:
        request = _decode(params, WriteTextFileRequest)
        await asyncio.to_thread(self._files_of(params).write, request)
        return {}

    def _files_of(self, params: bytes) -> SessionFiles:
        session = self._session(params)
        session.heard()
        return self._files[session.agent_session_id]

    def _session(self, params: bytes) -> Session:
        session = self._sessions.get(_decode(params, SessionRequest).session_id)
        if session is None:
            raise RpcFault(ErrorCode.INVALID_PARAMS, "there is no such session")
        return session


def _size(drafts: list[Draft]) -> int:
    return sum([len(draft.raw) + len(draft.native) for draft in drafts])


def _decode(params: bytes, shape: type[_T]) -> _T:
    try:
        return msgspec.convert(jsontext.read(params), shape)
    except jsontext.READ_ERRORS as error:
        raise RpcFault(ErrorCode.INVALID_PARAMS, str(error)) from None
