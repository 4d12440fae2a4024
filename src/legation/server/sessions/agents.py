"""Processes of agents, and which has which session: started, watched, stopped.

INV-T1  A session whose agent is gone gets another with the next message: resumed where the agent can, else loaded.
INV-T2  What was ended leaves no process.
INV-I1  Of those that are idle only an agent is stopped that can take its sessions up again, and never in a turn, while it waits for
        an answer or while a tool of its works.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from legation.errors import InvalidParams, LegationError, NotFound, RateLimited, TimedOut
from legation.proc.tree import process
from legation.server.sessions.hosts import WorkspaceHosts
from legation.server.sessions.record import (
    Details,
    SealedServers,
    SessionRecord,
    SessionRecords,
    StoredExit,
    foreign,
    must_be_open,
)
from legation.store.entries import LastFailed
from legation.tasks import TaskSet, UnderWay
from legation.wire.acp.methods import McpServer
from legation.wire.api.agents import Liveness
from legation.wire.api.sessions import NewSession
from legation.wire.event_types import AgentUpdated

if TYPE_CHECKING:
    from legation.agents.modes import OpenedSession
    from legation.host.host import AcpHost
    from legation.host.options import SessionPlace
    from legation.host.session import Session

RESTART_WAIT: Final = 60.0  # seconds for an agent that the host starts again: the agent's time
MOST_RUNNING: Final = 256  # agents of one workspace that sessions have for themselves
LOOK_EVERY: Final = 60.0  # seconds between two looks for idle ones, at most
STDERR_KEPT: Final = 4_000  # characters of the end of an agent's stderr, in the session's details
# Ends of an agent that were not our doing.
_BY_ITSELF: Final = ("crashed", "ended", "stopped")

logger = logging.getLogger("legation.sessions")


class AgentSlot:
    """Place for one process of an agent: a session's own, or one that the sessions of a connection share."""

    def __init__(
        self,
        agents: SessionAgents,
        workspace: str,
        agent: str,
        cwd: Path,
        *,
        shared: bool,
        idle_after: float,
        version: str | None = None,
    ) -> None:
        """`idle_after`: seconds after which it is stopped, if nobody uses it and nothing happens; 0: never."""
        self.workspace, self.agent, self.shared = workspace, agent, shared
        self.idle_after = idle_after
        self.agent_id: str | None = None  # of the host's, for as long as there is a process
        self.terminals = False  # whether its client has some, to be offered to the agent
        self._agents = agents
        self._cwd, self._version = cwd, version
        self._starting = asyncio.Lock()
        self._left = False
        self._users = UnderWay()
        self._joining = UnderWay()  # sessions that its process is about to have
        self._heads: Mapping[str, int] = {}  # of its sessions, when something last happened
        self._quiet_since = agents.clock.monotonic()

    def must_be_for(self, record: SessionRecord) -> None:
        if record.details.agent != self.agent:
            raise InvalidParams(
                f"cannot use session {record.id} here: its agent is {record.details.agent}; connect with that"
            )

    @contextmanager
    def using(self) -> Iterator[None]:
        """Keep it from being idle meanwhile."""
        try:
            with self._users:
                yield
        finally:
            self.used()

    @contextmanager
    def joining(self) -> Iterator[None]:
        """A session is given to it: neither is it idle meanwhile, nor has it none."""
        with self._joining, self.using():
            yield

    def used(self) -> None:
        """Just now."""
        self._quiet_since = self._agents.clock.monotonic()

    def is_quiet(self, seconds: float) -> bool:
        """Tell whether nobody uses it, and has not for so long."""
        return not self._users and self._agents.clock.monotonic() - self._quiet_since >= seconds

    async def start(self) -> AgentUpdated:
        """Return its process, running: started if there is none, or none that is ready."""
        async with self._starting:
            host = await self._agents.hosts.host(self.workspace)
            found = await self._ready(host)
            if found is None or found.status != "ready":
                await self._stop(host)
                found = await self._started(host)
            return found

    async def _ready(self, host: AcpHost) -> AgentUpdated | None:
        try:
            async with asyncio.timeout(RESTART_WAIT):
                agent = host.agents.get(self.agent_id or "")
                return await agent.until_ready() if agent is not None else None
        except TimeoutError:
            raise TimedOut(
                "cannot use the agent: it is being started again for too long; try later"
            ) from None

    async def _started(self, host: AcpHost) -> AgentUpdated:
        from legation.host.launch import start_agent  # late: a server without agents has none of it

        with self._agents.room(self):
            launcher = self._agents.hosts.launcher
            launch = await launcher.launch(self.workspace, self.agent, self._cwd, self._version)
            found = await start_agent(host, launch, terminals=self.terminals)
        self.agent_id = found.agent_id
        self.used()
        self._agents.watch(self, host, found.agent_id)
        if self._left:  # its client went away while it started
            await self._stop(host)
        return found

    async def stop(self) -> None:
        """No process of it is left, until it is needed again. Its sessions are without an agent."""
        if self.agent_id is not None:
            await self._stop(await self._agents.hosts.host(self.workspace))

    async def _stop(self, host: AcpHost) -> None:
        agent_id, self.agent_id = self.agent_id, None
        if agent_id is not None:
            await host.dispose_agent(agent_id)
            self._agents.running.pop((self.workspace, agent_id), None)

    async def authenticate(self, method: str) -> None:
        agent_id = (await self.start()).agent_id
        await (await self._agents.hosts.host(self.workspace)).authenticate(agent_id, method)

    async def logout(self) -> None:
        agent_id = (await self.start()).agent_id
        await (await self._agents.hosts.host(self.workspace)).logout(agent_id)

    async def call(self, method: str, params: object) -> bytes:
        """A request that is none of ours, and the agent's raw answer."""
        agent_id = (await self.start()).agent_id
        driver = (await self._agents.hosts.host(self.workspace)).driver(agent_id)
        return await driver.pass_on(method, params, None)  # as long as a turn may take

    async def notify(self, method: str, params: object) -> None:
        """`NotFound` where none runs: it has nothing to hear."""
        host = await self._agents.hosts.host(self.workspace)
        await host.driver(self.agent_id or "").tell(method, params)

    async def stderr(self) -> str:
        """Return what the agent has written there; nothing where none runs."""
        with suppress(LegationError):
            return (await self._agents.hosts.host(self.workspace)).driver(self.agent_id or "").stderr_tail()
        return ""

    async def retire(self) -> None:
        """Others who have a session of it wait until it has gone, and get another agent; `close` follows."""
        self._left = True
        if self.agent_id is not None:
            agents = (await self._agents.hosts.host(self.workspace)).agents
            if (agent := agents.get(self.agent_id)) is not None:
                agent.leaving = True

    def has_other(self, record: SessionRecord, host: AcpHost) -> bool:
        """Tell whether a session of it is left, or is about to be there, beside that one."""
        held = self._agents.sessions_in(self, host)
        return len(self._joining) > 0 or any(each is not record for each, _ in held)

    async def close(self) -> None:
        """Stop it for good; what sessions it had stay."""
        self._left = True
        await self.stop()

    async def stop_if_idle(self) -> None:
        """Stop it if it is idle."""
        if self._starting.locked():  # which may take minutes, and others are to be looked at
            return
        async with self._starting:
            host = await self._agents.hosts.host(self.workspace)
            if self._is_idle(host):  # nothing is awaited from here until nobody is given it any more
                await self._stop(host)

    def _is_idle(self, host: AcpHost) -> bool:
        now, held = self._agents.clock.monotonic(), self._agents.sessions_in(self, host)
        heads = {session.id: session.stream.head for _, session in held}
        if heads != self._heads or self._users or not all(_may_stop(*each) for each in held):
            self._heads, self._quiet_since = heads, now
        return 0 < self.idle_after <= now - self._quiet_since


def _may_stop(record: SessionRecord, session: Session) -> bool:
    """INV-I1."""
    talk = session.talk
    # A task in the background may be silent for long.
    if record.at_work or session.busy or talk.waiting or talk.tool_calls.at_work():
        return False
    return session.agent.can_resume or session.agent.can_load


class SessionAgents:
    """Agents of sessions. From `start` to `close` idle ones are stopped; how others end is noted."""

    def __init__(self, hosts: WorkspaceHosts, records: SessionRecords, secrets: SealedServers) -> None:
        self.hosts = hosts
        self.clock = hosts.log.clock
        self._records = records
        self._secrets = secrets
        self._rest_after = hosts.settings.agent_rest  # seconds; 0: an agent of a session is never stopped
        self._coming: list[AgentSlot] = []  # whose processes are being started
        self.running: dict[tuple[str, str], AgentSlot] = {}  # by workspace and the host's id of the process
        self._tasks = TaskSet("legation-session-agents")
        self.close = self._tasks.close
        # By workspace and agent: after one ended by itself.
        self._restarts: Counter[tuple[str, str]] = Counter()

    def start(self) -> None:
        self._tasks.start(self._stop_idle())

    # Their processes.

    @contextmanager
    def room(self, slot: AgentSlot) -> Iterator[None]:
        """Claim room for one process more; those that start at this moment have theirs too."""
        slots = (*self._coming, *self.running.values())
        running = sum(each.workspace == slot.workspace and not each.shared for each in slots)
        if not slot.shared and running >= MOST_RUNNING:
            raise RateLimited(
                f"cannot start another agent: {running} run in this workspace; terminate sessions that are done",
                {"retryAfter": 60},
            )
        self._coming.append(slot)
        try:
            yield
        finally:
            self._coming.remove(slot)

    def _runs(self, slot: AgentSlot | None) -> bool:
        """Tell whether it has a process, or is about to have the next: one that did not obey is followed by another."""
        return slot is not None and (slot.workspace, slot.agent_id or "") in self.running

    def watch(self, slot: AgentSlot, host: AcpHost, agent_id: str) -> None:
        """Watch that agent until it has ended."""
        self.running[slot.workspace, agent_id] = slot
        self._tasks.start(self._watch(slot, host, agent_id))

    async def _watch(self, slot: AgentSlot, host: AcpHost, agent_id: str) -> None:
        """Note how it ended in the sessions that it had. Without an agent there is nothing to keep in memory."""
        with suppress(NotFound):  # it was stopped before this began
            await host.until_ended(agent_id)
        self.running.pop((slot.workspace, agent_id), None)  # its slot may have another by now
        for record, session in _held(host, agent_id):
            if session.status != "disconnected":
                continue
            try:
                if (found := _exit_of(session)) is not None:
                    await self._records.save(record, replace(record.details, exit=found))
                    self.hosts.items.ended(record.workspace, record.id, "exited")
                self.forget_soon(record)
            except LegationError as error:
                logger.warning("cannot note how the agent of session %s ended: %s", record.id, error.message)

    def forget_soon(self, record: SessionRecord, *, shared_too: bool = False) -> None:
        """Let go of it when nobody is at it any more, if it has ended by then, or has no agent."""
        self._tasks.start(self._forget(record, shared_too=shared_too))

    async def _forget(self, record: SessionRecord, *, shared_too: bool) -> None:
        async with record.lock:
            free = record.status == "disconnected" and record.working is None and not self._runs(record.slot)
            if record.ended or free:
                with suppress(LegationError):  # the server stops
                    await self.release(record, shared_too=shared_too)

    def sessions_in(self, slot: AgentSlot, host: AcpHost) -> list[tuple[SessionRecord, Session]]:
        """Return those that its process has."""
        held = _held(host, slot.agent_id) if slot.agent_id else []
        return [(record, session) for record, session in held if session.status == "active"]

    async def _stop_idle(self) -> None:
        """Stop idle agents, for as long as it is not cancelled."""
        while True:
            await self.clock.sleep(min(LOOK_EVERY, self._rest_after or LOOK_EVERY))
            for slot in dict.fromkeys(self.running.values()):
                try:
                    await slot.stop_if_idle()
                except LegationError as error:
                    logger.warning("cannot stop an agent that is idle, %s: %s", slot.agent, error.message)

    async def liveness(self, workspace: str, agent: str) -> Liveness:
        """Describe the processes of an agent. One that sessions share counts once; between its turns an agent may have
        none."""
        query = LastFailed(workspace, agent=agent)
        failed = await self._records.first(query, lambda each: bool(each.details.exit) and not each.ended)
        here = [each for each in self._records if (each.workspace, each.details.agent) == (workspace, agent)]
        active = [each.session for each in here if each.session is not None and each.status == "active"]
        found = (process(pid) for session in active for pid in session.agent.processes)
        processes = {each for each in found if each is not None and not each.dead}
        exit_ = failed.details.exit if failed is not None else None
        return Liveness(
            status="running" if active else "error" if exit_ else "stopped",
            restart_count=self._restarts[workspace, agent],
            last_error=exit_.words if exit_ else None,
            uptime_ms=round(max(each.age for each in processes) * 1000) if processes else None,
            processes=len(processes),
        )

    # Their sessions.

    def _own_slot(self, workspace: str, agent: str, cwd: Path | str, version: str | None = None) -> AgentSlot:
        return AgentSlot(
            self, workspace, agent, Path(cwd), shared=False, idle_after=self._rest_after, version=version
        )

    async def create(
        self,
        workspace: str,
        session_id: str,
        new: NewSession,
        details: Details,
        place: SessionPlace,
        slot: AgentSlot | None,
        forks: str | None = None,
    ) -> SessionRecord:
        """Create a session with an agent that is set as the details say, or none at all. `forks` is what the agent calls
        the one that it begins with."""
        from legation.agents.modes import current_mode
        from legation.server.sessions.options import Wanted, choose

        assert place.cwd is not None
        host = await self.hosts.host(workspace)
        # A client of ACP, whose slot it is, chooses among what it is offered.
        wanted = Wanted() if slot else Wanted(details.mode, details.model, details.variant)
        slot = slot or self._own_slot(workspace, details.agent, place.cwd, new.agent_version)

        async def prepare(opening: OpenedSession) -> Mapping[str, object]:
            nonlocal details
            details = replace(details, first_mode=current_mode(opening.offers))
            await choose(opening, wanted)
            return details.plain()

        with slot.joining():
            agent_id = (await slot.start()).agent_id
            try:
                await host.create_session(
                    agent_id,
                    cwd=place.cwd,
                    mcp_servers=place.mcp,
                    additional_directories=place.directories,
                    session_id=session_id,
                    title=new.title,
                    prepare=prepare,
                    forks=forks,
                )
            except BaseException as error:
                there = host.get_session(session_id)
                stands = there is not None and there.agent_id == agent_id  # and is not another of that name
                if stands and isinstance(error, asyncio.CancelledError):  # all of it is there: it stays
                    self._made(slot, host.session(session_id), details)
                else:
                    await asyncio.shield(self._unmake(host, slot, agent_id, session_id, stands=stands))
                raise
            return self._made(slot, host.session(session_id), details)

    def _made(self, slot: AgentSlot, session: Session, details: Details) -> SessionRecord:
        record = SessionRecord(slot.workspace, session.id, session.meta, details, session.stream.head)
        record.hold(session)
        record.slot, record.prepared = slot, session.process
        self._records.add(record)
        return record

    async def _unmake(
        self, host: AcpHost, slot: AgentSlot, agent_id: str, session_id: str, *, stands: bool
    ) -> None:
        """The store may have failed when it was there already."""
        if stands:
            with suppress(LegationError):
                await host.delete_session(agent_id, session_id)
        if not slot.shared:
            await slot.stop()

    async def import_session(self, slot: AgentSlot, session_id: str, place: SessionPlace) -> SessionRecord:
        """Take over one that only the agent knows. Whoever gives that up may find that it is there, all of it."""
        async with self._records.claim(slot.workspace, session_id, slot.agent) as now:
            with slot.joining():
                host = await self.hosts.host(slot.workspace)
                agent_id = (await slot.start()).agent_id
                details = foreign(slot.agent, now)
                try:
                    await host.resume_or_load(agent_id, session_id, place)
                except asyncio.CancelledError:
                    if host.get_session(session_id) is not None:
                        self._made(slot, host.session(session_id), details)
                    raise
                record = self._made(slot, host.session(session_id), details)
        await self._records.save(record, record.details)
        if place.mcp:
            await self.seal(record, place.mcp)
        return record

    async def attach(
        self,
        record: SessionRecord,
        *,
        slot: AgentSlot | None = None,
        place: SessionPlace | None = None,
        reopens: bool = False,
    ) -> Session:
        """Return the host's session with an agent that has it: the one that does, else that of the slot, or one of its
        own. `reopens`: also one that a client of ACP has closed."""
        async with record.lock:
            host = await self.hosts.host(record.workspace)
            session = await self._settled(host, record, reopens=reopens)
            if session.status == "active":
                await self._use(record, session)
                return session
            former = record.slot
            if former is not None and not former.shared:
                await former.stop()
            record.slot = slot = slot or self._own_slot(
                record.workspace, record.details.agent, record.meta.cwd
            )
            try:
                with slot.joining():
                    started = await slot.start()
                    # What an end decided meanwhile counts.
                    session = await self._settled(host, record, reopens=reopens)
                    if session.status != "active":
                        await self._take_up(host, started.agent_id, record, place, reopens=reopens)
                        must_be_open(record)  # it may have been ended also while its agent was set
                        return session
            except BaseException:
                await asyncio.shield(self._give_up(record, slot))
                raise
            record.slot = former  # its agent was started again by the host
            if not slot.shared:
                await slot.stop()
            await self._use(record, session)
            return session

    async def _use(self, record: SessionRecord, session: Session) -> None:
        """Keep its agent from being idle. One that the host has replaced is set as the session was."""
        from legation.server.sessions.options import set_again

        if record.slot is not None:
            record.slot.used()
        if record.prepared is not session.process:
            record.prepared = session.process
            await set_again(session, record.details)

    async def _settled(self, host: AcpHost, record: SessionRecord, *, reopens: bool) -> Session:
        """Return it when nobody is leaving it, or taking it up."""
        must_be_open(record, reopens=reopens)
        session = await host.until_settled(record.id)
        if record.session is not session:
            record.hold(session)
        must_be_open(record, reopens=reopens)
        return session

    async def _take_up(
        self,
        host: AcpHost,
        agent_id: str,
        record: SessionRecord,
        given: SessionPlace | None,
        *,
        reopens: bool,
    ) -> None:
        from legation.host.options import SessionPlace

        place = given or SessionPlace()
        servers = place.mcp or await self._secrets.open(record.workspace, record.details.sealed)
        await host.resume_or_load(agent_id, record.id, place._replace(mcp=servers), reopen=reopens)
        if place.mcp:
            await self.seal(record, place.mcp)
        await self._use(record, host.session(record.id))
        if record.details.exit is not None:
            self._restarts[record.workspace, record.details.agent] += 1
            await self._records.save(record, replace(record.details, exit=None))

    async def seal(self, record: SessionRecord, servers: tuple[McpServer, ...]) -> None:
        """Seal them in place of those that it had."""
        former = record.details.sealed
        async with self._secrets.sealed(
            record.workspace, record.id, servers, lambda: record.details.sealed is not former, former
        ) as sealed:
            names = tuple(each.name for each in servers)
            await self._records.save(record, replace(record.details, sealed=sealed, mcp=names))

    async def _give_up(self, record: SessionRecord, slot: AgentSlot) -> None:
        """Do what an end left to us, and stop what runs for it alone: nobody has it."""
        if not slot.shared:
            await slot.stop()
        if record.status != "active":
            await self.release(record)

    async def release(self, record: SessionRecord, *, shared_too: bool = False) -> None:
        """Let go of one that has ended, or has no agent, with its lock held: nothing of it runs, or is kept in memory.
        `shared_too`: also an agent that it shared, if no other session is left there."""
        host = await self.hosts.host(record.workspace)
        slot, session, record.slot = record.slot, record.session, None
        if slot is not None and (not slot.shared or (shared_too and not slot.has_other(record, host))):
            await slot.stop()
        if session is not None:
            await session.saved()
            await session.until_not_ending()  # else it would be let go of as one that is open
            # Nobody has taken it up meanwhile.
            if record.session is session and session.status in ("disconnected", "closed", "deleted"):
                host.forget_session(record.id)
                record.let_go(closed=session.status != "disconnected")


def _held(host: AcpHost, agent_id: str) -> list[tuple[SessionRecord, Session]]:
    held = [(each.holder, each) for each in host.sessions.values() if each.agent_id == agent_id]
    return [(record, session) for record, session in held if isinstance(record, SessionRecord)]


def _exit_of(session: Session) -> StoredExit | None:
    reason, _, _ = (session.reason or "").partition(":")
    if reason not in _BY_ITSELF or session.exit is None:
        return None
    tail = session.exit.stderr_tail
    return StoredExit(
        reason=reason,
        code=session.exit.code,
        signal=session.exit.signal,
        stderr=None if tail is None else tail[-STDERR_KEPT:],
    )
