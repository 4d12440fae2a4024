"""Where an agent's messages find their session. Updates that come before their session is known wait for it."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field

from legation.agents.rpc import RpcFault
from legation.errors import AgentError, Conflict, LegationError
from legation.host.questions import answer_without_session
from legation.host.reverse import Reverse, decode
from legation.host.session import Session
from legation.host.stream import HostStream
from legation.store.log import EventLog
from legation.wire.acp.elicitation import CreateElicitationRequest
from legation.wire.acp.permission import Cancelled, RequestPermissionRequest, RequestPermissionResponse
from legation.wire.acp.rpc import ClientMethod, ErrorCode
from legation.wire.acp.sessions import SessionRequest
from legation.wire.diagnostic import Diagnostic, DiagnosticCode
from legation.wire.events import Draft
from legation.wire.lifecycle import AgentExited

EARLY_KEPT = 10_000  # updates kept for sessions that nobody has opened yet
EARLY_BYTES = 16 * 1024 * 1024  # of them


@dataclass(slots=True)
class Held:
    """Updates of a session that is being loaded or resumed; those before the agent's answer are its replay."""

    replay: list[Draft] = field(default_factory=list)
    after: list[Draft] = field(default_factory=list)
    answered: bool = False

    def mark(self, _answer: object = None) -> None:
        self.answered = True

    def add(self, drafts: list[Draft]) -> None:
        (self.after if self.answered else self.replay).extend(drafts)


class Router:
    """The `Inbox` of one agent."""

    def __init__(self, agent_id: str, log: EventLog, host: HostStream, reverse: Reverse) -> None:
        self._agent_id = agent_id
        self._log = log
        self._host = host
        self._reverse = reverse
        self._sessions: dict[str, Session] = {}
        self._held: dict[str, Held] = {}
        self._early: dict[str, list[Draft]] = {}
        self._early_count = self._early_bytes = 0
        self._exited: AgentExited | None = None

    # Sessions come and go.

    def open(self, session: Session) -> None:
        """From now on the session gets its messages, first those that came too early."""
        name = session.meta.agent_session_id
        self._sessions[name] = session
        self._deliver(session, self._take_early(name))
        if self._exited:
            session.note(self._exited)

    def must_be_free(self, agent_session_id: str) -> None:
        if agent_session_id in self._sessions:
            raise AgentError(
                "cannot open the session: the agent gave it an id that is in use; start it again"
            )

    def must_not_be_shared(self, agent_session_id: str, known: Session | None) -> None:
        """One session of the agent's is one of ours."""
        owner = self._sessions.get(agent_session_id)
        if owner is not None and owner is not known:
            raise Conflict(f"cannot take up {agent_session_id}: it is open as session {owner.id}; use that")

    def forget(self, session: Session) -> None:
        if self._sessions.get(session.meta.agent_session_id) is session:
            del self._sessions[session.meta.agent_session_id]

    def hold(self, agent_session_id: str) -> Held:
        """Keep a session's updates back until `release`; what came before is of an earlier life."""
        if agent_session_id in self._held:
            raise Conflict(f"cannot take up {agent_session_id}: it is being taken up already; wait for that")
        self._take_early(agent_session_id)
        held = self._held[agent_session_id] = Held()
        return held

    def release(self, agent_session_id: str) -> None:
        """What came after the answer is live."""
        held = self._held.pop(agent_session_id)
        if held.after:
            self.updates(agent_session_id, held.after)

    def drop(self, agent_session_id: str) -> None:
        """The session was not taken up after all. What came after the refusal is live where it is open."""
        held = self._held.pop(agent_session_id, None)
        if held is not None and held.after and agent_session_id in self._sessions:
            self.updates(agent_session_id, held.after)

    def reset(self) -> None:
        """A new process: nothing that the old one said too early counts."""
        self._early.clear()
        self._early_count = self._early_bytes = 0
        self._exited = None

    def exited(self, event: AgentExited) -> None:
        """Every session says that its agent has ended; also one that is opened too late to see it."""
        self._exited = event
        for session in self._sessions.values():
            session.note(event)

    # The agent speaks.

    def updates(self, session_id: str, drafts: list[Draft]) -> None:
        """None at all are a sign of life all the same."""
        if not drafts:
            if session := self._sessions.get(session_id):
                session.heard()
            return
        held, session = self._held.get(session_id), self._sessions.get(session_id)
        if held is not None:
            held.add(drafts)
        elif session is not None:
            self._deliver(session, drafts)
        elif self._early_count < EARLY_KEPT and self._early_bytes < EARLY_BYTES:
            self._early.setdefault(session_id, []).extend(drafts)
            self._early_count += len(drafts)
            self._early_bytes += _size(drafts)
        else:
            what = f"dropped {len(drafts)} updates for a session that nobody opened"
            self._diagnose(DiagnosticCode.AGENT_UNKNOWN_SESSION, what)

    def _take_early(self, session_id: str) -> list[Draft]:
        early = self._early.pop(session_id, [])
        self._early_count -= len(early)
        self._early_bytes -= _size(early)
        return early

    def _deliver(self, session: Session, drafts: list[Draft]) -> None:
        """A session that takes no more must not end the reading of the others' messages."""
        if not drafts:
            return
        try:
            session.updates(drafts)
        except LegationError as error:
            what = f"dropped {len(drafts)} updates: {error.message}"
            self._diagnose(DiagnosticCode.AGENT_UNKNOWN_SESSION, what)

    def trouble(self, code: DiagnosticCode, message: str) -> None:
        """Told to the host and to every session of the agent: nobody knows whose it was."""
        self._diagnose(code, message)
        for session in self._sessions.values():
            session.heard()
            session.note(Diagnostic(code=code, message=message, agent_id=self._agent_id))

    def _diagnose(self, code: DiagnosticCode, message: str) -> None:
        self._host.diagnose(code, message, agent_id=self._agent_id)

    def notification(self, method: str, params: bytes) -> None:
        """None concerns us yet; the protocol says to ignore unknown ones."""

    def request(self, method: str, params: bytes) -> Awaitable[object]:
        if method == ClientMethod.REQUEST_PERMISSION:
            return self._permission(params)
        if method == ClientMethod.ELICITATION_CREATE and self._reverse.questions is not None:
            return self._question(decode(params, CreateElicitationRequest))
        serve = self._reverse.method(method)
        if serve is None:
            raise RpcFault(ErrorCode.METHOD_NOT_FOUND, f"{method} is not offered")
        session = self._session(params)
        session.heard()
        return serve(session.id, params)

    def _permission(self, params: bytes) -> Awaitable[object]:
        """Never an error: some agents hang after one. What nobody could be asked about, nobody has allowed."""
        try:
            return self._session(params).permission(decode(params, RequestPermissionRequest))
        except RpcFault as fault:
            what = f"a permission was answered with cancelled: {fault.error.message}"
            self._diagnose(DiagnosticCode.AGENT_UNKNOWN_SESSION, what)
            return _now(RequestPermissionResponse(outcome=Cancelled()))

    def _question(self, request: CreateElicitationRequest) -> Awaitable[object]:
        if request.session_id is None:
            return _now(answer_without_session(self.trouble))
        return self._session_called(request.session_id).question(request)

    async def room(self) -> None:
        await self._log.room()

    def _session(self, params: bytes) -> Session:
        return self._session_called(decode(params, SessionRequest).session_id)

    def _session_called(self, name: str) -> Session:
        session = self._sessions.get(name)
        if session is None:
            raise RpcFault(ErrorCode.INVALID_PARAMS, "there is no such session")
        return session


async def _now(answer: object) -> object:
    return answer


def _size(drafts: list[Draft]) -> int:
    return sum([len(draft.raw) + len(draft.native) for draft in drafts])
