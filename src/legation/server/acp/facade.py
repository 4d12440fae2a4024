"""Legation as an ACP agent: the methods of the protocol, on the sessions of a host.

Sessions are Legation's: they have its ids, their history is told from its log, and they outlive the connection and
the agent's process. What no method here knows is passed on to the agent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from legation.agents.rpc import AgentRefused
from legation.errors import AgentExited as AgentHasExited
from legation.errors import LegationError, NotFound, TransportClosed
from legation.host.host import AcpHost
from legation.host.session import Session
from legation.ids import new_id
from legation.server.acp.exits import Exits
from legation.server.acp.failures import logger
from legation.server.acp.following import Follower, Note
from legation.server.acp.listing import list_sessions
from legation.server.acp.offer import hello
from legation.server.acp.opened import Opened, OpenedSessions
from legation.server.acp.outlet import Outlet
from legation.server.acp.requests import Initialize, Place, Prompt, TakeUp, read, read_any
from legation.server.acp.seat import Seat
from legation.server.acp.state import Setup
from legation.server.sessions.details import foreign
from legation.wire.acp.capabilities import AuthenticateRequest
from legation.wire.acp.rpc import AgentMethod
from legation.wire.acp.sessions import (
    ListSessionsRequest,
    PromptResponse,
    SessionRequest,
    SetConfigOptionRequest,
    SetConfigOptionResponse,
    SetModeRequest,
)
from legation.wire.lifecycle import AgentExited


@dataclass(frozen=True, slots=True)
class Reply:
    """A result, and what begins once it was said."""

    result: object
    then: Callable[[], None] | None = None


P = TypeVar("P", bound=Place)
FolderOf = Callable[[str], Awaitable[Path]]
Method = Callable[[bytes], Awaitable[Reply]]
Greeted = Callable[[Mapping[str, object]], Awaitable[None]]


class Facade:
    """Of one connection. `folder_of` says where a folder that a client named really is, if sessions may work there.
    `opened` learns of each session that is used and its agent, `deletes` deletes one, `greeted` what the client can, `follows` which sessions it
    follows, `unfollows` which no longer, `noted` what happens in them."""

    def __init__(
        self,
        agent: str,
        seat: Seat,
        outlet: Outlet,
        folder_of: FolderOf,
        *,
        opened: Opened,
        deletes: Callable[[str], Awaitable[None]],
        greeted: Greeted,
        follows: Callable[[str], None],
        unfollows: Callable[[str], None],
        noted: Note,
    ) -> None:
        self.agent = agent
        self._folder_of = folder_of
        self._seat = seat
        self._outlet = outlet
        self._opened = opened
        self._deletes = deletes
        self._greeted = greeted
        self._follows = follows
        self._unfollows = unfollows
        self._noted = noted
        self._sessions = OpenedSessions(agent, seat, opened)
        self._followers: dict[str, Follower] = {}
        self._exits = Exits()
        self._told_exit: AgentExited | None = None
        self._host: AcpHost | None = None  # of those that are followed
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

    @property
    def followed(self) -> list[str]:
        return list(self._followers)

    async def request(self, method: str, params: bytes) -> Reply:
        found = self._methods.get(method)
        return await found(params) if found else await self._pass_on(method, params)

    async def notification(self, method: str, params: bytes) -> None:
        if method == AgentMethod.SESSION_CANCEL:
            await self.cancel(read(params, SessionRequest).session_id)
        elif not method.startswith("$/") and self._seat.agent_id is not None:
            host = await self._seat.host()
            await host.tell_agent(self._seat.agent_id, method, await self._named_by_agent(params))

    async def cancel(self, session_id: str) -> None:
        host = await self._seat.host()
        if host.get_session(session_id) is not None:
            await host.cancel(session_id)

    async def stop(self) -> None:
        for follower in list(self._followers.values()):
            await follower.stop()

    # The connection.

    async def _initialize(self, params: bytes) -> Reply:
        given = read(params, Initialize)
        await self._greeted(given.client_capabilities or {})
        return Reply(hello(self.agent, await self._seat.ready()))

    async def _authenticate(self, params: bytes) -> Reply:
        method = read(params, AuthenticateRequest).method_id
        agent = await self._seat.ready()
        await (await self._seat.host()).authenticate(agent.agent_id, method)
        return Reply({})

    async def _logout(self, _params: bytes) -> Reply:
        agent = await self._seat.ready()
        await (await self._seat.host()).logout(agent.agent_id)
        return Reply({})

    # Sessions begin and end.

    async def _new(self, params: bytes) -> Reply:
        given = await self._placed(read(params, Place))
        agent, host = await self._seat.ready(), await self._seat.host()
        now = host.clock.now_ms()
        session_id = new_id("ses", now_ms=now)
        try:
            await host.create_session(
                agent.agent_id,
                cwd=given.cwd,
                mcp_servers=given.mcp_servers or (),
                additional_directories=given.additional_directories or (),
                session_id=session_id,
                details=foreign(self.agent, now).plain(),
            )
        finally:  # also where the client gave up when it was there already
            if host.get_session(session_id) is not None:
                await self._opened(host.session(session_id), self.agent)
        active = partial(Follower.skip, to_active=True)
        follower, setup = await self._following(host.session(session_id), active)
        return Reply({"sessionId": session_id, **setup.members()}, follower.start)

    async def _placed(self, given: P) -> P:
        folders = [str(await self._folder_of(each)) for each in given.additional_directories or ()]
        cwd = str(await self._folder_of(given.cwd))
        return msgspec.structs.replace(given, cwd=cwd, additional_directories=tuple(folders))

    async def _load(self, params: bytes) -> Reply:
        """Told from the log, which has all that was ever said; the agent need not tell it again."""
        given = await self._placed(read(params, TakeUp))
        session = await self._sessions.usable(given.session_id, given, reopen=True, foreign=True)
        follower, setup = await self._following(session, Follower.replay)
        return Reply(setup.members(), follower.start)

    async def _resume(self, params: bytes) -> Reply:
        given = await self._placed(read(params, TakeUp))
        session = await self._sessions.usable(given.session_id, given, reopen=True)
        follower, setup = await self._following(session, Follower.skip)
        return Reply(setup.members(), follower.start)

    async def _following(
        self, session: Session, begin: Callable[[Follower], Awaitable[Setup]]
    ) -> tuple[Follower, Setup]:
        follower = await self._follower(session)
        try:
            return follower, await begin(follower)
        except BaseException:  # whoever gave up meanwhile follows nothing, and the next prompt begins anew
            self._over(follower)
            raise

    async def _follower(self, session: Session) -> Follower:
        former = self._followers.pop(session.id, None)
        if former is not None:
            await former.stop()
        self._host = await self._seat.host()
        follower = Follower(session.id, session.stream, self._outlet, self._note, self._over)
        self._followers[session.id] = follower
        self._follows(session.id)
        return follower

    def _over(self, follower: Follower) -> None:
        """A client may open as many sessions as it likes, one after the other."""
        if self._followers.get(follower.session_id) is follower:
            del self._followers[follower.session_id]
            self._exits.over(follower.session_id)
            self._unfollows(follower.session_id)

    async def _list(self, params: bytes) -> Reply:
        given = read(params, ListSessionsRequest)
        return Reply(await list_sessions(await self._seat.host(), self.agent, given))

    async def _close(self, params: bytes) -> Reply:
        session_id = read(params, SessionRequest).session_id
        if await self._sessions.known(session_id) is None:
            raise NotFound(f"cannot find session {session_id}; check its id")
        await (await self._seat.host()).close_session(session_id, reopens=True)
        return Reply({})

    async def _delete(self, params: bytes) -> Reply:
        """Also of one that was ended for good, which no agent can have any more."""
        session_id = read(params, SessionRequest).session_id
        with suppress(NotFound):  # twice is as once
            await self._sessions.known(session_id)  # one that this server does not know yet is told to it
            await self._deletes(session_id)
        return Reply({})

    # In a session.

    async def _prompt(self, params: bytes) -> Reply:
        given = read(params, Prompt)
        session = await self._sessions.usable(given.session_id)
        await self._used(session, prompted=True)
        follower = self._followers.get(session.id)
        if follower is None:  # a client that came back and did not load it
            follower, _ = await self._following(session, Follower.skip)
            follower.start()
        self._exits.begin(session.id)
        try:
            result = await session.prompt(given.prompt)
        except LegationError as error:
            await self._used(session, over=True, error=error)
            await follower.reached(session.stream.head)
            raise
        await self._used(session, over=True)
        await follower.reached(session.stream.head)
        if result.error is not None:
            raise AgentRefused(AgentMethod.SESSION_PROMPT, result.error)
        return Reply(PromptResponse(stop_reason=result.stop_reason, usage=result.usage))

    async def _used(
        self,
        session: Session,
        *,
        prompted: bool = False,
        over: bool = False,
        error: LegationError | None = None,
    ) -> None:
        try:
            await self._opened(session, self.agent, prompted=prompted, over=over, error=error)
        except LegationError as failed:  # a failing disk keeps no prompt from its agent
            logger.warning("it is not on the disk that session %s was used: %s", session.id, failed.code)

    async def _set_mode(self, params: bytes) -> Reply:
        given = read(params, SetModeRequest)
        await self._sessions.usable(given.session_id)
        await (await self._seat.host()).set_mode(given.session_id, given.mode_id)
        return Reply({})

    async def _set_config_option(self, params: bytes) -> Reply:
        given = read(params, SetConfigOptionRequest)
        await self._sessions.usable(given.session_id)
        host = await self._seat.host()
        options = await host.set_config_option(given.session_id, given.config_id, given.value)
        return Reply(SetConfigOptionResponse(config_options=options))

    # What is none of ours.

    async def _pass_on(self, method: str, params: bytes) -> Reply:
        agent, host = await self._seat.ready(), await self._seat.host()
        raw = await host.pass_on(agent.agent_id, method, await self._named_by_agent(params))
        return Reply(msgspec.Raw(raw))

    async def _named_by_agent(self, params: bytes) -> object:
        """The agent knows its sessions by its own ids."""
        given = read_any(params)
        if not isinstance(given, dict) or not isinstance(given.get("sessionId"), str):
            return given
        session = await self._sessions.usable(given["sessionId"])
        return {**given, "sessionId": session.meta.agent_session_id}

    # What happens.

    def _note(self, session_id: str, payload: object) -> None:
        if isinstance(payload, AgentExited):
            self._exits.told(session_id, payload)
            if not self._is_new_exit(session_id):
                return
        self._noted(session_id, payload)

    def _is_new_exit(self, session_id: str) -> bool:
        """Every session of a process has its exit in its log; a client hears of it once."""
        exited: AgentExited | None = None
        if self._host is not None:
            with suppress(NotFound):  # forgotten meanwhile: told twice is better than not at all
                exited = self._host.session(session_id).exit
        if exited is not None and exited is self._told_exit:
            return False
        self._told_exit = exited
        return True

    async def how_it_ended(self, error: Exception, params: bytes) -> AgentExited | None:
        """Of the agent's process, where its end is why a request failed."""
        if not isinstance(error, AgentHasExited | TransportClosed):
            return None
        with suppress(LegationError):
            session_id = read(params, SessionRequest).session_id
            return await self._exits.of(session_id, followed=session_id in self._followers)
        return None

    async def stderr(self) -> str:
        """What the agent has written there; nothing where none runs."""
        if self._seat.agent_id is None:
            return ""
        return (await self._seat.host()).stderr_tail(self._seat.agent_id)
