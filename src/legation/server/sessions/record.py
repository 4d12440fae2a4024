"""Sessions as the server knows them, whether or not an agent has them: small, for there may be many.

What is kept of one beside its events (how it was asked for, how it is set, what waits for it) stands in the stream's
metadata, in the clear, so nothing of it is a secret: MCP servers are in the vault.

INV-S1  A session is seen in its own workspace alone.
INV-L1  What is sealed has a session on record, or is destroyed: now, or at the next start of a server that was killed. A small
        file says what is being sealed: whoever shares the database has secrets there too, so that no session of ours
        names one does not make it nobody's.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar, cast, dataclass_transform
from weakref import WeakValueDictionary

import msgspec
from msgspec import UNSET, UnsetType

from legation.clock import Clock, new_id
from legation.errors import Conflict, InvalidParams, NotFound, PromptInFlight, SessionClosed, StorageFailed
from legation.store.codec import StreamInfo
from legation.store.datafolder import make_folder
from legation.store.entries import Due, Newest, Place, StreamQuery, entry_of, is_session, told_ms
from legation.store.log import EventLog
from legation.store.secrets.vault import Vault
from legation.wire.acp.methods import McpServer
from legation.wire.acp.updates import ResourceLink
from legation.wire.api.approvals import Value
from legation.wire.api.sessions import PermissionMode, SessionInfo
from legation.wire.event_types import Status
from legation.wire.universal.shapes import Metadata, SessionFacts

if TYPE_CHECKING:
    from legation.host.options import SessionMeta
    from legation.host.session import Session
    from legation.server.sessions.agents import AgentSlot


@dataclass_transform(frozen_default=True, kw_only_default=True)
class StoredStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A member that a later release adds is ignored by an older one."""


class QueuedMessage(StoredStruct):
    """Message that was accepted. Those of releases that gave them no id have none."""

    text: str
    links: tuple[ResourceLink, ...] = ()
    id: str = ""

    @property
    def size(self) -> int:
        return len(self.text) + sum(len(link.uri) for link in self.links)


class Begun(StoredStruct):
    """A message on its way to the agent: whatever the log has of its turn stands above `after`."""

    message: QueuedMessage
    after: int


class StoredExit(StoredStruct):
    """End of the agent's process, where it was not we who ended it."""

    reason: str
    code: int | None = None
    signal: int | None = None
    stderr: str | None = None

    @property
    def words(self) -> str:
        how = f"signal {self.signal}" if self.signal is not None else f"exit code {self.code}"
        return f"{self.reason}: {how}"

    def shown(self) -> dict[str, Value]:
        return {"reason": self.reason, "code": self.code, "signal": self.signal, "stderr": self.stderr}


class CutTurn(StoredStruct):
    """The last turn, where it ended without a word of its agent's: the server, or the agent's process, ended before."""

    at: int  # when that was noticed
    reason: str

    def shown(self) -> dict[str, Value]:
        return {"at": self.at, "reason": self.reason}


class Sealed(StoredStruct):
    """Place of the MCP servers in the vault."""

    owner: str
    bundle: str


class Deletion(StoredStruct):
    """Mark of who deleted it, and when: from then on it is gone for everybody. What is left is removed then, or at the
    next start."""

    kind: str
    by: str
    at: int
    audit_id: str  # of the row that says so: one, however often the rest is tried
    via: str | None = None


class Details(StoredStruct):
    """`given` is as it was asked for; the others are as they are now. `first_mode` is the agent's own."""

    agent: str
    given: Metadata
    created_at: int
    updated_at: int
    agent_mode: str = "build"
    permission_mode: PermissionMode = "default"
    model: str | None = None
    variant: str | None = None
    directory: str | None = None
    mcp: tuple[str, ...] = ()
    skills: tuple[str, ...] = ()
    sealed: Sealed | None = None
    grant: str | None = None  # what the permission mode stands for
    first_mode: str | None = None
    exit: StoredExit | None = None
    queue: tuple[QueuedMessage, ...] = ()
    begun: Begun | None = None
    deletion: Deletion | None = None
    # A client of ACP has the word: what the log has of its turn stands above that.
    prompted: int | None = None
    cut: CutTurn | None = None  # until the next turn begins
    continues: str | None = None
    untold: bool = False  # its agent has not heard what was said in the session that it continues
    continued_by: str | None = None

    @property
    def mode(self) -> str:
        """The agent's, as it is to be."""
        return "plan" if self.permission_mode == "plan" else self.agent_mode

    def plain(self) -> dict[str, object]:
        return cast(dict[str, object], msgspec.to_builtins(self))


def foreign(agent: str, now: int) -> Details:
    """Return the details of a session that a client of ACP opens."""
    given = Metadata(agent, "build", None, "default", None)
    return Details(agent=agent, given=given, created_at=now, updated_at=now)


def read_details(given: Mapping[str, object] | None) -> Details | None:
    """Return None for a session that was not made here."""
    try:
        return None if given is None else msgspec.convert(given, Details)
    except msgspec.ValidationError:
        return None


T = TypeVar("T")
Key = tuple[str, str]
CURSOR: Final = r"^[0-9]{1,15}\.[A-Za-z0-9_.-]{1,128}$"
# Streams that are no sessions.
RESERVED: Final = frozenset(
    ("server", "host", "approvals", "traces", "trace", "policy", "runs", "sessions", "processes", "acp")
)
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}", re.ASCII)
AT_ONCE: Final = (
    500  # records that are read together, where all are asked for: others have their turn in between
)


def must_be_session_id(text: str) -> str:
    if _NAME.fullmatch(text) and text.strip(".") and text not in RESERVED:
        return text
    raise InvalidParams(
        "cannot use that as a session's id: give 1 to 128 letters, digits, `_`, `.` and `-`, not only dots, and none "
        f"of {', '.join(sorted(RESERVED))}",
        {"type": "invalid_request"},
    )


@dataclass(slots=True, eq=False, weakref_slot=True)
class SessionRecord:
    """Session as the server knows it. `session` is the host's, while there is something to keep in memory; then, and
    while it has a `slot` or a worker, the record is in `used`, which is the owner's: it is not forgotten."""

    workspace: str
    id: str
    stored_meta: SessionMeta
    details: Details
    stored_head: int = 0
    stored_closed: bool = False
    used: set[SessionRecord] = field(default_factory=set)
    prepared: object = None  # the process that was set as the session is
    cancelling: bool = False  # the turn that is about to begin
    played: bool = False  # the message of the worker is with the agent, or was: once the turn is over, only notes are left
    _folders: list[Path] | None = None
    _first_meta: SessionMeta = field(init=False)
    _session: Session | None = None
    _slot: AgentSlot | None = None
    _working: asyncio.Task[None] | None = None
    _lock: asyncio.Lock | None = None
    _changing: asyncio.Lock | None = None

    def __post_init__(self) -> None:
        self._first_meta = self.stored_meta

    @property
    def folders(self) -> list[Path]:
        """As they were when the session was made, or its record was read."""
        if self._folders is None:
            self._folders = self._first_meta.folders()
        return self._folders

    @property
    def session(self) -> Session | None:
        return self._session

    @session.setter
    def session(self, session: Session | None) -> None:
        self._session = session
        self.keep_while_used()

    @property
    def slot(self) -> AgentSlot | None:
        """Place where its agent runs, or is being started."""
        return self._slot

    @slot.setter
    def slot(self, slot: AgentSlot | None) -> None:
        self._slot = slot
        self.keep_while_used()

    @property
    def working(self) -> asyncio.Task[None] | None:
        """Task that plays its messages, while there are some."""
        return self._working

    @working.setter
    def working(self, working: asyncio.Task[None] | None) -> None:
        self._working = working
        self.keep_while_used()

    def keep_while_used(self) -> None:
        if self._session is None and self._slot is None and self._working is None:
            self.used.discard(self)
        else:
            self.used.add(self)

    @property
    def meta(self) -> SessionMeta:
        return self.session.meta if self.session else self.stored_meta

    @property
    def lock(self) -> asyncio.Lock:
        """Held by whoever gives the session an agent, or takes it away. Whoever closes it does not wait for that."""
        if self._lock is None:
            self._lock = asyncio.Lock()
        return self._lock

    @property
    def changing(self) -> asyncio.Lock:
        """Held by whoever changes how the session is set: one after the other, or a grant of the first is lost."""
        if self._changing is None:
            self._changing = asyncio.Lock()
        return self._changing

    @property
    def status(self) -> Status:
        if self.details.deletion is not None:
            return "deleted"
        if self.session is not None:
            return self.session.status
        return "closed" if self.stored_closed else "disconnected"

    @property
    def ended(self) -> bool:
        """Terminated, or deleted; or closed by a client of ACP, which may load it again."""
        return self.status in ("closed", "deleted")

    @property
    def head(self) -> int:
        return self.session.stream.head if self.session else self.stored_head

    @property
    def last_used(self) -> int:
        """Time in ms: by us, or as its agent says; 0 where neither knows."""
        return max(self.details.updated_at, told_ms(self.meta.updated_at))

    @property
    def at_work(self) -> bool:
        """Somebody is about to say something in it, or to change it."""
        held = (each for each in (self._lock, self._changing) if each is not None and each.locked())
        return self.working is not None or next(held, None) is not None

    def let_go(self, *, closed: bool = False) -> None:
        """Let go of the host's session: what is to be known without it is kept."""
        self.stored_meta, self.stored_head, self.stored_closed = self.meta, self.head, closed
        self.session = self.prepared = None  # but the lock stays: others may wait for it

    def facts(self) -> SessionFacts:
        return SessionFacts(
            self.id, self.details.agent, self.meta.agent_session_id or None, self.details.given
        )

    def info(self) -> SessionInfo:
        details, meta = self.details, self.meta
        return SessionInfo(
            session_id=self.id,
            agent=details.agent,
            agent_mode=details.agent_mode,
            permission_mode=details.permission_mode,
            model=details.model,
            variant=details.variant,
            native_session_id=meta.agent_session_id or None,
            ended=self.ended,
            event_count=self.head,
            created_at=details.created_at,
            updated_at=details.updated_at,
            directory=meta.cwd,
            title=meta.title,
            status=self.status,
            busy=details.begun is not None or (self.session is not None and self.session.busy),
            queued=len(details.queue),
            exit=None if details.exit is None else details.exit.shown(),
            cut=None if details.cut is None else details.cut.shown(),
            mcp=list(details.mcp) or None,
            skills=list(details.skills) or None,
            continues=details.continues,
            continued_by=details.continued_by,
        )


def was_deleted(session_id: str) -> NotFound:
    return NotFound(
        f"cannot find session {session_id}: it was deleted; start another",
        {"type": "session_not_found", "deleted": True},
    )


def must_be_open(record: SessionRecord, *, reopens: bool = False) -> None:
    """Refuse one that has ended. With `reopens` one will do that a client of ACP has closed: loading opens it again."""
    if record.status == "deleted":
        raise was_deleted(record.id)
    if record.ended and not (reopens and record.meta.reopens):
        why = "it was closed by a client of ACP, which may load it again"
        raise SessionClosed(
            f"cannot use session {record.id}: {why if record.meta.reopens else 'it has ended'}; start another",
            {"type": "invalid_request"},
        )


def must_be_idle(record: SessionRecord) -> None:
    """Refuse to delete one in a turn: nobody's is cut off by that."""
    running = record.session is not None and record.session.busy
    to_come = record.working is not None and (not record.played or record.details.queue)
    if running or to_come:
        raise PromptInFlight(
            f"cannot delete session {record.id}: a turn runs, or is about to; cancel it or wait for its end, or terminate "
            "the session, and delete it then"
        )


def is_at_rest(record: SessionRecord, before_ms: int) -> bool:
    """Tell whether it has ended, or nobody used it, since before a time; and no agent has it, and nothing waits for one."""
    details = record.details
    used = (
        details.updated_at or record.last_used
    )  # an agent may say anything of that, so it counts where nobody else knows
    waits = details.queue or details.begun is not None or details.prompted is not None
    held = record.working is not None or record.lock.locked()
    return record.status in ("closed", "disconnected") and 0 < used < before_ms and not waits and not held


class SessionRecords:
    """The owner of records. One is read when it is needed, and forgotten when nobody uses it: there are as many in memory as
    sessions at work.

    INV-R1  Of a session there is one record at a time that can be changed. Whoever has it has the only one, and what it
            was made of is what the log was given last."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._known: WeakValueDictionary[Key, SessionRecord] = WeakValueDictionary()
        self._used: set[SessionRecord] = set()  # by something that has no hold of the record itself
        self._claimed: set[Key] = set()
        self._made: set[Key] = (
            set()
        )  # of those: there was none of that name, and what the log has of it is not all

    def __iter__(self) -> Iterator[SessionRecord]:
        """Those in memory."""
        return iter(list(self._known.values()))

    async def load(self, workspaces: Iterable[str]) -> list[SessionRecord]:
        """Return those that the end of the last server may have left half done."""
        found: list[SessionRecord | None] = []
        for workspace in workspaces:
            query: StreamQuery = Due(workspace)
            while page := await self._log.page(query, AT_ONCE):
                found += [await self.known(workspace, info.name) for _, info in page]
                query = query.behind(page[-1][0])
        return [record for record in found if record is not None]

    def held(self, workspace: str, session_id: str) -> SessionRecord | None:
        """Find it in memory: one that is used is there."""
        return self._known.get((workspace, session_id))

    async def known(self, workspace: str, session_id: str) -> SessionRecord | None:
        """Find it, also one that is being deleted; not one that is being made, whose maker brings its record."""
        if (held := self.held(workspace, session_id)) is not None:
            return held
        stream = await self._log.find(session_id, workspace)
        # From here on nothing is awaited: another may have read it meanwhile, and two would not know of each other's changes.
        held = self.held(workspace, session_id)
        if held is not None or stream is None or (workspace, session_id) in self._made:
            return held
        record = None if stream.deleted else _read(workspace, stream.info())
        if record is not None:
            self.add(record)
        return record

    async def find(self, workspace: str, session_id: str) -> SessionRecord | None:
        record = await self.known(workspace, session_id)
        return None if record is None or record.status == "deleted" else record

    async def get(self, workspace: str, session_id: str) -> SessionRecord:
        if (record := await self.find(workspace, session_id)) is not None:
            return record
        if await self.was_deleted(workspace, session_id):
            raise was_deleted(session_id)
        raise NotFound(
            "cannot find the session; list the sessions that there are", {"type": "session_not_found"}
        )

    async def was_deleted(self, workspace: str, session_id: str) -> bool:
        if (record := self.held(workspace, session_id)) is not None:
            return record.status == "deleted"
        info = await self._log.lookup(session_id, workspace)
        return info is not None and (info.state == "deleted" or _is_going(info))

    async def folders_of(self, session_id: str, workspace: str) -> list[Path] | None:
        """Return those that it works in; None where there is no such session."""
        if (record := await self.find(workspace, session_id)) is not None:
            return record.folders
        if await self.was_deleted(workspace, session_id):
            raise was_deleted(session_id)
        return None

    def active(self, workspace: str) -> list[SessionRecord]:
        """Those that an agent has."""
        return [each for each in self._used if each.workspace == workspace and each.status == "active"]

    async def page(
        self, workspace: str, limit: int | None, cursor: str | None
    ) -> tuple[list[SessionInfo], str | None]:
        """Return as many, the newest first, and the cursor of the page behind them, if there is one. A session has its
        place from its beginning: none is left out, or on two pages."""
        began, _, session_id = cursor.partition(".") if cursor else ("", "", "")  # as `CURSOR` has it
        query = Newest(workspace, (-int(began), session_id) if cursor else None)
        found, last = await self.listed(query, limit, SessionRecord.info)
        return found, None if last is None else f"{-last[0]}.{last[1]}"

    async def listed(
        self, query: StreamQuery, limit: int | None, show: Callable[[SessionRecord], T]
    ) -> tuple[list[T], Place | None]:
        """Return what is to be shown of the first of a list, and the place of the last of them if it is not the end. A record
        that is not in memory is not taken into it."""
        found: list[T] = []
        last: Place | None = None
        while True:
            wanted = AT_ONCE if limit is None else min(AT_ONCE, limit + 1 - len(found))
            page = await self._log.page(query, wanted)
            for place, info in page:
                if (record := self._shown(query.workspace, info)) is None:
                    continue
                if len(found) == limit:
                    return found, last
                found.append(show(record))
                last = place
            if len(page) < wanted:
                return found, None
            query = query.behind(page[-1][0])

    async def first(
        self, query: StreamQuery, wanted: Callable[[SessionRecord], bool]
    ) -> SessionRecord | None:
        """Return the first of a list that is wanted, to be looked at."""
        count = 1  # most often it is the first
        while page := await self._log.page(query, count):
            shown = (self._shown(query.workspace, info) for _, info in page)
            if (
                found := next((each for each in shown if each is not None and wanted(each)), None)
            ) is not None:
                return found
            query, count = query.behind(page[-1][0]), min(2 * count, AT_ONCE)
        return None

    def _shown(self, workspace: str, info: StreamInfo) -> SessionRecord | None:
        record = self.held(workspace, info.name)
        if record is None and (workspace, info.name) not in self._made:
            record = _read(workspace, info)
        return None if record is None or record.status == "deleted" else record

    def add(self, record: SessionRecord) -> None:
        self._known[record.workspace, record.id] = record
        record.used = self._used
        record.keep_while_used()

    def delete(self, record: SessionRecord) -> None:
        """Forget it; its name stays taken."""
        self._known.pop((record.workspace, record.id), None)

    def is_claimed(self, workspace: str, session_id: str) -> bool:
        """Tell whether one of that name is being made."""
        return (workspace, session_id) in self._claimed

    @asynccontextmanager
    async def claim(self, workspace: str, session_id: str) -> AsyncIterator[None]:
        """While a session of that name is being made, nobody else makes one."""
        key, taken = (workspace, session_id), _taken(session_id, "there is one of that name; choose another")
        if key in self._claimed:
            raise taken
        self._claimed.add(key)
        try:
            if await self.was_deleted(workspace, session_id):
                raise _taken(
                    session_id, "one of that name was deleted, and no name is used again; choose another"
                )
            info = await self._log.lookup(session_id, workspace)
            if info is not None and _read(workspace, info) is not None:
                raise taken
            self._made.add(key)
            yield
        finally:
            self._made.discard(key)
            self._claimed.discard(key)

    async def save(
        self, record: SessionRecord, details: Details, title: str | UnsetType | None = UNSET
    ) -> None:
        """Strict. What is saved later is on the disk later."""
        record.details = details
        stream = None if record.session else await self._log.stream(record.id, record.workspace)
        # Looked at again: an agent may have been given to it meanwhile, and others have saved what is newer.
        newest = record.details.plain()
        if stream is None or record.session is not None:
            assert record.session is not None
            await record.session.keep_details(newest, title)
            return
        kept = record.meta.title if title is UNSET else title
        record.stored_meta = msgspec.structs.replace(record.meta, details=newest, title=kept)
        await stream.set_meta(record.meta.encode(), replaces=stream.meta)


def _read(workspace: str, info: StreamInfo) -> SessionRecord | None:
    """Return None where the log has no session of that name. A server without sessions loads no host for that."""
    if not is_session(info.meta):
        return None
    from legation.host.options import read_meta

    meta = read_meta(info.meta)
    if meta is None:
        return None
    details = read_details(meta.details) or foreign(meta.agent_definition_id or "", 0)
    return SessionRecord(workspace, info.name, meta, details, info.head, info.state != "open")


def _taken(session_id: str, why: str) -> Conflict:
    return Conflict(f"cannot create session {session_id}: {why}", {"type": "session_already_exists"})


def _is_going(info: StreamInfo) -> bool:
    """Tell whether its deletion has begun: it is gone for everybody."""
    entry = entry_of(info.meta)
    return entry is not None and entry.began is None


class Owner(NamedTuple):
    """Owner of secrets in the vault, and the session that they are sealed for; None in a note of an earlier release."""

    workspace: str
    name: str
    session: str | None = None


IsNamed: TypeAlias = Callable[[str | None, str, str], Awaitable[bool]]
"""Whether the session, of a workspace, has secrets of that owner on record; without a session, whether any has."""


@dataclass(eq=False)
class SealedServers:
    _vault: Vault
    _folder: Path  # of the small files
    _clock: Clock

    @asynccontextmanager
    async def sealed(
        self, workspace: str, session_id: str, servers: tuple[McpServer, ...], is_noted: Callable[[], bool]
    ) -> AsyncIterator[Sealed | None]:
        """While their session is being made, or changed to have them; where it does not, nothing is left of them."""
        if not servers:
            yield None
            return
        owner = Owner(workspace, new_id("ssn", now_ms=self._clock.now_ms()), session_id)
        await asyncio.to_thread(self._note, owner)
        try:
            bundle = await self._vault.put(workspace, owner.name, msgspec.json.encode(servers))
            yield Sealed(owner=owner.name, bundle=bundle)
        except BaseException:
            if not is_noted():
                await asyncio.shield(self._destroy(owner))
            raise
        await asyncio.to_thread(self._forget, owner)

    async def open(self, workspace: str, sealed: Sealed | None) -> tuple[McpServer, ...]:
        if sealed is None:
            return ()
        plain = await self._vault.open_bytes(workspace, sealed.owner, sealed.bundle)
        return msgspec.json.decode(plain, type=tuple[McpServer, ...])

    async def note(self, workspace: str, session_id: str, sealed: Sealed | None) -> None:
        """Others are about to take its place: whatever cuts that off, the next start destroys what no session names."""
        if sealed is not None:
            await asyncio.to_thread(self._note, Owner(workspace, sealed.owner, session_id))

    async def destroy(self, workspace: str, sealed: Sealed | None) -> None:
        if sealed is not None:
            await self._destroy(Owner(workspace, sealed.owner))

    async def recover(self, is_named: IsNamed) -> None:
        """Destroy what a killed server left, and no session names."""
        for owner in await asyncio.to_thread(self.left):
            if await is_named(owner.session, owner.workspace, owner.name):
                await asyncio.to_thread(self._forget, owner)
            else:
                await self._destroy(owner)

    async def _destroy(self, owner: Owner) -> None:
        await self._vault.destroy_all(owner.workspace, owner.name)
        await asyncio.to_thread(self._forget, owner)

    # The small files. These block for as long as the disk does.

    def left(self) -> list[Owner]:
        found: list[Owner] = []
        with suppress(OSError):
            for path in sorted(self._folder.iterdir()):
                with suppress(OSError, UnicodeDecodeError):
                    workspace, _, session = path.read_text().partition("\n")
                    found.append(Owner(workspace, path.name, session or None))
        return found

    def _note(self, owner: Owner) -> None:
        """Note it, before anything is sealed for it."""
        try:
            make_folder(self._folder)
            said = owner.workspace if owner.session is None else f"{owner.workspace}\n{owner.session}"
            (self._folder / owner.name).write_text(said)
        except OSError as error:
            raise StorageFailed(
                f"cannot note in {self._folder} what is about to be sealed: {error.strerror}; mend that"
            ) from error

    def _forget(self, owner: Owner) -> None:
        """Forget it: its session is on record, or there is nothing left of it."""
        with suppress(OSError):
            (self._folder / owner.name).unlink()
