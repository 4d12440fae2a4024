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
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar, cast, dataclass_transform
from weakref import WeakValueDictionary

import msgspec
from msgspec import UNSET, UnsetType

from legation.clock import Clock, new_id
from legation.errors import Conflict, InvalidParams, NotFound, PromptInFlight, SessionClosed, StorageFailed
from legation.store.codec import StreamInfo
from legation.store.datafolder import make_folder
from legation.store.entries import Newest, Place, StreamQuery, entry_of, is_session, told_ms
from legation.store.log import AT_ONCE, EventLog
from legation.store.secrets.vault import Vault
from legation.wire.acp.methods import McpServer
from legation.wire.acp.updates import ResourceLink
from legation.wire.api.approvals import Value
from legation.wire.api.sessions import PermissionMode, SessionInfo
from legation.wire.event_types import Status
from legation.wire.universal.shapes import PLAN_KIND, Metadata, SessionFacts

if TYPE_CHECKING:
    from legation.host.conversation import Conversation
    from legation.host.options import SessionMeta
    from legation.host.session import Session
    from legation.server.peers.claims import StreamClaims
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


class FailedTurn(CutTurn):
    """The last turn, where it ended with an error."""


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
    title: str | None = None  # by a person or a program; the agent's own takes no place of it
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
    failed: FailedTurn | None = None  # likewise
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
CURSOR: Final = r"^[0-9]{1,15}\..{1,256}$"
# Streams that are no sessions.
RESERVED: Final = frozenset(
    (
        "server",
        "host",
        "approvals",
        "inbox",
        "traces",
        "trace",
        "policy",
        "runs",
        "sessions",
        "processes",
        "acp",
    )
)
RUN: Final = "run_"  # the beginning of a run's id, which is the name of its stream
ACP: Final = "acp:"  # and that of a client's connection
MOST_ID_BYTES: Final = 256  # in UTF-8


def is_client_id(text: str) -> bool:
    """Tell whether a client may call something so: any text on one line, not too long, and no way up a path."""
    return 0 < len(text) <= len(text.encode("utf-8", "replace")) <= MOST_ID_BYTES and (
        text.isprintable() and text.strip(".") != ""
    )


def must_be_session_id(text: str) -> str:
    if is_client_id(text) and text not in RESERVED and not text.startswith((RUN, ACP)):
        return text
    raise InvalidParams(
        f"cannot use that as a session's id: give at most {MOST_ID_BYTES} bytes of printable text, not only dots, and none "
        f"of {', '.join(sorted(RESERVED))}, nor one that begins with {RUN} or {ACP}",
        {"type": "invalid_request"},
    )


@dataclass(slots=True, eq=False, weakref_slot=True)
class SessionRecord:
    """Session as the server knows it. `session` is the host's, while there is something to keep in memory, and keeps the
    record there too."""

    workspace: str
    id: str
    stored_meta: SessionMeta
    details: Details
    stored_head: int = 0
    stored_closed: bool = False
    prepared: object = None  # the process that was set as the session is
    cancelling: bool = False  # the turn that is about to begin
    played: bool = False  # the message of the worker is with the agent, or was: once the turn is over, only notes are left
    session: Session | None = None
    working: asyncio.Task[None] | None = None  # plays its messages, while there are some
    # By the ids of messages that wait: each is done when its turn begins.
    begins: dict[str, asyncio.Future[int]] = field(default_factory=dict)
    slot: AgentSlot | None = None  # where its agent runs, or is being started: it has a session then
    # Held by whoever gives the session an agent, or takes it away. Whoever closes it does not wait for that.
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    # Held by whoever changes how the session is set: one after the other, or a grant of the first is lost.
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    folders: list[Path] = field(init=False)  # as they were when the session was made, or its record was read

    def __post_init__(self) -> None:
        self.folders = self.stored_meta.folders()

    def hold(self, session: Session) -> None:
        """Keep the host's session, until it is let go of."""
        self.session, session.holder = session, self

    @property
    def meta(self) -> SessionMeta:
        return self.session.meta if self.session else self.stored_meta

    @property
    def status(self) -> Status:
        if self.details.deletion is not None:
            return "deleted"
        if self.session is not None:
            return self.session.status
        return "closed" if self.stored_closed else "disconnected"

    @property
    def title(self) -> str | None:
        """Name it as somebody did; else as its agent does."""
        return self.details.title or self.meta.title

    @property
    def ended(self) -> bool:
        """Terminated, or deleted; or closed by a client of ACP, which may load it again."""
        return self.status in ("closed", "deleted")

    @property
    def over(self) -> bool:
        """It never goes on: nobody will miss its folder."""
        return self.ended and not self.meta.reopens

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
        return self.working is not None or self.lock.locked() or self.changing.locked()

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
        talk = self.session.talk if self.session else None
        return SessionInfo(
            session_id=self.id,
            agent=details.agent,
            agent_mode=details.agent_mode,
            permission_mode=details.permission_mode,
            model=details.model,
            variant=details.variant,
            native_session_id=meta.agent_session_id or None,
            ended=self.ended or details.exit is not None,  # as its last `session.ended` says
            event_count=self.head,
            created_at=details.created_at,
            updated_at=details.updated_at,
            directory=meta.cwd,
            title=self.title,
            status=self.status,
            busy=details.begun is not None or (self.session is not None and self.session.busy),
            queued=len(details.queue),
            exit=None if details.exit is None else details.exit.shown(),
            cut=None if details.cut is None else details.cut.shown(),
            failed=None if details.failed is None else details.failed.shown(),
            pending_permissions=() if talk is None else tuple(talk.permissions.waiting),
            pending_questions=() if talk is None else (*talk.questions.waiting, *_plans(talk)),
            mcp=list(details.mcp) or None,
            skills=list(details.skills) or None,
            continues=details.continues,
            continued_by=details.continued_by,
        )


def _plans(talk: Conversation) -> list[str]:
    """Find the plans that wait for approval: each is a question beside its permission, of the same id."""
    waiting = talk.permissions.waiting
    return [name for name, each in waiting.items() if each.asked.action.kind == PLAN_KIND]


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
    # An agent may say anything of that, so it counts where nobody else knows.
    used = details.updated_at or record.last_used
    waits = details.queue or details.begun is not None or details.prompted is not None
    held = record.working is not None or record.lock.locked()
    return record.status in ("closed", "disconnected") and 0 < used < before_ms and not waits and not held


class SessionRecords:
    """The owner of records. One is read when it is needed, and forgotten when nobody uses it: there are as many in memory as
    sessions at work.

    INV-R1  Of a session there is one record at a time that can be changed. Whoever has it has the only one, and what it
            was made of is what the log was given last."""

    def __init__(self, log: EventLog, claims: StreamClaims | None = None) -> None:
        """With `claims` others share the database, and a name is free only if none of them has it."""
        self._log = log
        self._claims = claims
        self._known: WeakValueDictionary[Key, SessionRecord] = WeakValueDictionary()
        self._claimed: set[Key] = set()
        # Of those: there was none of that name, and what the log has of it is not all.
        self._made: set[Key] = set()

    def __iter__(self) -> Iterator[SessionRecord]:
        """Those in memory."""
        return iter(list(self._known.values()))

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

    async def find_ever(self, workspace: str, session_id: str) -> SessionRecord | None:
        """Find it; None where there never was one."""
        record = await self.known(workspace, session_id)
        gone = record is None or record.status == "deleted"
        if gone and await self.was_deleted(workspace, session_id):
            raise was_deleted(session_id)
        return record

    async def get(self, workspace: str, session_id: str) -> SessionRecord:
        if (record := await self.find_ever(workspace, session_id)) is not None:
            return record
        raise NotFound(
            "cannot find the session; list the sessions that there are", {"type": "session_not_found"}
        )

    async def was_deleted(self, workspace: str, session_id: str) -> bool:
        if (record := self.held(workspace, session_id)) is not None:
            return record.status == "deleted"
        info = await self._log.lookup(session_id, workspace)
        if info is None or info.state == "deleted":
            return info is not None
        entry = entry_of(info.meta)
        return entry is not None and entry.began is None  # its deletion has begun: it is gone for everybody

    async def folders_of(self, session_id: str, workspace: str) -> list[Path] | None:
        """Return those that it works in; None where there is no such session."""
        record = await self.find_ever(workspace, session_id)
        return None if record is None else record.folders

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
        async for place, info in self._log.each(query, AT_ONCE if limit is None else limit + 1):
            if (record := self._shown(query.workspace, info)) is None:
                continue
            if len(found) == limit:
                return found, last
            found.append(show(record))
            last = place
        return found, None

    async def first(
        self, query: StreamQuery, wanted: Callable[[SessionRecord], bool]
    ) -> SessionRecord | None:
        """Return the first of a list that is wanted, to be looked at."""
        async for _, info in self._log.each(query, 1):  # most often it is the first
            record = self._shown(query.workspace, info)
            if record is not None and wanted(record):
                return record
        return None

    def _shown(self, workspace: str, info: StreamInfo) -> SessionRecord | None:
        record = self.held(workspace, info.name)
        if record is None and (workspace, info.name) not in self._made:
            record = _read(workspace, info)
        return None if record is None or record.status == "deleted" else record

    def add(self, record: SessionRecord) -> None:
        self._known[record.workspace, record.id] = record

    async def free(self, record: SessionRecord) -> None:
        """Let another server have its name. Here it stays taken."""
        if self._claims is not None:
            await self._claims.free(record.workspace, record.id)

    def delete(self, record: SessionRecord) -> None:
        """Forget it; its name stays taken."""
        self._known.pop((record.workspace, record.id), None)

    def is_claimed(self, workspace: str, session_id: str) -> bool:
        """Tell whether one of that name is being made."""
        return (workspace, session_id) in self._claimed

    @asynccontextmanager
    async def claim(self, workspace: str, session_id: str, agent: str | None = None) -> AsyncIterator[int]:
        """While a session of that name is being made, nobody else makes one. Gives the time of its beginning. Without an
        agent none is made."""
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
            began, claims = self._log.clock.now_ms(), self._claims
            async with claims.taken(*key, agent, began) if claims and agent else nullcontext():
                yield began
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


class Owner(NamedTuple):
    """Owner of secrets in the vault, and the session that they are sealed for; None in a note of an earlier release."""

    workspace: str
    name: str
    session: str | None = None


class SealedServers(msgspec.Struct, eq=False, dict=True):
    _vault: Vault
    _folder: Path  # of the small files
    _clock: Clock

    @asynccontextmanager
    async def sealed(
        self,
        workspace: str,
        session_id: str,
        servers: tuple[McpServer, ...],
        is_noted: Callable[[], bool],
        former: Sealed | None = None,
    ) -> AsyncIterator[Sealed | None]:
        """While their session is being made, or changed to have them in place of its `former` ones; where it does not,
        nothing is left of them."""
        if not servers:
            yield None
            return
        if former is not None:  # whatever cuts this off, the next start destroys what no session names
            await asyncio.to_thread(self._note, Owner(workspace, former.owner, session_id))
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
        if former is not None:
            await self.destroy(workspace, former)

    async def open(self, workspace: str, sealed: Sealed | None) -> tuple[McpServer, ...]:
        if sealed is None:
            return ()
        plain = await self._vault.open_bytes(workspace, sealed.owner, sealed.bundle)
        return msgspec.json.decode(plain, type=tuple[McpServer, ...])

    async def destroy(self, workspace: str, sealed: Sealed | None) -> None:
        if sealed is not None:
            await self._destroy(Owner(workspace, sealed.owner))

    async def recover(self, is_named: Callable[[Owner], Awaitable[bool]]) -> None:
        """Destroy what a killed server left, and no session names."""
        for owner in await asyncio.to_thread(self.left):
            if await is_named(owner):
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
