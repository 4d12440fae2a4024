"""Giving sessions an agent, and taking it away: each has a process of its own.

INV-T1  A session whose agent is gone gets another with the next message: resumed where the agent can, else loaded.
INV-T2  What was ended leaves no process.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from legation.agents.driver import Driver
from legation.errors import LegationError, RateLimited
from legation.host.ending import Settle
from legation.host.host import AcpHost
from legation.host.mcp import unseal
from legation.host.modes import Opening, current_mode
from legation.host.offers import Offers
from legation.host.session import Session
from legation.server.hosting import Hosting
from legation.server.sessions.choosing import Running, Wanted, choose
from legation.server.sessions.details import Details
from legation.server.sessions.record import Record, must_be_open
from legation.server.sessions.records import Records
from legation.server.sessions.resting import may_rest
from legation.server.sessions.starting import start
from legation.server.sessions.watching import Ended, Watch
from legation.store.vault import Vault
from legation.wire.acp.mcp import McpServer
from legation.wire.acp.sessions import NewSessionResponse

MOST_RUNNING: Final = 256  # agents of one workspace

logger = logging.getLogger("legation.sessions")


class Attaching:
    def __init__(self, hosting: Hosting, vault: Vault, records: Records, ended: Ended) -> None:
        """`ended` is called with a session that a client of ACP has ended."""
        self._hosting = hosting
        self._vault = vault
        self._records = records
        # By workspace and agent: after one ended by itself.
        self.restarts: Counter[tuple[str, str]] = Counter()
        # Agents of ours by workspace; a client's serve others too.
        self._own: set[tuple[str, str | None]] = set()
        self._starting: Counter[str] = Counter()  # agents of each workspace
        self._watch = Watch(records, self._let_go, ended)

    async def close(self) -> None:
        await self._watch.close()

    async def host(self, workspace: str) -> AcpHost:
        host = await self._hosting.host(workspace)
        await self._watch.keep(workspace, host)
        return host

    # A new session.

    async def create(
        self,
        workspace: str,
        session_id: str,
        details: Details,
        cwd: Path,
        servers: Sequence[McpServer],
        *,
        title: str | None,
        version: str | None,
        forks: str | None = None,
    ) -> Record:
        """There is a session with an agent that is set as the details say, or none at all. `forks` is what the agent
        calls the one that it begins with."""
        with self._room(workspace):
            return await self._create(workspace, session_id, details, cwd, servers, title, version, forks)

    async def _create(
        self,
        workspace: str,
        session_id: str,
        details: Details,
        cwd: Path,
        servers: Sequence[McpServer],
        title: str | None,
        version: str | None,
        forks: str | None,
    ) -> Record:
        host = await self.host(workspace)
        agent_id = await self._spawned(host, workspace, details.agent, cwd, version)
        first_mode: str | None = None

        async def prepare(agent: Driver, opened: NewSessionResponse) -> NewSessionResponse:
            nonlocal first_mode
            opening = Opening(
                agent, opened.session_id, Offers.of(opened), host.limits.start, host.modes_of(agent_id)
            )
            first_mode = current_mode(opening.offers)
            await choose(opening, Wanted.of(details))
            return opening.offers.told_in(opened)

        def known() -> Details:
            return replace(details, first_mode=first_mode)

        try:
            await host.create_session(
                agent_id,
                cwd=cwd,
                mcp_servers=servers,
                session_id=session_id,
                title=title,
                details=lambda: known().plain(),
                prepare=prepare,
                forks=forks,
            )
        except asyncio.CancelledError:
            if not _has(host, agent_id, session_id):
                await asyncio.shield(host.dispose_agent(agent_id))
            else:  # all of it is there: it stays
                self._made(workspace, host.session(session_id), known())
            raise
        except BaseException:
            await asyncio.shield(self._unmake(host, agent_id, session_id))
            raise
        return self._made(workspace, host.session(session_id), known())

    def _made(self, workspace: str, session: Session, details: Details) -> Record:
        record = Record(workspace, session.id, session.meta, details, head=session.stream.head, closed=False)
        record.session = session
        self._records.add(record)
        return record

    async def _unmake(self, host: AcpHost, agent_id: str, session_id: str) -> None:
        """The store may have failed when it was there already."""
        if _has(host, agent_id, session_id):
            with suppress(LegationError):
                await host.delete_session(agent_id, session_id)
        await host.dispose_agent(agent_id)

    async def _spawned(
        self, host: AcpHost, workspace: str, agent: str, cwd: Path, version: str | None = None
    ) -> str:
        launch = await self._hosting.launcher.launch(workspace, agent, cwd, version)
        started = await start(host, launch)
        self._own.add((workspace, started.agent_id))
        return started.agent_id

    @contextmanager
    def _room(self, workspace: str) -> Iterator[None]:
        """For one agent more; those that start at this moment have theirs too."""
        running = sum(record.status == "active" for record in self._records.of(workspace))
        running += self._starting[workspace]
        if running >= MOST_RUNNING:
            raise RateLimited(
                f"cannot start another agent: {running} run in this workspace; terminate sessions that are done",
                {"retryAfter": 60},
            )
        self._starting[workspace] += 1
        try:
            yield
        finally:
            self._starting[workspace] -= 1

    # One that there is.

    async def ensure(self, record: Record) -> Session:
        """Its agent, started again if it is gone."""
        async with record.lock:
            must_be_open(record)
            host = await self.host(record.workspace)
            session = record.session = await host.restore_session(record.id)
            await host.until_left(session.agent_id)  # a client of ACP has just gone, and its agent with it
            await session.decided()  # one may be taking it up
            if session.status == "active":
                return session
            await self._dispose_of(host, record, session.agent_id)
            with self._room(record.workspace):
                agent_id = await self._spawned(
                    host, record.workspace, record.details.agent, Path(record.meta.cwd)
                )
                try:
                    if not await self._take_up(host, agent_id, record, session):
                        await self._dispose_of(host, record, agent_id)
                        return session
                except BaseException:
                    await asyncio.shield(host.dispose_agent(agent_id))
                    raise
            await self._set_again(host, session, record)
            if record.details.exit is not None:
                self.restarts[record.workspace, record.details.agent] += 1
                await self._records.save(record, replace(record.details, exit=None))
            return session

    async def choose(self, record: Record, wanted: Wanted) -> None:
        """In an agent that runs."""
        session = await self.ensure(record)
        await choose(Running(await self.host(record.workspace), session), wanted)

    async def _take_up(self, host: AcpHost, agent_id: str, record: Record, session: Session) -> bool:
        """False: a client of ACP has done so while ours started, and its agent has it."""
        servers = await self.servers(record)
        await session.decided()
        if session.status == "active":
            return False
        await host.resume_or_load(agent_id, record.id, mcp_servers=servers)
        return True

    async def servers(self, record: Record) -> tuple[McpServer, ...]:
        """Its MCP servers, with their secrets; none where it has ended."""
        sealed = record.details.sealed
        if sealed is None:
            return ()
        return unseal(await self._vault.open_bytes(record.workspace, sealed.owner, sealed.bundle))

    async def _set_again(self, host: AcpHost, session: Session, record: Record) -> None:
        """An agent may not remember; what it no longer offers must not keep the session from going on."""
        wanted = Wanted.of(record.details)
        for each in (Wanted(model=wanted.model), Wanted(variant=wanted.variant), wanted.mode_alone()):
            try:
                await choose(Running(host, session), each)
            except LegationError as error:
                logger.warning("session %s: %s", record.id, error.message)

    async def rest(self, record: Record) -> None:
        """Its agent is stopped; the next message starts it again."""
        async with record.lock:
            session = record.session
            if session is None or record.working is not None or not may_rest(session):
                return
            if (record.workspace, session.agent_id) not in self._own:
                return
            await self._stop_and_let_go(record, session)

    async def end(self, record: Record) -> None:
        """Idempotent, and for good. Its history stays; nothing of it runs."""
        async with record.lock:
            if record.ended and not record.meta.reopens:
                return
            host = await self.host(record.workspace)
            session = record.session = await host.restore_session(record.id)
            agent_id = session.agent_id if session.status != "closed" else None
            await self._records.save(record, replace(record.details, queue=(), begun=None))
            await host.close_session(record.id)
            record.let_go(closed=True)
            host.forget_session(record.id)
            await self._dispose_of(host, record, agent_id)

    async def delete(self, record: Record, settle: Settle, *, clients_agent_stays: bool) -> None:
        """`settle` is called when no process of it is left. An agent of a client of ACP may be there for other sessions of
        that client: it is told, and left to the client that deletes one."""
        async with record.lock:
            host = await self.host(record.workspace)
            session = record.session
            agent_id = session.agent_id if session is not None and session.status == "active" else None

            async def last() -> None:
                if (record.workspace, agent_id) in self._own or not clients_agent_stays:
                    await self._dispose_of(host, record, agent_id)
                await settle()

            await host.delete_session(agent_id or "", record.id, settle=last)
            record.let_go(closed=True)
            host.forget_session(record.id)

    async def release(self, record: Record, agent_id: str | None) -> None:
        """A client of ACP has ended it: until one loads it again nothing of it runs, or is kept in memory; nor does the
        agent that had it where one has loaded it already."""
        async with record.lock:
            session, host = record.session, await self.host(record.workspace)
            if session is not None and session.status == "closed":
                host.forget_session(record.id)
                record.let_go(closed=True)
            if (record.workspace, agent_id) in self._own:
                await self._dispose_of(host, record, agent_id)

    async def _let_go(self, record: Record, session: Session) -> None:
        """Without an agent there is nothing to keep in memory."""
        async with record.lock:
            if session.status == "disconnected" and record.session is session and record.working is None:
                await self._stop_and_let_go(record, session)

    async def _stop_and_let_go(self, record: Record, session: Session) -> None:
        host = await self.host(record.workspace)
        await self._dispose_of(host, record, session.agent_id)
        await session.saved()
        if session.status == "disconnected":  # nobody has taken it up meanwhile
            host.forget_session(record.id)
            record.let_go()

    async def _dispose_of(self, host: AcpHost, record: Record, agent_id: str | None) -> None:
        """Sessions of one client of ACP share an agent: as long as another has it, it stays."""
        shared = any(
            each.agent_id == agent_id and each.status == "active" and each.session_id != record.id
            for each in host.get_sessions()
        )
        if agent_id is not None and not shared:
            await host.dispose_agent(agent_id)
            self._own.discard((record.workspace, agent_id))


def _has(host: AcpHost, agent_id: str, session_id: str) -> bool:
    """It, and not another of that name."""
    found = host.get_session(session_id)
    return found is not None and found.agent_id == agent_id
