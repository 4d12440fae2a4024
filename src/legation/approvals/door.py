"""The one door: every call of every agent is decided here, whichever way it came in.

In this order: identity (who brings the request knows it), limits, policy, grants, the injection signal, an approval,
its consumption, the effect, the trace.

INV-1  The same call under the same policies gets the same decision and the same trace, whoever brings it.
INV-2  Nothing passes without a trace, and nothing passes twice.
INV-3  Whoever has gone takes the question along: an answer that comes later changes nothing and starts nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from legation.approvals.admit import (
    DoorTransactions,
    Evaluated,
    NoGrant,
    OverLimit,
    covering,
    edited,
    edited_params,
    lifting,
    over_limit,
    result_of,
)
from legation.approvals.approval import Approval, ApprovalState, new_approval_id
from legation.approvals.execute import act, write_down, write_down_later
from legation.approvals.grants import GrantService
from legation.approvals.limits import Loops, peek
from legation.approvals.policies import Policies, judged_by, off_loop
from legation.approvals.policy.rules import PolicySet, UnaskedWord
from legation.approvals.queue import AWAY, AWAY_MS, ApprovalNews, ApprovalQueue, Attendance, first_of
from legation.approvals.request import (
    ONLY_ALWAYS,
    POLICY,
    DoorRequest,
    DoorResult,
    Ending,
    Execute,
    InjectionSignal,
    OnCallEnded,
    Preview,
    ToolReturn,
    context_of,
    ending_of,
)
from legation.approvals.trace.step import StepKind, proposed, unasked
from legation.approvals.transitions import Reason, Revoked, get
from legation.approvals.wait import WAIT_MS, ApprovalWait, Notify
from legation.errors import Conflict, LegationError, RateLimited, Unavailable

TIMEOUT: Final = 600.0  # seconds: a person's time to answer, unless the rule says otherwise
MOST_WAITING: Final = (
    1000  # calls that one credential has waiting here: connections and memory are everybody's
)
MOVED: Final = "a path leads elsewhere than when it was asked; ask again"
STOPPING: Final = "the server stops; ask again when it is back"
LAST_WORDS: Final = 10.0  # seconds: for what passed and is being done, when the door closes

logger = logging.getLogger("legation.door")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorOptions:
    """How a door behaves, beyond its policies."""

    timeout: float = TIMEOUT
    most_waiting: int = MOST_WAITING
    most_pending: int = MOST_WAITING  # of one agent, or of one session; a server has a setting for it
    supervisor_wait_ms: int = WAIT_MS
    grants: GrantService | None = (
        None  # where a person who approves what can only be allowed always gives one
    )
    signal: InjectionSignal | None = None
    notify: Notify | None = None
    ended: OnCallEnded | None = None


class Door:
    """`async with Door(...)`: at its end nobody waits any more, and each was told."""

    def __init__(
        self,
        inbox: ApprovalQueue,
        policies: Policies,
        attendance: Attendance,
        habits: DoorOptions | None = None,
    ) -> None:
        self.inbox = inbox
        self.policies = policies
        self._attendance = attendance
        self._habits = habits or DoorOptions()
        self._loops = Loops(inbox.clock)
        self._under_way: set[asyncio.Task[Any]] = set()
        self._waiting: Counter[tuple[str, str, str]] = Counter()  # by whoever asks
        self._closing = asyncio.Event()
        policies.on_change(self._on_policies)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Whoever waits is told that it is over; what passed has `LAST_WORDS` to end."""
        self.shut()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS):
                while self._under_way:
                    await asyncio.wait(set(self._under_way))
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        await self.inbox.settle()

    def shut(self) -> None:
        """Nobody comes in any more, and whoever waits is told at once."""
        self._closing.set()
        for wait in self.inbox.waits:
            wait.news.set()

    async def decide(self, request: DoorRequest, judged: Evaluated | None = None) -> DoorResult:
        """For those who act themselves: whoever is approved acts at once. Cancelling it takes the question back. Who had
        to say something of it before brings what was `judged` then: no second look finds another rule."""
        gone = asyncio.Event()

        async def work() -> DoorResult:
            ruling = await self._through(request, gone, acts=False, judged=judged)
            if ruling.passed and request.only_always:
                ruling = await self._with_grant(request, ruling)
            if self._habits.ended is not None:
                self._habits.ended(request.principal.workspace, ruling.trace_id)
            return ruling

        return await self._owned(work(), gone)

    async def run(self, request: DoorRequest, execute: Execute) -> tuple[DoorResult, ToolReturn | None]:
        """Decide, and if it passes act, at most once. Cancelling it takes the question back, but no effect."""
        gone = asyncio.Event()

        async def work() -> tuple[DoorResult, ToolReturn | None]:
            ruling = await self._through(request, gone, acts=True)
            returned = await self._act(request, ruling, execute) if ruling.passed else None
            if self._habits.ended is not None:
                self._habits.ended(request.principal.workspace, ruling.trace_id)
            return ruling, returned

        return await self._owned(work(), gone)

    async def consider(self, request: DoorRequest) -> Preview:
        """What would happen (see `Passage.enter`). Nothing is run, counted or recorded."""
        judged, now = await self.judge(request), self.inbox.clock.now_ms()
        database, action, verdict = self.inbox.ledger.database, request.action, judged.verdict
        hit = self._loops.repeated(request.loop_key, action.digest(), judged.limits, note=False)
        if hit is None:
            workspace = request.principal.workspace
            hit = await database.read(peek, workspace, action.agent, judged.limits, action, now)
        grant = None if hit else await database.read(lifting, judged, now)
        return Preview(
            policy="deny" if hit else verdict.action,
            rule=hit.rule if hit else verdict.name,
            version=judged.policies.version,
            reason=hit.reason if hit else verdict.reason,
            message=hit.reason if hit else verdict.message,
            injection_risk=judged.injected,
            grant=grant.id if grant else None,
            limit=hit.limit if hit else None,
        )

    async def judge(self, request: DoorRequest) -> Evaluated:
        """By the policies, with all that these look up, off the loop. Nothing is counted or recorded."""
        policies = self.policies.current
        verdict, seen = await judged_by(policies, request.action, request.facts)
        signal = self._habits.signal
        injected = signal is not None and signal(request.action)
        judged = Evaluated(request=request, policies=policies, verdict=verdict, facts=seen, injected=injected)
        places = seen.places(request.action.paths) if judged.is_asked else ()  # looked up already
        return replace(judged, places=places)

    def expires_at(self, judged: Evaluated, asked_at: int) -> int:
        """Of the approval that comes of it, also for whoever has to say so before it is decided. As it was told, if it
        was; one whose time is over before it comes to be asked has a moment, and expires."""
        wanted, told = judged.verdict.timeout or self._habits.timeout, judged.request.expires_at
        own = asked_at + round(min(wanted, judged.request.timeout or wanted) * 1000)
        return own if told is None else max(asked_at + 1, min(own, told))

    async def witness(self, request: DoorRequest, default: UnaskedWord) -> tuple[Preview, bool]:
        """Something was done that nobody was asked about: what would have happened, traced unless it would have passed,
        and whether the turn is to end for it. `default` counts where no policy says so."""
        found = await self.consider(request)
        if found.policy == "allow" or found.grant is not None:
            return found, False
        policies, action = self.policies.current, request.action
        ends = (policies.unasked(action.agent) or default) == "stop"
        call = request.call()
        digest, context = action.digest(found.version), context_of(action, request.facts)
        steps = [
            proposed(call, action, digest, owner=request.content_owner, context=context),
            unasked(call, found.policy, found.rule, found.version, ended=ends),
        ]
        workspace, now = request.principal.workspace, self.inbox.clock.now_ms()
        await self.inbox.ledger.append(workspace, steps, now)
        if self._habits.ended is not None:
            self._habits.ended(workspace, request.trace_id)
        return found, ends

    # One request.

    async def _through(
        self, request: DoorRequest, gone: asyncio.Event, *, acts: bool, judged: Evaluated | None = None
    ) -> DoorResult:
        if self._closing.is_set():
            raise Unavailable("cannot decide anything any more: the server stops; ask again when it is back")
        # Rules that were edited since count. What is asked about all the same is decided anew while it waits, and has
        # the time that was said.
        if judged is None or (judged.policies is not self.policies.current and not judged.is_asked):
            judged = await self.judge(request)
        looping = self._loops.repeated(request.loop_key, request.action.digest(), judged.limits)
        judged = replace(judged, request=request, looping=looping)
        passage = DoorTransactions(
            self.policies,
            self.inbox.life,
            self.inbox.waiter,
            acts,
            self._habits.most_pending,
            self._habits.grants,
        )
        now, approval_id, expires_at = self.inbox.clock.now_ms(), "", 0
        with ExitStack() as stack:
            if judged.is_asked:  # only then does anybody wait
                stack.enter_context(self._room(judged))
                approval_id = request.approval_id or new_approval_id(now)
                wait = stack.enter_context(self.inbox.waiting(approval_id))
                expires_at = self.expires_at(judged, now)
            if (settled := passage.settled(judged)) is not None:
                await self.inbox.ledger.append(judged.request.principal.workspace, settled.steps, now)
                return settled.ruling
            entered = await self.inbox.ledger.transact(
                judged.request.principal.workspace,
                passage.enter,
                judged,
                approval_id,
                expires_at,
                now,
            )
            if isinstance(entered, DoorResult):
                return entered
            self.inbox.tell(entered, StepKind.PROPOSED)
            return await self._answered(judged, passage, entered, wait, gone)

    async def _answered(
        self,
        judged: Evaluated,
        passage: DoorTransactions,
        approval: Approval,
        wait: ApprovalNews,
        gone: asyncio.Event,
    ) -> DoorResult:
        waiting = ApprovalWait(
            inbox=self.inbox,
            attendance=self._attendance,
            policies=self.policies,
            passage=passage,
            judged=judged,
            wait=wait,
            gone=gone,
            closing=self._closing,
            notify=self._habits.notify,
            supervisor_wait_ms=self._habits.supervisor_wait_ms,
        )
        try:
            ended = await waiting.run(approval)
        except LegationError:
            await self._withdraw(approval, "caller-gone")
            raise
        if waiting.ruling is not None:
            return waiting.ruling
        judged = waiting.judged
        if ended is None and self._closing.is_set():
            # Told at once, written down right after: those who wait are many, and have little time to hear it.
            self._own(self._withdraw(approval, "stopping"))
            return result_of(judged, "cancelled", POLICY, STOPPING, STOPPING, approval.call)
        if ended is None:
            ended = await self._withdraw(approval, "caller-gone")
        return await self._left(judged, passage, ended, gone)

    async def _left(
        self, judged: Evaluated, passage: DoorTransactions, ended: Approval, gone: asyncio.Event
    ) -> DoorResult:
        """With what was answered. Approved is not yet passed: it is consumed here."""
        database = self.inbox.ledger.database
        if ended.replaced_by is not None:
            ended = await database.read(get, ended.workspace_id, ended.replaced_by)
            judged = await self._with_edited(judged, ended)
        if ended.status is ApprovalState.APPROVED and gone.is_set():
            ended = await self._withdraw(ended, "caller-gone")
        ending = await database.read(ending_of, self.inbox.ledger.chain.sealer, ended)
        if ended.status is not ApprovalState.APPROVED:
            return _refused(judged, ended, ending)
        if (denied := await self._moved(judged, ended)) is not None:
            return denied
        try:
            consumed = await self.inbox.changed(
                judged.request.principal.workspace, StepKind.CONSUMED, passage.leave, judged, ended
            )
        except OverLimit as over:
            await self._withdraw(ended, "limit-reached")
            return over_limit(judged, ended, over)
        except NoGrant:
            await self._withdraw(ended, "only-always")
            why = f"{ending.by} approved it, but {ONLY_ALWAYS}"
            return result_of(judged, "denied", POLICY, why, ONLY_ALWAYS, ended.call)
        except Revoked:
            return await self._revoked(judged, ended)
        except Conflict as conflict:
            await self._withdraw(ended, "policy-changed")
            changed = (conflict.data or {}).get("reason") == "policy-changed"
            why = "the policy changed after it was approved: ask again" if changed else conflict.message
            return result_of(judged, "cancelled", POLICY, why, why, ended.call)
        if judged.request.only_always:  # a grant came with it, which may cover what waits besides
            self.inbox.granted(judged.request.principal.workspace, judged.request.granted_session)
        ruling = result_of(judged, "approved", ending.by, ending.reason, ending.message, consumed.call)
        return replace(ruling, by_name=ending.by_name)

    async def _with_grant(self, request: DoorRequest, ruling: DoorResult) -> DoorResult:
        """By which the agent may be told `always`; whoever revoked it meanwhile has taken that back."""
        judged = await self.judge(request)
        grant = await self.inbox.ledger.database.read(covering, judged, self.inbox.clock.now_ms())
        return replace(ruling, grant=grant.id if grant else None)

    async def _revoked(self, judged: Evaluated, approval: Approval) -> DoorResult:
        """Whoever asked was revoked between the answer and its use."""
        await self.inbox.supersede_revoked()
        ended = await self.inbox.look(approval)
        ending = await self.inbox.ledger.database.read(ending_of, self.inbox.ledger.chain.sealer, ended)
        return _refused(judged, ended, ending)

    async def _with_edited(self, judged: Evaluated, approval: Approval) -> Evaluated:
        """What was approved has other arguments: the digest of these is what the approval is bound to."""
        ledger = self.inbox.ledger
        params = await edited_params(ledger.database, ledger.chain.sealer, approval)
        request = replace(
            judged.request,
            action=edited(judged.request.action, params, judged.request.facts),
            trace_id=approval.trace_id,
            approval_id=approval.id,
        )
        policies = self.policies.current
        verdict, seen = await judged_by(policies, request.action, request.facts)
        places = await off_loop(seen.places, request.action.paths)
        return replace(judged, request=request, policies=policies, verdict=verdict, facts=seen, places=places)

    async def _moved(self, judged: Evaluated, approval: Approval) -> DoorResult | None:
        """Of one that was approved, where its paths lead elsewhere by now, or to what the rules deny: a link was put
        there meanwhile, and nobody has approved that. It is denied."""
        request, policies = judged.request, self.policies.current
        verdict, seen = await judged_by(policies, request.action, request.facts)
        places = await off_loop(seen.places, request.action.paths)
        if verdict.action != "deny" and places == judged.places:
            return None
        if policies.version != approval.policy_version:
            return None  # the rules were edited: consuming it says so
        await self._withdraw(approval, "paths-changed")
        if verdict.action == "deny":
            now = replace(judged, policies=policies, verdict=verdict)
            return result_of(now, "denied", POLICY, verdict.reason, verdict.message or MOVED, approval.call)
        return result_of(judged, "denied", POLICY, MOVED, MOVED, approval.call)

    async def _act(self, request: DoorRequest, ruling: DoorResult, execute: Execute) -> ToolReturn:
        outcome = await act(self.inbox, request, ruling, execute)
        try:
            await write_down(self.inbox, outcome)
        except AWAY as error:
            logger.warning("cannot write down what a tool answered, and go on trying: %s", error)
            self._own(write_down_later(self.inbox, outcome, self._closing, self._habits.ended))
        return outcome.returned

    async def _withdraw(self, approval: Approval, reason: Reason) -> Approval:
        """As it is after that: somebody may have been faster. Where the database is away it is tried until the
        expiry: else it could be approved, and nothing would come of it."""
        while True:
            try:
                await self.inbox.cancel(approval.workspace_id, [approval.id], reason)
                return await self.inbox.look(approval)
            except AWAY:
                if self._closing.is_set() or approval.expires_at <= self.inbox.clock.now_ms():
                    raise
                await first_of(self.inbox.clock, AWAY_MS / 1000, self._closing)

    @contextmanager
    def _room(self, judged: Evaluated) -> Iterator[None]:
        """For one more that may have to wait; a flood is refused before it is on record."""
        who = judged.request.principal
        key = (who.workspace, *who.asker)
        if self._waiting[key] >= self._habits.most_waiting:
            raise RateLimited(
                f"cannot ask for more than {self._habits.most_waiting} approvals at once; wait until some are answered"
            )
        self._waiting[key] += 1
        try:
            yield
        finally:
            self._waiting[key] -= 1
            if not self._waiting[key]:
                del self._waiting[key]

    def _on_policies(self, _policies: PolicySet) -> None:
        for wait in self.inbox.waits:
            wait.news.set()

    async def _owned(self, work: Coroutine[Any, Any, T], gone: asyncio.Event) -> T:
        """In a task of the door's own: whoever waits may leave, what was begun is brought to its end."""
        task = self._own(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            gone.set()
            raise

    def _own(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and (error := task.exception()) and not isinstance(error, LegationError):
            logger.error("cannot decide a call: a defect", exc_info=error)


def _refused(judged: Evaluated, ended: Approval, ending: Ending) -> DoorResult:
    outcome = ended.status.value
    assert outcome not in ("pending", "approved")
    message = ending.message or judged.verdict.message or ending.default
    ruling = result_of(judged, outcome, ending.by, ending.reason, message, ended.call)  # type: ignore[arg-type]
    return replace(ruling, by_name=ending.by_name)
