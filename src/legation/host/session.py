"""One conversation with one agent: its events, its turn, the permissions it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from legation.agents.acp import AcpAgent
from legation.agents.rpc import AgentRefused, RpcFault
from legation.clock import Clock
from legation.errors import (
    Conflict,
    InvalidParams,
    LegationError,
    PromptInFlight,
    TimedOut,
    TransportClosed,
)
from legation.host.permissions import Permissions
from legation.host.turn import CANCEL_GRACE, End, PromptResult, Turn
from legation.ids import new_id
from legation.store.stream import Receipt, Stream
from legation.wire import codec
from legation.wire.acp.content import ContentBlock
from legation.wire.acp.permission import RequestPermissionRequest, RequestPermissionResponse
from legation.wire.acp.rpc import ErrorCode, RpcError
from legation.wire.acp.sessions import PromptResponse
from legation.wire.acp.toolcall import AnyToolCall, Diff, ToolCall, ToolCallUpdate, merged
from legation.wire.action import Action
from legation.wire.ask import Approver, Ask
from legation.wire.diagnostic import Diagnostic, DiagnosticCode
from legation.wire.events import Draft
from legation.wire.lifecycle import PromptFinished, PromptStarted, SessionStatus, TurnState
from legation.wire.lifecycle import Turn as TurnName
from legation.wire.payload import Payload

TOOL_CALLS_KEPT = 1000  # of a turn, so that a permission that names only a part can be shown whole
SETTLE_LIMIT = 5.0  # seconds from the end of an agent to that of its turn: the loop's time

_TOOL_EVENTS = frozenset(("tool-call", "tool-call-update"))
_OVER = frozenset(("completed", "failed"))

__all__ = ["CANCEL_GRACE", "Limits", "PromptResult", "Session"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds; `settings.FIELDS` says whose time each is."""

    start: float = 60.0
    idle: float = 600.0
    permission: float = 600.0
    stop: float = 5.0


class Session:
    """`id` is Legation's and names the stream; `agent_session_id` is what the agent calls it."""

    def __init__(
        self,
        *,
        agent: AcpAgent,
        agent_session_id: str,
        stream: Stream,
        cwd: str,
        approver: Approver,
        clock: Clock,
        limits: Limits,
    ) -> None:
        self.id = stream.name
        self.agent = agent
        self.agent_session_id = agent_session_id
        self.stream = stream
        self.cwd = cwd
        self._clock = clock
        self._limits = limits
        self._permissions = Permissions(
            approver=approver, record=self.note, clock=clock, limit=limits.permission, changed=self._go_on
        )
        self._turn: Turn | None = None
        self._running: asyncio.Task[None] | None = None
        self._tool_calls: dict[str, AnyToolCall] = {}

    def note(self, *payloads: Payload) -> Receipt | None:
        """Append events of our own; None where the session takes no more."""
        with suppress(Conflict):
            return self._record(*payloads)
        return None

    def _record(self, *payloads: Payload) -> Receipt:
        return self.stream.append([codec.draft(payload) for payload in payloads])

    # The agent speaks.

    def heard(self) -> None:
        """A sign of life."""
        if self._turn:
            self._turn.heard()

    def updates(self, drafts: list[Draft]) -> None:
        self.heard()
        self.stream.append(drafts)
        for draft in drafts:
            if draft.type in _TOOL_EVENTS:
                self._remember(draft)

    def _remember(self, draft: Draft) -> None:
        call = codec.decode(draft)
        if not isinstance(call, ToolCall | ToolCallUpdate):
            return
        known = self._tool_calls.get(call.tool_call_id)
        if call.status in _OVER:
            self._tool_calls.pop(call.tool_call_id, None)
        elif known or len(self._tool_calls) < TOOL_CALLS_KEPT:
            self._tool_calls[call.tool_call_id] = merged(known, call) if known else call

    def permission(self, request: RequestPermissionRequest) -> Awaitable[RequestPermissionResponse]:
        ask = self._ask(request)
        answer = self._permissions.ask(ask)
        if self._turn and self._turn.cancelled:
            self._permissions.cancel_all()  # asked too late: the turn is being ended
        else:
            self._move("requires-action", ask.id)
        return answer

    def _ask(self, request: RequestPermissionRequest) -> Ask:
        call: AnyToolCall = request.tool_call
        known = self._tool_calls.get(call.tool_call_id)
        call = merged(known, call) if known else call
        now = self._clock.now_ms()
        try:
            action = Action.from_tool_call(self.agent.child.name, call, cwd=self.cwd)
        except InvalidParams as error:
            raise RpcFault(ErrorCode.INVALID_PARAMS, error.message) from None
        return Ask(
            id=new_id("apr", now_ms=now),
            session_id=self.id,
            action=action,
            options=request.options,
            title=call.title or action.tool,
            asked_at=now,
            expires_at=now + int(self._limits.permission * 1000),
            tool_call_id=call.tool_call_id,
            turn=self._turn.id if self._turn else None,
            diffs=tuple(each for each in call.content or () if isinstance(each, Diff)),
        )

    def _go_on(self) -> None:
        self.heard()
        if self._turn and not self._turn.cancelled and not self._permissions.waiting:
            self._move("running")

    def _move(self, state: TurnName, reason: str | None = None) -> None:
        if self._turn:
            self.note(TurnState(turn=self._turn.id, state=state, reason=reason))

    # The client speaks.

    async def prompt(self, prompt: tuple[ContentBlock, ...]) -> PromptResult:
        """Returns when the turn is over and all of it is on the disk. Only a crash or a stuck agent raises.
        If the caller is cancelled, so is the turn: it goes on until the agent has ended it."""
        if self._turn:
            raise PromptInFlight(f"cannot prompt session {self.id}: a turn is running; wait or cancel it")
        turn = Turn(new_id("trn", now_ms=self._clock.now_ms()), self._clock, self._limits.idle)
        self._record(PromptStarted(turn=turn.id, prompt=prompt), TurnState(turn=turn.id, state="running"))
        self._turn = turn
        self._tool_calls.clear()
        self._running = asyncio.create_task(self._run(turn, prompt), name=f"legation-{turn.id}")
        try:
            await asyncio.shield(self._running)
        except asyncio.CancelledError:
            await self.cancel()
            raise
        assert turn.end
        if turn.end.receipt:
            await turn.end.receipt
        if turn.end.error:
            raise turn.end.error
        return turn.end.result

    async def cancel(self) -> None:
        """Ask the agent to end the turn. Permissions it waits for are answered `cancelled`. Without a turn
        nothing is sent: it would hit the next one."""
        turn = self._turn
        if turn is None or turn.cancelled:
            return
        turn.cancel()
        self._permissions.cancel_all()
        if turn.sent:  # else it would overtake the prompt; `_run` sends it then
            await self._cancel_at_agent()

    async def _cancel_at_agent(self) -> None:
        with suppress(TransportClosed):  # the agent is ending, and the turn with it
            await self.agent.cancel(self.agent_session_id)

    async def close(self) -> None:
        """Strict: what the agent's end leaves to be said is said, then the session takes no more."""
        if self._running:
            await asyncio.wait({self._running}, timeout=SETTLE_LIMIT)
        self._permissions.cancel_all()
        if self.stream.info().state == "open":
            self.note(SessionStatus(status="closed"))
            await self.stream.close()

    # The turn.

    async def _run(self, turn: Turn, prompt: tuple[ContentBlock, ...]) -> None:
        answered = partial(self._answered, turn)
        asking = asyncio.create_task(self.agent.prompt(self.agent_session_id, prompt, on_answer=answered))
        try:
            await asyncio.sleep(0)  # in its first step the prompt is written
            turn.sent = True
            if turn.cancelled:
                await self._cancel_at_agent()
            await self._watch(turn, asking)
            asking.result()
        except LegationError as error:
            self._answered(turn, error)
        finally:
            asking.cancel()
            if self._turn is turn:
                self._turn = None

    def _answered(self, turn: Turn, answer: PromptResponse | LegationError) -> None:
        """In the answer's place among the updates, so that what follows is seen to come after the turn."""
        if turn.end:
            return
        if turn.stuck:
            self._finish(turn, "cancelled", error=self._stuck())
        elif isinstance(answer, AgentRefused):
            self._end(turn, PromptResult("end_turn", error=answer.error))
        elif isinstance(answer, LegationError):
            self._finish(turn, "cancelled", error=answer)
        else:
            self._end(turn, PromptResult(answer.stop_reason, usage=answer.usage))

    def _finish(self, turn: Turn, stop_reason: str, error: LegationError) -> None:
        told = RpcError(ErrorCode.INTERNAL_ERROR, error.message)
        self._end(turn, PromptResult(stop_reason, error=told), error)

    def _end(self, turn: Turn, result: PromptResult, error: LegationError | None = None) -> None:
        self._turn = None
        self._permissions.cancel_all()
        receipt = self.note(
            PromptFinished(
                turn=turn.id, stop_reason=result.stop_reason, error=result.error, usage=result.usage
            ),
            TurnState(turn=turn.id, state="idle", reason=result.stop_reason),
        )
        turn.end = End(result, receipt, error)

    async def _watch(self, turn: Turn, asking: asyncio.Task[PromptResponse]) -> None:
        """Until the turn is over: an agent that shows no sign of life is cancelled, one that does not obey
        is stopped."""
        while not asking.done():
            left = turn.time_left()
            if self._permissions.waiting:
                turn.heard()
                left = self._limits.idle  # it waits for us
            if left > 0:
                await turn.wait(asking, left)
            elif not turn.cancelled:
                turn.stuck = True
                await self.cancel()
            else:
                await self._stop_agent()
                await asyncio.wait({asking})

    async def _stop_agent(self) -> None:
        what = f"the agent did not end a cancelled turn within {CANCEL_GRACE:g} s and is stopped"
        self.note(Diagnostic(code=DiagnosticCode.AGENT_KILL, message=what))
        await self.agent.stop(self._limits.stop)

    def _stuck(self) -> TimedOut:
        return TimedOut(
            f"cannot finish the turn of session {self.id}: no message of the agent came for"
            f" {self._limits.idle:g} s; prompt it again, or raise idle_timeout"
        )
