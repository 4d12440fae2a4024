"""One installation, opened: the services that the routes work with, and what goes on beside them while it is open."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import legation
from legation.approvals.approval import Approval, NoticeKind, NoticeReason
from legation.approvals.asks import AskService
from legation.approvals.calls import KeyedCalls
from legation.approvals.door import Door, DoorOptions
from legation.approvals.grants import GrantService
from legation.approvals.policies import Policies
from legation.approvals.queue import ApprovalQueue, Attendance, ChangeStream
from legation.approvals.request import Execute, OnCallEnded
from legation.approvals.sweep import ApprovalSweep, Notify
from legation.approvals.trace.chain import Chain, Ledger
from legation.approvals.trace.step import StepKind
from legation.approvals.upkeep import SignsOfLife, approvals_upkeep
from legation.clock import Clock, SteadyClock, new_id
from legation.errors import LegationError, StorageFailed
from legation.gateway.tools import Toolbox
from legation.proc import ProcessLauncher, Registry
from legation.redact import Redactor
from legation.server import inbox
from legation.server.acp.connections import AcpConnections
from legation.server.address import ServerAddress, browser_name, own_certificate, take_address
from legation.server.auth import ProcessTokens, TokenUses
from legation.server.fs.files import Files
from legation.server.fs.paths import ServedFolders
from legation.server.inbox import InboxItems, StuckRuns
from legation.server.installation import (
    bring_up_to_date,
    load_installation_keys,
    open_database,
    server_name,
    steady,
)
from legation.server.logs import secrets_of
from legation.server.processes.processes import Processes, record_starts
from legation.server.retention import Retention, retention_upkeep
from legation.server.sessions.clients import SessionClients
from legation.server.sessions.hosts import CHILDREN, WorkspaceHosts
from legation.server.sessions.record import SessionRecords
from legation.server.sessions.service import SessionService
from legation.server.streaming.hub import CheckpointKeeper, Hub
from legation.settings import Settings
from legation.store.audit import record
from legation.store.blobs.base import LinkSigner, open_blobs
from legation.store.codec import StorageTrouble
from legation.store.counters import FORGET_BATCH, Buckets, forget_full
from legation.store.database.transaction import Database, Queries, Transaction
from legation.store.datafolder import EVENTS, KEYS, SERVER, WORK, forget_broken_backups
from legation.store.forbidden import ForbiddenPlaces
from legation.store.identity.workspaces import bootstrap
from legation.store.log import EventLog
from legation.store.secrets.sealer import Sealer
from legation.store.secrets.vault import ContentStore, Vault, check_keys
from legation.store.sqlite import SqliteBackend
from legation.tasks import TaskSet
from legation.wire.event_types import Diagnostic, DiagnosticCode, ServerStarted, ServerStopped, draft

if TYPE_CHECKING:
    from legation.runs.events import RunEventStore, RunFeed
    from legation.runs.submit import RunSubmitter
    from legation.server.forward import Forwarder
    from legation.server.peers.claims import StreamClaims
    from legation.server.streaming.hub import StreamSource
    from legation.store.stream import Stream

SERVER_STREAM: Final = "server"
SERVER_WORKSPACE: Final = "local"
MOST_EARLY: Final = 100  # troubles from before the stream is open that it is told of
FIRST_WRITE_LIMIT: Final = 10.0  # seconds: the disk's time
SWEEP_INTERVAL: Final = 600.0  # seconds between two sweeps
NOTIFY_GRACE: Final = 1.0  # seconds: of notices that wait when the server stops

_DOOR_SQL: Final = Queries("door")

logger = logging.getLogger("legation.server")
store_logger = logging.getLogger("legation.store")
notify_logger = logging.getLogger("legation.notify")

Mode = Literal["up", "server"]


class Services:
    """Everything that the routes work with. It is opened in the order of `_open`; what was opened last is closed first."""

    def __init__(self, settings: Settings, mode: Mode, stop: Callable[[], None]) -> None:
        self.settings = settings
        self.mode = mode
        self.stop = stop
        self._run_feed: RunFeed | None = None
        self.rotating = asyncio.Lock()  # the keys are being changed
        self.backing_up = asyncio.Lock()
        self.replaying = asyncio.Lock()  # somebody's policy is being tried

    async def end_revoked(self) -> None:
        """End the streams of those who were revoked, disabled, removed, demoted or signed out, perhaps, and supersede what
        they wait for."""
        self.hub.recheck()
        try:
            await self.inbox.supersede_revoked()
        except LegationError as error:
            # It is done, so it does not fail: a database that went away is asked again by the upkeep of approvals, and
            # what is consumed is checked in any case.
            logger.warning("cannot supersede what a revoked credential waits for, and try again: %s", error)

    async def _open(self, stack: AsyncExitStack, clock: Clock) -> None:
        settings, enter = self.settings, stack.enter_async_context
        self.policies = Policies(settings.policy)
        # Closed after the door, which brings what it began to an end.
        self.toolbox = await enter(Toolbox.load(settings.tools, os.environ))
        self.database = database = await enter(open_database(settings, clock))
        forget_broken_backups(settings.data_dir)
        self.keys = load_installation_keys(settings)
        self.keys_file = settings.data_dir / KEYS  # those of them that are no settings
        await bring_up_to_date(database)
        troubles = LogTroubles()
        self.clock: Clock = await enter(steady(database, clock, troubles.clock_jumped))
        await check_keys(database, self.keys, self.clock.now_ms())
        # The first workspace and its owner.
        self.installed = await database.transact(bootstrap, new_id("usr"), now_ms=self.clock.now_ms())
        backend = SqliteBackend(settings.data_dir / EVENTS)
        self.log = await enter(EventLog(backend, clock=self.clock, report=troubles))
        self.address = take_address(settings, browser_name(self.keys.cookie))
        stack.callback(self.address.listener.close)
        self.public_url = self.address.public_url
        self.name = server_name(settings.data_dir / SERVER)
        self.process_tokens = ProcessTokens(self.keys, self.installed, self.name)
        self.own_token = self.process_tokens.add(settings.token)  # the CLI's, for as long as this server runs
        self.sealer = Sealer(self.keys.vault)
        self.vault = Vault(database, self.sealer, self.clock)
        self.content = ContentStore(database, self.sealer, self.clock)
        self.links = LinkSigner(
            self.keys.links, self.public_url, self.clock
        )  # to blobs in a folder; S3 signs its own
        await self._open_approvals(stack)
        await self._open_sessions(stack, troubles)
        self.started_at = self.clock.now_ms()
        self.blobs = open_blobs(settings.blobs, settings.data_dir, self.links)
        self.hub = Hub(self.log, self.clock, finders=[self._find_connection, self._find_run])
        self._stack = stack
        await enter(CheckpointKeeper(self.log, self.hub, self._is_session))
        self.buckets = Buckets(database, self.clock)
        self.mail_tasks = TaskSet("legation-sign-in-mail")
        stack.push_async_callback(self.mail_tasks.close)
        self.token_uses = await enter(TokenUses(database, self.clock))
        await enter(sweeper(database, self.clock))
        self.retention = Retention(settings, self.sessions, self.ledger, self.log, self.clock)
        await enter(retention_upkeep(self.retention, self.clock))
        await enter(StuckRuns(self))
        await enter(server_stream(self, troubles))

    # Nothing of runs is loaded before somebody asks for one.

    @cached_property
    def runs(self) -> RunSubmitter:
        """The way in for runs."""
        from legation.runs.run import RunCaps
        from legation.runs.submit import RunSubmitter

        settings = self.settings
        caps = RunCaps(
            concurrency=settings.run_concurrency,
            run_seconds=settings.run_timeout,
            suspensions=settings.run_suspensions,
            suspended_seconds=settings.run_suspended,
            retain=settings.run_retain,
        )
        return RunSubmitter(
            self.database,
            self.vault,
            self.content,
            self.clock,
            caps=caps,
            find_agent=lambda name: self.hosts.launcher.entry(name),
            policies=lambda: self.door.policies.current,
        )

    @cached_property
    def run_events(self) -> RunEventStore:
        from legation.runs.events import RunEventStore

        return RunEventStore(self.database, self.content, self.blobs)

    async def _find_run(self, name: str, workspace: str) -> StreamSource | None:
        if not name.startswith("run_"):
            return None
        if self._run_feed is None:
            from legation.runs.events import RunFeed

            self._run_feed = RunFeed(self.database, self.run_events)
            self._stack.push_async_exit(self._run_feed)
        return await self._run_feed.find(name, workspace)

    async def _open_approvals(self, stack: AsyncExitStack) -> None:
        """Open the door and all that it needs. It closes first: whoever waits is told before anything else ends."""
        settings, database, enter = self.settings, self.database, stack.enter_async_context
        self.ledger = Ledger(database, Chain(self.name, self.sealer, at_once=database.dialect == "postgres"))
        self.inbox = ApprovalQueue(self.ledger, self.clock, new_id("prc", now_ms=self.clock.now_ms()))
        self.inbox_items = await enter(InboxItems(database, self.log, self.clock, self.name))
        self.inbox.on_change(self.inbox_items.on_approval)
        self.attendance = Attendance(database, self.clock)
        self.changes = await enter(ChangeStream(self.log))  # of approvals, as a stream
        self.inbox.on_change(self.changes)
        for workspace in await database.read(_workspaces):
            await self.changes.open(workspace)
        ended = await enter(_telemetry(settings, database, self.sealer, self.name))
        if ended is not None:
            self.inbox.on_change(partial(_tell_end, ended, self.inbox.holder))
        # People follow links to where they are signed in.
        notify = await enter(_notifier(settings, self.clock, self.address.browser_url))
        wait_ms = round(settings.supervisor_wait * 1000)
        sweep = ApprovalSweep(self.inbox, self.attendance, notify, wait_ms)
        signs = SignsOfLife(round(settings.waiter_dead * 1000))
        await enter(approvals_upkeep(self.inbox, self.policies, sweep, signs, ended))
        self.grants = GrantService(
            database, self.sealer, self.clock, most_ms=round(settings.max_grant * 1000)
        )
        options = DoorOptions(
            timeout=settings.permission_timeout,
            most_pending=settings.pending_per_agent,
            grants=self.grants,
            supervisor_wait_ms=wait_ms,
            ended=ended,
        )
        self.door = await enter(Door(self.inbox, self.policies, options))
        self.calls = await enter(KeyedCalls(self.door, signs, self._find_tool))
        self.asks = AskService(self.door, signs)

    async def _open_claims(self, stack: AsyncExitStack, troubles: LogTroubles) -> StreamClaims | None:
        """Take part with the other servers of the database. Of a file there are none, and nothing is written for it."""
        if self.database.dialect == "sqlite":
            return None
        from legation.server.peers.claims import Peer, StreamClaims

        certificate = await asyncio.to_thread(own_certificate, self.settings)
        here = Peer(self.name, self.address.advertise_url, certificate, genuine=True)
        return await stack.enter_async_context(
            StreamClaims(self.database, self.log, self.clock, here, self.keys.pepper, troubles.held_elsewhere)
        )

    async def _open_sessions(self, stack: AsyncExitStack, troubles: LogTroubles) -> None:
        """Open what starts processes, and the files that they and the callers may reach."""
        settings, enter = self.settings, stack.enter_async_context
        folders = served_folders(settings)
        redactor = Redactor(
            (*secrets_of(settings), self.own_token, *self.toolbox.secrets)
        )  # of what agents say
        clients, forbidden = SessionClients(), ForbiddenPlaces.in_force(settings, os.environ, folders)
        self.hosts = await enter(  # agents and their sessions
            WorkspaceHosts(
                settings,
                self.log,
                self.door,
                self.installed.workspace,
                redactor,
                forbidden,
                clients,
                self.inbox_items,
            )
        )
        claims = await self._open_claims(stack, troubles)
        records = SessionRecords(self.log, claims)
        self.forwarder: Forwarder | None = None
        if claims is not None:
            from legation.server.forward import Forwarder

            self.forwarder = Forwarder(claims, records, self.process_tokens, self.clock)
            stack.callback(self.forwarder.close)
        served = ServedFolders(folders, forbidden)
        self.files = Files(served, records.folders_of, work=settings.data_dir / WORK)
        self.sessions = await enter(
            SessionService(records, self.hosts, self.vault, self.inbox, self.grants, self.files.folder)
        )
        self.processes = await enter(  # that operators started
            Processes(
                launcher=ProcessLauncher(registry=Registry(settings.data_dir / CHILDREN)),
                folder=self.files.folder,
                homes=settings.data_dir / "processes",
                record=record_starts(self.database, self.clock),
                clock=self.clock,
                enabled=settings.processes,
            )
        )
        self.acp = await enter(  # clients that take us for an agent
            AcpConnections(self.sessions, self.hosts, self.inbox, self.attendance, claims)
        )

    def _find_tool(self, name: str) -> Execute | None:
        tool = self.toolbox.get(name)
        return None if tool is None else tool.call

    def _is_session(self, workspace: str, name: str) -> bool:
        return self.sessions.records.held(workspace, name) is not None

    async def _find_connection(self, name: str, workspace: str) -> StreamSource | None:
        if not name.startswith("acp:"):
            return None
        from legation.server.acp.log import ConnectionSource

        stream = await self.log.find(name, workspace)
        return None if stream is None else ConnectionSource(self.log, stream)


@asynccontextmanager
async def open_instance(
    settings: Settings, *, mode: Mode, clock: Clock, stop: Callable[[], None]
) -> AsyncIterator[tuple[Services, ServerAddress]]:
    """Open everything. Nothing is changed before the folder is ours and the keys fit what they are to open."""
    async with AsyncExitStack() as stack:
        services = Services(settings, mode, stop)
        await services._open(stack, clock)
        yield services, services.address


def served_folders(settings: Settings) -> Sequence[Path]:
    """List the folders that sessions may work in: those that are named; else the home, and where the server was started."""
    if settings.folders:
        return settings.folders
    with suppress(OSError):  # a folder that is gone
        # Services start in `/` because nobody chose a folder for them.
        if (here := Path.cwd()) != Path("/"):
            return tuple(dict.fromkeys((Path.home(), here)))
    return (Path.home(),)


class LogTroubles:
    """Take the troubles of the log: to our log at once, and to the stream once that is open."""

    def __init__(self) -> None:
        self._stream: Stream | None = None
        self._early: list[StorageTrouble] = []  # told before there was a stream

    def __call__(self, trouble: StorageTrouble) -> None:
        store_logger.warning("%s: %s", trouble.code, trouble.message, extra={"stream": trouble.stream or ""})
        if self._stream is None:
            self._early = [*self._early[-MOST_EARLY:], trouble]
        else:
            self._append(self._stream, trouble)

    def clock_jumped(self, words: str) -> None:
        self(StorageTrouble("clock/jumped", words))

    def held_elsewhere(self, words: str) -> None:
        self(StorageTrouble("session/held-elsewhere", words))

    def go_to(self, stream: Stream | None) -> None:
        self._stream = stream
        if stream is not None:
            early, self._early = self._early, []
            for trouble in early:
                self._append(stream, trouble)

    def _append(self, stream: Stream, trouble: StorageTrouble) -> None:
        if trouble.stream != SERVER_STREAM:  # the name may be another's
            stream.append([draft(Diagnostic(code=DiagnosticCode(trouble.code), message=trouble.message))])


async def _record_change(services: Services, change: Literal["server.started", "server.stopped"]) -> None:
    actor, now = services.process_tokens.principal, services.clock.now_ms()
    details = {"version": legation.__version__}
    try:
        async with asyncio.timeout(FIRST_WRITE_LIMIT):
            await services.database.transact(record, actor, change, "server", details, now)
    except TimeoutError:
        raise StorageFailed(
            "cannot write to the audit log: the database does not take it; check its disk"
        ) from None


@asynccontextmanager
async def server_stream(services: Services, troubles: LogTroubles) -> AsyncIterator[None]:
    """Tell the stream `server` of the server's own life and of the troubles of its log."""
    stream = await services.log.stream(SERVER_STREAM, SERVER_WORKSPACE)
    started = ServerStarted(version=legation.__version__, mode=services.mode, url=services.public_url)
    receipt = stream.append([draft(started)])
    try:
        async with asyncio.timeout(FIRST_WRITE_LIMIT):
            await receipt
    except TimeoutError:
        raise StorageFailed(
            "cannot write to the event log: the disk does not take it; free some space"
        ) from None
    troubles.go_to(stream)
    await _record_change(services, "server.started")
    try:
        yield
    finally:
        troubles.go_to(None)
        try:
            await _record_change(services, "server.stopped")
        except LegationError as error:  # it ends all the same
            store_logger.warning("cannot note the end in the audit log: %s", error)
        stream.append([draft(ServerStopped())])  # the log saves it when it closes


@asynccontextmanager
async def sweeper(database: Database, clock: Clock) -> AsyncIterator[None]:
    """Forget, now and then, what is of no use to anybody any more, for as long as the block lasts."""
    task = asyncio.create_task(_sweep_again(database, clock), name="legation-sweeper")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _sweep_again(database: Database, clock: Clock) -> None:
    while True:
        await clock.sleep(SWEEP_INTERVAL)
        try:
            await sweep(database, clock.now_ms())
        except LegationError as error:  # the next sweep does what this one could not
            logger.warning("cannot sweep: %s", error)


async def sweep(database: Database, now_ms: int) -> int:
    """Forget rate limits that are full again, as good as never used, and what is old in the inbox. Return how many limits."""
    while await database.transact(inbox.forget, now_ms) == inbox.FORGET_BATCH:
        pass
    forgotten = found = await database.transact(forget_full, now_ms)
    while found == FORGET_BATCH:
        found = await database.transact(forget_full, now_ms)
        forgotten += found
    return forgotten


def _workspaces() -> Transaction[list[str]]:
    return [row["id"] for row in (yield _DOOR_SQL.workspaces())]


@asynccontextmanager
async def _telemetry(
    settings: Settings, database: Database, sealer: Sealer, server: str
) -> AsyncIterator[OnCallEnded | None]:
    if settings.otel_endpoint is None:
        yield None
        return
    from legation.approvals.trace.telemetry import Telemetry

    async with Telemetry(settings.otel_endpoint, database, sealer, server=server) as telemetry:
        yield telemetry.ended


def _tell_end(ended: OnCallEnded, holder: str, approval: Approval, step: StepKind) -> None:
    # Of those that the door does not wait for: its holder is gone, or an edited one stands in its place.
    others = approval.holder != holder or approval.replaced_by is not None
    if others and step in (StepKind.EXPIRED, StepKind.SUPERSEDED, StepKind.CANCELLED):
        ended(approval.workspace_id, approval.trace_id)


@asynccontextmanager
async def _notifier(settings: Settings, clock: Clock, browser_url: str) -> AsyncIterator[Notify | None]:
    if not (settings.notify_webhook or settings.notify_command or settings.notify_smtp):
        yield None  # nothing of it is even imported
        return
    from legation.approvals.notify import ApprovalNotice, Notifier, channels_of
    from legation.proc import ProcessLauncher, Registry

    def failed(channel: str, why: str) -> None:
        notify_logger.warning("cannot tell people of an approval by %s: %s", channel, why)

    launcher = ProcessLauncher(registry=Registry(settings.data_dir / CHILDREN))
    # What leaves the machine bears the machine's own time: receivers compare it with theirs.
    channels = channels_of(settings, clock.wall if isinstance(clock, SteadyClock) else clock, launcher)
    async with Notifier(channels, clock, failed, grace=NOTIFY_GRACE) as notifier:

        def notify(approval: Approval, moment: NoticeKind, why: NoticeReason) -> None:
            notifier.notify(
                ApprovalNotice.of(approval, moment, why, browser_url, clock.now_ms(), approval.reviewers)
            )

        yield notify
