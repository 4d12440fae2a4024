"""One installation, opened: keys, database, event log, blobs, hub. What was opened last is closed first."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import legation
from legation.approvals.approval import Approval, NoticeKind, NoticeReason
from legation.approvals.door import Door, DoorOptions
from legation.approvals.grants import GrantService
from legation.approvals.policies import Policies
from legation.approvals.queue import ApprovalQueue, Attendance, ChangeStream
from legation.approvals.request import OnCallEnded
from legation.approvals.trace.chain import Chain, Ledger
from legation.approvals.trace.step import StepKind
from legation.approvals.upkeep import approvals_upkeep
from legation.approvals.wait import Notify
from legation.clock import Clock
from legation.errors import ConfigInvalid, Conflict, LegationError, StorageFailed
from legation.gateway.tools import Toolbox
from legation.ids import new_id
from legation.proc import ProcessLauncher, Registry
from legation.redact import Redactor
from legation.server.acp.connections import AcpConnections
from legation.server.address import ServerAddress, browser_name, take_address
from legation.server.auth import ProcessTokens, TokenUses
from legation.server.fs.files import Files
from legation.server.fs.paths import ServedFolders
from legation.server.logs import secrets_of
from legation.server.processes.processes import Processes, record_starts
from legation.server.services import Mode, Services
from legation.server.sessions.clients import SessionClients
from legation.server.sessions.hosts import CHILDREN, WorkspaceHosts
from legation.server.sessions.record import SessionRecords
from legation.server.sessions.service import SessionService
from legation.server.streaming.hub import Hub
from legation.settings import Settings
from legation.store.audit import record
from legation.store.backend import StorageTrouble
from legation.store.backup import forget_broken_backups
from legation.store.blobs.base import LinkSigner, open_blobs
from legation.store.counters import FORGET_BATCH, Buckets, forget_full
from legation.store.database import migrations
from legation.store.database.postgres import PostgresDatabase
from legation.store.database.sqlite import SqliteDatabase
from legation.store.database.transaction import Database, Queries, Transaction
from legation.store.datafolder import (
    DATABASE,
    EVENTS,
    KEYS,
    SERVER,
    WORK,
    close_folders,
    cut_off,
    make_folder,
)
from legation.store.files import write_all, write_atomically
from legation.store.forbidden import ForbiddenPlaces
from legation.store.identity.workspaces import bootstrap
from legation.store.log import EventLog
from legation.store.secrets.keys import Keys, load_keys
from legation.store.secrets.sealing import Sealer
from legation.store.secrets.vault import Vault, check_keys
from legation.store.sqlite import SqliteBackend
from legation.store.steadyclock import SteadyClock, steady
from legation.wire.codec import draft
from legation.wire.event_types import Diagnostic, DiagnosticCode, ServerStarted, ServerStopped

if TYPE_CHECKING:
    from legation.server.streaming.hub import StreamSource
    from legation.store.stream import Stream

SERVER_STREAM: Final = "server"
SERVER_WORKSPACE: Final = "local"
MOST_EARLY: Final = 100  # troubles from before the stream is open that it is told of
FIRST_WRITE_LIMIT: Final = 10.0  # seconds: the disk's time
SWEEP_INTERVAL: Final = 600.0  # seconds between two sweeps
NOTIFY_GRACE: Final = 1.0  # seconds: of notices that wait when the server stops

_DOOR_SQL: Final = Queries("door")


def server_name(path: Path) -> str:
    """A folder belongs to one process at a time, so a name does too."""
    try:
        kept = path.read_text("ascii").strip() if path.exists() else ""
        if re.fullmatch(r"srv_[0-9a-z]+", kept):
            return kept
        name = new_id("srv")
        write_atomically(path, f"{name}\n".encode())
    except (OSError, ValueError) as error:
        raise StorageFailed(
            f"cannot keep the server's name in {path}: remove the file, or mend its disk"
        ) from error
    return name


store_logger = logging.getLogger("legation.store")


class LogTroubles:
    """Where the log tells its troubles: to our log at once, and to the stream once that is open."""

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


sweep_logger = logging.getLogger("legation.server")


@asynccontextmanager
async def sweeper(database: Database, clock: Clock) -> AsyncIterator[None]:
    """For as long as the block lasts; owns its task."""
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
            sweep_logger.warning("cannot sweep: %s", error)


async def sweep(database: Database, now_ms: int) -> int:
    """Rate limits that are full again, as good as never used. How many."""
    forgotten = found = await database.transact(forget_full, now_ms)
    while found == FORGET_BATCH:
        found = await database.transact(forget_full, now_ms)
        forgotten += found
    return forgotten


notify_logger = logging.getLogger("legation.notify")


@dataclass(frozen=True, slots=True)
class ApprovalServices:
    policies: Policies
    ledger: Ledger
    inbox: ApprovalQueue
    changes: ChangeStream
    attendance: Attendance
    grants: GrantService
    door: Door


@asynccontextmanager
async def open_approvals(
    settings: Settings,
    database: Database,
    sealer: Sealer,
    log: EventLog,
    clock: Clock,
    policies: Policies,
    browser_url: str,
) -> AsyncIterator[ApprovalServices]:
    """The door closes first: whoever waits is told before anything else ends. People follow links to `browser_url`,
    where they are signed in."""
    async with AsyncExitStack() as stack:
        name = server_name(settings.data_dir / SERVER)
        ledger = Ledger(database, Chain(name, sealer, at_once=database.dialect == "postgres"))
        inbox = ApprovalQueue(ledger, clock, new_id("prc", now_ms=clock.now_ms()))
        attendance = Attendance(database, clock)
        changes = await stack.enter_async_context(ChangeStream(log))
        inbox.on_change(changes)
        for workspace in await database.read(_workspaces):
            await changes.open(workspace)
        ended = await stack.enter_async_context(_telemetry(settings, database, sealer, name))
        if ended is not None:
            inbox.on_change(partial(_tell_end, ended, inbox.waiter))
        await stack.enter_async_context(approvals_upkeep(inbox, policies, ended))
        grants = GrantService(database, sealer, clock, most_ms=round(settings.max_grant * 1000))
        habits = DoorOptions(
            timeout=settings.permission_timeout,
            most_pending=settings.pending_per_agent,
            grants=grants,
            supervisor_wait_ms=round(settings.supervisor_wait * 1000),
            ended=ended,
            notify=await stack.enter_async_context(_notifying(settings, clock, browser_url)),
        )
        door = await stack.enter_async_context(Door(inbox, policies, attendance, habits))
        yield ApprovalServices(policies, ledger, inbox, changes, attendance, grants, door)


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


def _tell_end(ended: OnCallEnded, waiter: str, approval: Approval, step: StepKind) -> None:
    """Of those that the door does not wait for: its waiter is dead, or an edited one stands in its place."""
    others = approval.waiter != waiter or approval.replaced_by is not None
    if others and step in (StepKind.EXPIRED, StepKind.SUPERSEDED, StepKind.CANCELLED):
        ended(approval.workspace_id, approval.trace_id)


@asynccontextmanager
async def _notifying(settings: Settings, clock: Clock, browser_url: str) -> AsyncIterator[Notify | None]:
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


@asynccontextmanager
async def open_instance(
    settings: Settings, *, mode: Mode, clock: Clock, stop: Callable[[], None]
) -> AsyncIterator[tuple[Services, ServerAddress]]:
    """Nothing is changed before the folder is ours and the keys fit what they are to open."""
    async with AsyncExitStack() as stack:
        policies = Policies(settings.policy)
        # Closed after the door, which brings what it began to an end.
        toolbox = await stack.enter_async_context(Toolbox.load(settings.tools, os.environ))
        database = await stack.enter_async_context(open_database(settings, clock))
        forget_broken_backups(settings.data_dir)
        keys = load_installation_keys(settings)
        await bring_up_to_date(database)
        troubles = LogTroubles()
        clock = await stack.enter_async_context(steady(database, clock, troubles.clock_jumped))
        await check_keys(database, keys, clock.now_ms())
        installed = await database.transact(bootstrap, new_id("usr"), now_ms=clock.now_ms())
        backend = SqliteBackend(settings.data_dir / EVENTS)
        log = await stack.enter_async_context(EventLog(backend, clock=clock, report=troubles))
        address = take_address(settings, browser_name(keys.cookie))
        stack.callback(address.listener.close)
        process_tokens, sealer = ProcessTokens(keys, installed), Sealer(keys.vault)
        own_token = process_tokens.add(settings.token)
        links = LinkSigner(keys.links, address.public_url, clock)
        door = await stack.enter_async_context(
            open_approvals(settings, database, sealer, log, clock, policies, address.browser_url)
        )
        redactor = Redactor((*secrets_of(settings), own_token, *toolbox.secrets))  # of what agents say
        clients, forbidden = SessionClients(), ForbiddenPlaces.in_force(settings, os.environ)
        hosts = await stack.enter_async_context(
            WorkspaceHosts(settings, log, door.door, installed.workspace, redactor, forbidden, clients)
        )
        vault = Vault(database, sealer, clock)
        roots = ServedFolders(settings.folders or [Path.home()], forbidden)
        records = SessionRecords(log)
        files = Files(roots, records.folders_of, work=settings.data_dir / WORK)
        sessions = await stack.enter_async_context(
            SessionService(
                records,
                hosts=hosts,
                log=log,
                database=database,
                vault=vault,
                inbox=door.queue,
                grants=door.grants,
                clock=clock,
                data_dir=settings.data_dir,
                folder_of=files.folder,
                forbidden=forbidden,
                rest_after=settings.agent_rest,
            )
        )
        processes = await stack.enter_async_context(
            Processes(
                launcher=ProcessLauncher(registry=Registry(settings.data_dir / CHILDREN)),
                folder=files.folder,
                homes=settings.data_dir / "processes",
                record=record_starts(database, clock),
                clock=clock,
                enabled=settings.processes,
            )
        )
        acp = await stack.enter_async_context(
            AcpConnections(
                log=log,
                sessions=sessions,
                clients=clients,
                inbox=door.queue,
                attendance=door.attendance,
                supervisor_wait_ms=round(settings.supervisor_wait * 1000),
                work=settings.data_dir / WORK,
            )
        )

        async def find_told(name: str, workspace: str) -> StreamSource | None:
            if not name.startswith("acp:"):
                return None
            from legation.server.acp.source import find

            return await find(log, name, workspace)

        services = Services(
            settings=settings,
            mode=mode,
            clock=clock,
            started_at=clock.now_ms(),
            public_url=address.public_url,
            local_url=address.local_url,
            browser_url=address.browser_url,
            database=database,
            keys=keys,
            rotating=asyncio.Lock(),
            backing_up=asyncio.Lock(),
            replaying=asyncio.Lock(),
            keys_file=settings.data_dir / KEYS,
            sealer=sealer,
            vault=vault,
            blobs=open_blobs(settings.blobs, settings.data_dir, links),
            links=links,
            log=log,
            hub=Hub(log, clock, finders=[find_told]),
            process_tokens=process_tokens,
            buckets=Buckets(database, clock),
            token_uses=await stack.enter_async_context(TokenUses(database, clock)),
            policies=door.policies,
            ledger=door.ledger,
            inbox=door.queue,
            changes=door.changes,
            attendance=door.attendance,
            grants=door.grants,
            door=door.door,
            toolbox=toolbox,
            hosts=hosts,
            sessions=sessions,
            acp=acp,
            files=files,
            processes=processes,
            own_token=own_token,
            installed=installed,
            stop=stop,
        )
        await stack.enter_async_context(sweeper(database, clock))
        await stack.enter_async_context(server_stream(services, troubles))
        yield services, address


def prepare_folder(folder: Path) -> None:
    """Private to its owner, and writable: told here, before anything is opened in it."""
    if (aside := cut_off(folder)) is not None:
        raise Conflict(
            f"cannot start on {folder}: a restore was cut off, and what was there is in {aside}; "
            "restore again, or give that its name back"
        )
    try:
        make_folder(folder)
        _must_be_ours(folder)
        close_folders(folder)
        fd, probe = tempfile.mkstemp(prefix=".writable-", dir=folder)
        try:
            write_all(fd, bytes(4096), 0)
        finally:
            os.close(fd)
            Path(probe).unlink()
    except OSError as error:
        raise StorageFailed(
            f"cannot write to {folder}: {error.strerror}; mend that, or choose another folder with --data-dir"
        ) from error


def _must_be_ours(folder: Path) -> None:
    """Who else may write there could put a link in the place of any file that we are about to write."""
    status = folder.stat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise ConfigInvalid(
            f"cannot use {folder}: others can write to it; give it to this user with chown, and run `chmod 700 {folder}`"
        )


@asynccontextmanager
async def open_database(settings: Settings, clock: Clock) -> AsyncIterator[Database]:
    if settings.database_url is not None:
        async with PostgresDatabase(settings.database_url, clock=clock) as postgres:
            yield postgres
    else:
        async with SqliteDatabase(settings.data_dir / DATABASE, clock=clock) as sqlite:
            yield sqlite


def load_installation_keys(settings: Settings) -> Keys:
    given = {name: getattr(settings, name) for name in ("vault_key", "token_pepper", "cookie_key")}
    return load_keys(settings.data_dir / KEYS, given, require_given=settings.database_url is not None)


async def bring_up_to_date(database: Database) -> None:
    """A file of ours is migrated by whoever opens it; a shared database only when its owner says so."""
    if database.dialect == "sqlite":
        await database.migrate()
        return
    version = await database.version()
    if version != migrations.newest():
        raise StorageFailed(
            f"cannot use the database: its schema is {version} and this Legation needs {migrations.newest()}; run "
            "`legation migrate`, or the Legation that fits"
        )
