"""Calls under a key of their caller's (`Idempotency-Key`): they live until their approval expires, whoever is connected.

A call is on record beside its approval, with the process that carries it on. What it takes to go on is there already:
the arguments are sealed in the trace when it is asked, and so is what comes of it, for the caller that returns.

INV-Y1  A key is bound to its caller, and to the agent, tool and arguments of its first call. What was refused at once
        has used nothing up: the key is free again.
INV-Y2  Every change of a call is conditional on its holder, in the transaction that it belongs to: of two processes that
        take themselves for it, one acts.
INV-Y3  The holder changes only if the old one is gone (`adopt_call`), and only while nothing has begun. What began and has
        no end is "outcome unknown", is told as that, and is never repeated.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, Literal, Self, TypeAlias

import msgspec
from msgspec.structs import replace

from legation.approvals.admit import (
    KEEP_MS,
    DoorTransactions,
    Evaluated,
    ToolOutcome,
    read_contents,
    tool_call_finished,
)
from legation.approvals.approval import Approval, ApprovalState, Waiter, new_approval_id
from legation.approvals.door import KEPT, Door, MakeTransactions, Ran
from legation.approvals.policy.facts import Facts
from legation.approvals.queue import ApprovalQueue
from legation.approvals.request import (
    DoorRequest,
    DoorResult,
    Execute,
    LimitName,
    ToolReturn,
    action_of,
    ending_of,
    places_of,
)
from legation.approvals.trace.chain import Chain
from legation.approvals.trace.step import ChainStep, Seals, contents_of
from legation.approvals.transitions import TAKEN_OVER, get
from legation.approvals.upkeep import SignsOfLife
from legation.errors import Conflict, LegationError, NotFound, Unavailable
from legation.store.database.transaction import (
    Database,
    Duplicate,
    Queries,
    Row,
    Statement,
    Transaction,
    only,
    rows,
)
from legation.store.secrets.sealer import Sealer
from legation.tasks import TaskSet
from legation.wire.action import Action, Outcome, RuleAction
from legation.wire.principal import Principal

LOOK_EVERY: Final = 0.5  # seconds: as late as the end of a call that another server carries on is heard of
BATCH: Final = 100
UNKNOWN: Final = "the server ended before the tool answered: whether it has done its work is not known, and it is not called again"
_DAY: Final = "day-"  # how the owner of content begins that is no run's

_SQL: Final = Queries("calls")

logger = logging.getLogger("legation.door")

FindTool: TypeAlias = "Callable[[str], Execute | None]"
NewRequest: TypeAlias = Callable[[], Awaitable[DoorRequest]]


class KeyTaken(Conflict):
    """Another call came first under the key. It never leaves this module."""


class _Ending(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The end of a call, as it stands in its row: nothing that anybody said."""

    outcome: Outcome
    by: str
    policy: RuleAction
    rule: str
    reason: str
    approval_id: str | None = None
    limit: LimitName | None = None
    status_code: int | None = None
    tool_status: int | None = None
    said: tuple[Literal["result", "error"], ...] = ()  # what the tool's answer had: missing, it was purged


class CallKey(msgspec.Struct, frozen=True):
    """A caller's name for one call, and what it is bound to."""

    workspace: str
    requester_kind: str
    requester: str
    key: str
    digest: str

    @classmethod
    def of(cls, principal: Principal, key: str, action: Action, waiter: str = "") -> CallKey:
        # Who asks and acts itself is no call of a tool, though it be the same tool.
        digest = f"{waiter} {action.digest()}" if waiter else action.digest()
        return cls(principal.workspace, *principal.asker, key, digest)

    @property
    def caller(self) -> dict[str, str]:
        return {
            "workspace": self.workspace,
            "requester_kind": self.requester_kind,
            "requester": self.requester,
        }

    def must_fit(self, row: Row) -> None:
        if row["digest"] != self.digest:
            raise Conflict(
                "cannot use this Idempotency-Key: it stands for another call, of another agent, tool or arguments; "
                "take a new key for a new call",
                {"reason": "idempotency-key"},
            )


def find_call(key: CallKey) -> Transaction[Row | None]:
    """Look up what stands under the key; another call under it is a Conflict."""
    row = only((yield _SQL.call_by_key(**key.caller, key=key.key)))
    if row is not None:
        key.must_fit(row)
    return row


def add_call(
    key: CallKey,
    call_id: str,
    waiter: Waiter,
    tool: str,
    trace_id: str,
    status: str,
    now_ms: int,
    forget_at: int | None,
) -> Transaction[None]:
    try:
        yield _SQL.add_call(
            **key.caller, key=key.key, digest=key.digest, id=call_id, waiter=waiter.id, holder=waiter.holder, tool=tool,
            trace_id=trace_id, status=status, now=now_ms, forget_at=forget_at,
        )  # fmt: skip
    except Duplicate:
        raise KeyTaken("cannot call under this key: another call was faster") from None


class KeyedTransactions(DoorTransactions, frozen=True, kw_only=True):
    """The transactions of a call under a key: its row moves with what happens to it (INV-Y2)."""

    call: KeyedCall

    def enter(
        self, evaluated: Evaluated, approval_id: str, expires_at: int, now_ms: int
    ) -> Transaction[DoorResult | Approval]:
        entered = yield from DoorTransactions.enter(self, evaluated, approval_id, expires_at, now_ms)
        if isinstance(entered, Approval) or entered.passed:
            status = "waiting" if isinstance(entered, Approval) else "begun"
            tool = evaluated.action.tool
            yield from add_call(
                self.call.key, self.call.id, self.waiter, tool, entered.trace_id, status, now_ms, None
            )
        return entered

    def leave(self, evaluated: Evaluated, approval: Approval, now_ms: int) -> Transaction[Approval]:
        consumed = yield from DoorTransactions.leave(self, evaluated, approval, now_ms)
        yield from self._begin(evaluated.workspace, consumed.trace_id)
        return consumed

    def pass_after_all(
        self, evaluated: Evaluated, approval: Approval, now_ms: int
    ) -> Transaction[DoorResult]:
        result = yield from DoorTransactions.pass_after_all(self, evaluated, approval, now_ms)
        if result.passed:
            yield from self._begin(evaluated.workspace, result.trace_id)
        return result

    def _begin(self, workspace: str, trace_id: str) -> Transaction[None]:
        who = {"workspace": workspace, "id": self.call.id, "holder": self.waiter.holder}
        if not (yield _SQL.begin_call(**who, status="begun", trace_id=trace_id)):
            raise Conflict("cannot go on with this call: another server does", {"reason": TAKEN_OVER})


class KeyedCall(msgspec.Struct, frozen=True):
    """One call under a key, as the door writes it down. `id` is its approval's, where it has one."""

    key: CallKey
    id: str
    holder: str

    @property
    def transactions(self) -> MakeTransactions:
        return partial(KeyedTransactions, call=self)

    def finished(self, chain: Chain, outcome: ToolOutcome, now_ms: int) -> Transaction[None]:
        yield from tool_call_finished(chain, outcome, now_ms)
        yield self._end("begun", "done", outcome.result, outcome.returned, now_ms)

    async def refused(self, queue: ApprovalQueue, result: DoorResult) -> None:
        if result.approval_id is not None:  # else nothing was asked, and there is no row
            now = queue.clock.now_ms()
            await queue.ledger.database.transact(rows, self._end("waiting", "refused", result, None, now))

    def _end(
        self, former: str, status: str, result: DoorResult, returned: ToolReturn | None, now_ms: int
    ) -> Statement:
        ending = _Ending(
            outcome=result.outcome,
            by=result.by,
            policy=result.policy,
            rule=result.rule,
            reason=result.reason,
            approval_id=result.approval_id,
            limit=result.limit,
            status_code=returned.status_code if returned else None,
            tool_status=returned.tool_status if returned else None,
            said=_said(returned) if returned else (),
        )
        return _SQL.end_call(
            workspace=self.key.workspace,
            id=self.id,
            holder=self.holder,
            former=former,
            status=status,
            result=msgspec.json.encode(ending).decode(),
            forget_at=now_ms + KEEP_MS,
        )


class KeyedCalls:
    """The calls under keys that this server carries on, or whose callers wait here. `async with` it, after the door."""

    def __init__(self, door: Door, signs: SignsOfLife, find_tool: FindTool) -> None:
        self._door = door
        self._queue = door.queue
        self._database = door.queue.ledger.database
        self._signs = signs
        self._find_tool = find_tool
        self._carried: dict[str, asyncio.Task[Ran]] = {}
        self._beginning: dict[CallKey, asyncio.Task[Ran]] = {}
        self._tasks = TaskSet("legation-calls")

    async def __aenter__(self) -> Self:
        self._tasks.start(self._adopt_again())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.close()

    async def run(self, key: CallKey, new: NewRequest, execute: Execute) -> Ran:
        """Begin the call, or find it again, and wait for its end. Whoever leaves takes nothing back."""
        while True:
            row = await self._database.read(find_call, key)
            try:
                ran = await (self._begin(key, new, execute) if row is None else self._end_of(key, row))
            except KeyTaken:
                continue  # it is there now
            except Conflict as conflict:
                if (conflict.data or {}).get("reason") != TAKEN_OVER:
                    raise
                ran = None
            if ran is not None:
                return ran
            if self._door.closing:
                raise Unavailable(f"cannot wait any longer: {KEPT}")
            await self._queue.clock.sleep(LOOK_EVERY)

    async def _begin(self, key: CallKey, new: NewRequest, execute: Execute) -> Ran:
        if (begun := self._beginning.get(key)) is None:
            begun = self._beginning[key] = self._tasks.start(self._carry_new(key, new, execute))
            begun.add_done_callback(lambda task: self._begun(key, task))
        return await asyncio.shield(begun)

    def _begun(self, key: CallKey, task: asyncio.Task[Ran]) -> None:
        self._beginning.pop(key, None)
        if not task.cancelled():
            task.exception()  # retrieved, or asyncio complains where every caller has gone

    async def _carry_new(self, key: CallKey, new: NewRequest, execute: Execute) -> Ran:
        request = await new()
        call = KeyedCall(key, new_approval_id(self._queue.clock.now_ms()), self._queue.holder)
        waiter = Waiter(f"call:{call.id}", call.holder, outlives=True)
        request = replace(request, approval_id=call.id, waiter=waiter)
        return await self._carry(call, request, execute)

    async def _carry(
        self, call: KeyedCall, request: DoorRequest, execute: Execute, asked: Approval | None = None
    ) -> Ran:
        task = self._carried[call.id] = self._door.carry(request, execute, call, asked)
        task.add_done_callback(lambda _: self._carried.pop(call.id, None))
        return await asyncio.shield(task)

    async def _end_of(self, key: CallKey, row: Row) -> Ran | None:
        """Tell how it ended; None: not yet."""
        if (carried := self._carried.get(row["id"])) is not None:
            return await asyncio.shield(carried)
        if row["status"] in ("waiting", "begun"):
            return None
        return await self._stored(key, row)

    async def _stored(self, key: CallKey, row: Row) -> Ran:
        sealer, workspace = self._queue.ledger.chain.sealer, key.workspace
        ended = msgspec.json.decode(row["result"] or b"null", type=_Ending | None)
        action = Action(agent="", tool=row["tool"], params={})
        if ended is None:  # unknown: nobody lived to say more
            result = DoorResult(
                outcome="approved", by="", policy="allow", rule="", reason="", trace_id=row["trace_id"], action=action
            )  # fmt: skip
            return result, ToolReturn(status_code=504, error=UNKNOWN)
        message = None
        if ended.outcome != "approved" and ended.approval_id is not None:
            approval = await self._database.read(get, workspace, ended.approval_id)
            message = (await self._database.read(ending_of, sealer, approval)).message
        result = DoorResult(
            outcome=ended.outcome,
            by=ended.by,
            policy=ended.policy,
            rule=ended.rule,
            reason=ended.reason,
            message=message,
            trace_id=row["trace_id"],
            approval_id=ended.approval_id,
            limit=ended.limit,
            action=action,
        )
        if ended.status_code is None:
            return result, None
        said = await self._database.read(contents_of, workspace, [row["trace_id"]], ["result", "error"])
        words = {each.name: each.value for each in map(Seals(sealer, workspace).open, said)}
        if any(name not in words for name in ended.said):
            words["error"] = "what it answered was purged; look at its trace"
        error = words.get("error")
        returned = ToolReturn(
            status_code=ended.status_code,
            result=words.get("result"),
            error=None if error is None else str(error),
            tool_status=ended.tool_status,
        )
        return result, returned

    # Those whose server is gone.

    async def _adopt_again(self) -> None:
        while True:
            try:
                await self.adopt()
            except LegationError as error:  # the next time may do what this one could not
                logger.warning("cannot look after calls that nobody carries on: %s", error)
            await self._queue.clock.sleep(self._signs.sign_ms / 1000)

    async def adopt(self) -> int:
        """Go on with those that wait and that nobody carries on. Return how many."""
        who: dict[str, str | int] = {
            "id": self._queue.holder,
            "server": self._queue.ledger.chain.server,
            "dead": self._signs.dead_ms,
        }
        adopted, after = 0, ""
        # All of them: those that are carried on here, or that only another server has the tool of, stay where they are.
        while found := await self._database.read(rows, _SQL.stray_calls(**who, after=after, limit=BATCH)):
            after = found[-1]["id"]
            for row in found:
                if row["id"] in self._carried or self._door.closing:
                    continue
                execute = self._find_tool(row["tool"])
                if execute is None and await self._is_open(row["workspace_id"], row["id"]):
                    continue  # a server that has the tool goes on with it
                if await self._database.transact(_adopt, row, who):
                    self._tasks.start(self._go_on(row, execute or _no_tool))
                    adopted += 1
        return adopted

    async def _is_open(self, workspace: str, approval_id: str) -> bool:
        approval = await self._database.read(get, workspace, approval_id)
        while approval.replaced_by is not None:  # it was approved with other arguments
            approval = await self._database.read(get, workspace, approval.replaced_by)
        is_open = approval.status in (ApprovalState.PENDING, ApprovalState.APPROVED)
        return is_open and approval.consumed_at is None

    async def _go_on(self, row: Row, execute: Execute) -> None:
        key = CallKey(row["workspace_id"], row["requester_kind"], row["requester"], row["key"], row["digest"])
        call = KeyedCall(key, row["id"], self._queue.holder)
        approval = await self._database.read(get, key.workspace, call.id)
        try:
            request = await request_of(
                self._queue, approval, Waiter(row["waiter"], call.holder, outlives=True)
            )
        except NotFound as gone:  # its arguments were purged
            await self._queue.cancel(key.workspace, [approval.id], "caller-gone")
            result = DoorResult(
                outcome="cancelled", by="policy", policy=approval.verdict, rule=approval.policy_rule,
                reason=gone.message, trace_id=approval.trace_id, approval_id=approval.id,
                action=Action(agent=approval.agent, tool=approval.tool, params={}),
            )  # fmt: skip
            await call.refused(self._queue, result)
            return
        logger.info("goes on with call %s, whose server is gone", call.id)
        try:
            await self._carry(call, request, execute, approval)
        except LegationError as error:
            logger.info("call %s does not go on here: %s", call.id, error)


def _said(returned: ToolReturn) -> tuple[Literal["result", "error"], ...]:
    found: list[Literal["result", "error"]] = ["result"] if returned.result is not None else []
    return (*found, "error") if returned.error is not None else tuple(found)


def _adopt(row: Row, who: Mapping[str, str | int]) -> Transaction[bool]:
    workspace, former = row["workspace_id"], row["holder"]
    if not (yield _SQL.adopt_call(**who, workspace=workspace, call=row["id"], former=former)):
        return False
    yield _SQL.adopt_approvals(id=who["id"], workspace=workspace, waiter=row["waiter"], former=former)
    return True


async def _no_tool(_action: Action, _token: object) -> ToolReturn:
    return ToolReturn(status_code=502, error="there is no such tool any more")


async def kept_action(
    database: Database, sealer: Sealer, asked: Approval | ChainStep
) -> tuple[Action, Facts, dict[str, object] | None]:
    """Open what was asked: the action, what was known besides, and that as it was kept. NotFound where it was purged."""
    said = await read_contents(database, sealer, asked)
    params, context = said.get("params"), said.get("context")
    if not isinstance(params, dict):
        raise NotFound(f"cannot go on with call {asked.trace_id}: its arguments are gone; ask again")
    kept = context if isinstance(context, dict) else None
    return *action_of(asked.agent, asked.tool, asked.kind, params, kept), kept


async def request_of(queue: ApprovalQueue, approval: Approval, waiter: Waiter) -> DoorRequest:
    """Make the request of an approval again, as it was asked. NotFound where its arguments were purged."""
    action, facts, kept = await kept_action(queue.ledger.database, queue.ledger.chain.sealer, approval)
    asker = Principal(
        kind=approval.requester_kind,
        id=approval.requester,
        workspace=approval.workspace_id,
        scopes=frozenset({"call"}),
        level=0,
        version=approval.requester_version,
    )
    return DoorRequest(
        principal=asker,
        action=action,
        facts=facts.now(),
        approval_id=approval.id,
        trace_id=approval.trace_id,
        session_id=approval.session_id,
        turn_id=approval.turn_id,
        tool_call_id=approval.tool_call_id,
        content_owner=None if approval.content_owner.startswith(_DAY) else approval.content_owner,
        editable=approval.editable,
        expires_at=approval.expires_at,
        waiter=waiter,
        places=places_of(kept),
    )
