"""Asks of programs that act by themselves: a runner, or any other that waits for an answer and outlives servers.

It asks, waits by looking again, at whichever server is there, and uses the answer right before it acts. Every sign that
it gives keeps alive what it waits for; silent for `waiter_dead` it is gone, and nobody can answer it any more.

INV-Q1  An ask is its asker's alone: to any other credential there is none.
INV-Q2  It is used once. Who sends the same use again, by its key, is told the same; any other use is refused.
INV-Q3  What a rule or a grant let pass is used only while that counts: the runner acts later than it was told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from msgspec.structs import replace

from legation.approvals.admit import KEEP_MS, DoorTransactions, Evaluated, Settled, covering, result_of
from legation.approvals.approval import Approval, ApprovalState, Waiter, new_approval_id
from legation.approvals.calls import CallKey, KeyTaken, add_call, find_call, kept_action, request_of
from legation.approvals.door import Door
from legation.approvals.queue import ApprovalQueue
from legation.approvals.request import (
    POLICY,
    DoorRequest,
    DoorResult,
    Ending,
    at_use,
    ending_of,
    looked_at_again,
    why_ended,
)
from legation.approvals.trace.entries import steps_of
from legation.approvals.trace.step import StepKind
from legation.approvals.transitions import get, may_still_ask
from legation.approvals.upkeep import SignsOfLife
from legation.errors import AlreadyAnswered, Conflict, LegationError, NotFound
from legation.store.database.transaction import Queries, Row, Transaction, only, rows
from legation.wire.api.approvals import AskStatus, AskView, rfc3339
from legation.wire.principal import Principal
from legation.wire.resolved import ResolvedPaths

_SQL: Final = Queries("calls")


class AskTransactions(DoorTransactions, frozen=True, kw_only=True):
    """The transactions of an ask: it is on record, and whoever asked uses it later."""

    key: CallKey
    id: str

    def settled(self, evaluated: Evaluated) -> Settled | None:
        if evaluated.verdict.action == "allow" and evaluated.looping is None:
            return None  # it is kept, for whoever sends it again
        return DoorTransactions.settled(self, evaluated)

    def enter(
        self, evaluated: Evaluated, approval_id: str, expires_at: int, now_ms: int
    ) -> Transaction[DoorResult | Approval]:
        entered = yield from DoorTransactions.enter(self, evaluated, approval_id, expires_at, now_ms)
        if isinstance(entered, Approval) or entered.passed:
            asked = isinstance(entered, Approval)
            yield from add_call(
                self.key,
                self.id,
                self.waiter,
                evaluated.action.tool,
                entered.trace_id,
                "waiting" if asked else "passed",
                now_ms,
                (expires_at if asked else now_ms) + KEEP_MS,
            )
        return entered

    def leave(self, evaluated: Evaluated, approval: Approval, now_ms: int) -> Transaction[Approval]:  # noqa: ARG002
        """Leave it to whoever asked to use it: a grant resolves it, and no more."""
        yield from ()
        return approval

    def pass_after_all(
        self, evaluated: Evaluated, approval: Approval, now_ms: int
    ) -> Transaction[DoorResult]:
        result = yield from DoorTransactions.pass_after_all(self, evaluated, approval, now_ms)
        if result.passed:
            yield _SQL.begin_call(
                workspace=evaluated.workspace, id=self.id, holder=self.waiter.holder, status="passed",
                trace_id=result.trace_id,
            )  # fmt: skip
        return result


class UseTransactions(DoorTransactions, frozen=True, kw_only=True):
    """The transaction in which an ask is used (INV-Q2, INV-Q3)."""

    id: str
    used_key: str | None

    def leave(self, evaluated: Evaluated, approval: Approval, now_ms: int) -> Transaction[Approval]:
        if approval.resolver_kind == "grant" and (yield from covering(evaluated, now_ms)) is None:
            raise Conflict(f"cannot use ask {self.id}: the grant that let it pass is over; ask again")
        used = yield from DoorTransactions.leave(self, evaluated, approval, now_ms)
        if not (yield _SQL.use_call(workspace=evaluated.workspace, id=self.id, used_key=self.used_key)):
            raise _used(self.id)
        return used


class AskService:
    """Asks over HTTP, at any server of the database."""

    def __init__(self, door: Door, signs: SignsOfLife) -> None:
        self._door = door
        self._queue = door.queue
        self._database = door.queue.ledger.database
        self._signs = signs

    async def ask(self, request: DoorRequest, waiter: str, key: str | None) -> AskView:
        """Ask, or find again what was asked under the key. The id is the request's, where it brings one."""
        asked_id, who = request.approval_id or new_approval_id(self._queue.clock.now_ms()), request.principal
        by = Waiter(waiter, _holder(waiter, who))
        await self._sign(by)
        bound = CallKey.of(who, key or asked_id, request.action, waiter)
        if (row := await self._database.read(find_call, bound)) is None:
            make = partial(AskTransactions, key=bound, id=asked_id)
            try:
                entered = await self._door.ask(replace(request, approval_id=asked_id, waiter=by), make)
            except KeyTaken:
                row = await self._database.read(find_call, bound)
                assert row is not None
            else:
                return self._first_view(asked_id, waiter, entered)
        return await self._view(who, row["id"])

    async def look(self, who: Principal, ask: str, seconds: float) -> AskView:
        """Look at an ask; one that is pending is waited for, so long. Whoever looks is alive."""
        row = await self._find(who, ask)
        by = Waiter(row["waiter"], row["holder"])
        await self._sign(by)
        view = await self._view(who, ask)
        if view.status == "pending" and seconds > 0:
            approval = await self._database.read(get, who.workspace, ask)
            request = await request_of(self._queue, approval, by)
            bound = CallKey(who.workspace, *who.asker, row["key"], row["digest"])
            make = partial(AskTransactions, key=bound, id=ask)
            signs = asyncio.create_task(self._sign_again(by))
            try:
                await self._door.follow(request, approval, make, seconds)
            finally:
                signs.cancel()
                await asyncio.gather(signs, return_exceptions=True)
            view = await self._view(who, ask)
        return view

    async def use(
        self,
        who: Principal,
        ask: str,
        used_key: str | None,
        resolved: ResolvedPaths | None,
        refusal: Callable[[DoorResult], Exception],
    ) -> AskView:
        """Use it, right before acting: once. `resolved`: of an agent on another machine, where its paths lead by now."""
        row = await self._find(who, ask)
        by = Waiter(row["waiter"], row["holder"])
        await self._sign(by)
        if row["status"] == "passed":
            request = await _request_of_passed(self._queue, who, row["trace_id"])
            if request.facts.resolved is not None:
                request = at_use(request, resolved)
            evaluated = await self._door.evaluate(looked_at_again(request))
            verdict = evaluated.verdict
            if verdict.action == "deny":
                raise refusal(result_of(evaluated, "denied", POLICY, verdict.reason, verdict.message))
            now = self._queue.clock.now_ms()
            if not await self._database.transact(_use_passed, evaluated, ask, used_key, now):
                row = await self._find(who, ask)
        elif row["status"] == "waiting":
            approval = await self._database.read(get, who.workspace, ask)
            if approval.status_at(self._queue.clock.now_ms()) is ApprovalState.PENDING:
                raise Conflict(f"cannot use ask {ask}: nobody has answered it; wait until it is approved")
            request = await request_of(self._queue, approval, by)
            if request.facts.resolved is not None:
                request = at_use(request, resolved)
            make = partial(UseTransactions, id=ask, used_key=used_key)
            result = await self._door.use(request, approval, make)
            if result.passed:
                return await self._view(who, ask)
            row = await self._find(who, ask)  # the same, sent twice, may have been faster
            if row["status"] != "used":
                raise refusal(result)
        if row["status"] == "refused" or (row["status"] == "used" and not _is_same(row, used_key)):
            raise _used(ask)
        return await self._view(who, ask)

    async def withdraw(self, who: Principal, ask: str) -> None:
        """Take it back: a later answer is refused."""
        await self._find(who, ask)
        if not await self._database.transact(rows, _SQL.drop_call(workspace=who.workspace, id=ask)):
            raise _used(ask)
        await self._queue.cancel(who.workspace, [ask], "caller-gone")

    async def sign(self, who: Principal, waiter: str) -> None:
        """Tell that it is there: what it waits for is kept."""
        await self._sign(Waiter(waiter, _holder(waiter, who)))

    async def give_up(self, who: Principal, waiter: str) -> None:
        """End all that it waits for: it is gone."""
        await self._queue.supersede([_holder(waiter, who)])

    async def _find(self, who: Principal, ask: str) -> Row:
        kind, requester = who.asker
        found = _SQL.call_by_id(workspace=who.workspace, id=ask, requester_kind=kind, requester=requester)
        row = only(await self._database.read(rows, found))
        if row is None or not row["waiter"].startswith("run:"):
            raise NotFound("cannot find the ask; give the whole id, with the credential that asked")
        return row

    async def ending(self, who: Principal, ask: str) -> tuple[str, Ending] | None:
        """Say by which rule somebody was asked, and in words what came of it; None of one that nobody was asked about."""
        try:
            approval = await self._database.read(get, who.workspace, ask)
        except NotFound:
            return None
        if approval.status is ApprovalState.PENDING:
            return None
        sealer = self._queue.ledger.chain.sealer
        return approval.policy_rule, await self._database.read(ending_of, sealer, approval)

    async def _view(self, who: Principal, ask: str) -> AskView:
        row, why, by, expires = await self._find(who, ask), None, None, None
        status: AskStatus = "approved"
        if row["status"] in ("waiting", "refused", "used"):
            with suppress(NotFound):  # one that passed at once has none
                approval = await self._database.read(get, who.workspace, ask)
                now = approval.status_at(self._queue.clock.now_ms())
                status, why, by = now.value, why_ended(now, approval.reason), approval.resolved_by
                expires = rfc3339(approval.expires_at)
        if row["status"] == "used":
            status = "used"
        elif row["status"] == "refused":
            status = "cancelled"
        return AskView(
            id=ask, waiter=row["waiter"], status=status, decided_by=by, why=why, trace_id=row["trace_id"],
            expires_at=expires,
        )  # fmt: skip

    def _first_view(self, ask: str, waiter: str, entered: DoorResult | Approval) -> AskView:
        if isinstance(entered, Approval):
            expires = rfc3339(entered.expires_at)
            return AskView(
                id=ask, waiter=waiter, status="pending", trace_id=entered.trace_id, expires_at=expires
            )
        status: AskStatus = "approved" if entered.passed else "denied"
        why = None if entered.passed else entered.message or entered.reason
        return AskView(
            id=ask if entered.passed else None, waiter=waiter, status=status, decided_by=entered.by, why=why,
            trace_id=entered.trace_id,
        )  # fmt: skip

    async def _sign(self, waiter: Waiter) -> None:
        await self._signs.sign_for(self._queue, waiter.holder)

    async def _sign_again(self, waiter: Waiter) -> None:
        while True:
            await self._queue.clock.sleep(self._signs.sign_ms / 1000)
            with suppress(LegationError):  # the database is away: the next one may be heard
                await self._sign(waiter)


async def _request_of_passed(queue: ApprovalQueue, who: Principal, trace_id: str) -> DoorRequest:
    """Make the request of one that passed without an answer again, of its trace: an approval it may have none."""
    database, sealer = queue.ledger.database, queue.ledger.chain.sealer
    steps = await database.read(steps_of, who.workspace, trace_id)
    asked = next((step for step in steps if step.step == StepKind.PROPOSED), None)
    if asked is None:
        raise NotFound("cannot use the ask: its trace is gone; ask again")
    action, facts, _ = await kept_action(database, sealer, asked)
    return DoorRequest(
        principal=who, action=action, facts=facts.now(), trace_id=trace_id, session_id=asked.session_id
    )


def _use_passed(evaluated: Evaluated, ask: str, used_key: str | None, now_ms: int) -> Transaction[bool]:
    """INV-Q3."""
    who, agent = evaluated.request.principal, evaluated.action.agent
    if not (yield from may_still_ask(who.workspace, *who.asker, who.version, agent, now_ms)):
        raise Conflict(f"cannot use ask {ask}: whoever asked may no longer ask for {agent}")
    if evaluated.is_asked and (yield from covering(evaluated, now_ms)) is None:
        raise Conflict(f"cannot use ask {ask}: the rule or the grant that let it pass is over; ask again")
    return bool((yield _SQL.use_call(workspace=evaluated.workspace, id=ask, used_key=used_key)))


def _holder(waiter: str, who: Principal) -> str:
    # Its own: no other credential keeps it alive, whatever name it gives.
    kind, requester = who.asker
    return f"{waiter} {who.workspace} {kind}:{requester}"


def _is_same(row: Row, used_key: str | None) -> bool:
    return used_key is not None and row["used_key"] == used_key


def _used(ask: str) -> AlreadyAnswered:
    return AlreadyAnswered(
        f"cannot use ask {ask}: it was used or taken back before; ask again", {"status": "used"}
    )
