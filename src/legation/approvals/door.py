"""The one door: every call of every agent is decided here, whichever way it came in.

In this order: identity (who brings the request knows it), limits, policy, grants, the injection signal, an approval,
its consumption, the effect, the trace.

INV-1  The same call under the same policies gets the same decision and the same trace, whoever brings it.
INV-2  Nothing passes without a trace, and nothing passes twice.
INV-3  Whoever has gone takes the question along: an answer that comes later changes nothing and starts nothing.

An approval that is pending is waited for where its call is (`ApprovalWait`); what time brings about is the sweep's
(`ApprovalSweep`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any, Final, Protocol, Self, TypeAlias, TypeVar

import msgspec

from legation.approvals.admit import (
    DoorTransactions,
    Evaluated,
    NoGrant,
    OverLimit,
    ToolOutcome,
    act,
    covering,
    edited,
    edited_params,
    lifting,
    over_limit,
    result_of,
    tool_call_finished,
    write_down,
    write_down_later,
)
from legation.approvals.approval import Approval, ApprovalState, Waiter, new_approval_id
from legation.approvals.grants import GrantService
from legation.approvals.limits import Loops, peek
from legation.approvals.policies import Policies
from legation.approvals.policy.rules import PolicySet, UnaskedWord, evaluate, off_loop
from legation.approvals.queue import AWAY, AWAY_MS, ApprovalNews, ApprovalQueue, first_of
from legation.approvals.request import (
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
    looked_at_again,
    works_there_still,
)
from legation.approvals.sweep import WAIT_MS
from legation.approvals.trace.chain import Chain
from legation.approvals.trace.evidence import evidence_of
from legation.approvals.trace.step import StepKind, proposed, unasked
from legation.approvals.transitions import TAKEN_OVER, Reason, Revoked, get
from legation.approvals.wait import ApprovalWait
from legation.errors import Conflict, LegationError, RateLimited, Unavailable
from legation.store.database.transaction import Transaction
from legation.tasks import TaskSet
from legation.wire.api.approvals import Considered

TIMEOUT: Final = 600.0  # seconds: a person's time to answer, unless the rule says otherwise
MOST_WAITING: Final = 1000  # calls of one credential that wait here: connections and memory are everybody's
MOVED: Final = "a path leads elsewhere than when it was asked; ask again"
STOPPING: Final = "the server stops; ask again when it is back"
KEPT: Final = "the server stops, and the call goes on at the next one; send it again with the same key"
LAST_WORDS: Final = 10.0  # seconds: for what passed and is being done, when the door closes

logger = logging.getLogger("legation.door")

T = TypeVar("T")
Ran: TypeAlias = "tuple[DoorResult, ToolReturn | None]"
MakeTransactions: TypeAlias = "Callable[..., DoorTransactions]"


class KeptCall(Protocol):
    """The record of a call beside its trace: what stands in it is written in the transactions of the door."""

    @property
    def transactions(self) -> MakeTransactions: ...

    def finished(self, chain: Chain, outcome: ToolOutcome, now_ms: int) -> Transaction[None]:
        """Write down what came of the effect."""

    async def refused(self, queue: ApprovalQueue, result: DoorResult) -> None: ...


class _Unkept:
    """No record: of a call that ends with whoever makes it."""

    transactions: MakeTransactions = DoorTransactions
    finished = staticmethod(tool_call_finished)

    async def refused(self, queue: ApprovalQueue, result: DoorResult) -> None:
        pass


_UNKEPT: Final = _Unkept()
_NO_GRANTS: Final = -1  # looked at: some may have been given since it was asked


class DoorOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The behaviour of a door beyond its policies."""

    timeout: float = TIMEOUT
    most_waiting: int = MOST_WAITING
    most_pending: int = MOST_WAITING  # of one agent, or of one session; a server has a setting for it
    supervisor_wait_ms: int = WAIT_MS  # before anybody looks whether a supervisor is there
    # Where a person who approves what can only be allowed always gives a grant.
    grants: GrantService | None = None
    signal: InjectionSignal | None = None
    ended: OnCallEnded | None = None


class Door:
    """The one place where calls are decided. `async with` it: at its end nobody waits any more, and each was told."""

    def __init__(self, queue: ApprovalQueue, policies: Policies, options: DoorOptions | None = None) -> None:
        self.queue = queue
        self.policies = policies
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

    async def run(self, request: DoorRequest, execute: Execute) -> Ran:
        """Decide, and if it passes act, at most once. Cancelling it takes the question back, but no effect."""
        return await self._owned(lambda caller_gone: self._run(request, execute, caller_gone, _UNKEPT))

    def carry(
        self, request: DoorRequest, execute: Execute, kept: KeptCall, asked: Approval | None = None
    ) -> asyncio.Task[Ran]:
        """Run it in a task that nobody takes back: it ends with its approval. `asked`: it waits already, and goes on."""
        return self._start(self._run(request, execute, asyncio.Event(), kept, asked))

    async def _run(
        self,
        request: DoorRequest,
        execute: Execute,
        caller_gone: asyncio.Event,
        kept: KeptCall,
        asked: Approval | None = None,
    ) -> Ran:
        result = await self._through(request, caller_gone, acts=True, make=kept.transactions, asked=asked)
        returned = None
        if result.passed:
            returned = await self._act(request, result, execute, kept)
        else:
            await kept.refused(self.queue, result)
        if self._options.ended is not None:
            self._options.ended(request.principal.workspace, result.trace_id)
        return result, returned

    async def ask(self, request: DoorRequest, make: MakeTransactions) -> DoorResult | Approval:
        """Decide at once, or ask and leave it at that: for those who wait by themselves."""

        async def work(_caller_gone: asyncio.Event) -> DoorResult | Approval:
            evaluated = await self._looked_at(request, None)
            approval_id = request.approval_id or new_approval_id(self.queue.clock.now_ms())
            transactions = self._transactions(request, approval_id, acts=False, make=make)
            return await self._enter(evaluated, transactions, approval_id)

        return await self._owned(work)

    async def follow(
        self, request: DoorRequest, asked: Approval, make: MakeTransactions, seconds: float
    ) -> None:
        """Wait for so long, or until one that somebody waits for by itself has ended, and decide it anew meanwhile."""

        async def work(caller_gone: asyncio.Event) -> None:
            with self.queue.waiting(asked.id, alone=False) as news:
                transactions = self._transactions(request, asked.id, acts=False, make=make)
                evaluated = await self._looked_at(request, None)
                wait = self._wait(transactions, evaluated, news, caller_gone, _NO_GRANTS)
                # An answer may have come before anybody listened here.
                await wait.run(await self.queue.refresh(asked))

        waiting = asyncio.create_task(self._owned(work))
        sleep = asyncio.create_task(self.queue.clock.sleep(seconds))
        try:
            await asyncio.wait((waiting, sleep), return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                waiting.result()
        finally:
            for task in (waiting, sleep):
                task.cancel()
            await asyncio.gather(waiting, sleep, return_exceptions=True)

    async def use(self, request: DoorRequest, approved: Approval, make: MakeTransactions) -> DoorResult:
        """Use what was approved, for one that waits by itself and acts right after."""

        async def work(caller_gone: asyncio.Event) -> DoorResult:
            transactions = self._transactions(request, approved.id, acts=False, make=make)
            evaluated = await self._looked_at(request, None)
            return await self._left(
                self._wait(transactions, evaluated, ApprovalNews(), caller_gone), approved
            )

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
        if not evaluated.is_asked:
            return evaluated
        # Looked up already.
        places = seen.places(request.action.paths)
        evidence = evidence_of(request.action, seen, request.diffs).contents
        return replace(evaluated, places=places, evidence=evidence)

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
        make: MakeTransactions = DoorTransactions,
        asked: Approval | None = None,
    ) -> DoorResult:
        evaluated, queue, approval_id = await self._looked_at(request, evaluated), self.queue, ""
        with ExitStack() as stack:
            if asked is not None:
                approval_id, news = asked.id, stack.enter_context(queue.waiting(asked.id))
                asked = await queue.refresh(asked)  # an answer may have come before anybody listened here
            elif evaluated.is_asked:  # only then does anybody wait
                stack.enter_context(self._room(evaluated))
                approval_id = request.approval_id or new_approval_id(queue.clock.now_ms())
                news = stack.enter_context(queue.waiting(approval_id))
            transactions = self._transactions(request, approval_id, acts=acts, make=make)
            entered = asked or await self._enter(evaluated, transactions, approval_id)
            if isinstance(entered, DoorResult):
                return entered
            seen = _NO_GRANTS if asked else 0
            wait = self._wait(transactions, evaluated, news, caller_gone, seen)
            return await self._answered(wait, entered)

    async def _looked_at(self, request: DoorRequest, evaluated: Evaluated | None) -> Evaluated:
        if self._closing.is_set():
            raise Unavailable("cannot decide anything any more: the server stops; ask again when it is back")
        # Rules that were edited since count. What is asked about all the same is decided anew while it waits, and has
        # the time that was said.
        if evaluated is None or (evaluated.policies is not self.policies.current and not evaluated.is_asked):
            evaluated = await self.evaluate(request)
        if request.places is not None:  # it was asked before, and may not lead elsewhere since
            return replace(evaluated, request=request, places=request.places)
        looping = None
        if any(each.loop for _, each in evaluated.limits):  # else it need not be known whether it is the same
            looping = self._loops.repeated(request.loop_key, request.action.digest(), evaluated.limits)
        if looping is not None or evaluated.request is not request:
            evaluated = replace(evaluated, request=request, looping=looping)
        return evaluated

    def _transactions(
        self, request: DoorRequest, approval_id: str, *, acts: bool, make: MakeTransactions
    ) -> DoorTransactions:
        queue, options = self.queue, self._options
        waiter = request.waiter
        if waiter is None:  # then the session, or the call itself, acts on the answer
            call = f"call:{approval_id or request.trace_id}"
            waiter = Waiter(f"session:{request.session_id}" if request.in_session else call, queue.holder)
        return make(
            self.policies,
            queue.life,
            waiter,
            acts,
            options.most_pending,
            options.grants,
            options.supervisor_wait_ms,
        )

    async def _enter(
        self, evaluated: Evaluated, transactions: DoorTransactions, approval_id: str
    ) -> DoorResult | Approval:
        queue, now = self.queue, self.queue.clock.now_ms()
        if (settled := transactions.settled(evaluated)) is not None:
            await queue.ledger.append(evaluated.workspace, settled.steps, now)
            return settled.result
        expires_at = self.expires_at(evaluated, now) if evaluated.is_asked else 0
        asks = (
            evaluated.is_asked or evaluated.request.only_always
        )  # grants are looked at, and what is pending
        if not asks and type(transactions) is DoorTransactions:
            return await queue.ledger.transact(
                evaluated.workspace, transactions.enter_unasked, evaluated, now
            )
        entered = await queue.ledger.transact(
            evaluated.workspace, transactions.enter, evaluated, approval_id, expires_at, now
        )
        if isinstance(entered, Approval):
            queue.publish(entered, StepKind.PROPOSED)
        return entered

    def _wait(
        self,
        transactions: DoorTransactions,
        evaluated: Evaluated,
        news: ApprovalNews,
        caller_gone: asyncio.Event,
        grants: int = 0,
    ) -> ApprovalWait:
        return ApprovalWait(
            queue=self.queue,
            policies=self.policies,
            transactions=transactions,
            evaluated=evaluated,
            news=news,
            caller_gone=caller_gone,
            door_closing=self._closing,
            grants=grants,
        )

    async def _answered(self, wait: ApprovalWait, approval: Approval) -> DoorResult:
        try:
            ended = await wait.run(approval)
        except LegationError:
            if not wait.transactions.waiter.outlives:
                await self._withdraw(approval, "caller-gone")
            raise
        if wait.result is not None:
            return wait.result
        if ended is None and wait.transactions.waiter.outlives:
            raise Unavailable(f"cannot wait any longer: {KEPT}")
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
            reason = (conflict.data or {}).get("reason")
            if reason == TAKEN_OVER:
                raise  # another process goes on with it: this one has no say any more
            await self._withdraw(ended, "policy-changed")
            changed = reason == "policy-changed"
            why = "the policy changed after it was approved: ask again" if changed else conflict.message
            return result_of(evaluated, "cancelled", POLICY, why, why, ended.call)
        if evaluated.request.only_always:  # a grant came with it, which may cover what waits besides
            self.queue.granted(evaluated.workspace, evaluated.request.granted_session)
        result = result_of(evaluated, "approved", ending.by, ending.reason, ending.message, consumed.call)
        return msgspec.structs.replace(result, by_name=ending.by_name)

    async def _with_grant(self, request: DoorRequest, result: DoorResult) -> DoorResult:
        """Name the grant by which the agent may be told `always`; whoever revoked it meanwhile has taken that back."""
        evaluated = await self.evaluate(request)
        grant = await self.queue.ledger.database.read(covering, evaluated, self.queue.clock.now_ms())
        return msgspec.structs.replace(result, grant=grant.id if grant else None)

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
        request = msgspec.structs.replace(
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
        request = evaluated.request
        is_here = request.facts.resolved is None
        now = await self._evaluate_again(evaluated, request if is_here else looked_at_again(request))
        is_denied = now.verdict.action == "deny"
        if not is_denied and now.places == evaluated.places and (is_here or works_there_still(request)):
            return None
        if now.policies.version != approval.policy_version:
            return None  # the rules were edited: consuming it says so
        await self._withdraw(approval, "paths-changed")
        if is_denied:
            reason, message = now.verdict.reason, now.verdict.message or MOVED
            return result_of(now, "denied", POLICY, reason, message, approval.call)
        return result_of(evaluated, "denied", POLICY, MOVED, MOVED, approval.call)

    async def _act(
        self, request: DoorRequest, result: DoorResult, execute: Execute, kept: KeptCall
    ) -> ToolReturn:
        outcome = await act(self.queue, request, result, execute)
        try:
            await write_down(self.queue, outcome, kept.finished)
        except AWAY as error:
            logger.warning("cannot write down what a tool answered, and go on trying: %s", error)
            later = write_down_later(self.queue, outcome, kept.finished, self._closing, self._options.ended)
            self._start(later)
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
    return msgspec.structs.replace(result, by_name=ending.by_name)
