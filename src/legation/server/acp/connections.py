"""Every client connection of a server, by workspace and server id; made by the first message, ended by DELETE.

INV-N1  A server id belongs to its workspace and to one agent, until it is deleted.
INV-N2  What the log knows of a connection outlives the server: the next message takes it up again.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Final, Self
from weakref import WeakValueDictionary

import msgspec

from legation.approvals.approval import Approval, ApprovalState
from legation.approvals.queue import ApprovalQueue, Attendance
from legation.approvals.trace.step import StepKind
from legation.clock import new_id
from legation.errors import Conflict, InvalidParams, LegationError, NotFound, Unavailable
from legation.server.acp.log import OPENED, ConnectionLog, KeptConnection, read_kept, stream_name
from legation.server.sessions.agents import AgentSlot
from legation.server.sessions.hosts import WorkspaceHosts
from legation.server.sessions.record import ACP, MOST_ID_BYTES, is_client_id
from legation.server.sessions.service import SessionService
from legation.store.datafolder import WORK, make_folder
from legation.store.entries import ByName
from legation.store.stream import Stream
from legation.tasks import TaskSet
from legation.wire.events import Draft

if TYPE_CHECKING:
    from legation.server.acp.connection import AcpConnection
    from legation.server.peers.claims import StreamClaims

MOST_SERVERS: Final = 200  # of one workspace, each with a process
IDLE: Final = 900.0  # seconds without a reader, a message or a request at work: a client's time to come back
MADE: Final = "con"  # what ids begin with that are ours
# Seconds that a new connection waits for the end of one of its name: that one's agent's time.
END_LIMIT: Final = 15.0

_STOPPING: Final = "cannot go on: the server stops; try again when it is back"

Key = tuple[str, str]  # workspace, server id

logger = logging.getLogger("legation.acp")


class AcpConnections:
    """Connections of a server. At its end no agent of one is left. Agents start in the folder `work`; their sessions
    have their own. What speaks ACP is loaded with the first client."""

    def __init__(
        self,
        sessions: SessionService,
        hosts: WorkspaceHosts,
        inbox: ApprovalQueue,
        attendance: Attendance,
        claims: StreamClaims | None = None,
    ) -> None:
        self._claims = claims
        self._sessions = sessions
        self._hosts = hosts
        self._log = hosts.log
        self._inbox = inbox
        self._work = hosts.settings.data_dir / WORK
        self._attendance = attendance
        self._supervisor_wait_ms = round(hosts.settings.supervisor_wait * 1000)
        self._wanted: set[str] = set()  # approvals of sessions that wait for a person, by their ids
        self._looking = TaskSet("legation-acp-looks")
        self._listens = False
        self._known: dict[Key, AcpConnection] = {}
        # What nobody holds or waits for is not kept.
        self._opening: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        self._ending: dict[Key, asyncio.Task[None]] = {}
        self._opened = asyncio.Event()  # with the next connection
        self._shut = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.shut()
        closing = [each.close() for each in self._known.values()]
        await asyncio.gather(*closing, *self._ending.values(), return_exceptions=True)
        await self._looking.close()

    def shut(self) -> None:
        """The server stops: whoever waits hears of it while there is time to say so."""
        self._shut = True
        for connection in self._known.values():
            connection.shut(_STOPPING)

    # Approvals of sessions, told to the clients that follow.

    def _approval_changed(self, approval: Approval, happened: StepKind) -> None:
        """Ask the clients what a person must answer. What a supervisor may decide is asked at once where none is there,
        and else when it was escalated."""
        if approval.session_id is None:
            return
        if approval.status is not ApprovalState.PENDING:
            self._wanted.discard(approval.id)
        elif approval.needs == "person":
            self._want(approval)
        elif happened is StepKind.PROPOSED:
            self._looking.start(self._look(approval))

    async def _look(self, approval: Approval) -> None:
        try:
            last = await self._attendance.last(approval.workspace_id, approval.tool)
        except LegationError as error:  # a supervisor is asked in any case, and a person if none answers
            logger.warning("cannot tell whether a supervisor is there: %s", error.code)
            return
        if self._log.clock.now_ms() - last > self._supervisor_wait_ms:
            self._want(approval)

    def _want(self, approval: Approval) -> None:
        if approval.id not in self._wanted:
            self._wanted.add(approval.id)
            for client in self._hosts.clients.of(approval.workspace_id, approval.session_id or ""):
                client.wanted(approval.id)

    # For the routes.

    async def get(self, workspace: str, server_id: str, agent: str | None) -> AcpConnection:
        """The one of that id: open, kept in the log, or new. A new one needs an agent."""
        must_be_server_id(server_id)
        if self._shut:
            raise Unavailable(_STOPPING)
        key = workspace, server_id
        async with self._alone(key):
            await self._ended(key)
            found = self._known.get(key)
            if found is None:
                # Those that are being opened at this moment have their places too, and so has the one that asks.
                if sum(key[0] == workspace for key in {*self._known, *self._opening}) > MOST_SERVERS:
                    raise Conflict(
                        f"cannot open more than {MOST_SERVERS} connections; delete those that are not used"
                    )
                found = await self._kept(key) or await self._new(key, agent)
            own = found.slot.agent
            if agent is not None and (await self._hosts.launcher.entry(agent)).name != own:
                raise Conflict(
                    f"cannot use {server_id} with {agent}: it belongs to {own}; use another server id"
                )
            self._known[key] = found
        self._opened.set()
        self._opened = asyncio.Event()
        return found

    async def open(self, workspace: str, agent: str) -> tuple[str, AcpConnection]:
        """Make one for a client that has the id from us, and return both."""
        await self._remove_left(workspace)
        server_id = new_id(MADE)
        connection = await self.get(workspace, server_id, agent)
        connection.kept = msgspec.structs.replace(connection.kept, streamable=True)
        await connection.outlet.keep(connection.kept)
        return server_id, connection

    async def find(self, workspace: str, server_id: str) -> AcpConnection:
        """The one of that id, open or kept in the log; `NotFound` where there is none."""
        key = workspace, server_id
        possible = is_client_id(server_id) and key not in self._ending
        if not possible or (key not in self._known and await self._open_stream(key) is None):
            raise NotFound(f"cannot find connection {server_id[:200]}; connect again")
        return await self.get(workspace, server_id, None)

    async def _remove_left(self, workspace: str) -> None:
        """End those that got their ids from us and that nobody uses any more: their clients went without a word, and no
        other can know their names."""
        now = self._log.clock.now_ms()
        for server_id, kept in await self.list(workspace):
            if not kept.streamable or now - kept.created_at_ms < IDLE * 1000:
                continue
            connection = self._known.get((workspace, server_id))
            if connection is None or connection.slot.is_quiet(IDLE):
                await self.remove(workspace, server_id)

    def reading(self, workspace: str, server_id: str) -> AbstractContextManager[None]:
        """While somebody reads what a client is told."""
        found = self._known.get((workspace, server_id))
        return nullcontext() if found is None else found.slot.using()

    async def stream(self, workspace: str, server_id: str, wait: float) -> tuple[Stream, int]:
        """Return what a client is told, and the number from which on; waits for one that is about to be made."""
        must_be_server_id(server_id)
        key = workspace, server_id
        found = await self._readable(key)
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                while found is None:
                    await self._opened.wait()
                    found = await self._readable(key)
        if found is None:
            raise NotFound(f"cannot find server {server_id}; send it a message first")
        return found

    async def remove(self, workspace: str, server_id: str) -> None:
        """Remove it at once for the caller; the agent's processes end meanwhile."""
        must_be_server_id(server_id)
        key = workspace, server_id
        async with self._alone(key):
            if key in self._ending:  # no other of that name is made meanwhile
                return
            connection = self._known.pop(key, None)
            if connection is not None:
                connection.shut("cannot go on: the connection was deleted; connect again")
            ending = self._ending[key] = asyncio.create_task(self._end(key, connection))
            ending.add_done_callback(lambda _: self._ending.pop(key))
            if connection is not None:
                await connection.slot.retire()

    async def list(self, workspace: str) -> list[tuple[str, KeptConnection]]:
        """The connections that are open, by id."""
        found: list[tuple[str, KeptConnection]] = []
        query = ByName(workspace, None, ACP, states=("open",))
        async for _, info in self._log.each(query):
            name, kept = info.name.removeprefix(ACP), read_kept(info.meta)
            if kept is not None and (workspace, name) not in self._ending:
                found.append((name, kept))
        return found

    # Making and ending.

    def _alone(self, key: Key) -> asyncio.Lock:
        """Let one at a time in for each id."""
        return self._opening.setdefault(key, asyncio.Lock())

    async def _open_stream(self, key: Key) -> Stream | None:
        workspace, server_id = key
        stream = await self._log.find(stream_name(server_id), workspace)
        return stream if stream is not None and stream.info().state == "open" else None

    async def _kept(self, key: Key) -> AcpConnection | None:
        stream = await self._open_stream(key)
        kept = read_kept(stream.info().meta) if stream else None
        if stream is None or kept is None:
            return None
        return await self._make(key, await self._settled(stream, kept), stream)

    async def _settled(self, stream: Stream, kept: KeptConnection) -> KeptConnection:
        """Say once what a server that has ended owed its client."""
        from legation.server.acp.connection import last_words

        if not kept.taken and kept.asks is None:
            return kept
        outlet, settled = ConnectionLog(self._log, stream), msgspec.structs.replace(kept, taken=(), asks=None)
        receipt = outlet.say(*await last_words(stream, kept.taken, kept.asks))
        if receipt is not None:
            await receipt
        await outlet.keep(settled)
        return settled

    async def _new(self, key: Key, agent: str | None) -> AcpConnection:
        workspace, server_id = key
        if agent is None:
            raise InvalidParams(f"cannot open {server_id}: the first message names the agent, as ?agent=NAME")
        name = (await self._hosts.launcher.entry(agent)).name
        stream_id, claims = stream_name(server_id), self._claims
        async with claims.taken(workspace, stream_id, name, None) if claims else nullcontext():
            stream = await self._log.stream(stream_id, workspace)
            kept = KeptConnection(agent=name, created_at_ms=self._log.clock.now_ms(), since=stream.head)
            if stream.info().state != "open":
                await stream.replace([Draft(OPENED, b"{}")])
            connection = await self._make(key, kept, stream)
            await connection.outlet.keep(kept)
            return connection

    async def _make(self, key: Key, kept: KeptConnection, stream: Stream) -> AcpConnection:
        from legation.server.acp.connection import AcpConnection

        if not self._listens:
            self._listens = True
            self._inbox.on_change(self._approval_changed)
        await asyncio.to_thread(make_folder, self._work)
        slot = AgentSlot(self._sessions.agents, key[0], kept.agent, self._work, shared=True, idle_after=IDLE)
        return AcpConnection(
            kept,
            ConnectionLog(self._log, stream),
            slot,
            self._sessions,
            self._hosts.clients,
            self._wanted,
        )

    async def _end(self, key: Key, connection: AcpConnection | None) -> None:
        try:
            if connection is not None:
                await connection.close()
            stream = await self._open_stream(key)
            if stream is not None:
                await stream.replace([Draft(OPENED, b"{}")])  # nobody can ask for what was said any more
                await stream.close()
            if self._claims is not None:
                await self._claims.free(key[0], stream_name(key[1]))
        except LegationError as error:
            logger.warning("cannot end a connection cleanly: %s", error.message)

    async def _ended(self, key: Key) -> None:
        ending = self._ending.get(key)
        if ending is None:
            return
        _, late = await asyncio.wait({ending}, timeout=END_LIMIT)
        if late:  # its end would close the stream that both have
            raise Conflict(
                f"cannot open {key[1]}: the one of that name is still ending; try again, or use another server id"
            )

    async def _readable(self, key: Key) -> tuple[Stream, int] | None:
        stream = None if key in self._ending else await self._open_stream(key)
        if stream is None:
            return None
        async with self._alone(key):
            connection = self._known.get(key)
            kept = connection.kept if connection else read_kept(stream.info().meta)
            if kept is not None and connection is None:
                kept = await self._settled(stream, kept)
        return (stream, kept.since) if kept else None


def must_be_server_id(server_id: str) -> None:
    if not is_client_id(server_id):
        raise InvalidParams(
            f"cannot take that for a server id: give at most {MOST_ID_BYTES} bytes of printable text, not only dots"
        )
