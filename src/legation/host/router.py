"""Route of an agent's messages to their session. Updates that come before their session is known wait for it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec.structs import replace

from legation.agents.rpc import RpcFault, answer_to, printable, read_params
from legation.errors import AgentError, Conflict, LegationError
from legation.host.requests.asks import answer_without_session
from legation.host.requests.handlers import ExtensionHandler
from legation.host.session import Session
from legation.store.stream import Stream
from legation.wire.acp.methods import (
    PERMISSION_OPTION_KINDS,
    CancelledOutcome,
    CreateElicitationRequest,
    RequestPermissionRequest,
    RequestPermissionResponse,
    SessionRequest,
)
from legation.wire.acp.rpc import ClientMethod, ErrorCode, RpcError, Shape
from legation.wire.event_types import AgentExited, Diagnostic, DiagnosticCode, ExtensionAnswered
from legation.wire.events import Draft

if TYPE_CHECKING:
    from legation.host.host import AcpHost

EARLY_KEPT = 10_000  # updates kept for sessions that nobody has opened yet
EARLY_BYTES = 16 * 1024 * 1024  # of them
ONE_BY_ONE = 20  # diagnostics of a kind that are told each; then at every tenfold: a flood is none of events
SHOWN_KINDS = 4  # of options that nobody knows
EXTENSION = "_"  # with which the methods of vendors begin
OUR_OWN = ("_adapter/", "_legation/")  # what Legation tells clients itself: no agent speaks in its name
EXTENSION_LIMIT = 600.0  # seconds for the answer to an agent's own request: perhaps a person's time
LONGEST_EXTENSION = 1024 * 1024  # bytes of one: it waits with every client that follows
LEFT_KEPT = 1000  # sessions that were closed here: what an agent still says of them is no news


class _Named(Shape):
    session_id: str | None = None


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


class MessageRouter:
    """The `AgentListener` of one agent."""

    def __init__(self, agent_id: str, core: AcpHost) -> None:
        self._agent_id = agent_id
        self._log = core.log
        self._host = core.stream
        self._reverse = core.reverse
        self._extensions = core.options.extensions
        self._sessions: dict[str, Session] = {}
        self._held: dict[str, Held] = {}
        self._early: dict[str, list[Draft]] = {}
        self._early_count = self._early_bytes = 0
        self._expecting = 0  # sessions that are being made, whose names nobody knows yet
        self._left: dict[str, None] = {}  # sessions that were closed
        self._tally: Counter[DiagnosticCode] = Counter()
        self._quiet: Counter[DiagnosticCode] = Counter()  # of them, those since somebody was told
        self._asking: set[Stream] = set()  # where a permission is looked into
        self._told: set[Session] = set()  # something since there was room: of many, few are
        self._untold: list[Diagnostic] = []  # while there was no session to tell it to
        self._exited: AgentExited | None = None
        self._own_requests: dict[asyncio.Task[object], list[Session]] = {}  # requests of its own that wait

    # Sessions come and go.

    def open(self, session: Session) -> None:
        """Deliver its messages to the session from now on, first those that came too early."""
        name = session.meta.agent_session_id
        self._sessions[name] = session
        self._left.pop(name, None)
        untold, self._untold = self._untold, []
        session.note(*untold)
        self._deliver(session, self._take_early(name))
        if self._exited:
            session.note(self._exited)

    @contextmanager
    def expecting(self) -> Iterator[None]:
        """A session is being made: until it is there, nobody can say whose an update is."""
        self._expecting += 1
        try:
            yield
        finally:
            self._expecting -= 1
            if not self._expecting:
                strangers = {name: len(drafts) for name, drafts in self._early.items()}
                self._forget_early()
                for name, count in strangers.items():
                    self._tell_stranger(name, count)

    def must_be_free(self, agent_session_id: str) -> None:
        if agent_session_id in self._sessions:
            raise AgentError(
                "cannot open the session: the agent gave it an id that is in use; start it again"
            )

    def must_not_be_shared(self, agent_session_id: str, known: Session | None) -> None:
        """Refuse a session of the agent's that is another of ours."""
        owner = self._sessions.get(agent_session_id)
        if owner is not None and owner is not known:
            raise Conflict(f"cannot take up {agent_session_id}: it is open as session {owner.id}; use that")

    def forget(self, session: Session) -> None:
        if self._sessions.get(session.meta.agent_session_id) is session:
            del self._sessions[session.meta.agent_session_id]
            self._told.discard(session)
            self._left[session.meta.agent_session_id] = None
            if len(self._left) > LEFT_KEPT:
                del self._left[next(iter(self._left))]
            for asking, sessions in self._own_requests.items():
                if sessions == [session]:
                    asking.cancel()

    def hold(self, agent_session_id: str) -> Held:
        """Keep a session's updates back until `release`; what came before is of an earlier life."""
        if agent_session_id in self._held:
            raise Conflict(f"cannot take up {agent_session_id}: it is being taken up already; wait for that")
        self._take_early(agent_session_id)
        held = self._held[agent_session_id] = Held()
        return held

    def release(self, agent_session_id: str) -> None:
        """Hold nothing back any more, whether or not it was taken up. What came after the answer is live where it is open."""
        held = self._held.pop(agent_session_id, None)
        if held is not None and held.after and agent_session_id in self._sessions:
            self.updates(agent_session_id, held.after)

    def reset(self) -> None:
        """A new process: nothing that the old one said too early counts."""
        self._forget_early()
        self._exited = None
        self._left.clear()
        self._tally.clear()

    def exited(self, event: AgentExited) -> None:
        """Every session says that its agent has ended; also one that is opened too late to see it."""
        self._exited = event
        for session in self._sessions.values():
            session.note(event)

    # The agent speaks.

    def updates(self, session_id: str, drafts: list[Draft]) -> None:
        """Deliver updates. None at all are a sign of life all the same."""
        if not drafts:
            if session := self._sessions.get(session_id):
                session.heard()
            return
        held, session = self._held.get(session_id), self._sessions.get(session_id)
        if held is not None:
            held.add(drafts)
        elif session is not None:
            self._deliver(session, drafts)
        elif self._expecting and self._early_count < EARLY_KEPT and self._early_bytes < EARLY_BYTES:
            self._early.setdefault(session_id, []).extend(drafts)
            self._early_count += len(drafts)
            self._early_bytes += _size(drafts)
        elif session_id not in self._left:
            self._tell_stranger(session_id, len(drafts))

    def _forget_early(self) -> None:
        self._early.clear()
        self._early_count = self._early_bytes = 0

    def _tell_stranger(self, session_id: str, count: int) -> None:
        name = _shown(session_id)
        what = f"{count} update(s) came for session {name}, which nobody opened: nobody sees them"
        self._tell(DiagnosticCode.AGENT_UNKNOWN_SESSION, what, count=count)

    def _take_early(self, session_id: str) -> list[Draft]:
        early = self._early.pop(session_id, [])
        self._early_count -= len(early)
        self._early_bytes -= _size(early)
        return early

    def _deliver(self, session: Session, drafts: list[Draft]) -> None:
        """A session that takes no more must not end the reading of the others' messages."""
        if not drafts:
            return
        self._told.add(session)
        try:
            session.updates(drafts)
        except LegationError as error:
            code = DiagnosticCode.AGENT_UNKNOWN_SESSION
            told = self._counted(code, f"dropped {len(drafts)} updates: {error.message}", len(drafts))
            if told is not None:
                self._host.publish(Diagnostic(code=code, message=told, agent_id=self._agent_id))

    def trouble(self, code: DiagnosticCode, message: str) -> None:
        """Told to the host and to every session of the agent: nobody knows whose it was."""
        for session in self._sessions.values():
            session.heard()
        if (told := self._counted(code, message)) is not None:
            self._tell_all(Diagnostic(code=code, message=told, agent_id=self._agent_id))

    def _tell_all(self, noted: Diagnostic) -> None:
        self._host.publish(noted)
        for session in self._sessions.values():
            session.note(noted)

    def _tell(
        self, code: DiagnosticCode, message: str, session: Session | None = None, *, count: int = 1
    ) -> None:
        """Tell the host, and the session that it is about, else all of the agent's; where there is none yet, the
        first."""
        told = self._counted(code, message, count)
        if told is None:
            return
        noted = Diagnostic(code=code, message=told, agent_id=self._agent_id)
        self._host.publish(replace(noted, session_id=session.id if session else None))
        for each in (session,) if session else self._sessions.values():
            each.note(noted)
        if not session and not self._sessions:
            self._untold.append(noted)  # as many as the tally lets through

    def _counted(self, code: DiagnosticCode, message: str, count: int = 1) -> str | None:
        """Return it with how many there are by now; None where nobody need hear of it."""
        before, so_far = self._tally[code], self._tally[code] + count
        self._tally[code] = so_far
        if so_far <= ONE_BY_ONE:
            return message
        told = before < ONE_BY_ONE or len(str(so_far)) > len(str(before))
        self._quiet[code] = 0 if told else self._quiet[code] + count
        return f"{message} ({so_far} so far)" if told else None

    def tell_unasked(self) -> None:
        """Tell of the asks whose refusal nobody was told, for they were many: none of a turn is left out at its end."""
        code = DiagnosticCode.AGENT_UNREADABLE_PERMISSION
        if more := self._quiet.pop(code, 0):
            what = f"{more} more asks of the agent were refused so, and nobody was asked ({self._tally[code]} so far)"
            self._tell_all(Diagnostic(code=code, message=what, agent_id=self._agent_id))

    def notification(self, method: str, params: bytes) -> None:
        """Record an extension, which is how clients hear of it. The protocol says to ignore other unknown ones."""
        if not _is_extension(method):
            return
        for session in self._meant(params)[:1]:  # one that names no session is told once
            session.heard()
            session.note_extension(method, params, request=False)

    def request(self, method: str, params: bytes) -> Awaitable[object]:
        if method == ClientMethod.REQUEST_PERMISSION:
            return self._permission(params)
        if method == ClientMethod.ELICITATION_CREATE and self._reverse.questions is not None:
            return self._question(read_params(params, CreateElicitationRequest))
        if _is_extension(method) and self._extensions is not None:
            return self._extension(self._extensions, method, params)
        serve = self._reverse.methods.get(method)
        if serve is None:
            raise RpcFault(ErrorCode.METHOD_NOT_FOUND, f"{method} is not offered")
        session = self._session(read_params(params, SessionRequest).session_id)
        session.heard()
        service = self._reverse.service(method, params)
        if service is None:
            return serve(session.id, params)
        serving = session.talk.serve(service, lambda: serve(session.id, params))
        self._asking.add(session.stream)
        return serving

    def _meant(self, params: bytes) -> list[Session]:
        """The session that an extension names, else all that the agent has."""
        try:
            named = read_params(params or b"{}", _Named).session_id
        except RpcFault:
            named = None
        found = [each for name, each in self._sessions.items() if named in (None, name)]
        self._told.update(found[:1])  # it is noted in the first alone
        return found

    def _extension(self, extensions: ExtensionHandler, method: str, params: bytes) -> asyncio.Future[object]:
        sessions = self._meant(params)
        if not sessions:
            raise RpcFault(ErrorCode.METHOD_NOT_FOUND, f"nobody is there who could answer {method}")
        if len(params) > LONGEST_EXTENSION:
            raise RpcFault(ErrorCode.INVALID_PARAMS, f"{method} is longer than {LONGEST_EXTENSION} bytes")
        first = sessions[0]
        first.heard()
        first.note_extension(method, params, request=True)
        asking: asyncio.Task[object] = asyncio.create_task(
            _asked(extensions, [each.id for each in sessions], method, params),
            name=f"legation-extension-{first.id}",
        )
        self._own_requests[asking] = sessions
        asking.add_done_callback(self._own_requests.pop)

        def over(_: object) -> None:
            """Tell how it ended, also of one that was taken back before anybody was asked."""
            answer = answer_to(method, asking)
            error = answer if isinstance(answer, RpcError) else None
            first.note(ExtensionAnswered(method=method, result=None if error else answer, error=error))

        asking.add_done_callback(over)
        if len(sessions) == 1:
            first.talk.ends_with_turn(asking)
        return asking

    def _permission(self, params: bytes) -> Awaitable[object]:
        """Never an error: some agents hang after one. What nobody could be asked about, nobody has allowed."""
        session: Session | None = None
        try:
            session = self._session(read_params(params, SessionRequest).session_id)
            request = read_params(params, RequestPermissionRequest)
            unknown = [each.kind for each in request.options if each.kind not in PERMISSION_OPTION_KINDS]
            if unknown or not request.options:
                kinds = ", ".join(_shown(kind) for kind in unknown[:SHOWN_KINDS])
                offers = f"options of kinds that nobody knows ({kinds})" if unknown else "no options"
                what = f"the agent asks for a permission and offers {offers}: none of these is ever chosen"
                self._tell(DiagnosticCode.AGENT_UNREADABLE_PERMISSION, what, session)
            answer = session.talk.permission(request)
            self._asking.add(session.stream)
            return answer
        except (RpcFault, LegationError) as error:
            why = error.error.message if isinstance(error, RpcFault) else error.message
            what = f"the agent asked for a permission, was told `cancelled`, and nobody was asked: {why}"
            self._tell(DiagnosticCode.AGENT_UNREADABLE_PERMISSION, what, session)
            return _now(RequestPermissionResponse(outcome=CancelledOutcome()))

    def _question(self, request: CreateElicitationRequest) -> Awaitable[object]:
        if request.session_id is None:
            return _now(answer_without_session(self.trouble))
        try:
            session = self._session(request.session_id)
        except RpcFault as fault:
            what = f"the agent asked a question that nobody was shown: {fault.error.message}"
            self._tell(DiagnosticCode.AGENT_UNKNOWN_SESSION, what)
            raise
        return session.talk.question(request)

    async def keep(self, session_id: str, draft: Draft) -> Draft:
        session = self._sessions.get(session_id)
        if session is None:
            return draft
        try:
            return await session.stream.keep(draft)
        except LegationError:  # it takes no more: that is told with the update
            return draft

    async def room(self) -> None:
        """Wait for room: what stands behind a permission is not on its way to the disk, nor counted there."""
        await self._log.room()
        while self._asking:
            await self._asking.pop().filled()
        for session in [*self._told]:
            await session.room()
            self._told.discard(session)

    def _session(self, name: str) -> Session:
        session = self._sessions.get(name)
        if session is None:
            raise RpcFault(ErrorCode.INVALID_PARAMS, f"there is no such session: {_shown(name)}")
        self._told.add(session)
        return session


def _is_extension(method: str) -> bool:
    return method.startswith(EXTENSION) and not method.startswith(OUR_OWN)


async def _asked(extensions: ExtensionHandler, session_ids: list[str], method: str, params: bytes) -> object:
    try:
        async with asyncio.timeout(EXTENSION_LIMIT):
            return await extensions.request(session_ids, method, params)
    except TimeoutError:
        raise RpcFault(ErrorCode.INTERNAL_ERROR, f"nobody answered {method} in time") from None


def _shown(name: str) -> str:
    """A word of the agent's, for people."""
    return printable(name.encode(errors="replace"))


async def _now(answer: object) -> object:
    return answer


def _size(drafts: list[Draft]) -> int:
    return sum([len(draft.raw) + len(draft.native) for draft in drafts])
