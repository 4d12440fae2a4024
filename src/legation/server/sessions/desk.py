"""The sessions of a server: made, listed, spoken to, ended; whoever asks is known and may.

INV-S1  A session is seen in its own workspace alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from msgspec import UNSET
from msgspec.structs import replace

from legation.approvals.grants import Grants
from legation.approvals.inbox import Inbox
from legation.clock import Clock
from legation.errors import AgentExited, InvalidParams, LegationError, TransportClosed
from legation.ids import new_id
from legation.server.hosting import Hosting
from legation.server.sessions.answering import Answering
from legation.server.sessions.attachments import links_to
from legation.server.sessions.details import Cut, Deletion, Message, foreign, read_details
from legation.server.sessions.liveness import liveness
from legation.server.sessions.making import FolderOf, Making
from legation.server.sessions.mending import mend
from legation.server.sessions.mode_grants import (
    ModeGrants,
    half_given,
    must_be_allowed,
    until_granted,
    without_grant,
)
from legation.server.sessions.record import Record, must_be_idle, must_be_open, was_deleted
from legation.server.sessions.records import Records
from legation.server.sessions.resting import Resting
from legation.server.sessions.sealing import Sealing
from legation.server.sessions.turns import Turns
from legation.server.sessions.unsettled import Unsettled
from legation.store import audit
from legation.store.database.queries import Queries
from legation.store.database.transaction import Database, Transaction
from legation.store.forbidden import ForbiddenPlaces
from legation.store.log import EventLog
from legation.store.plain import is_plain
from legation.store.vault import Vault
from legation.wire.api.agents import Liveness
from legation.wire.api.sessions import (
    NewMessage,
    NewSession,
    PermissionReplyWord,
    SessionChange,
    SessionCreated,
    SessionInfo,
    Words,
)
from legation.wire.principal import Principal
from legation.wire.universal.facts import SessionFacts

if TYPE_CHECKING:
    from legation.host.session import Session
    from legation.server.sessions.attaching import Attaching

UNSETTLED: Final = "unsettled"  # of the data folder: secrets of sessions that are being made

_SQL: Final = Queries("door")

logger = logging.getLogger("legation.sessions")


class Desk:
    """`async with Desk(...)`: what a killed server left is mended first; at its end no turn runs."""

    def __init__(
        self,
        *,
        hosting: Hosting,
        log: EventLog,
        database: Database,
        vault: Vault,
        inbox: Inbox,
        grants: Grants,
        clock: Clock,
        data_dir: Path,
        folder_of: FolderOf,
        forbidden: ForbiddenPlaces,
        rest_after: float = 0,
    ) -> None:
        """`rest_after`: seconds after which an idle agent is stopped until the next message; 0: never."""
        self._forbidden = forbidden
        self._log = log
        self._database = database
        self._vault = vault
        self._clock = clock
        self._sealing = Sealing(vault, Unsettled(data_dir / UNSETTLED), clock)
        self._records = Records(log)
        self._hosting = hosting
        self._attached = False
        self._turns = Turns(self._records, lambda record: self._attaching.ensure(record), log, clock)
        self._making = Making(
            hosting=hosting,
            attaching=lambda: self._attaching,
            records=self._records,
            sealing=self._sealing,
            clock=clock,
            data_dir=data_dir,
            folder_of=folder_of,
            forbidden=forbidden,
        )
        self._inbox = inbox
        self._mode_grants = ModeGrants(inbox, grants, self._records, clock)
        self._answering = Answering(inbox, grants)
        self._resting = Resting(self._records, lambda record: self._attaching.rest(record), clock, rest_after)
        self._rests: asyncio.Task[None] | None = None

    @cached_property
    def _attaching(self) -> Attaching:
        """Made when it is first needed: it loads all that drives agents."""
        from legation.server.sessions.attaching import Attaching

        self._attached = True
        return Attaching(self._hosting, self._vault, self._records, self._ended_elsewhere)

    async def __aenter__(self) -> Self:
        await self.load()
        await mend(self._records, self._log)
        self._turns.go_on()
        await self._settle_leftovers()
        self._rests = asyncio.create_task(self._resting.run(), name="legation-sessions-rest")
        return self

    async def _settle_leftovers(self) -> None:
        """Of a server that was killed while it made a session, or ended one."""
        named = {record.details.sealed.owner for record in self._records if record.details.sealed}
        await self._sealing.settle(named)
        granted = await self._mode_grants.sessions(await self._database.read(_workspaces))
        for record in self._records:
            if record.details.deletion is not None:
                await self._bring_deletion_to_its_end(record)
                continue
            has_grants = (record.workspace, record.id) in granted
            if record.ended and (record.details.sealed or record.details.grant or has_grants):
                await self._settle(_host_of(record.workspace), record)
                await self._records.save(record, replace(record.details, sealed=None, grant=None))
            elif half_given(record.details):
                await self._mode_grants.withdraw(_host_of(record.workspace), record)

    async def load(self) -> None:
        """What the log has of sessions and this server does not know yet."""
        await self._records.load(await self._database.read(_workspaces))

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._rests is not None:
            self._rests.cancel()
            await asyncio.wait({self._rests})
        self._hosting.cut_turns()  # also those that began since the server was told to stop
        await self._turns.close()
        if self._attached:
            await self._attaching.close()

    # Seeing.

    def list(
        self, workspace: str, limit: int | None = None, cursor: str | None = None
    ) -> tuple[list[SessionInfo], str | None]:
        """The newest first, and the cursor of those behind them."""
        found, behind = self._records.page(workspace, limit, cursor)
        return [record.info() for record in found], behind

    def get(self, workspace: str, session_id: str) -> SessionInfo:
        return self._records.get(workspace, session_id).info()

    def facts(self, workspace: str, session_id: str) -> SessionFacts:
        """As the session was asked for."""
        return self._records.get(workspace, session_id).facts()

    def folders_of(self, session_id: str, workspace: str) -> Sequence[Path] | None:
        if self._records.was_deleted(workspace, session_id):
            raise was_deleted(session_id)
        record = self._records.find(workspace, session_id)
        return record.folders if record else None

    def liveness(self, workspace: str, agent: str) -> Liveness:
        """Of the processes of an agent."""
        mine = [record for record in self._records.of(workspace) if record.details.agent == agent]
        return liveness(mine, self._attaching.restarts[workspace, agent] if self._attached else 0)

    # Making.

    async def create(self, principal: Principal, session_id: str, new: NewSession) -> SessionCreated:
        """Installs the agent if it is locked and missing, which may take minutes."""
        mode = new.permission_mode or "default"
        must_be_allowed(principal, mode)
        record = await self._making.create(principal.workspace, session_id, new)
        await self._mode_grants.give(principal, record, mode)
        return SessionCreated(healthy=True, native_session_id=record.meta.agent_session_id or None)

    async def adopt(
        self,
        workspace: str,
        session: Session,
        agent: str,
        *,
        prompted: bool = False,
        over: bool = False,
        error: LegationError | None = None,
    ) -> None:
        """One that was opened, or taken up, another way: from now on it is seen and spoken to like any other.
        `prompted`: its client is about to prompt it. `over`: that has ended, with an `error` or without."""
        if session.status == "deleted":
            return
        if self._records.was_deleted(workspace, session.id):  # and nobody but us has to do with it any more
            raise was_deleted(session.id)
        record = self._records.known(workspace, session.id)
        if record is None:
            record = self._foreign(workspace, session, agent)
        if record.session is not session:
            record.session = session
            if session.meta.details != record.details.plain():
                await self._records.save(record, record.details)
            await self._attaching.host(workspace)  # from where its end is heard
        now, details = self._clock.now_ms(), record.details
        if prompted and session.busy:  # it will be refused
            await self._records.save(record, replace(details, updated_at=now))
        elif prompted:
            marked = replace(details, updated_at=now, prompted=session.stream.head, cut=None)
            await self._records.save(record, marked)
        elif over and details.prompted is not None and not session.busy:
            began = session.stream.head > details.prompted
            crashed = began and isinstance(error, AgentExited | TransportClosed)
            cut = Cut(at=now, reason=error.message) if crashed and error else details.cut
            await self._records.save(record, replace(details, prompted=None, cut=cut))

    def _foreign(self, workspace: str, session: Session, agent: str) -> Record:
        details = read_details(session.meta.details) or foreign(agent, self._clock.now_ms())
        record = Record(workspace, session.id, session.meta, details, head=session.stream.head, closed=False)
        self._records.add(record)
        return record

    # Speaking.

    async def send(self, workspace: str, session_id: str, message: NewMessage) -> asyncio.Future[int]:
        """Accepted when this returns. What it returns resolves when its turn begins: to what the log has by then."""
        record = self._records.get(workspace, session_id)
        message_id = message.message_id or new_id("msg", now_ms=self._clock.now_ms())
        return await self._turns.send(record, await self._read(record, message, message_id))

    async def steer(self, workspace: str, session_id: str, message: Words) -> None:
        """To the turn that runs, where its agent takes something in meanwhile."""
        record = self._records.get(workspace, session_id)
        await self._turns.steer(record, await self._read(record, message))

    async def cancel(self, workspace: str, session_id: str) -> None:
        await self._turns.cancel(self._records.get(workspace, session_id))

    async def ensure_agent(self, workspace: str, session_id: str) -> Session:
        """The host's session with an agent that runs, started again if it is gone."""
        return await self._attaching.ensure(self._records.get(workspace, session_id))

    async def reply_permission(
        self, principal: Principal, session_id: str, permission_id: str, reply: PermissionReplyWord
    ) -> None:
        record = self._records.get(principal.workspace, session_id)
        await self._answering.permission(principal, record, permission_id, reply)

    async def reply_question(
        self, principal: Principal, session_id: str, question_id: str, answers: Sequence[Sequence[str]]
    ) -> None:
        record = self._records.get(principal.workspace, session_id)
        self._answering.question(principal, record, question_id, answers)

    async def reject_question(self, principal: Principal, session_id: str, question_id: str) -> None:
        record = self._records.get(principal.workspace, session_id)
        self._answering.question(principal, record, question_id, None)

    # Changing.

    async def change(self, principal: Principal, session_id: str, change: SessionChange) -> SessionInfo:
        """In mid-session; only what is given changes, and only if all of it can."""
        record = self._records.get(principal.workspace, session_id)
        mode = change.permission_mode
        if mode is not None:
            must_be_allowed(principal, mode)
        async with record.changing:
            must_be_open(record)
            await self._set(record, change)
            if mode is not None:
                await self._mode_grants.withdraw(principal, record)
                await self._mode_grants.give(principal, record, mode)
            title = UNSET if change.title is None else change.title
            await self._records.save(record, replace(record.details, updated_at=self._clock.now_ms()), title)
        return record.info()

    async def _set(self, record: Record, change: SessionChange) -> None:
        before = record.details
        asked = change.permission_mode
        after = replace(
            before,
            agent_mode=change.agent_mode or before.agent_mode,
            permission_mode=until_granted(asked) if asked else before.permission_mode,
            model=change.model or before.model,
            variant=change.variant or before.variant,
        )
        now, then = before.mode, after.mode
        from legation.server.sessions.choosing import Wanted  # with it the host

        wanted = Wanted(
            mode=then if then != now or change.agent_mode else None,
            model=change.model,
            variant=change.variant,
            first_mode=before.first_mode,
        )
        if wanted.mode or wanted.model or wanted.variant:
            await self._attaching.choose(record, wanted)
        changed = {
            name: getattr(after, name) for name in ("agent_mode", "permission_mode", "model", "variant")
        }
        await self._records.save(record, replace(record.details, **changed))

    # Ending.

    async def terminate(self, principal: Principal, session_id: str) -> None:
        """Idempotent. No process of it is left; its history stays."""
        record = self._records.get(principal.workspace, session_id)
        now, first = self._clock.now_ms(), not record.ended
        if first:
            await self._turns.stop(record)
        if first or record.meta.reopens:  # no client of ACP loads it any more
            await self._attaching.end(record)
        # Also the second time: the first may have been cut off here.
        sealed = record.details.sealed
        await self._settle(principal, record)
        if first or sealed is not None:
            await self._records.save(record, replace(record.details, sealed=None, grant=None, updated_at=now))

    async def delete(self, principal: Principal, session_id: str, *, client_of: str | None = None) -> None:
        """For good, with all that was recorded of it: its name is left, so that it is not used again. `client_of` is the
        agent of the client of ACP that deletes it."""
        record = self._records.known(principal.workspace, session_id)
        if record is None:
            record = self._records.get(principal.workspace, session_id)
        if client_of is not None and record.details.agent != client_of:
            raise InvalidParams(
                f"cannot delete session {session_id} here: its agent is {record.details.agent}; connect with that"
            )
        async with record.changing:
            if self._records.known(principal.workspace, session_id) is not record:
                raise was_deleted(session_id)  # by whoever was before us
            if record.details.deletion is None:  # else it was cut off
                await self._mark_deleted(principal, record)
            await self._delete(record, clients_agent_stays=client_of is not None)

    async def _mark_deleted(self, principal: Principal, record: Record) -> None:
        must_be_idle(record)
        now = self._clock.now_ms()
        deletion = Deletion(
            kind=principal.kind,
            by=principal.id,
            at=now,
            audit_id=new_id("aud", now_ms=now),
            via=principal.via,
        )
        try:
            await self._records.save(record, replace(record.details, deletion=deletion))
        except LegationError:  # it is as it was, and whoever asked is told so
            record.details = replace(record.details, deletion=None)
            raise

    async def _delete(self, record: Record, *, clients_agent_stays: bool = False) -> None:
        """Its record is the last to go: whatever cuts this off, the next start knows what is left to do."""
        await self._turns.stop(record)
        settle = partial(self._settle_deleted, record)
        await self._attaching.delete(record, settle, clients_agent_stays=clients_agent_stays)
        self._records.bury(record)

    async def _settle_deleted(self, record: Record) -> None:
        deletion = record.details.deletion
        assert deletion is not None
        by = Principal(
            kind=deletion.kind,
            id=deletion.by,
            workspace=record.workspace,
            scopes=frozenset(),
            level=0,
            via=deletion.via,
        )
        await self._settle(by, record)
        await self._making.remove_folder(record)
        await self._database.transact(
            audit.record, by, "session.deleted", _plain(record.id), {}, deletion.at, row_id=deletion.audit_id
        )

    async def _bring_deletion_to_its_end(self, record: Record) -> None:
        try:
            await self._delete(record)
        except LegationError as error:  # nobody sees the session, and the next start tries again
            logger.warning("cannot remove all of a deleted session, %s: %s", record.id, error.message)

    async def _settle(self, principal: Principal, record: Record) -> None:
        """What was granted or entrusted to it goes with it, and what still waits in its name."""
        await self._inbox.supersede_session(record.workspace, record.id)
        await self._mode_grants.end(principal, record)
        await self._sealing.destroy(record.workspace, record.details.sealed)

    async def _read(self, record: Record, message: Words, message_id: str = "") -> Message:
        must_be_open(record)
        if not message.message.strip() and not message.attachments:
            raise InvalidParams("cannot send an empty message; say something", {"path": "$.message"})
        forbidden = self._forbidden.in_workspace(record.workspace)
        links = await asyncio.to_thread(links_to, message.attachments, record.folders, forbidden)
        return Message(id=message_id, text=message.message, links=links)

    async def _ended_elsewhere(self, record: Record, agent_id: str | None) -> None:
        """By a client of ACP, when that agent had it. One may have opened it again since: what is said to it then
        counts."""
        if record.ended:
            await self._turns.drop(record)
        await self._settle(_host_of(record.workspace), record)
        if record.status != "deleted":
            await self._records.save(record, replace(without_grant(record.details), sealed=None))
        await self._attaching.release(record, agent_id)


def _plain(session_id: str) -> str:
    """As an audit log may have it: its client chose it."""
    return session_id if is_plain(session_id) else f"sha256:{sha256(session_id.encode()).hexdigest()[:24]}"


def _host_of(workspace: str) -> Principal:
    """Who ends what nobody's credential ended here."""
    return Principal(kind="process", id="host", workspace=workspace, scopes=frozenset(), level=0)


def _workspaces() -> Transaction[list[str]]:
    return [row["id"] for row in (yield _SQL.workspaces())]
