"""ACP's methods: each reads its parameters, makes one call of the sessions, and answers.

Sessions are Legation's: they have its ids, their history is told from its log, and they outlive the connection and
the agent's process. What no method here knows is passed on to the agent.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import msgspec

from legation import __version__
from legation.agents.modes import setup_facts
from legation.clock import new_id
from legation.errors import AgentExited as AgentHasExited
from legation.errors import InvalidParams, LegationError, NotFound, TransportClosed
from legation.host.options import MAX_DIRECTORIES, SessionPlace
from legation.host.session import Session
from legation.server.acp.log import SessionFollower
from legation.server.sessions.record import (
    SessionRecord,
    SessionRecords,
    must_be_open,
    must_be_session_id,
)
from legation.server.sessions.service import SessionService
from legation.store.entries import LastUsed
from legation.wire import jsontext
from legation.wire.acp.methods import (
    AuthenticateRequest,
    ListedSession,
    ListSessionsRequest,
    ListSessionsResponse,
    McpServer,
    PromptResponse,
    SessionRequest,
    SessionSetup,
    SetConfigOptionRequest,
    SetConfigOptionResponse,
    SetModeRequest,
)
from legation.wire.acp.rpc import PROTOCOL_VERSION, AgentMethod, Shape
from legation.wire.acp.updates import Audio, EmbeddedResource, Image, ResourceLink, Text
from legation.wire.api.sessions import NewSession
from legation.wire.event_types import AgentExited, AgentUpdated
from legation.wire.principal import Principal

if TYPE_CHECKING:
    from legation.server.acp.connection import AcpConnection

PAGE: Final = 50  # sessions in one answer
_CURSOR: Final = re.compile(r"([0-9]{1,15})\.(.+)", re.ASCII)


Method: TypeAlias = Callable[[bytes, Principal], Awaitable[object]]
Begin: TypeAlias = Callable[[SessionFollower], Awaitable[None]]
"""How much of a session's past a client is told."""


class AcpMethods:
    """Methods of one connection, whose agent runs in its slot."""

    def __init__(self, connection: AcpConnection, sessions: SessionService) -> None:
        self._connection = connection
        self._workspace, self._slot = connection.workspace, connection.slot
        self._sessions = sessions
        self.followers: dict[str, SessionFollower] = {}  # by session
        self._told_exit: AgentExited | None = None
        self._methods: Mapping[str, Method] = {
            AgentMethod.INITIALIZE: self._initialize,
            AgentMethod.AUTHENTICATE: self._authenticate,
            AgentMethod.LOGOUT: self._logout,
            AgentMethod.SESSION_NEW: self._new,
            AgentMethod.SESSION_LOAD: self._load,
            AgentMethod.SESSION_RESUME: self._resume,
            AgentMethod.SESSION_LIST: self._list,
            AgentMethod.SESSION_PROMPT: self._prompt,
            AgentMethod.SESSION_SET_MODE: self._set_mode,
            AgentMethod.SESSION_SET_CONFIG_OPTION: self._set_config_option,
            AgentMethod.SESSION_CLOSE: self._close,
            AgentMethod.SESSION_DELETE: self._delete,
        }

    async def request(self, method: str, params: bytes, by: Principal) -> object:
        found = self._methods.get(method)
        return await found(params, by) if found else await self._pass_on(method, params)

    async def notification(self, method: str, params: bytes) -> None:
        if method == AgentMethod.SESSION_CANCEL:
            await self._sessions.messages.cancel(await self._record(read(params, SessionRequest).session_id))
        elif not method.startswith("$/") and self._slot.agent_id is not None:
            await self._slot.notify(method, await self._named_by_agent(params))

    async def stop(self) -> None:
        for follower in list(self.followers.values()):
            self._over(follower)
            await follower.stop()

    # The connection.

    async def _initialize(self, params: bytes, _by: Principal) -> object:
        given = read(params, Initialize)
        await self._connection.greet(given.client_capabilities or {})
        return hello(self._slot.agent, await self._slot.start())

    async def _authenticate(self, params: bytes, _by: Principal) -> None:
        await self._slot.authenticate(read(params, AuthenticateRequest).method_id)

    async def _logout(self, _params: bytes, _by: Principal) -> None:
        await self._slot.logout()

    # Sessions begin and end.

    async def _new(self, params: bytes, by: Principal) -> object:
        place = await self._place(read(params, NewRequest))
        session_id, new = new_id("ses"), NewSession(agent=self._slot.agent)
        record = await self._sessions.create(by, session_id, new, slot=self._slot, place=place)
        session = await self._sessions.agents.attach(record, slot=self._slot)
        return await self._opened(session, SessionFollower.skip_to_active, {"sessionId": session_id})

    async def _opened(
        self, session: Session, begin: Begin, members: Mapping[str, object] | None = None
    ) -> object:
        """Answer with the modes and options that its agent named, as they are now."""
        follower = await self._following(session, begin)
        follower.start()  # it tells nothing before the next step of the loop, and by then the answer was said
        options = session.offers.options if session.has_config else None
        facts = setup_facts(SessionSetup(modes=session.offers.modes, config_options=options))
        return {**(members or {}), **(jsontext.read_object(facts[0].raw) if facts else {})}

    async def _place(self, given: NewRequest) -> SessionPlace:
        folder_of = self._sessions.folder_of
        directories = [await folder_of(each) for each in given.additional_directories or ()]
        return SessionPlace(await folder_of(given.cwd), tuple(given.mcp_servers or ()), directories)

    async def _load(self, params: bytes, _by: Principal) -> object:
        """Told from the log, which has all that was ever said; the agent need not tell it again."""
        given = read(params, LoadRequest)
        place, known = await self._place(given), await self._known(given.session_id)
        if known is None:
            known = await self._sessions.agents.import_session(self._slot, given.session_id, place)
        session = await self._sessions.agents.attach(known, slot=self._slot, place=place, reopens=True)
        return await self._opened(session, SessionFollower.replay)

    async def _resume(self, params: bytes, _by: Principal) -> object:
        given = read(params, LoadRequest)
        place, record = await self._place(given), await self._record(given.session_id)
        session = await self._sessions.agents.attach(record, slot=self._slot, place=place, reopens=True)
        return await self._opened(session, SessionFollower.skip)

    async def _known(self, session_id: str) -> SessionRecord | None:
        """Find one of this agent's; None where there never was one."""
        must_be_session_id(session_id)
        record = await self._sessions.records.find_ever(self._workspace, session_id)
        if record is not None:
            self._slot.must_be_for(record)
        return record

    async def _record(self, session_id: str) -> SessionRecord:
        record = await self._known(session_id)
        if record is None:
            raise NotFound(f"cannot find session {session_id}; check its id")
        return record

    async def _following(self, session: Session, begin: Begin) -> SessionFollower:
        former = self.followers.pop(session.id, None)
        if former is not None:
            await former.stop()
        follower = SessionFollower(
            session.id, session.stream, self._connection.outlet, self._note, self._over
        )
        self.followers[session.id] = follower
        self._connection.clients.add(self._workspace, session.id, self._connection)
        try:
            await begin(follower)
        except BaseException:  # whoever gave up meanwhile follows nothing, and the next prompt begins anew
            self._over(follower)
            raise
        return follower

    def _over(self, follower: SessionFollower) -> None:
        """A client may open as many sessions as it likes, one after the other."""
        if self.followers.get(follower.session_id) is follower:
            del self.followers[follower.session_id]
            self._connection.clients.remove(self._workspace, follower.session_id, self._connection)

    async def _list(self, params: bytes, _by: Principal) -> object:
        given = read(params, ListSessionsRequest)
        return await page_of(self._sessions.records, self._workspace, self._slot.agent, given)

    async def _close(self, params: bytes, by: Principal) -> None:
        record = await self._record(read(params, SessionRequest).session_id)
        must_be_open(record, reopens=True)
        await self._sessions.close(by, record, reopens=True)

    async def _delete(self, params: bytes, by: Principal) -> None:
        """Delete it, also one that was ended for good, which no agent can have any more."""
        session_id = must_be_session_id(read(params, SessionRequest).session_id)
        with suppress(NotFound):  # twice is as once
            await self._sessions.delete(by, session_id, slot=self._slot)

    # In a session.

    async def _prompt(self, params: bytes, _by: Principal) -> object:
        given = read(params, Prompt)
        record = await self._record(given.session_id)
        session = await self._sessions.agents.attach(record, slot=self._slot)
        follower = self.followers.get(session.id)
        if follower is None:  # a client that came back and did not load it
            follower = await self._following(session, SessionFollower.skip)
            follower.start()
        try:
            result = await self._sessions.messages.prompt(record, session, given.prompt)
        except LegationError:
            await follower.reached(session.stream.head)
            raise
        await follower.reached(session.stream.head)
        result.raise_for_error()
        return PromptResponse(stop_reason=result.stop_reason, usage=result.usage)

    async def _set_mode(self, params: bytes, _by: Principal) -> None:
        given = read(params, SetModeRequest)
        await self._sessions.set_mode(await self._record(given.session_id), given.mode_id, self._slot)

    async def _set_config_option(self, params: bytes, _by: Principal) -> object:
        given = read(params, SetConfigOptionRequest)
        record = await self._record(given.session_id)
        options = await self._sessions.set_option(record, given.config_id, given.value, self._slot)
        return SetConfigOptionResponse(config_options=options)

    # What is none of ours.

    async def _pass_on(self, method: str, params: bytes) -> object:
        return msgspec.Raw(await self._slot.call(method, await self._named_by_agent(params)))

    async def _named_by_agent(self, params: bytes) -> object:
        """The agent knows its sessions by its own ids."""
        given = read_any(params)
        if not isinstance(given, dict) or not isinstance(given.get("sessionId"), str):
            return given
        record = await self._record(given["sessionId"])
        session = await self._sessions.agents.attach(record, slot=self._slot)
        return {**given, "sessionId": session.meta.agent_session_id}

    # What happens.

    def _note(self, session_id: str, payload: object) -> None:
        """Tell the client. An exit is in the log of every session of the process, and told once, where that is known."""
        if isinstance(payload, AgentExited):
            record = self._sessions.records.held(self._workspace, session_id)
            exited = record.session.exit if record is not None and record.session is not None else None
            if exited is not None and exited is self._told_exit:
                return
            self._told_exit = exited
        self._connection.note(session_id, payload)

    async def how_it_ended(self, error: Exception, params: bytes) -> AgentExited | None:
        """Return the end of the agent's process, where that is why a request failed."""
        if not isinstance(error, AgentHasExited | TransportClosed):
            return None
        with suppress(LegationError):
            session = (await self._record(read(params, SessionRequest).session_id)).session
            if session is not None:
                await session.decided()  # by then the host knows how it ended
                if (follower := self.followers.get(session.id)) is not None:
                    await follower.reached(session.stream.head)
                return session.exit
        return None


# session/list: the last used first, in pages. INV-P1  A session that nobody uses between two pages is on one of them, once.


async def page_of(
    records: SessionRecords, workspace: str, agent: str, given: ListSessionsRequest
) -> ListSessionsResponse:
    """List those of the agent that can be loaded, by when they were last used, then by id. What is used between two pages
    moves to the front, and nothing else moves."""
    read = None if given.cursor is None else _CURSOR.fullmatch(given.cursor)
    if given.cursor is not None and read is None:
        raise InvalidParams(
            "cannot read the cursor: give the `nextCursor` of a page as it is, or none for the first page"
        )
    after = None if read is None else (int(read[1]), read[2])
    query = LastUsed(workspace, after, agent=agent, cwd=given.cwd)
    page, last = await records.listed(query, PAGE, _info)
    more = None if last is None else f"{last[0]}.{last[1]}"
    return ListSessionsResponse(sessions=tuple(page), next_cursor=more)


def _info(record: SessionRecord) -> ListedSession:
    used, cut, meta = record.last_used, record.details.cut, record.meta
    at = datetime.fromtimestamp(used / 1000, UTC).isoformat(timespec="milliseconds")
    return ListedSession(
        session_id=record.id,
        cwd=meta.cwd,
        additional_directories=meta.additional_directories,
        title=meta.title,
        updated_at=at if used else None,
        meta={"legation": {"cut": cut.shown()}} if cut else None,
    )


T = TypeVar("T")


class Initialize(Shape):
    protocol_version: int | str
    client_capabilities: dict[str, object] | None = None


class NewRequest(Shape):
    """Place of a session; given with new, load and resume."""

    cwd: str
    mcp_servers: tuple[McpServer, ...] | None = None
    additional_directories: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if len(self.additional_directories or ()) > MAX_DIRECTORIES:
            raise ValueError(f"give at most {MAX_DIRECTORIES} additional folders")
        for folder in (self.cwd, *(self.additional_directories or ())):
            if not Path(folder).is_absolute() or "\0" in folder:
                raise ValueError("give absolute paths")


class LoadRequest(NewRequest, kw_only=True):
    session_id: str


class Prompt(SessionRequest, kw_only=True):
    prompt: tuple[Text | Image | Audio | ResourceLink | EmbeddedResource, ...]


def read(params: bytes, shape: type[T]) -> T:
    try:
        return msgspec.convert(read_any(params), shape)
    except msgspec.ValidationError as error:
        raise InvalidParams(
            f"cannot read the parameters: {jsontext.what_is_wrong(error)}; correct them"
        ) from None


def read_any(params: bytes) -> object:
    """Read those of a method that we do not know."""
    try:
        return jsontext.read(params or b"{}")
    except jsontext.READ_ERRORS:
        raise InvalidParams(
            "cannot read the parameters: they are no JSON that can be held; correct them"
        ) from None


def hello(agent: str, found: AgentUpdated) -> dict[str, object]:
    """The answer to `initialize`. Members of the agent's that we do not know are passed on as they are. Sessions are listed,
    closed and deleted by us; loading is told from our log, once the agent has it again."""
    of_agent = found.capabilities or {}
    sessions = of_agent.get("sessionCapabilities")
    can = dict(sessions) if isinstance(sessions, Mapping) else {}
    reopens = of_agent.get("loadSession") is True or can.pop("resume", None) is not None
    can |= {"list": {}, "close": {}, "delete": {}, **({"resume": {}} if reopens else {})}
    return {
        "protocolVersion": PROTOCOL_VERSION,
        "agentCapabilities": {**of_agent, "loadSession": reopens, "sessionCapabilities": can},
        "agentInfo": {"name": "legation", "title": f"Legation ({agent})", "version": __version__},
        "authMethods": list(found.auth_methods or ()),
        "_meta": {"legation": {"agent": agent}},
    }
