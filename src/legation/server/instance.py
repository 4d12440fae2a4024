"""One installation, opened: keys, database, event log, blobs, hub. What was opened last is closed first."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from legation.approvals.policies import Policies
from legation.clock import Clock
from legation.errors import ConfigInvalid, Conflict, StorageFailed
from legation.gateway.toolbox import Toolbox
from legation.ids import new_id
from legation.proc import ProcessLauncher, Registry
from legation.redact import Redactor
from legation.server.acp.connections import AcpConnections
from legation.server.address import Address, browser_name, take_address
from legation.server.approving import approving
from legation.server.fs.files import Files
from legation.server.fs.roots import Roots
from legation.server.identity.process_tokens import ProcessTokens
from legation.server.identity.token_uses import TokenUses
from legation.server.life import Troubles, living
from legation.server.logs import secrets_of
from legation.server.processes.auditing import recording
from legation.server.processes.processes import Means, Processes
from legation.server.services import Mode, Services
from legation.server.sessions.clients import SessionClients
from legation.server.sessions.hosts import CHILDREN, WorkspaceHosts
from legation.server.sessions.record import SessionRecords
from legation.server.sessions.service import SessionService
from legation.server.streaming.hub import Hub
from legation.server.sweeper import sweeping
from legation.settings import Settings
from legation.store.archive import forget_broken_backups
from legation.store.blobs.blobs import open_blobs
from legation.store.blobs.links import LinkSigner
from legation.store.buckets import Buckets
from legation.store.database import migrations
from legation.store.database.postgres import PostgresDatabase
from legation.store.database.sqlite import SqliteDatabase
from legation.store.database.transaction import Database
from legation.store.datafolder import DATABASE, EVENTS, KEYS, WORK, close_folders, cut_off, make_folder
from legation.store.forbidden import ForbiddenPlaces
from legation.store.identity.bootstrap import bootstrap
from legation.store.keychecks import check_keys
from legation.store.keys import Keys, load_keys
from legation.store.linefile import write_all
from legation.store.log import EventLog
from legation.store.sealing import Sealer
from legation.store.sqlite import SqliteBackend
from legation.store.steadyclock import steady
from legation.store.vault import Vault

if TYPE_CHECKING:
    from legation.server.streaming.channel import Source


@asynccontextmanager
async def open_instance(
    settings: Settings, *, mode: Mode, clock: Clock, stop: Callable[[], None]
) -> AsyncIterator[tuple[Services, Address]]:
    """Nothing is changed before the folder is ours and the keys fit what they are to open."""
    async with AsyncExitStack() as stack:
        policies = Policies(settings.policy)
        # Closed after the door, which brings what it began to an end.
        toolbox = await stack.enter_async_context(Toolbox.load(settings.tools, os.environ))
        database = await stack.enter_async_context(open_database(settings, clock))
        forget_broken_backups(settings.data_dir)
        keys = load_installation_keys(settings)
        await bring_up_to_date(database)
        troubles = Troubles()
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
            approving(settings, database, sealer, log, clock, policies, address.browser_url)
        )
        redactor = Redactor((*secrets_of(settings), own_token, *toolbox.secrets))  # of what agents say
        clients, forbidden = SessionClients(), ForbiddenPlaces.in_force(settings, os.environ)
        hosts = await stack.enter_async_context(
            WorkspaceHosts(settings, log, door.door, installed.workspace, redactor, forbidden, clients)
        )
        vault = Vault(database, sealer, clock)
        roots = Roots(settings.folders or [Path.home()], forbidden)
        records = SessionRecords(log)
        files = Files(roots, records.folders_of, work=settings.data_dir / WORK)
        sessions = await stack.enter_async_context(
            SessionService(
                records,
                hosts=hosts,
                log=log,
                database=database,
                vault=vault,
                inbox=door.inbox,
                grants=door.grants,
                clock=clock,
                data_dir=settings.data_dir,
                folder_of=files.folder,
                forbidden=forbidden,
                rest_after=settings.agent_rest,
            )
        )
        means = Means(
            launcher=ProcessLauncher(registry=Registry(settings.data_dir / CHILDREN)),
            folder=files.folder,
            homes=settings.data_dir / "processes",
            record=recording(database, clock),
            clock=clock,
        )
        processes = await stack.enter_async_context(Processes(means, enabled=settings.processes))

        acp = await stack.enter_async_context(
            AcpConnections(
                log=log,
                sessions=sessions,
                clients=clients,
                inbox=door.inbox,
                attendance=door.attendance,
                supervisor_wait_ms=round(settings.supervisor_wait * 1000),
                work=settings.data_dir / WORK,
            )
        )

        async def find_told(name: str, workspace: str) -> Source | None:
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
            inbox=door.inbox,
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
        await stack.enter_async_context(sweeping(database, clock))
        await stack.enter_async_context(living(services, troubles))
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
