"""Taking up a session that an agent already has: by loading its history, or by going on where it was.

Staged: until the agent has agreed and the store has it, nobody sees a change but `resuming`, and of a session
that was not known here nobody sees anything.

INV-U1  What an agent tells never takes anything away: it becomes a new generation, or nothing where it says what is
        recorded already.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import Final

from msgspec import UNSET

from legation.agents.driver import Driver, OpenRequest
from legation.agents.output import printable
from legation.agents.rpc import AgentRefused
from legation.errors import (
    AgentError,
    AgentExited,
    CapabilityUnsupported,
    LegationError,
    SessionClosed,
    TimedOut,
    TransportClosed,
)
from legation.host.agent import Agent
from legation.host.leftover import left_open
from legation.host.meta import SessionMeta
from legation.host.modes import Opening, Put, put_into_asking
from legation.host.offers import TYPES as OFFER_TYPES
from legation.host.offers import Offers
from legation.host.router import Held
from legation.host.session import Session
from legation.host.stream import HostStream
from legation.host.transcript import Account, account_of_replay, account_of_stream
from legation.wire import jsontext
from legation.wire.acp.mcp import McpServer
from legation.wire.acp.rpc import RpcError
from legation.wire.acp.sessions import SessionSetup
from legation.wire.diagnostic import Diagnostic, DiagnosticCode
from legation.wire.events import Draft
from legation.wire.hoststream import SessionUpdated

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


IN_A_NEW_ONE: Final = "go on in a new session that continues this one"
WAYS_OUT: Final = f"try again, or {IN_A_NEW_ONE}"
SHOWN: Final = 500  # characters of what an agent adds to an error


class TakeUp:
    def __init__(
        self,
        *,
        agent: Agent,
        known: Session | None,
        make: Callable[[], Awaitable[Session]],
        add: Callable[[Session], None],
        meta: SessionMeta,
        mcp: tuple[McpServer, ...],
        limit: float,
        host: HostStream,
    ) -> None:
        """`make` makes a session that is not `known`, and `add` shows it, once there is something to show."""
        self._agent = agent
        self._known = known
        self._make = make
        self._add = add
        self._meta = meta
        self._mcp = mcp
        self._limit = limit
        self._request = OpenRequest(meta.cwd, mcp, meta.additional_directories, meta.agent_session_id)
        self._host = host

    async def resume_or_load(self, *, resumes: bool) -> SessionUpdated:
        """The one rule: resume where it may and the agent can, load where it refuses that. What an end meanwhile, or the
        agent's, decides is no refusal."""
        live = self._agent.running()
        if resumes and live.can_resume:
            try:
                return await self.resume()
            except SessionClosed:
                raise
            except AgentExited as exited:
                raise self._not_taken_up(exited) from None
            except LegationError as refused:
                self._must_not_have_ended(refused)
                if not live.can_load:
                    raise self._not_taken_up(refused) from None
        if live.can_load:
            try:
                return await self.load(keeps_longer=True)
            except (AgentError, TimedOut) as refused:
                raise self._not_taken_up(refused) from None
        name = self._agent.definition.name or "its agent"
        why = "can neither resume nor load one" if resumes else "cannot load one"
        how = "" if resumes or self._known is None else "it was closed, and "
        another = "start another" if self._known is None else IN_A_NEW_ONE
        raise CapabilityUnsupported(f"cannot take up session {self._name}: {how}{name} {why}; {another}")

    def _must_not_have_ended(self, refused: LegationError) -> None:
        """A load would open again what was closed while the agent refused to resume it."""
        if self._known is not None and (self._known.ending or self._known.status in ("closed", "deleted")):
            raise _closed_meanwhile(self._known) from refused

    def _not_taken_up(self, refused: LegationError) -> LegationError:
        """What the agent said, all of it, and what can be done."""
        if not isinstance(refused, AgentRefused):
            if isinstance(refused, AgentError | TimedOut):  # it may do the same each time
                refused.message += f", or {IN_A_NEW_ONE}" if ";" in refused.message else f"; {WAYS_OUT}"
            return refused
        said = refused.error
        message = f"{said.message}{_details(said.data)}; {WAYS_OUT}"
        data = {} if said.data is UNSET else {"data": said.data}
        return AgentRefused(refused.method, RpcError(said.code, message, said.data), data=data)

    @property
    def _name(self) -> str:
        return self._known.id if self._known else self._meta.agent_session_id

    async def load(self, *, keeps_longer: bool = False) -> SessionUpdated:
        """`keeps_longer`: what is shown stays where the agent tells less; who loads by hand wants what it tells."""
        live = self._agent.running()
        async with self._staged() as held:
            try:
                setup = await live.load_session(self._request, self._limit, on_answer=held.mark)
                setup, puts = await self._put_right(live, setup)
                session = await self._session()
                told = await account_of_replay(held.replay)
                shown = await account_of_stream(session.stream)
                await self._session()  # that took a while
                shorter = keeps_longer and shown.is_longer_than(told)
                if shorter or (shown.has_all_of(told) and session.stream.head):
                    await self._keep(session)
                else:
                    await session.begin_generation(self._meta, held.replay)
            except LegationError as error:
                self._tell_load_failed(error)
                raise
            await self._commit(session, live, setup, puts)
            if shorter:
                self._tell_shorter(session, told, shown)
        return session.snapshot()

    async def _keep(self, session: Session) -> None:
        """What is recorded stays as it is; a load opens one that was closed."""
        await (session.reopen(self._meta) if session.stream.closed else session.keep(self._meta))
        if session.agent_id is None:  # the record is of an earlier host
            for end in await left_open(session.stream):
                session.note_permission(end)

    async def resume(self) -> SessionUpdated:
        live = self._agent.running()
        async with self._staged() as held:
            setup = await live.resume_session(self._request, self._limit, on_answer=held.mark)
            setup, puts = await self._put_right(live, setup)
            session = await self._session()
            if session.stream.info().state != "open":
                raise SessionClosed(f"cannot resume session {session.id}: it is closed; load it to reopen it")
            await self._keep(session)
            kept = [draft for draft in held.replay if draft.type in _STATE]
            await self._commit(session, live, setup, puts, kept)
        return session.snapshot()

    async def _put_right(self, live: Driver, setup: SessionSetup) -> tuple[SessionSetup, list[Put]]:
        """An agent that comes back may be in another mode than it was: in one in which it asks, before anybody speaks to
        it. One that does not say which it is in is told."""
        modes, said = self._agent.definition.modes, Offers.of(setup)
        unsaid = self._known.offers.modes if self._known is not None and said.modes is None else None
        opening = Opening(
            live,
            self._meta.agent_session_id,
            said if unsaid is None else Offers(unsaid, said.options),
            self._limit,
            modes,
        )
        puts = await put_into_asking(opening, modes)
        if unsaid is not None and opening.offers.modes == unsaid and not puts:
            try:
                await opening.set_mode(unsaid.current_mode_id)
            except (AgentExited, TransportClosed):
                raise
            except LegationError as error:
                puts = [
                    Put(
                        unsaid.current_mode_id,
                        None,
                        f"it is not known whether it is still in it: {error.message}",
                    )
                ]
        return opening.offers.told_in(setup) if puts else setup, puts

    @asynccontextmanager
    async def _staged(self) -> AsyncIterator[Held]:
        name, router = self._meta.agent_session_id, self._agent.router
        router.must_not_be_shared(name, self._known)
        with ExitStack() as undo:
            if self._known is not None:
                self._known.begin_attach()
                undo.callback(self._known.give_up_attach)
            held = router.hold(name)
            undo.callback(router.drop, name)
            yield held
            undo.pop_all()

    async def _session(self) -> Session:
        if self._known is None:
            return await self._make()
        self._must_be_wanted(self._known)
        return self._known

    def _must_be_wanted(self, session: Session) -> None:
        """Whoever has ended it meanwhile, or does so now, comes first."""
        if session.status != "resuming" or session.ending:
            raise _closed_meanwhile(session)

    async def _commit(
        self,
        session: Session,
        live: Driver,
        setup: SessionSetup,
        puts: Sequence[Put],
        kept: Sequence[Draft] = (),
    ) -> None:
        if self._known is None:
            self._add(session)
        else:
            self._must_be_wanted(session)
        active = session.attach(self._agent.id, live, setup, self._mcp, self._agent.definition.modes)
        session.tell_modes(puts, "opened")
        if puts:  # what it said of its mode before is no longer so
            kept = [draft for draft in kept if draft.type not in OFFER_TYPES]
        if kept:
            session.updates([*kept])
        self._agent.serve(session, live)
        self._agent.router.release(self._meta.agent_session_id)
        if active:
            await active

    def _tell_load_failed(self, error: LegationError) -> None:
        self._host.diagnose(
            DiagnosticCode.SESSION_LOAD_FAILED, error.message, agent_id=self._agent.id, session_id=self._name
        )

    def _tell_shorter(self, session: Session, told: Account, shown: Account) -> None:
        what = (
            f"the agent told {told.updates} updates of session {session.id} and {shown.updates} are recorded: "
            "what is recorded stays, and the agent may have forgotten the rest"
        )
        code = DiagnosticCode.SESSION_REPLAY_SHORTER
        self._host.diagnose(code, what, agent_id=self._agent.id, session_id=session.id)
        session.note(Diagnostic(code=code, message=what, agent_id=self._agent.id))


def _closed_meanwhile(session: Session) -> SessionClosed:
    return SessionClosed(f"cannot take up session {session.id}: it was closed meanwhile; start another")


def _details(data: object) -> str:
    """What an agent says beside "Internal error" is mostly all there is to know."""
    if data is UNSET or data is None or data in ("", {}, []):
        return ""
    if isinstance(data, dict):
        data = next((data[name] for name in ("details", "message") if isinstance(data.get(name), str)), data)
    raw = data.encode(errors="replace") if isinstance(data, str) else jsontext.write(data)
    return f" ({printable(raw)[:SHOWN]})"
