"""The approvals of one server: every change goes through the queue, and after its commit it is published.

INV-N1  Whoever waits for an approval, and whoever follows the changes, hears of each change after it is durable.
INV-N2  A change is published even if whoever made it has gone meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Self, TypeAlias, TypeVar

import msgspec

from legation.approvals.approval import PROGRAM, Approval, ApprovalAnswer, ApprovalState, Glob, label
from legation.approvals.request import why_ended
from legation.approvals.trace.chain import Ledger
from legation.approvals.trace.step import StepKind
from legation.approvals.transitions import (
    GroupAnswer,
    Reason,
    Transitions,
    Unheard,
    expire_due,
    get,
    supersede,
    supersede_revoked,
)
from legation.clock import Clock
from legation.errors import AlreadyAnswered, Conflict, LegationError, StorageFailed, Unavailable
from legation.store.database.transaction import Database, Queries, Transaction, rows
from legation.store.log import EventLog
from legation.store.stream import Stream
from legation.tasks import TaskSet
from legation.wire.api.approvals import ApprovalChanged
from legation.wire.event_types import draft
from legation.wire.principal import Principal

AWAY_MS: Final = 2_000  # between two tries of a database that is away: its time to come back
TAKEN_LIMIT: Final = 10.0  # seconds: another server's time to take an answer up
TAKEN_EVERY: Final = 0.2  # between two looks whether it has
AWAY: Final = (StorageFailed, Unavailable)  # how a database is that may come back

STREAM: Final = "approvals"
CHANGES: Final = "approvals"  # the topic by which servers tell each other that something changed
LAST_WORDS: Final = 5.0  # seconds: the disk's time at the end
NOTE_EVERY_MS: Final = 5_000  # a supervisor's sign of life is written this often at most
LOOK_EVERY_MS: Final = 2_000  # and read this often
KEPT_MS: Final = 86_400_000
MOST_PATTERNS: Final = 32  # of one supervisor: whoever sends another one each time makes nobody else slow

_SQL: Final = Queries("door")

logger = logging.getLogger("legation.approvals")

T = TypeVar("T")
Listener: TypeAlias = Callable[[Approval, StepKind], None]


class ApprovalNews(msgspec.Struct, eq=False):
    """The last that one who waits was told of its approval."""

    approval: Approval | None = None
    event: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    grants: int = 0  # given since it waits: whoever waits looks whether they cover it


class ApprovalQueue:
    """The approvals that wait for an answer. It belongs to one event loop; `holder` is this process, which keeps alive
    whoever waits in it."""

    def __init__(self, ledger: Ledger, clock: Clock, holder: str) -> None:
        self.ledger = ledger
        self.clock = clock
        self.holder = holder
        self.life = Transitions(ledger.chain)
        self._waits: dict[str, list[ApprovalNews]] = {}
        self._listeners: list[Listener] = []
        self._changing = TaskSet("legation-approval-change")

    def on_change(self, listener: Listener) -> None:
        self._listeners.append(listener)

    @contextmanager
    def waiting(self, approval_id: str, *, alone: bool = True) -> Iterator[ApprovalNews]:
        """Gather the news of one; entered before it is asked, so that no answer is too fast. `alone`: nobody else does."""
        if alone and approval_id in self._waits:
            raise Conflict(f"cannot ask for approval {approval_id} twice; wait for the one there is")
        news = ApprovalNews()
        self._waits.setdefault(approval_id, []).append(news)
        try:
            yield news
        finally:
            self._waits[approval_id].remove(news)
            if not self._waits[approval_id]:
                del self._waits[approval_id]

    @property
    def waits(self) -> list[ApprovalNews]:
        return [news for each in self._waits.values() for news in each]

    def wake_all(self) -> None:
        """Have everyone who waits look again."""
        for news in self.waits:
            news.event.set()

    def publish(self, approval: Approval, happened: StepKind, *, remote: bool = False) -> None:
        """Tell whoever waits here, and, unless they told us, the other servers."""
        if not remote:
            self.ledger.database.notify(CHANGES)
        for news in self._waits.get(approval.id, ()):
            news.approval = approval
            news.event.set()
        for listener in self._listeners:
            listener(approval, happened)

    async def granting(
        self, workspace: str, giving: Coroutine[Any, Any, T], *, session: str | None = None
    ) -> T:
        """Give a grant, and tell what waits there as soon as it is given (INV-N2). `session`: whose alone it is."""

        async def give() -> T:
            given = await giving
            self.granted(workspace, session)
            return given

        return await self._changing.run(give())

    def granted(self, workspace: str, session: str | None = None, *, remote: bool = False) -> None:
        """Wake what a grant of that workspace, or of one session there, may cover, now that it is durable."""
        if not remote:
            self.ledger.database.notify(CHANGES)
        for news in self.waits:
            approval = news.approval
            if approval is None or (
                approval.workspace_id == workspace and session in (None, approval.session_id)
            ):
                news.grants += 1
                news.event.set()

    async def change(
        self, workspace: str, happened: StepKind, work: Callable[..., Transaction[Approval]], *args: object
    ) -> Approval:
        """Change one approval in a transaction, which is given the time after its arguments."""

        async def change() -> Approval:
            approval = await self.ledger.transact(workspace, work, *args, self.clock.now_ms())
            self.publish(approval, happened)
            return approval

        return await self._changing.run(change())

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Bring it to its end, also if whoever waits for it is cancelled."""
        return await self._changing.run(work)

    async def refresh(self, approval: Approval) -> Approval:
        """Read it again; whoever waits for it hears of it."""
        found = await self.ledger.database.read(get, approval.workspace_id, approval.id)
        for news in self._waits.get(found.id, ()) if found != approval else ():
            news.approval = found
            news.event.set()
        return found

    async def settle(self) -> None:
        """Wait until what was begun has ended; each is bounded by the database."""
        await self._changing.settle()

    # By whoever decides.

    async def claim(self, principal: Principal, approval_id: str, lease_ms: int) -> Approval:
        work = self.life.claim
        return await self.change(
            principal.workspace, StepKind.CLAIMED, work, principal, approval_id, lease_ms
        )

    async def escalate(
        self, principal: Principal, approval_id: str, words: str | None = None, reason: Reason | None = None
    ) -> Approval:
        async def change() -> Approval:
            now = self.clock.now_ms()
            approval = await self.ledger.transact(
                principal.workspace, self.life.escalate, principal, approval_id, words, now, reason=reason
            )
            if approval.escalated_at == now:  # else it was with a person before, and there is no news
                self.publish(approval, StepKind.ESCALATED)
            return approval

        return await self._changing.run(change())

    async def resolve(self, principal: Principal, approval_id: str, answer: ApprovalAnswer) -> Approval:
        work = self.life.resolve
        approval = await self.change(
            principal.workspace, StepKind.RESOLVED, work, principal, approval_id, answer
        )
        return await self.taken_up(approval)

    async def taken_up(self, approval: Approval) -> Approval:
        """Return an answer that somebody acts on. Where that is a process of another server it is waited for: a moment
        after its death nobody knows of that, and "approved" would have nothing behind it."""
        holder = approval.holder
        is_safe = holder == self.holder or approval.outlives or holder.startswith(PROGRAM)
        if is_safe or approval.status is not ApprovalState.APPROVED:
            return approval
        until, now = self.clock.monotonic() + TAKEN_LIMIT, approval
        while now.status is ApprovalState.APPROVED and now.consumed_at is None:
            if self.clock.monotonic() > until:
                raise Unheard(
                    approval,
                    f"it is approved, but {approval.waiter}, which waits for it, has not taken that up; look at it again: it "
                    "is used when that is back, or else superseded",
                )
            await self.clock.sleep(TAKEN_EVERY)
            with suppress(*AWAY):
                now = await self.ledger.database.read(get, approval.workspace_id, approval.id)
        if now.status is not ApprovalState.APPROVED:
            raise AlreadyAnswered(f"cannot approve {approval.id}: it is {now.status} before it could be used")
        return approval

    async def answer_group(
        self, principal: Principal, group: str, answer: ApprovalAnswer, only: Collection[str] | None = None
    ) -> GroupAnswer:
        async def change() -> GroupAnswer:
            now = self.clock.now_ms()
            answered = await self.ledger.transact(
                principal.workspace, self.life.answer_group, principal, group, answer, now, only
            )
            for approval in answered.answered:
                self.publish(approval, StepKind.RESOLVED)
            return answered

        answered = await self._changing.run(change())
        taken = await asyncio.gather(*map(self.taken_up, answered.answered), return_exceptions=True)
        errors = [error for error in taken if isinstance(error, BaseException)]
        if errors and (len(errors) == len(taken) or not all(isinstance(each, Conflict) for each in errors)):
            raise errors[0]
        up = tuple(each for each in taken if isinstance(each, Approval))
        unheard = {each.id for each in answered.answered} - {each.id for each in up}
        return GroupAnswer(up, (*answered.refused, *sorted(unheard)))

    # Without an answer.

    async def cancel(self, workspace: str, ids: Iterable[str], reason: Reason) -> list[Approval]:
        work, now = self.life.cancel, self.clock.now_ms()
        ending = self.ledger.transact(workspace, work, workspace, tuple(ids), reason, now)
        return await self._end(ending, StepKind.CANCELLED)

    async def supersede_session(self, workspace: str, session: str) -> list[Approval]:
        """End what still waits and names a session that is closed."""
        work, now = self.life.supersede_session, self.clock.now_ms()
        ending = self.ledger.transact(workspace, work, workspace, session, now)
        return await self._end(ending, StepKind.SUPERSEDED)

    async def expire(self) -> list[Approval]:
        """End whatever ran out of time, in every workspace."""
        return await self._end(expire_due(self.ledger, self.life, self.clock.now_ms()), StepKind.EXPIRED)

    async def supersede(self, gone: Iterable[str]) -> list[Approval]:
        """End what ends with these holders."""
        ending = supersede(self.ledger, self.life, gone, self.clock.now_ms())
        return await self._end(ending, StepKind.SUPERSEDED)

    async def supersede_revoked(self) -> list[Approval]:
        """End whatever was asked for by somebody who was revoked meanwhile, in every workspace: right after revoking, and
        now and then, for a token's time runs out by itself."""
        ending = supersede_revoked(self.ledger, self.life, self.clock.now_ms())
        return await self._end(ending, StepKind.SUPERSEDED)

    async def _end(self, ending: Coroutine[Any, Any, list[Approval]], happened: StepKind) -> list[Approval]:
        async def change() -> list[Approval]:
            ended = await ending
            for approval in ended:
                self.publish(approval, happened)
            return ended

        return await self._changing.run(change())


async def first_of(clock: Clock, seconds: float, *events: asyncio.Event) -> None:
    """Wait for one of the events, or so long."""
    tasks = [asyncio.create_task(event.wait()) for event in events]
    sleep = asyncio.create_task(clock.sleep(seconds))
    try:
        await asyncio.wait([*tasks, sleep], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (*tasks, sleep):
            task.cancel()
        await asyncio.gather(*tasks, sleep, return_exceptions=True)


class Attendance:
    """Whether supervisors are there: those who looked at the approvals of a tool lately.

    A supervisor that polls `?tool=filesystem.*` is there for these tools and no others. It is noted in the database, so
    that it counts on whichever server it asks, and is not forgotten by a restart.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._noted: dict[tuple[str, str, str], int] = {}
        self._known: dict[str, tuple[int, list[tuple[Glob | None, int]]]] = {}

    async def note(self, principal: Principal, tools: str | None) -> None:
        """Note that it looks at the approvals of these tools, or of all."""
        if principal.level != 1:
            return
        now, key = self._clock.now_ms(), (principal.workspace, label(principal), tools or "")
        if now - self._noted.get(key, 0) < NOTE_EVERY_MS:
            return
        self._noted = {other: at for other, at in self._noted.items() if now - at < NOTE_EVERY_MS}
        self._noted[key] = now
        await self._database.transact(_note, *key, now)

    async def last(self, workspace: str, tool: str) -> int:
        """Tell when a supervisor last looked at approvals of the tool; 0: not within a day."""
        now = self._clock.now_ms()
        looked, found = self._known.get(workspace, (0, []))
        if now - looked >= LOOK_EVERY_MS:
            attending = _SQL.attending(workspace=workspace, since=now - KEPT_MS)
            found = [
                (Glob(row["tools"]) if row["tools"] else None, row["seen_at"])
                for row in await self._database.read(rows, attending)
            ]
            self._known[workspace] = now, found
        return max((at for glob, at in found if glob is None or glob.matches(tool)), default=0)


def forget_attendance(now_ms: int) -> Transaction[None]:
    yield _SQL.forget_attendance(before=now_ms - KEPT_MS)


def _note(workspace: str, supervisor: str, tools: str, now_ms: int) -> Transaction[None]:
    yield _SQL.attend(workspace=workspace, supervisor=supervisor, tools=tools, now=now_ms)
    yield _SQL.attend_to_few(workspace=workspace, supervisor=supervisor, most=MOST_PATTERNS)


class ChangeStream:
    """Every change of an approval as an event of its workspace's stream `approvals`. `async with` it.

    It is appended after the commit of the change. A crash between the two loses the event, not the change: whoever
    follows reads the list first, and trusts the approval over the event.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._queue: asyncio.Queue[tuple[Approval, StepKind]] = asyncio.Queue()
        self._streams: dict[str, Stream] = {}  # held: the log would look for it on the disk each time

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._append(), name="legation-approval-changes")
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            async with asyncio.timeout(LAST_WORDS):
                await self._queue.join()
        except TimeoutError:
            logger.warning("some changes of approvals did not reach their stream")
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def __call__(self, approval: Approval, happened: StepKind) -> None:
        self._queue.put_nowait((approval, happened))

    async def open(self, workspace: str) -> None:
        """Make the stream, so that it can be followed before anything happened."""
        await self._log.stream(STREAM, workspace)

    async def _append(self) -> None:
        while True:
            approval, happened = await self._queue.get()
            try:
                if (stream := self._streams.get(approval.workspace_id)) is None:
                    stream = await self._log.stream(STREAM, approval.workspace_id)
                    self._streams[approval.workspace_id] = stream
                stream.append([draft(changed(approval, happened))])
            except LegationError as error:
                logger.warning("a change of an approval did not reach its stream: %s", error.code)
            finally:
                self._queue.task_done()


def changed(approval: Approval, happened: StepKind) -> ApprovalChanged:
    return ApprovalChanged(
        id=approval.id,
        happened=happened.value,  # type: ignore[arg-type]
        status=approval.status.value,
        needs=approval.needs,
        agent=approval.agent,
        tool=approval.tool,
        kind=approval.kind,
        rule=approval.policy_rule,
        group=approval.group_key,
        trace_id=approval.trace_id,
        created_at=approval.created_at,
        expires_at=approval.expires_at,
        injection_risk=approval.injection_risk,
        session_id=approval.session_id,
        claimed_by=approval.claimed_by,
        claimed_until=approval.claimed_until,
        resolved_by=approval.resolved_by,
        replaces=approval.replaces,
        replaced_by=approval.replaced_by,
        why=why_ended(approval.status, approval.reason),
    )
