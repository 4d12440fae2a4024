"""The inbox of each workspace: what its sessions ask, how their turns ended, who has looked at that; and its changes, as a
stream.

Approvals are found in their own table. Of the rest a row says that it is there, and nothing that was said. A session's row
is what its last turn came to, so it is one, and is void from when the next turn begins: on Postgres it is deleted then, for
another server may have the session next. In a file it waits for the turn's end, which writes it anew: one commit less.

INV-I1  A change is told after it is durable. A crash between the two loses the event, not the change: whoever follows reads
        the list first, and again whenever something is told.
INV-I2  What was looked at is a person's own matter: it is there for everybody else, and for that person again as soon as
        something happens to it.
INV-I3  Questions go with the process that they were asked in.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol, Self, TypeAlias, cast

from legation.approvals.approval import Approval, label
from legation.approvals.queue import AWAY, AWAY_MS, first_of
from legation.approvals.trace.step import StepKind
from legation.clock import Clock
from legation.errors import Conflict, LegationError, NotFound
from legation.runs.run import CHANGES as RUN_CHANGES
from legation.runs.run import SECTIONS
from legation.runs.run import TOPIC as RUNS
from legation.runs.states import CleanupStatus, RunState
from legation.store.database.transaction import (
    Dangling,
    Database,
    Queries,
    Row,
    Rows,
    Statement,
    Transaction,
    only,
    rows,
)
from legation.store.entries import is_session
from legation.store.log import EventLog
from legation.tasks import TaskSet
from legation.wire.api.inbox import InboxChanged
from legation.wire.event_types import PromptStarted, QuestionAnswered, QuestionAsked, draft
from legation.wire.events import Payload
from legation.wire.principal import Principal

if TYPE_CHECKING:
    from legation.runs.events import RunEventStore
    from legation.store.stream import Stream

STREAM: Final = "inbox"
CHANGES: Final = "inbox"  # the topic by which servers tell each other that something changed
MOST: Final = 200  # of a section that are shown
# Of the newest that are looked through for what a person has not looked at: a list has an end, also where all of them were.
NEWEST: Final = 1000
KEPT_MS: Final = 7 * 86_400_000  # what nobody looked at for a week is among the sessions
FORGET_BATCH: Final = 500
REMOTE_EVERY: Final = 5.0  # seconds: a notice of another server may have been lost
CHANGED_AT_ONCE: Final = 2000  # runs of one query
MOST_TOLD: Final = (
    50  # runs of a workspace of one look that are told one by one: who reads reads the list once anyway
)
OVERLAP_MS: Final = 1_000  # that two looks have in common: a change's way to its commit
LATE_MS: Final = 30_000  # the same, of a look that nothing called for
STUCK_EVERY: Final = (
    5.0  # seconds between two looks for runs that hang or loop: what a person may learn of it late
)
MOST_WATCHED: Final = 50  # runs at work that are looked at, those changed last
# Times as long as a look took nobody looks again: each goes over what two have in common, which is more the more is submitted.
REST: Final = 19
LONGEST_REST: Final = 1.0  # seconds: the readers' time
LAST_WORDS: Final = 5.0  # seconds: the database's time at the end

_SQL: Final = Queries("inbox")
_PENDING: Final = Queries("approvals")
_RUNS: Final = Queries("run_lists")

# What is news for the inbox. That an approval was used is none: it was answered before.
_APPROVALS: Final[dict[StepKind, Literal["asked", "changed", "answered"]]] = {
    StepKind.PROPOSED: "asked",
    StepKind.DECIDED: "changed",
    StepKind.CLAIMED: "changed",
    StepKind.ESCALATED: "changed",
    StepKind.RESOLVED: "answered",
    StepKind.CANCELLED: "answered",
    StepKind.EXPIRED: "answered",
    StepKind.SUPERSEDED: "answered",
}

_RUN_ENDS: Final[dict[str, Literal["wrong", "ready", "gone", "changed"]]] = {
    **{str(state): section for state, section in SECTIONS.items()},
    RunState.CANCELLED: "gone",
}

logger = logging.getLogger("legation.inbox")


class StoredItem(NamedTuple):
    """A row of `inbox_item`, but for its workspace and server."""

    id: str
    kind: Literal["question", "session"]
    section: Literal["you", "wrong", "ready"]
    state: Literal["asks", "failed", "cut", "exited", "ended"]
    session_id: str
    since: int
    expires_at: int | None = None


TurnOutcome: TypeAlias = Literal["ended", "failed", "cut", "exited", "cancelled"]
Work: TypeAlias = Callable[[], Transaction[object]]


class _Change(NamedTuple):
    workspace: str
    told: InboxChanged
    work: Work | None = None  # None: it is on record already
    ends: InboxChanged | None = None  # that a turn began, which made void what is on record until this is


class InboxItems:
    """The items of every workspace that are no approvals. `async with` it: one task writes down and tells what is noted, in
    its order. It belongs to one event loop; `server` is the name of this one."""

    def __init__(self, database: Database, log: EventLog, clock: Clock, server: str) -> None:
        self.server = server
        self._database = database
        self._log = log
        self._clock = clock
        self._shared = database.dialect == "postgres"
        self._queue: asyncio.Queue[_Change] = asyncio.Queue()
        self._behind = 0  # changes that are not told yet
        self._streams: dict[str, Stream | None] = {}
        # Sessions whose row is that of an earlier turn, and by what was told of the one that runs.
        self._void: dict[tuple[str, str | None], InboxChanged] = {}
        self._closing = asyncio.Event()
        self._tasks = TaskSet("legation-inbox")

    async def __aenter__(self) -> Self:
        await self._database.transact(rows, _SQL.questions_of_server(server=self.server))
        self._tasks.start(self._write())
        if self._shared:
            seen = await self._heads()
            self._tasks.start(self._follow(seen))
        changes = _RunChanges(self._clock.now_ms())
        await self._changed_runs(changes)  # they are old
        self._tasks.start(self._follow_runs(changes))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing.set()
        for (workspace, _session), began in self._void.items():
            self._gone(workspace, began)
        try:
            async with asyncio.timeout(LAST_WORDS):
                await self._queue.join()
        except TimeoutError:
            logger.warning("some changes of the inbox were not written down")
        await self._tasks.close()

    @property
    def void(self) -> int:
        return len(self._void)

    # What happens.

    def on_approval(self, approval: Approval, happened: StepKind) -> None:
        if (word := _APPROVALS.get(happened)) is not None:
            told = InboxChanged(
                kind="approval", happened=word, id=approval.id, session_id=approval.session_id
            )
            self._add(_Change(approval.workspace_id, told))

    def note(self, workspace: str, session_id: str, payload: Payload) -> None:
        """Take what a session's stream was told: a turn that began, a question and its answer."""
        match payload:
            case PromptStarted() if self._shared:
                self.gone(workspace, session_id)
            case PromptStarted():
                told = InboxChanged(kind="session", happened="gone", id=session_id, session_id=session_id)
                self._void[workspace, session_id] = told
                self._add(_Change(workspace, told))
            case QuestionAsked(id=name, expires_at=expires_at):
                now = self._clock.now_ms()
                asks = StoredItem(name, "question", "you", "asks", session_id, now, expires_at)
                self._put(workspace, asks)
            case QuestionAnswered(id=name):
                told = InboxChanged(kind="question", happened="answered", id=name, session_id=session_id)
                self._gone(workspace, told)

    def ended(self, workspace: str, session_id: str, outcome: TurnOutcome) -> None:
        """Note what the turn of a session came to, or that its agent ended by itself."""
        if outcome == "cancelled":  # whoever did that knows
            self.gone(workspace, session_id)
            return
        section: Literal["ready", "wrong"] = "ready" if outcome == "ended" else "wrong"
        now = self._clock.now_ms()
        self._put(workspace, StoredItem(session_id, "session", section, outcome, session_id, now))

    def gone(self, workspace: str, session_id: str) -> None:
        """Note that a session goes on."""
        told = InboxChanged(kind="session", happened="gone", id=session_id, session_id=session_id)
        self._gone(workspace, told)

    def deleted(self, workspace: str, session_id: str) -> None:
        """Forget all that a deleted session had."""
        told = InboxChanged(kind="session", happened="gone", id=session_id, session_id=session_id)
        work = self._changing(workspace, _SQL.gone_with_session, session=session_id)
        self._add(_Change(workspace, told, work, self._void.get((workspace, session_id))))

    def _put(self, workspace: str, item: StoredItem) -> None:
        happened: dict[str, Literal["asked", "wrong", "ready"]] = {
            "you": "asked",
            "wrong": "wrong",
            "ready": "ready",
        }
        told = InboxChanged(
            kind=item.kind, happened=happened[item.section], id=item.id, session_id=item.session_id
        )
        members = item._asdict()
        session = members.pop("session_id")
        work = self._changing(workspace, _SQL.put, **members, session=session, server=self.server)
        self._add(_Change(workspace, told, work, self._void.get((workspace, item.id))))

    def _gone(self, workspace: str, told: InboxChanged) -> None:
        work = self._changing(workspace, _SQL.gone, id=told.id)
        self._add(_Change(workspace, told, work, self._void.get((workspace, told.id))))

    def _add(self, change: _Change) -> None:
        """Tell it at once where nothing is before it, nor anything to write down; else it takes its turn."""
        stream = self._streams.get(change.workspace)
        if change.work is not None or stream is None or self._behind:
            self._behind += 1
            self._queue.put_nowait(change)
            return
        try:
            stream.append([draft(change.told)])
        except LegationError as error:
            logger.warning("a change of the inbox was not told: %s", error.code)

    def _changing(self, workspace: str, query: Callable[..., Statement], **given: object) -> Work:
        def work() -> Transaction[object]:
            found = yield query(workspace=workspace, **given)
            if self._shared:
                yield _SQL.advance(workspace=workspace, server=self.server)
            return found

        return work

    def current(self, workspace: str, found: Rows) -> list[Row]:
        """Take out what a turn that runs has made void."""
        return [row for row in found if (workspace, row["id"]) not in self._void]

    async def look(self, by: Principal, item: str, since: int | None) -> None:
        """Note that a person looked at it, as it was at `since`, or as it is."""
        person = person_of(by)
        await self._database.transact(self._look, by.workspace, person, item, since)
        is_run = item.startswith("run_")
        told = InboxChanged(
            kind="run" if is_run else "session",
            happened="looked-at",
            id=item,
            session_id=None if is_run else item,
            person=person,
        )
        self._add(_Change(by.workspace, told))
        if self._shared:
            self._database.notify(CHANGES)

    def _look(self, workspace: str, person: str, item: str, since: int | None) -> Transaction[None]:
        row = only((yield _SQL.get(workspace=workspace, id=item)))
        if (workspace, item) in self._void:
            row = None
        if row is None and (yield _PENDING.get(workspace=workspace, id=item)):
            raise _to_answer(item)
        if row is None:
            raise NotFound("cannot find that in the inbox; read the inbox again, and give the whole id")
        if row["section"] == "you":
            raise _to_answer(item)
        try:
            seen = row["since"] if since is None else min(since, row["since"])
            yield _SQL.look(workspace=workspace, person=person, item=item, since=seen)
        except Dangling:
            raise NotFound("cannot find that in the inbox any more; read the inbox again") from None
        if self._shared:
            yield _SQL.advance(workspace=workspace, server=self.server)

    # What is told.

    async def stream(self, workspace: str) -> Stream | None:
        """Find the stream of a workspace, and make it if need be."""
        if workspace not in self._streams:
            found = await self._log.stream(STREAM, workspace)
            # An earlier release let a session have this name, and nothing of ours is told in it.
            self._streams[workspace] = None if is_session(found.meta) else found
        return self._streams[workspace]

    async def _write(self) -> None:
        while True:
            change = await self._queue.get()
            try:
                while change.work is not None:
                    try:
                        await self._database.transact(change.work)
                        if self._shared:
                            self._database.notify(CHANGES)
                        break
                    except AWAY:  # it may come back; what a session came to is not to be lost for that
                        if self._closing.is_set():
                            raise
                        await first_of(self._clock, AWAY_MS / 1000, self._closing)
                key = (change.workspace, change.told.id)
                if (
                    change.ends is not None and self._void.get(key) is change.ends
                ):  # no other turn began since
                    del self._void[key]
                await self.tell(change.workspace, change.told)
            except LegationError as error:
                logger.warning("a change of the inbox was not written down: %s", error.code)
            finally:
                self._behind -= 1
                self._queue.task_done()

    async def tell(self, workspace: str, *told: InboxChanged) -> None:
        if (stream := await self.stream(workspace)) is not None:
            stream.append([draft(each) for each in told])

    async def _heads(self) -> dict[tuple[str, str], int]:
        found = await self._database.read(rows, _SQL.heads(server=self.server))
        return {(row["workspace_id"], row["server"]): row["seq"] for row in found}

    async def _follow(self, seen: dict[tuple[str, str], int]) -> None:
        """Tell that other servers changed something; what it is, the list says."""
        with self._database.listen(CHANGES) as told:
            while True:
                await first_of(self._clock, REMOTE_EVERY, told)
                told.clear()  # before the look: what comes meanwhile is another one
                try:
                    now = await self._heads()
                    for workspace in {key[0] for key, seq in now.items() if seen.get(key) != seq}:
                        await self.tell(workspace, InboxChanged(happened="changed"))
                    seen = now
                except LegationError as error:  # the next time may do what this one could not
                    logger.warning("cannot look at what other servers noted: %s", error.code)

    # Runs: whoever has the lease of one writes it, in any process.

    async def _follow_runs(self, changes: _RunChanges) -> None:
        """Tell of each run that changed, of all workspaces, whoever changed it."""
        with self._database.listen(RUN_CHANGES) as told, self._database.listen(RUNS) as due:
            while True:
                await first_of(self._clock, REMOTE_EVERY, told, due)
                long = not (told.is_set() or due.is_set())  # nothing was told: what came late is looked for
                told.clear()
                due.clear()
                begun = self._clock.monotonic()
                try:
                    for workspace, events in (await self._changed_runs(changes, long=long)).items():
                        if len(events) > MOST_TOLD:
                            events = [InboxChanged(kind="run", happened="changed")]
                        await self.tell(workspace, *events)
                except LegationError as error:  # the next time may do what this one could not
                    logger.warning("cannot look for runs that changed: %s", error.code)
                if took := self._clock.monotonic() - begun:
                    await self._clock.sleep(min(took * REST, LONGEST_REST))

    async def _changed_runs(
        self, changes: _RunChanges, *, long: bool = True
    ) -> dict[str, list[InboxChanged]]:
        found: dict[str, list[InboxChanged]] = {}
        since, after = changes.since(long=long), ""
        while True:
            behind = _RUNS.changed(since=since, after=after, limit=CHANGED_AT_ONCE)
            seen = await self._database.read(rows, behind)
            for row in seen:
                if changes.is_new(row):
                    unclean = row["cleanup"] == CleanupStatus.FAILED_TERMINAL
                    happened = "wrong" if unclean else _RUN_ENDS.get(row["state"], "changed")
                    told = InboxChanged(kind="run", happened=happened, id=row["id"])
                    found.setdefault(row["workspace_id"], []).append(told)
            if len(seen) < CHANGED_AT_ONCE:
                return found
            since, after = seen[-1]["changed_at"], seen[-1]["id"]


class _RunChanges:
    """Memory of what was told of runs. A change has the time at which its transaction began, and may be seen later than a younger
    one: so what lies a little before the newest is looked at again."""

    def __init__(self, now_ms: int) -> None:
        self._newest = now_ms
        self._told: dict[str, tuple[object, ...]] = {}  # by run, what it was

    def since(self, *, long: bool) -> int:
        before = self._newest - LATE_MS
        if long:
            self._told = {name: mark for name, mark in self._told.items() if cast(int, mark[0]) > before}
        return before if long else self._newest - OVERLAP_MS

    def is_new(self, row: Row) -> bool:
        mark = (row["changed_at"], row["state"], row["waits_for"], row["cancel_requested_at"])
        if self._told.get(row["id"]) == mark:
            return False
        self._told[row["id"]] = mark
        self._newest = max(self._newest, row["changed_at"])
        return True


class RunServices(Protocol):
    """Part of a server's services that the watch over its runs needs."""

    database: Database
    clock: Clock
    inbox_items: InboxItems

    @property
    def run_events(self) -> RunEventStore: ...


class _Standing(NamedTuple):
    head: int | None  # the last event that it was told by
    stuck: str | None  # hung, looping


class StuckRuns:
    """Watch over the runs at work: what begins to hang or to loop, and what goes on again, is told as it happens. Nothing else tells of
    it, for a run that hangs is one of which nothing is heard. A look costs a query, and the last events of those that said something
    since the look before; what has ended costs nothing. `async with` it."""

    def __init__(self, services: RunServices) -> None:
        self._services = services
        self._seen: dict[tuple[str, str], _Standing] = {}
        self._tasks = TaskSet("legation-stuck-runs")

    async def __aenter__(self) -> Self:
        self._tasks.start(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.close()

    async def _watch(self) -> None:
        while True:
            await self._services.clock.sleep(STUCK_EVERY)
            try:
                await self.look()
            except LegationError as error:  # the next time may do what this one could not
                logger.warning("cannot look for runs that hang: %s", error.code)

    async def look(self) -> None:
        found = await self._services.database.read(rows, _RUNS.at_work(limit=MOST_WATCHED))
        before, self._seen = self._seen, {}
        for row in found:
            place = row["workspace_id"], row["id"]
            known = before.get(place)
            now = self._seen[place] = await self._stand(row, known)
            if now.stuck != (known.stuck if known else None):
                told = InboxChanged(kind="run", happened="wrong" if now.stuck else "changed", id=row["id"])
                await self._services.inbox_items.tell(row["workspace_id"], told)

    async def _stand(self, row: Row, known: _Standing | None) -> _Standing:
        from legation.runs.events import HUNG_MS  # a server whose runs nobody submits needs none of it
        from legation.runs.run import find_run

        now_ms = self._services.clock.now_ms()
        if known is not None and known.head == row["head"]:  # it said nothing: only the clock went on
            silent = now_ms - max(row["heard_at"] or 0, row["changed_at"])
            return known if known.stuck or silent <= HUNG_MS else known._replace(stuck="hung")
        run = await self._services.database.read(find_run, row["workspace_id"], row["id"])
        standing = None if run is None else await self._services.run_events.liveness(run, now_ms)
        return _Standing(row["head"], standing if standing in ("hung", "looping") else None)


def _to_answer(item: str) -> Conflict:
    return Conflict(f"cannot put {item} away by looking at it: it is there to be answered; answer it")


def person_of(principal: Principal) -> str:
    """Name whose looks they are: the person's behind a credential, whichever it is."""
    return principal.user or label(principal)


def questions(workspace: str) -> Transaction[Rows]:
    return (yield _SQL.questions(workspace=workspace, limit=MOST + 1))


def unseen(workspace: str, section: str, person: str, void: int = 0) -> Transaction[Rows]:
    """List what went wrong, or is ready, and a person has not looked at; `void` of it may be taken out again."""
    limits = {"newest": NEWEST + void, "limit": MOST + 1 + void}
    return (yield _SQL.unseen(workspace=workspace, section=section, person=person, **limits))


def forget(now_ms: int) -> Transaction[int]:
    """Forget a batch of what is old. Return how many."""
    return len((yield _SQL.forget(before=now_ms - KEPT_MS, limit=FORGET_BATCH)))
