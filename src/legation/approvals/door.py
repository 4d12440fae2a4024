"""The one door: every call of every agent is decided here, whichever way it came in.

In this order: identity (who brings the request knows it), limits, policy, grants, the injection signal, an approval,
its consumption, the effect, the trace.

INV-1  The same call under the same policies gets the same decision and the same trace, whoever brings it.
INV-2  Nothing passes without a trace, and nothing passes twice.
INV-3  Whoever has gone takes the question along: an answer that comes later changes nothing and starts nothing.

An approval that is pending is waited for by the process that asked for it (`ApprovalWait`):

INV-V1  One that no supervisor is there for goes to a person after `supervisor_wait`, and so does one that supervisors
        left undecided for half of its time. The trace says which.
INV-V2  Whenever it needs a person, people are told, and once more before it expires.
INV-V3  At its expiry it is over: silence is never consent.
INV-V4  A database that is away for a while ends no wait: what is pending has somebody who waits for it.
INV-V5  Under other policies, and after a grant, it is decided anew: it is asked about all the same, or it is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Self, TypeAlias, TypeVar

from legation.approvals.admit import (
    DoorTransactions,
    Evaluated,
    NoGrant,
    OverLimit,
    act,
    covering,
    edited,
    edited_params,
    lifting,
    over_limit,
    result_of,
    write_down,
    write_down_later,
)
from legation.approvals.approval import Approval, ApprovalState, NoticeKind, NoticeReason, new_approval_id
from legation.approvals.grants import GrantService
from legation.approvals.limits import Loops, peek
from legation.approvals.policies import Policies
from legation.approvals.policy.rules import PolicySet, UnaskedWord, evaluate, off_loop
from legation.approvals.queue import AWAY, AWAY_MS, ApprovalNews, ApprovalQueue, Attendance, first_of
from legation.approvals.request import (
    LIFTED,
    ONLY_ALWAYS,
    POLICY,
    DoorRequest,
    DoorResult,
    Ending,
    Execute,
    InjectionSignal,
    OnCallEnded,
    ToolReturn,
    context_of,
    ending_of,
)
from legation.approvals.trace.step import StepKind, proposed, unasked
from legation.approvals.transitions import Reason, Revoked, get
from legation.errors import AlreadyAnswered, Conflict, LegationError, RateLimited, Unavailable
from legation.store.database.transaction import Transaction
from legation.tasks import TaskSet
from legation.wire.api.approvals import Considered
from legation.wire.principal import Principal

# The wait for an approval.

LOOK_MS: Final = 5_000  # between two looks whether a supervisor is there
REMIND_MS: Final = 600_000  # before the expiry, at most
WAIT_MS: Final = 30_000  # for a supervisor, unless the owner says otherwise

Notify: TypeAlias = Callable[[Approval, NoticeKind, NoticeReason], None]


@dataclass(slots=True, kw_only=True)
class ApprovalWait:
    """Wait for the end of one pending approval; meanwhile escalate it, notify people, expire it (INV-V1 to V5). Where the
    rules or a grant ended it, `result` says how, and `evaluated` is what they say."""

    queue: ApprovalQueue
    attendance: Attendance
    policies: Policies
    transactions: DoorTransactions
    evaluated: Evaluated
    news: ApprovalNews  # what the queue has told of it since it was asked
    caller_gone: asyncio.Event
    door_closing: asyncio.Event
    notify: Notify | None  # None: people sit in front of it
    supervisor_wait_ms: int
    result: DoorResult | None = field(default=None, init=False)
    _grants: int = field(default=0, init=False)  # that were looked at
    _notified: bool = field(default=False, init=False)
    _remind_at: int | None = field(default=None, init=False)  # since then, until they are told again
    _why: NoticeReason = field(default="policy", init=False)

    async def run(self, approval: Approval) -> Approval | None:
        """Return the approval as it ended, or None if the caller left or the door closed before."""
        if self.news.approval is None:
            self.news.approval = approval
        while not (self.caller_gone.is_set() or self.door_closing.is_set()):
            self.news.event.clear()
            approval = self.news.approval
            if approval.status is not ApprovalState.PENDING:
                return approval
            try:
                if (ended := await self._check(approval)) is not None:
                    return ended
                if self.news.event.is_set():
                    continue
                pause = self._ms_to_next_check(self.news.approval)
            except AWAY:
                if approval.expires_at <= self.queue.clock.now_ms():
                    raise  # nobody can answer it any more; whoever finds the database back expires it
                pause = AWAY_MS
            await first_of(
                self.queue.clock, pause / 1000, self.news.event, self.caller_gone, self.door_closing
            )
        return None

    async def _check(self, approval: Approval) -> Approval | None:
        policies = self.policies.current
        is_old = policies.version != approval.policy_version or self._grants != self.news.grants
        if is_old and (ended := await self._recheck(approval, policies)) is not None:
            return ended
        now = self.queue.clock.now_ms()
        try:
            if approval.expires_at <= now:
                await self.queue.expire()
                await self.queue.refresh(approval)  # another server may have been faster
            elif approval.needs == "person":
                self._notify(approval, now)
            elif (reason := await self._reason_to_escalate(approval, now)) is not None:
                self._why = reason
                await self.queue.escalate(door_principal(approval.workspace_id), approval.id, reason=reason)
        except Conflict:
            await self.queue.refresh(approval)  # somebody was faster
        return None

    async def _reason_to_escalate(
        self, approval: Approval, now: int
    ) -> Literal["no-supervisor", "undecided"] | None:
        if now >= self._escalate_at(approval):
            return "undecided"
        if now < approval.created_at + self.supervisor_wait_ms:
            return None
        last = await self.attendance.last(approval.workspace_id, approval.tool)
        absent_since = max(last, approval.created_at)
        return "no-supervisor" if now - absent_since >= self.supervisor_wait_ms else None

    def _notify(self, approval: Approval, now: int) -> None:
        if not self._notified:
            self._notified = True
            self._remind_at = approval.expires_at - min(REMIND_MS, (approval.expires_at - now) // 4)
            if self._why == "policy" and approval.escalated_at is not None:
                self._why = "escalated"
            if self.notify is not None:
                self.notify(approval, "asked", self._why)
        elif self._remind_at is not None and now >= self._remind_at:
            self._remind_at = None
            if self.notify is not None:
                self.notify(approval, "reminder", self._why)

    def _ms_to_next_check(self, approval: Approval) -> int:
        now, moments = self.queue.clock.now_ms(), [approval.expires_at]
        if approval.needs == "supervisor":
            first = approval.created_at + self.supervisor_wait_ms
            moments += [self._escalate_at(approval), first if now < first else now + LOOK_MS]
        elif self._remind_at is not None:
            moments.append(self._remind_at)
        return max(0, min(moments) - now)

    def _escalate_at(self, approval: Approval) -> int:
        half = (approval.created_at + approval.expires_at) // 2
        # The other half is a person's; but a supervisor has its time in any case.
        return max(half, approval.created_at + self.supervisor_wait_ms)

    # Other rules, or a grant, while it is pending.

    async def _recheck(self, approval: Approval, policies: PolicySet) -> Approval | None:
        request, is_bound = self.evaluated.request, policies.version == approval.policy_version
        verdict, seen = await evaluate(policies, request.action, request.facts)
        self.evaluated = replace(self.evaluated, policies=policies, verdict=verdict, facts=seen)
        try:
            return await (self._check_grants(approval) if is_bound else self._under_other_rules(approval))
        except Revoked:
            await self.queue.supersede_revoked()
            return await self.queue.refresh(approval)
        except Conflict:  # an answer was faster, or another edit of the rules
            found = await self.queue.refresh(approval)  # there is news, be it another server's
            if found.consumed_at is None:
                return None
            # Nobody else consumes what this one waits for: it was lifted here, and the database went before it said so.
            self.queue.publish(found, StepKind.RESOLVED)
            return self._passed(found)

    async def _check_grants(self, approval: Approval) -> Approval | None:
        """Let it pass by a grant that was given while it waits."""
        queue, evaluated, given = self.queue, self.evaluated, self.news.grants
        # Read first: most grants cover little of what waits, and only the rest is worth a turn of the chain.
        if await queue.ledger.database.read(lifting, evaluated, queue.clock.now_ms()) is not None:
            await self._pass_by_grant(approval)
        self._grants = given  # not before: a database that is away is asked again
        return None if self.result is None else self.news.approval

    async def _pass_by_grant(self, approval: Approval) -> None:
        queue, evaluated = self.queue, self.evaluated
        try:
            used = await queue.change(evaluated.workspace, StepKind.RESOLVED, self._lift, approval)
        except OverLimit as over:
            if await queue.cancel(evaluated.workspace, [approval.id], "limit-reached"):
                self.result = over_limit(evaluated, over.hit, approval.call)
            else:
                await queue.refresh(approval)  # an answer was faster
            return
        self._passed(used)

    def _passed(self, used: Approval) -> Approval:
        self.queue.publish(used, StepKind.CONSUMED)
        by = used.resolved_by or POLICY
        self.result = result_of(self.evaluated, "approved", by, LIFTED, None, used.call)
        return used

    def _lift(self, approval: Approval, _asked_at: int) -> Transaction[Approval]:
        # Its turn may come late where many wait: a grant may have run out by then, and who has gone is not acted for.
        if self.caller_gone.is_set():
            raise AlreadyAnswered(f"cannot lift approval {approval.id}: whoever asked has gone")
        return (yield from self.transactions.lift(self.evaluated, approval, self.queue.clock.now_ms()))

    async def _under_other_rules(self, approval: Approval) -> Approval | None:
        queue, evaluated, verdict = self.queue, self.evaluated, self.evaluated.verdict
        match verdict.action:
            case "supervisor" | "human_approval" as asked:
                await queue.change(
                    evaluated.workspace,
                    StepKind.DECIDED,
                    queue.life.rebind,
                    approval,
                    evaluated.action,
                    asked,
                    verdict.name,
                    evaluated.policies.version,
                    verdict.reviewers,
                )
                return None
            case "deny":
                await queue.cancel(evaluated.workspace, [approval.id], "policy-changed")
                self.result = result_of(
                    evaluated, "denied", POLICY, verdict.reason, verdict.message, approval.call
                )
            case "allow":
                now = queue.clock.now_ms()
                self.result = await queue.ledger.transact(
                    evaluated.workspace,
                    self.transactions.pass_after_all,
                    evaluated,
                    approval,
                    now,
                )
                queue.publish(await queue.refresh(approval), StepKind.CANCELLED)
        return await queue.refresh(approval)


def door_principal(workspace: str) -> Principal:
    """Name the one who escalates what nobody decides."""
    return Principal(kind="legation", id="door", workspace=workspace, scopes=frozenset({"approve"}), level=2)


# The door.

TIMEOUT: Final = 600.0  # seconds: a person's time to answer, unless the rule says otherwise
MOST_WAITING: Final = 1000  # calls of one credential that wait here: connections and memory are everybody's
MOVED: Final = "a path leads elsewhere than when it was asked; ask again"
STOPPING: Final = "the server stops; ask again when it is back"
LAST_WORDS: Final = 10.0  # seconds: for what passed and is being done, when the door closes

logger = logging.getLogger("legation.door")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorOptions:
    """The behaviour of a door beyond its policies."""

    timeout: float = TIMEOUT
    most_waiting: int = MOST_WAITING
    most_pending: int = MOST_WAITING  # of one agent, or of one session; a server has a setting for it
    supervisor_wait_ms: int = WAIT_MS
    # Where a person who approves what can only be allowed always gives a grant.
    grants: GrantService | None = None
    signal: InjectionSignal | None = None
    notify: Notify | None = None
    ended: OnCallEnded | None = None


class Door:
    """The one place where calls are decided. `async with` it: at its end nobody waits any more, and each was told."""

    def __init__(
        self,
        queue: ApprovalQueue,
        policies: Policies,
        attendance: Attendance,
        options: DoorOptions | None = None,
    ) -> None:
        self.queue = queue
        self.policies = policies
        self._attendance = attendance
        self._options = options or DoorOptions()
        self._loops = Loops(queue.clock)
        self._tasks = TaskSet("legation-door")
        self._waiting: Counter[tuple[str, str, str]] = Counter()  # by whoever asks
        self._closing = asyncio.Event()
        policies.on_change(self._on_policies)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Tell whoever waits that it is over; what passed has `LAST_WORDS` to end."""
        self.shut()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS):
                await self._tasks.settle()
        await self._tasks.close()
        await self.queue.settle()

    def shut(self) -> None:
        """Let nobody in any more, and tell whoever waits at once."""
        self._closing.set()
        self.queue.wake_all()

    async def decide(self, request: DoorRequest, evaluated: Evaluated | None = None) -> DoorResult:
        """Decide for those who act themselves: whoever is approved acts at once. Cancelling it takes the question back.
        Who had to say something of it before brings what was `evaluated` then: no second look finds another rule."""

        async def work(caller_gone: asyncio.Event) -> DoorResult:
            result = await self._through(request, caller_gone, acts=False, evaluated=evaluated)
            if result.passed and request.only_always:
                result = await self._with_grant(request, result)
            if self._options.ended is not None:
                self._options.ended(request.principal.workspace, result.trace_id)
            return result

        return await self._owned(work)

    async def run(self, request: DoorRequest, execute: Execute) -> tuple[DoorResult, ToolReturn | None]:
        """Decide, and if it passes act, at most once. Cancelling it takes the question back, but no effect."""

        async def work(caller_gone: asyncio.Event) -> tuple[DoorResult, ToolReturn | None]:
            result = await self._through(request, caller_gone, acts=True)
            returned = await self._act(request, result, execute) if result.passed else None
            if self._options.ended is not None:
                self._options.ended(request.principal.workspace, result.trace_id)
            return result, returned

        return await self._owned(work)

    async def preview(self, request: DoorRequest) -> Considered:
        """Tell what would happen (see `DoorTransactions.enter`). Nothing is run, counted or recorded."""
        evaluated, now = await self.evaluate(request), self.queue.clock.now_ms()
        database, verdict = self.queue.ledger.database, evaluated.verdict
        hit = self._loops.repeated(request.loop_key, request.action.digest(), evaluated.limits, note=False)
        hit = hit or await database.read(peek, *evaluated.counted, now)
        grant = None if hit else await database.read(lifting, evaluated, now)
        return Considered(
            action="deny" if hit else verdict.action,
            policy_rule=hit.rule if hit else verdict.name,
            policy_version=evaluated.policies.version,
            reason=hit.reason if hit else verdict.reason,
            message=hit.reason if hit else verdict.message,
            injection_risk=evaluated.injected,
            grant=grant.id if grant else None,
            limit=hit.limit if hit else None,
        )

    async def evaluate(self, request: DoorRequest) -> Evaluated:
        """Ask the policies, with all that these look up, off the loop. Nothing is counted or recorded."""
        policies = self.policies.current
        verdict, seen = await evaluate(policies, request.action, request.facts)
        signal = self._options.signal
        injected = signal is not None and signal(request.action)
        evaluated = Evaluated(
            request=request, policies=policies, verdict=verdict, facts=seen, injected=injected
        )
        places = seen.places(request.action.paths) if evaluated.is_asked else ()  # looked up already
        return replace(evaluated, places=places)

    def expires_at(self, evaluated: Evaluated, asked_at: int) -> int:
        """Tell when the approval that comes of it expires, also to whoever has to say so before it is decided."""
        wanted, told = evaluated.verdict.timeout or self._options.timeout, evaluated.request.expires_at
        own = asked_at + round(min(wanted, evaluated.request.timeout or wanted) * 1000)
        # As it was told, if it was; one whose time is over before it comes to be asked has a moment, and expires.
        return own if told is None else max(asked_at + 1, min(own, told))

    async def record_unasked(self, request: DoorRequest, default: UnaskedWord) -> tuple[Considered, bool]:
        """Trace something that was done and nobody was asked about, unless it would have passed: what would have happened,
        and whether the turn is to end for it. `default` counts where no policy says so."""
        found, action = await self.preview(request), request.action
        if found.action == "allow" or found.grant is not None:
            return found, False
        ends = (self.policies.current.unasked(action.agent) or default) == "stop"
        call, context = request.call(), context_of(action, request.facts)
        digest = action.digest(found.policy_version)
        steps = [
            proposed(call, action, digest, owner=request.content_owner, context=context),
            unasked(call, found.action, found.policy_rule, found.policy_version, ended=ends),
        ]
        workspace = request.principal.workspace
        await self.queue.ledger.append(workspace, steps, self.queue.clock.now_ms())
        if self._options.ended is not None:
            self._options.ended(workspace, request.trace_id)
        return found, ends

    @property
    def closing(self) -> bool:
        """Whether it decides nothing any more, because the server stops."""
        return self._closing.is_set()

    # One request.

    async def _through(
        self,
        request: DoorRequest,
        caller_gone: asyncio.Event,
        *,
        acts: bool,
        evaluated: Evaluated | None = None,
    ) -> DoorResult:
        if self._closing.is_set():
            raise Unavailable("cannot decide anything any more: the server stops; ask again when it is back")
        # Rules that were edited since count. What is asked about all the same is decided anew while it waits, and has
        # the time that was said.
        if evaluated is None or (evaluated.policies is not self.policies.current and not evaluated.is_asked):
            evaluated = await self.evaluate(request)
        looping = self._loops.repeated(request.loop_key, request.action.digest(), evaluated.limits)
        evaluated = replace(evaluated, request=request, looping=looping)
        queue, options = self.queue, self._options
        transactions = DoorTransactions(
            self.policies, queue.life, queue.waiter, acts, options.most_pending, options.grants
        )
        now, approval_id, expires_at = queue.clock.now_ms(), "", 0
        with ExitStack() as stack:
            if evaluated.is_asked:  # only then does anybody wait
                stack.enter_context(self._room(evaluated))
                approval_id = request.approval_id or new_approval_id(now)
                news = stack.enter_context(queue.waiting(approval_id))
                expires_at = self.expires_at(evaluated, now)
            if (settled := transactions.settled(evaluated)) is not None:
                await queue.ledger.append(evaluated.workspace, settled.steps, now)
                return settled.result
            entered = await queue.ledger.transact(
                evaluated.workspace, transactions.enter, evaluated, approval_id, expires_at, now
            )
            if isinstance(entered, DoorResult):
                return entered
            queue.publish(entered, StepKind.PROPOSED)
            wait = ApprovalWait(
                queue=queue,
                attendance=self._attendance,
                policies=self.policies,
                transactions=transactions,
                evaluated=evaluated,
                news=news,
                caller_gone=caller_gone,
                door_closing=self._closing,
                notify=options.notify,
                supervisor_wait_ms=options.supervisor_wait_ms,
            )
            return await self._answered(wait, entered)

    async def _answered(self, wait: ApprovalWait, approval: Approval) -> DoorResult:
        try:
            ended = await wait.run(approval)
        except LegationError:
            await self._withdraw(approval, "caller-gone")
            raise
        if wait.result is not None:
            return wait.result
        if ended is None and self._closing.is_set():
            # Told at once, written down right after: those who wait are many, and have little time to hear it.
            self._start(self._withdraw(approval, "stopping"))
            return result_of(wait.evaluated, "cancelled", POLICY, STOPPING, STOPPING, approval.call)
        if ended is None:
            ended = await self._withdraw(approval, "caller-gone")
        return await self._left(wait, ended)

    async def _left(self, wait: ApprovalWait, ended: Approval) -> DoorResult:
        """Leave with what was answered. Approved is not yet passed: it is consumed here."""
        evaluated, database = wait.evaluated, self.queue.ledger.database
        if ended.replaced_by is not None:
            ended = await database.read(get, ended.workspace_id, ended.replaced_by)
            evaluated = await self._evaluate_edited(evaluated, ended)
        if ended.status is ApprovalState.APPROVED and wait.caller_gone.is_set():
            ended = await self._withdraw(ended, "caller-gone")
        ending = await database.read(ending_of, self.queue.ledger.chain.sealer, ended)
        if ended.status is not ApprovalState.APPROVED:
            return _refused(evaluated, ended, ending)
        if (denied := await self._moved(evaluated, ended)) is not None:
            return denied
        try:
            consumed = await self.queue.change(
                evaluated.workspace, StepKind.CONSUMED, wait.transactions.leave, evaluated, ended
            )
        except OverLimit as over:
            await self._withdraw(ended, "limit-reached")
            return over_limit(evaluated, over.hit, ended.call)
        except NoGrant:
            await self._withdraw(ended, "only-always")
            why = f"{ending.by} approved it, but {ONLY_ALWAYS}"
            return result_of(evaluated, "denied", POLICY, why, ONLY_ALWAYS, ended.call)
        except Revoked:
            return await self._revoked(evaluated, ended)
        except Conflict as conflict:
            await self._withdraw(ended, "policy-changed")
            changed = (conflict.data or {}).get("reason") == "policy-changed"
            why = "the policy changed after it was approved: ask again" if changed else conflict.message
            return result_of(evaluated, "cancelled", POLICY, why, why, ended.call)
        if evaluated.request.only_always:  # a grant came with it, which may cover what waits besides
            self.queue.granted(evaluated.workspace, evaluated.request.granted_session)
        result = result_of(evaluated, "approved", ending.by, ending.reason, ending.message, consumed.call)
        return replace(result, by_name=ending.by_name)

    async def _with_grant(self, request: DoorRequest, result: DoorResult) -> DoorResult:
        """Name the grant by which the agent may be told `always`; whoever revoked it meanwhile has taken that back."""
        evaluated = await self.evaluate(request)
        grant = await self.queue.ledger.database.read(covering, evaluated, self.queue.clock.now_ms())
        return replace(result, grant=grant.id if grant else None)

    async def _revoked(self, evaluated: Evaluated, approval: Approval) -> DoorResult:
        """Refuse one whose asker was revoked between the answer and its use."""
        await self.queue.supersede_revoked()
        ended = await self.queue.refresh(approval)
        ending = await self.queue.ledger.database.read(ending_of, self.queue.ledger.chain.sealer, ended)
        return _refused(evaluated, ended, ending)

    async def _evaluate_edited(self, evaluated: Evaluated, approval: Approval) -> Evaluated:
        """Evaluate the other arguments that were approved: the approval is bound to their digest."""
        ledger = self.queue.ledger
        params = await edited_params(ledger.database, ledger.chain.sealer, approval)
        request = replace(
            evaluated.request,
            action=edited(evaluated.action, params, evaluated.request.facts),
            trace_id=approval.trace_id,
            approval_id=approval.id,
        )
        return await self._evaluate_again(evaluated, request)

    async def _evaluate_again(self, evaluated: Evaluated, request: DoorRequest) -> Evaluated:
        policies = self.policies.current
        verdict, seen = await evaluate(policies, request.action, request.facts)
        places = await off_loop(seen.places, request.action.paths)
        return replace(
            evaluated, request=request, policies=policies, verdict=verdict, facts=seen, places=places
        )

    async def _moved(self, evaluated: Evaluated, approval: Approval) -> DoorResult | None:
        """Deny what was approved where its paths lead elsewhere by now, or to what the rules deny: a link was put there
        meanwhile, and nobody has approved that."""
        now = await self._evaluate_again(evaluated, evaluated.request)
        is_denied = now.verdict.action == "deny"
        if not is_denied and now.places == evaluated.places:
            return None
        if now.policies.version != approval.policy_version:
            return None  # the rules were edited: consuming it says so
        await self._withdraw(approval, "paths-changed")
        if is_denied:
            reason, message = now.verdict.reason, now.verdict.message or MOVED
            return result_of(now, "denied", POLICY, reason, message, approval.call)
        return result_of(evaluated, "denied", POLICY, MOVED, MOVED, approval.call)

    async def _act(self, request: DoorRequest, result: DoorResult, execute: Execute) -> ToolReturn:
        outcome = await act(self.queue, request, result, execute)
        try:
            await write_down(self.queue, outcome)
        except AWAY as error:
            logger.warning("cannot write down what a tool answered, and go on trying: %s", error)
            self._start(write_down_later(self.queue, outcome, self._closing, self._options.ended))
        return outcome.returned

    async def _withdraw(self, approval: Approval, reason: Reason) -> Approval:
        """Cancel it, and return it as it is after that: somebody may have been faster."""
        while True:
            try:
                await self.queue.cancel(approval.workspace_id, [approval.id], reason)
                return await self.queue.refresh(approval)
            except AWAY:
                # Tried until the expiry: else it could be approved, and nothing would come of it.
                if self._closing.is_set() or approval.expires_at <= self.queue.clock.now_ms():
                    raise
                await first_of(self.queue.clock, AWAY_MS / 1000, self._closing)

    @contextmanager
    def _room(self, evaluated: Evaluated) -> Iterator[None]:
        """Make room for one more that may have to wait; a flood is refused before it is on record."""
        who = evaluated.request.principal
        key = (who.workspace, *who.asker)
        if self._waiting[key] >= self._options.most_waiting:
            raise RateLimited(
                f"cannot ask for more than {self._options.most_waiting} approvals at once; wait until some are answered"
            )
        self._waiting[key] += 1
        try:
            yield
        finally:
            self._waiting[key] -= 1
            if not self._waiting[key]:
                del self._waiting[key]

    def _on_policies(self, _policies: PolicySet) -> None:
        self.queue.wake_all()

    async def _owned(self, work: Callable[[asyncio.Event], Coroutine[Any, Any, T]]) -> T:
        """Run it in a task of the door's own: whoever waits may leave, what was begun is brought to its end."""
        caller_gone = asyncio.Event()
        try:
            return await asyncio.shield(self._start(work(caller_gone)))
        except asyncio.CancelledError:
            caller_gone.set()
            raise

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = self._tasks.start(work)
        task.add_done_callback(_log_defect)
        return task


def _log_defect(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) and not isinstance(error, LegationError):
        logger.error("cannot decide a call: a defect", exc_info=error)


def _refused(evaluated: Evaluated, ended: Approval, ending: Ending) -> DoorResult:
    outcome = ended.status.value
    assert outcome not in ("pending", "approved")
    message = ending.message or evaluated.verdict.message or ending.default
    result = result_of(evaluated, outcome, ending.by, ending.reason, message, ended.call)  # type: ignore[arg-type]
    return replace(result, by_name=ending.by_name)
