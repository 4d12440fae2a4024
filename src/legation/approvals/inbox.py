"""The approvals of one server: every change goes through here, and after its commit it is told.

INV-N1  Whoever waits for an approval, and whoever follows the changes, hears of each change after it is durable.
INV-N2  A change is told even if whoever made it has gone meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

from legation.approvals.approval import Answer, Approval
from legation.approvals.approval_endings import Reason, expire_due, get, supersede, supersede_revoked
from legation.approvals.approval_life import Approvals, GroupAnswer
from legation.approvals.chain import Ledger
from legation.approvals.trace import StepKind
from legation.clock import Clock
from legation.errors import Conflict, StorageFailed, Unavailable
from legation.store.database.transaction import Transaction
from legation.wire.principal import Principal

AWAY_MS: Final = 2_000  # between two tries of a database that is away: its time to come back
AWAY: Final = (StorageFailed, Unavailable)  # how a database is that may come back

T = TypeVar("T")
Tell: TypeAlias = Callable[[Approval, StepKind], None]


@dataclass(slots=True, eq=False)
class Wait:
    """What one that waits knows of its approval: how it was last told, and that there is news."""

    approval: Approval | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)
    grants: int = 0  # given since it waits: whoever waits looks whether they cover it


class Inbox:
    """Belongs to one event loop. `waiter` is this process: what it waits for is nobody else's."""

    def __init__(self, ledger: Ledger, clock: Clock, waiter: str) -> None:
        self.ledger = ledger
        self.clock = clock
        self.waiter = waiter
        self.life = Approvals(ledger.chain)
        self._waits: dict[str, Wait] = {}
        self._listeners: list[Tell] = []
        self._changing: set[asyncio.Task[Any]] = set()

    def on_change(self, tell: Tell) -> None:
        self._listeners.append(tell)

    @contextmanager
    def waiting(self, approval_id: str) -> Iterator[Wait]:
        """Begun before it is asked, so that no answer is too fast."""
        if approval_id in self._waits:
            raise Conflict(f"cannot ask for approval {approval_id} twice; wait for the one there is")
        wait = self._waits[approval_id] = Wait()
        try:
            yield wait
        finally:
            self._waits.pop(approval_id, None)

    @property
    def waits(self) -> list[Wait]:
        return list(self._waits.values())

    def tell(self, approval: Approval, happened: StepKind) -> None:
        if (wait := self._waits.get(approval.id)) is not None:
            wait.approval = approval
            wait.news.set()
        for listener in self._listeners:
            listener(approval, happened)

    async def granting(
        self, workspace: str, giving: Coroutine[Any, Any, T], *, session: str | None = None
    ) -> T:
        """What waits there hears of a grant as soon as it is given (INV-N2). `session`: whose alone the grant is."""

        async def give() -> T:
            given = await giving
            self.granted(workspace, session)
            return given

        return await self.to_the_end(give())

    def granted(self, workspace: str, session: str | None = None) -> None:
        """A grant of that workspace, or of one session there, is durable: what waits may be covered by it."""
        for wait in self.waits:
            if wait.approval is None or _is_of(wait.approval, workspace, session):
                wait.grants += 1
                wait.news.set()

    async def changed(
        self, workspace: str, happened: StepKind, work: Callable[..., Transaction[Approval]], *args: object
    ) -> Approval:
        """One approval changes in a transaction, which is given the time after its arguments."""

        async def change() -> Approval:
            approval = await self.ledger.transact(workspace, work, *args, self.clock.now_ms())
            self.tell(approval, happened)
            return approval

        return await self.to_the_end(change())

    async def to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Also if whoever waits for it is cancelled."""
        task = asyncio.create_task(work)
        self._changing.add(task)
        task.add_done_callback(self._changing.discard)
        return await asyncio.shield(task)

    async def look(self, approval: Approval) -> Approval:
        """As it is now; whoever waits for it hears of it."""
        found = await self.ledger.database.read(get, approval.workspace_id, approval.id)
        if (wait := self._waits.get(found.id)) is not None and found != approval:
            wait.approval = found
            wait.news.set()
        return found

    async def settle(self) -> None:
        """Until what was begun has ended; each is bounded by the database."""
        while self._changing:
            await asyncio.gather(*self._changing, return_exceptions=True)

    # By whoever decides.

    async def claim(self, principal: Principal, approval_id: str, lease_ms: int) -> Approval:
        return await self.changed(
            principal.workspace,
            StepKind.CLAIMED,
            self.life.claim,
            principal,
            approval_id,
            lease_ms,
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
                self.tell(approval, StepKind.ESCALATED)
            return approval

        return await self.to_the_end(change())

    async def resolve(self, principal: Principal, approval_id: str, answer: Answer) -> Approval:
        return await self.changed(
            principal.workspace,
            StepKind.RESOLVED,
            self.life.resolve,
            principal,
            approval_id,
            answer,
        )

    async def answer_group(self, principal: Principal, group: str, answer: Answer) -> GroupAnswer:
        async def change() -> GroupAnswer:
            now = self.clock.now_ms()
            answered = await self.ledger.transact(
                principal.workspace, self.life.answer_group, principal, group, answer, now
            )
            for approval in answered.answered:
                self.tell(approval, StepKind.RESOLVED)
            return answered

        return await self.to_the_end(change())

    # Without an answer.

    async def cancel(self, workspace: str, ids: Iterable[str], reason: Reason) -> list[Approval]:
        return await self._end_all(
            workspace, lambda now: self.life.cancel(workspace, tuple(ids), reason, now), StepKind.CANCELLED
        )

    async def cancel_session(
        self, workspace: str, session: str, turn: str | None, reason: Reason
    ) -> list[Approval]:
        return await self._end_all(
            workspace,
            lambda now: self.life.cancel_session(workspace, session, turn, reason, now),
            StepKind.CANCELLED,
        )

    async def expire(self) -> list[Approval]:
        """Whatever ran out of time, in every workspace."""

        async def change() -> list[Approval]:
            return self._tell_all(
                await expire_due(self.ledger, self.life, self.clock.now_ms()), StepKind.EXPIRED
            )

        return await self.to_the_end(change())

    async def supersede(self, dead: Iterable[str]) -> list[Approval]:
        """Whatever these waiters waited for."""

        async def change() -> list[Approval]:
            ended = await supersede(self.ledger, self.life, dead, self.clock.now_ms())
            return self._tell_all(ended, StepKind.SUPERSEDED)

        return await self.to_the_end(change())

    async def supersede_revoked(self) -> list[Approval]:
        """Whatever was asked for by somebody who was revoked meanwhile, in every workspace: right after revoking, and now
        and then, for a token's time runs out by itself."""

        async def change() -> list[Approval]:
            ended = await supersede_revoked(self.ledger, self.life, self.clock.now_ms())
            return self._tell_all(ended, StepKind.SUPERSEDED)

        return await self.to_the_end(change())

    async def supersede_session(self, workspace: str, session: str) -> list[Approval]:
        """What still waits and names a session that has ended."""
        return await self._end_all(
            workspace,
            lambda now: self.life.supersede_session(workspace, session, now),
            StepKind.SUPERSEDED,
        )

    async def _end_all(
        self, workspace: str, work: Callable[[int], Transaction[list[Approval]]], happened: StepKind
    ) -> list[Approval]:
        async def change() -> list[Approval]:
            return self._tell_all(await self.ledger.transact(workspace, work, self.clock.now_ms()), happened)

        return await self.to_the_end(change())

    def _tell_all(self, ended: list[Approval], happened: StepKind) -> list[Approval]:
        for approval in ended:
            self.tell(approval, happened)
        return ended


def _is_of(approval: Approval, workspace: str, session: str | None) -> bool:
    return approval.workspace_id == workspace and session in (None, approval.session_id)


async def first_of(clock: Clock, seconds: float, *events: asyncio.Event) -> None:
    """Until one of the events, or so long."""
    tasks = [asyncio.create_task(event.wait()) for event in events]
    sleep = asyncio.create_task(clock.sleep(seconds))
    try:
        await asyncio.wait([*tasks, sleep], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (*tasks, sleep):
            task.cancel()
        await asyncio.gather(*tasks, sleep, return_exceptions=True)
