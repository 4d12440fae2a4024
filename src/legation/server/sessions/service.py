"""The sessions of a server: made, found, given an agent, spoken to, ended. `/v1/sessions` and `/v1/acp` are faces of this."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Final, Self

from msgspec import UNSET
from msgspec.structs import replace

from legation.approvals.grants import GrantService
from legation.approvals.queue import ApprovalQueue
from legation.clock import new_id
from legation.errors import Conflict, InvalidParams, LegationError, NotFound, StorageFailed
from legation.server.sessions.agents import AgentSlot, SessionAgents
from legation.server.sessions.approvals import SessionApprovals, half_given, must_be_allowed, until_granted
from legation.server.sessions.hosts import WorkspaceHosts
from legation.server.sessions.messages import MessageQueue, links_to
from legation.server.sessions.record import (
    Deletion,
    Details,
    Owner,
    QueuedMessage,
    SealedServers,
    SessionRecord,
    SessionRecords,
    is_at_rest,
    must_be_idle,
    must_be_open,
    must_be_session_id,
    was_deleted,
)
from legation.store import audit
from legation.store.database.transaction import Queries, Transaction, rows
from legation.store.datafolder import WORK, folder_name, make_folder
from legation.store.entries import Due, Newest, WorkingIn
from legation.store.secrets.sealer import is_plain
from legation.store.secrets.vault import Vault
from legation.tasks import TaskSet
from legation.wire.acp.methods import McpServer
from legation.wire.acp.updates import ConfigOption, ResourceLink
from legation.wire.api.sessions import NewMessage, NewSession, SessionChange, SessionInfo, Words
from legation.wire.principal import Principal
from legation.wire.universal.shapes import Metadata

if TYPE_CHECKING:
    from legation.host.options import SessionPlace
    from legation.host.skills import Folder

UNSETTLED: Final = "unsettled"  # of the data folder: secrets of sessions that are being made

_SQL: Final = Queries("door")
_APPROVALS: Final = Queries("approvals")

logger = logging.getLogger("legation.sessions")


class SessionService:
    """`async with SessionService(...)`: what a killed server left is mended first; at its end no turn runs."""

    def __init__(
        self,
        records: SessionRecords,
        hosts: WorkspaceHosts,
        vault: Vault,
        inbox: ApprovalQueue,
        grants: GrantService,
        folder_of: Folder,
    ) -> None:
        self._clock = clock = hosts.log.clock
        self._data_dir = hosts.settings.data_dir
        self._secrets = SealedServers(vault, self._data_dir / UNSETTLED, clock)
        self.records = records
        self.agents = SessionAgents(hosts, records, self._secrets)
        self.messages = MessageQueue(records, self.agents, hosts.log, clock, hosts.items.ended)
        self.approvals = SessionApprovals(inbox, grants, records, clock)
        self.folder_of = folder_of
        self._hosts = hosts
        self._database = inbox.ledger.database
        self._ending = TaskSet("legation-session-end")

    async def __aenter__(self) -> Self:
        left = await self._left()
        await self.messages.recover()
        await self._secrets.recover(self._names)
        await self._recover_ended(left)
        self.messages.start()
        self.agents.start()
        return self

    async def _left(self) -> Mapping[SessionRecord, bool]:
        """Load what the end of the last server may have left half done, and nothing else: whether each has grants of its
        own."""
        workspaces, left = await self._database.read(_workspaces), dict[SessionRecord, bool]()
        for workspace in workspaces:
            async for _, info in self._hosts.log.each(Due(workspace)):
                if (record := await self.records.known(workspace, info.name)) is not None:
                    left[record] = False
        for workspace, session_id in await self.approvals.sessions_with_grants(workspaces):
            found = await self._hosts.log.lookup(session_id, workspace)
            if found is not None and found.state == "closed":  # such grants end with their session
                record = await self.records.known(workspace, session_id)
                left |= {} if record is None else {record: True}
        return left

    async def _names(self, owner: Owner) -> bool:
        """Tell whether a session has secrets of that owner: the one that they were sealed for, if that is known."""

        def has_them(record: SessionRecord) -> bool:
            return record.details.sealed is not None and record.details.sealed.owner == owner.name

        if owner.session is not None:
            record = await self.records.known(owner.workspace, owner.session)
            return record is not None and has_them(record)
        # An earlier release noted no session: any may be it.
        return await self.records.first(Newest(owner.workspace), has_them) is not None

    async def _recover_ended(self, left: Mapping[SessionRecord, bool]) -> None:
        """End what a killed server was making, or ending."""
        for record, has_grants in left.items():
            if record.details.deletion is not None:
                try:
                    await self._delete(record)
                except LegationError as error:  # nobody sees the session, and the next start tries again
                    logger.warning("cannot remove all of a deleted session, %s: %s", record.id, error.message)
                continue
            details = record.details
            entrusted = details.sealed or details.grant or has_grants or details.queue or details.begun
            if record.ended and entrusted:
                self.messages.drop(record)
                await self._settle(_host_of(record.workspace), record, details.updated_at)
            elif half_given(record.details):
                await self.approvals.withdraw_mode(_host_of(record.workspace), record)

    async def __aexit__(self, *_: object) -> None:
        self._hosts.cut_turns()  # also those that began since the server was told to stop
        await self.messages.close()
        await self._ending.close()  # what they leave is done at the next start
        await self.agents.close()

    # Made.

    async def create(
        self,
        by: Principal,
        session_id: str,
        new: NewSession,
        *,
        slot: AgentSlot | None = None,
        place: SessionPlace | None = None,
    ) -> SessionRecord:
        """Make all of it, or nothing: folder, skills, MCP servers, agent. Installs an agent that is locked and missing,
        which may take minutes. A client of ACP has a `slot` where the agent runs, and says the `place`."""
        from legation.host.launch import servers_of
        from legation.host.options import SessionPlace
        from legation.host.skills import put_in_place

        def is_made() -> bool:
            return self.records.held(workspace, session_id) is not None

        workspace, mode, own = by.workspace, new.permission_mode or "default", None
        must_be_allowed(by, mode)
        must_be_session_id(session_id)
        if new.fork is not None and new.continues is not None:
            raise InvalidParams(
                "cannot fork one session and continue another; give `fork` or `continues`",
                {"path": "$.continues"},
            )
        agent = (await self._hosts.launcher.entry(new.agent)).name
        async with self.records.claim(workspace, session_id, agent) as now:
            servers = place.mcp if place else servers_of(new.mcp)
            former = await self._forked(workspace, agent, new.fork)
            continued = None if new.continues is None else await self.records.get(workspace, new.continues)
            if continued is not None and continued.details.agent == agent:
                new = _set_as(new, continued.details)
                if new.mcp is None:
                    servers = await self._secrets.open(workspace, continued.details.sealed)
            if place is None:
                cwd, own = await self._folder(workspace, session_id, new.directory, former or continued)
                place = SessionPlace(cwd, servers)
            try:
                assert place.cwd is not None
                work = Path(place.cwd)
                skills = await put_in_place(new.skills, work, self.folder_of, self._hosts.forbidden)
                async with self._secrets.sealed(workspace, session_id, servers, is_made) as sealed:
                    details = replace(self._details(new, agent, skills, servers, now), sealed=sealed)
                    forks = former.meta.agent_session_id if former else None
                    record = await self.agents.create(workspace, session_id, new, details, place, slot, forks)
            except BaseException:
                # With the skills that were put there: the name may be another's next.
                if own is not None and not is_made():
                    await asyncio.shield(asyncio.to_thread(rmtree, own, ignore_errors=True))
                raise
            if continued is not None:
                await self.records.save(continued, replace(continued.details, continued_by=session_id))
        await self.approvals.give_mode(by, record, mode)
        return record

    async def _forked(self, workspace: str, agent: str, session_id: str | None) -> SessionRecord | None:
        if session_id is None:
            return None
        former = await self.records.get(workspace, session_id)
        if former.details.agent != agent:
            raise InvalidParams(
                f"cannot fork session {session_id} for {agent}: it is of {former.details.agent}; name that agent",
                {"path": "$.fork"},
            )
        return former

    def _details(
        self, new: NewSession, agent: str, skills: Sequence[str], servers: Sequence[McpServer], now: int
    ) -> Details:
        """A mode that takes a grant is noted when that is given."""
        asked = new.permission_mode or "default"
        agent_mode = new.agent_mode or "build"
        return Details(
            agent=agent,
            given=Metadata(agent, agent_mode, new.model, asked, new.variant),
            created_at=now,
            updated_at=now,
            agent_mode=agent_mode,
            permission_mode=until_granted(asked),
            model=new.model,
            variant=new.variant,
            title=new.title,
            mcp=tuple(server.name for server in servers),
            skills=tuple(skills),
            continues=new.continues,
            untold=new.continues is not None,
        )

    async def _folder(
        self, workspace: str, session_id: str, directory: str | None, former: SessionRecord | None
    ) -> tuple[Path, Path | None]:
        """Return where it works, and that again if it was made for it now."""
        if directory is not None:
            return await self.folder_of(directory), None
        if former is not None:
            return Path(former.meta.cwd), None
        own = self.own_folder(workspace, session_id)
        try:
            await asyncio.to_thread(make_folder, own.parent)
            await asyncio.to_thread(own.mkdir, mode=0o700)
        except FileExistsError:
            return own, None
        except OSError as error:
            raise StorageFailed(
                f"cannot make a folder for session {session_id}: {error.strerror}; mend that, or give a directory"
            ) from error
        return own, own

    def own_folder(self, workspace: str, session_id: str) -> Path:
        """Name the folder that is made for one that is given none."""
        return self._data_dir / WORK / workspace / folder_name(session_id)

    # Spoken to.

    async def send(self, record: SessionRecord, message: NewMessage) -> asyncio.Future[int]:
        """Accepted when this returns. What it returns resolves when its turn begins: to what the log has by then."""
        message_id = message.message_id or new_id("msg", now_ms=self._clock.now_ms())
        return await self.messages.send(record, await self._read(record, message, message_id))

    async def steer(self, record: SessionRecord, message: Words) -> None:
        """Say it to the turn that runs, where its agent takes something in meanwhile."""
        await self.messages.steer(record, await self._read(record, message))

    async def _read(self, record: SessionRecord, message: Words, message_id: str = "") -> QueuedMessage:
        must_be_open(record)
        if not message.message.strip() and not message.attachments:
            raise InvalidParams("cannot send an empty message; say something", {"path": "$.message"})
        links: tuple[ResourceLink, ...] = ()
        if message.attachments:
            forbidden = self._hosts.forbidden.in_workspace(record.workspace)
            links = await asyncio.to_thread(links_to, message.attachments, record.folders, forbidden)
        return QueuedMessage(id=message_id, text=message.message, links=links)

    # Changed.

    async def change(self, by: Principal, record: SessionRecord, change: SessionChange) -> SessionInfo:
        """Change it in mid-session; only what is given changes, and only if all of it can."""
        mode = change.permission_mode
        if mode is not None:
            must_be_allowed(by, mode)
        async with record.changing:
            must_be_open(record)
            await self._set(record, change)
            if mode is not None:
                await self.approvals.withdraw_mode(by, record)
                await self.approvals.give_mode(by, record, mode)
            title = UNSET if change.title is None else change.title
            details = replace(record.details, updated_at=self._clock.now_ms())
            if change.title is not None:
                details = replace(details, title=change.title)
            await self.records.save(record, details, title)
        return record.info()

    async def _set(self, record: SessionRecord, change: SessionChange) -> None:
        from legation.server.sessions.options import Wanted, choose  # with it the host

        before, asked = record.details, change.permission_mode
        given = {
            "agent_mode": change.agent_mode,
            "permission_mode": until_granted(asked) if asked else None,
            "model": change.model,
            "variant": change.variant,
        }
        # Nothing else: a client of ACP may choose, too, while an agent is given to it.
        changed = {name: value for name, value in given.items() if value}
        mode = replace(before, **changed).mode
        wanted = Wanted(
            mode=mode if mode != before.mode or change.agent_mode else None,
            model=change.model,
            variant=change.variant,
            first_mode=before.first_mode,
        )
        if wanted.mode or wanted.model or wanted.variant:
            await choose(await self.agents.attach(record), wanted)
        await self.records.save(record, replace(record.details, **changed))

    async def set_mode(self, record: SessionRecord, mode: str, slot: AgentSlot) -> None:
        """Set it for a client of ACP, in its agent's own words; it is set again of one that is started anew."""
        from legation.server.sessions.options import left_in

        session = await self.agents.attach(record, slot=slot)
        await session.set_mode(mode)
        await self._note_set(record, left_in(record.details, session.offers))

    async def set_option(
        self, record: SessionRecord, option: str, value: str | bool, slot: AgentSlot
    ) -> tuple[ConfigOption, ...]:
        """Set any option likewise."""
        from legation.server.sessions.options import chosen_in

        session = await self.agents.attach(record, slot=slot)
        options = await session.set_option(option, value)
        await self._note_set(record, chosen_in(record.details, session.offers, option))
        return options

    async def _note_set(self, record: SessionRecord, details: Details) -> None:
        if details != record.details:
            await self.records.save(record, details)

    # Ended.

    async def close(self, by: Principal, record: SessionRecord, *, reopens: bool) -> None:
        """Close it; idempotent, and its history stays. If it `reopens` a client of ACP may load it again; else no
        process of it is left. What it had ends before this returns; an agent that is being given to it is not waited
        for."""
        # To its end, also where whoever wanted it gives up: half of it would be another's to find.
        await self._ending.run(self._close(by, record, reopens=reopens))

    async def _close(self, by: Principal, record: SessionRecord, *, reopens: bool) -> None:
        async def settle() -> None:
            self.messages.drop(record)  # not before: where it cannot be closed, what was accepted is played
            await self._settle(by, record, self._clock.now_ms())

        first = not record.ended
        if first and not reopens:
            await self.messages.stop(record)
        if first or (record.meta.reopens and not reopens):
            host = await self._hosts.host(record.workspace)
            record.hold(await host.restore_session(record.id))
            await host.close_session(record.id, reopens=reopens, settle=settle)
        if record.ended and (record.details.sealed or record.details.grant):  # the first was cut off
            await settle()
        shared = record.slot is not None and record.slot.shared
        if record.lock.locked() and (shared or reopens):
            self.agents.forget_soon(record, shared_too=not reopens)
            return
        async with record.lock:
            if record.ended:
                await self.agents.release(record, shared_too=not reopens)

    async def delete(self, by: Principal, session_id: str, *, slot: AgentSlot | None = None) -> None:
        """Delete all that was recorded of it; its name is not used again. `slot` is that of the client of ACP that
        deletes it: its agent stays."""
        record = await self.records.known(by.workspace, session_id)  # also one whose deletion was cut off
        if record is None:
            record = await self.records.get(by.workspace, session_id)
        if slot is not None:
            slot.must_be_for(record)
        await self._ending.run(self._mark_and_delete(by, record, slot))

    async def at_rest(self, workspace: str, before_ms: int, *, over: bool = False) -> list[str]:
        """List those that ended, or were used last, before a time: nothing runs or waits in them, and nobody is asked. With
        `over`, only those that never go on."""
        asking = await self._asking(workspace)

        def named(record: SessionRecord) -> str | None:
            goes = is_at_rest(record, before_ms) and (not over or record.over)
            return record.id if goes and record.id not in asking else None

        found, _ = await self.records.listed(Newest(workspace), None, named)
        return [each for each in found if each is not None]

    async def delete_at_rest(self, by: Principal, session_id: str, before_ms: int) -> bool:
        """Delete one as `delete` does, unless it is used again by now; tell whether it was."""
        record = await self.records.find(by.workspace, session_id)
        if record is None:
            return False
        try:
            await self._ending.run(self._mark_and_delete(by, record, None, before_ms))
        except (NotFound, Conflict):
            return False
        return True

    async def _asking(self, workspace: str) -> set[str]:
        found = await self._database.read(rows, _APPROVALS.open_sessions(workspace=workspace))
        return {row["session_id"] for row in found}

    async def _mark_and_delete(
        self, by: Principal, record: SessionRecord, slot: AgentSlot | None, before_ms: int | None = None
    ) -> None:
        async with record.changing:
            if self.records.held(record.workspace, record.id) is not record:
                raise was_deleted(record.id)  # by whoever was before us
            if before_ms is not None:
                asked = record.id in await self._asking(record.workspace)
                if asked or not is_at_rest(record, before_ms):
                    raise Conflict(f"cannot delete session {record.id}: it is used again; leave it")
            if record.details.deletion is None:  # else it was cut off
                await self._mark_deleted(by, record)
            await self._delete(record, slot)

    async def _mark_deleted(self, by: Principal, record: SessionRecord) -> None:
        must_be_idle(record)
        now = self._clock.now_ms()
        deletion = Deletion(kind=by.kind, by=by.id, at=now, audit_id=new_id("aud", now_ms=now), via=by.via)
        try:
            await self.records.save(record, replace(record.details, deletion=deletion))
        except LegationError:  # it is as it was, and whoever asked is told so
            record.details = replace(record.details, deletion=None)
            raise

    async def _delete(self, record: SessionRecord, client: AgentSlot | None = None) -> None:
        """Delete it, its record last: whatever cuts this off, the next start knows what is left to do."""
        await self.messages.stop(record)
        self.messages.drop(record)
        async with record.lock:
            host = await self._hosts.host(record.workspace)
            session, slot = record.session, record.slot
            agent_id = session.agent_id if session is not None and session.status == "active" else None

            async def last() -> None:
                """No process of it is left, when what must not outlive its record goes. Its agent was told."""
                if slot is not None and (
                    not slot.shared or (slot is not client and not slot.has_other(record, host))
                ):
                    await slot.stop()
                await self._settle_deleted(record)

            await host.delete_session(agent_id or "", record.id, settle=last)
            record.slot = None
            record.let_go(closed=True)
            host.forget_session(record.id)
        self.records.delete(record)

    async def _settle_deleted(self, record: SessionRecord) -> None:
        deletion = record.details.deletion
        assert deletion is not None
        by = _host_of(record.workspace, deletion.kind, deletion.by, deletion.via)
        await self.approvals.end(by, record)
        self._hosts.items.deleted(record.workspace, record.id)
        await self._secrets.destroy(record.workspace, record.details.sealed)
        await self._remove_folder(record)
        await self.records.free(record)
        name = record.id  # which its client chose: it must be fit for an audit log
        if not is_plain(name):
            name = f"sha256:{sha256(name.encode()).hexdigest()[:24]}"
        await self._database.transact(
            audit.record, by, "session.deleted", name, {}, deletion.at, row_id=deletion.audit_id
        )

    async def _settle(self, by: Principal, record: SessionRecord, now: int) -> None:
        """End what was granted or entrusted to it, and what still waits in its name."""
        await self.approvals.end(by, record)
        await self._secrets.destroy(record.workspace, record.details.sealed)
        mode = until_granted(record.details.permission_mode)
        left = replace(record.details, sealed=None, grant=None, permission_mode=mode, updated_at=now)
        await self.records.save(record, left)

    async def _remove_folder(self, record: SessionRecord) -> None:
        """Remove one that was made for it, and that no other session works in: it is served with a session alone."""
        folder = Path(record.meta.cwd)
        work = await asyncio.to_thread(os.path.realpath, self._data_dir / WORK / record.workspace)
        if folder.parent == Path(work) and not await self.is_used(folder, (record.workspace, record.id)):
            await asyncio.to_thread(remove_folder, folder)

    async def is_used(self, folder: Path, besides: tuple[str, str]) -> bool:
        """Tell whether a session other than that one works there, or below."""

        def works_there(other: SessionRecord) -> bool:
            itself = (other.workspace, other.id) == besides
            return not itself and any(each.is_relative_to(folder) for each in other.folders)

        for workspace in await self._database.read(_workspaces):
            if await self.records.first(WorkingIn(workspace, folder=str(folder)), works_there) is not None:
                return True
        return False


def remove_folder(folder: Path) -> None:
    """Remove it with its read-only folders: package managers leave such ones."""
    for place, folders, _ in os.walk(folder):
        for each in (Path(place, name) for name in folders):
            with suppress(OSError):
                if not each.is_symlink():
                    each.chmod(0o700)
    rmtree(folder, ignore_errors=True)
    if folder.exists():
        logger.warning("cannot remove all of %s, the folder of a deleted session; remove it", folder)


def _set_as(new: NewSession, former: Details) -> NewSession:
    """Fill in what is not said. The permission mode is not: it may be a grant, which was for that one."""
    return replace(
        new,
        model=new.model or former.model,
        variant=new.variant or former.variant,
        agent_mode=new.agent_mode or former.agent_mode,
    )


def _host_of(workspace: str, kind: str = "process", name: str = "host", via: str | None = None) -> Principal:
    """Return who ends what nobody's credential ended here."""
    return Principal(kind=kind, id=name, workspace=workspace, scopes=frozenset(), level=0, via=via)


def _workspaces() -> Transaction[list[str]]:
    return [row["id"] for row in (yield _SQL.workspaces())]
