"""One conversation with one agent: its events, its turn, the permissions it waits for."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Literal, Protocol

import msgspec
from msgspec import UNSET

from legation.agents.acp import AcpAgent
from legation.agents.rpc import AgentRefused, RpcFault
from legation.clock import Clock
from legation.errors import (
    AgentExited,
    Conflict,
    InvalidParams,
    LegationError,
    PromptInFlight,
    SessionClosed,
    TimedOut,
    TransportClosed,
)
from legation.host.handlers import QuestionHandler
from legation.host.meta import SessionMeta
from legation.host.options import Limits
from legation.host.permissions import Permissions
from legation.host.questions import Questions
from legation.host.turn import CANCEL_GRACE, End, PromptResult, Turn
from legation.ids import new_id
from legation.store.stream import Receipt, Stream
from legation.wire import codec
from legation.wire.acp.content import ContentBlock
from legation.wire.acp.elicitation import CreateElicitationRequest, CreateElicitationResponse
from legation.wire.acp.mcp import McpServer
from legation.wire.acp.permission import RequestPermissionRequest, RequestPermissionResponse
from legation.wire.acp.rpc import ErrorCode, RpcError
from legation.wire.acp.sessions import PromptResponse, SessionSetup
from legation.wire.acp.toolcall import AnyToolCall, Diff, ToolCall, ToolCallUpdate, merged
from legation.wire.acp.updates import SessionInfoUpdate
from legation.wire.action import Action
from legation.wire.ask import Approver, Ask
from legation.wire.diagnostic import Diagnostic, DiagnosticCode
from legation.wire.events import Draft
from legation.wire.hoststream import PermissionUpdated, SessionUpdated
from legation.wire.lifecycle import (
    PermissionAnswered,
    PermissionAsked,
    PromptFinished,
    PromptStarted,
    SessionStatus,
    Status,
    TurnState,
)
from legation.wire.lifecycle import Turn as TurnName
from legation.wire.payload import Payload

TOOL_CALLS_KEPT = 1000  # of a turn, so that a permission that names only a part can be shown whole
TOOL_PATIENCE = 6  # times the idle limit that an agent may be silent while a tool of its works
SETTLE_LIMIT = 5.0  # seconds from the end of an agent to that of its turn: the loop's time

_NOTED = frozenset(("tool-call", "tool-call-update", "session-info-update"))
_OVER = frozenset(("completed", "failed"))


class Surroundings(Protocol):
    """What a session needs of its host."""

    clock: Clock
    limits: Limits
    approver: Approver
    question_handler: QuestionHandler | None

    def publish(self, payload: Payload) -> object: ...
    async def replace_agent(self, session: Session, why: str) -> None: ...


class Session:
    """`id` is Legation's and names the stream; what the agent calls it is in `meta`."""

    def __init__(self, stream: Stream, meta: SessionMeta, around: Surroundings) -> None:
        self.id = stream.name
        self.stream = stream
        self.meta = meta
        # Resolved now: a link that the agent puts in their place later moves nothing.
        self.folders = [Path(os.path.realpath(each)) for each in (meta.cwd, *meta.additional_directories)]
        self.status: Status = "disconnected"
        self._reason: str | None = None
        self.agent_id: str | None = None
        self.mcp: tuple[McpServer, ...] = ()  # with their secrets, so in memory only
        self.has_modes = self.has_config = False  # whether the agent ever said that it has them
        self._agent: AcpAgent | None = None
        self._around = around
        self._clock = around.clock
        self._limits = around.limits
        self._permissions = Permissions(
            approver=around.approver,
            record=self._note_permission,
            clock=around.clock,
            limit=around.limits.permission,
            changed=self._go_on,
        )
        self._questions = self._make_questions(around.question_handler)
        self._turn: Turn | None = None
        self._running: asyncio.Task[None] | None = None
        self._tool_calls: dict[str, AnyToolCall] = {}

    def _make_questions(self, handler: QuestionHandler | None) -> Questions | None:
        if handler is None:
            return None
        return Questions(
            handler=handler,
            record=self.note,
            clock=self._clock,
            limit=self._limits.permission,
            changed=self._go_on,
        )

    # Its place in the host.

    @property
    def agent(self) -> AcpAgent:
        if self._agent is None or self.status != "active":
            why = f" ({self._reason})" if self._reason else ""
            raise AgentExited(
                f"cannot reach the agent of session {self.id}: it is {self.status}{why}; resume it"
            )
        return self._agent

    @property
    def busy(self) -> bool:
        return self._turn is not None

    def snapshot(self) -> SessionUpdated:
        return self.meta.snapshot(self.id, self.status, self.agent_id)

    def attach(
        self, agent_id: str, agent: AcpAgent, setup: SessionSetup, mcp: tuple[McpServer, ...]
    ) -> Receipt | None:
        """An agent has taken the session: new, loaded or resumed."""
        self.agent_id, self._agent, self.mcp = agent_id, agent, mcp
        self.has_modes |= setup.modes is not None
        self.has_config |= setup.config_options is not None
        return self.move("active")

    def move(self, status: Status, reason: str | None = None) -> Receipt | None:
        """Tell the session's readers and the host's."""
        self.status, self._reason = status, reason
        receipt = self.note(SessionStatus(status=status, reason=reason))
        self._around.publish(self.snapshot())
        return receipt

    def show(self, status: Status) -> None:
        """A projection only: nothing is decided yet."""
        self.status = status
        self._around.publish(self.snapshot())

    def disconnect(self, reason: str) -> None:
        """Its agent is gone; its history stays."""
        self._agent = None
        if self.status not in ("closed", "deleted", "disconnected"):
            self.move("disconnected", reason)

    async def lose_agent(self, reason: str) -> None:
        """First the turn says how it ended, then the session that it is disconnected."""
        if self._running:
            await asyncio.wait({self._running}, timeout=SETTLE_LIMIT)
        self.disconnect(reason)

    async def keep(self, meta: SessionMeta) -> None:
        self.meta = meta
        await self.stream.set_meta(meta.encode())

    async def end(self, status: Literal["closed", "deleted"]) -> None:
        """Strict: where the tombstone cannot be written, nothing is published and this raises."""
        await self._settled()
        if status == "closed":
            self.note(SessionStatus(status="closed"))
            await self.stream.close()
        else:
            await self.stream.delete()
        self.status, self._agent = status, None
        self._around.publish(self.snapshot())

    async def _settled(self) -> None:
        """The turn is over, and whoever was asked need not answer."""
        await self.cancel()
        if self._running:
            await asyncio.wait({self._running}, timeout=SETTLE_LIMIT)
        self._withdraw_all()

    def note(self, *payloads: Payload) -> Receipt | None:
        """Append events of our own; None where the session takes no more."""
        with suppress(Conflict):
            return self._record(*payloads)
        return None

    def _note_permission(self, payload: Payload) -> Receipt | None:
        """On the session's stream, and its projection on the host's."""
        receipt = self.note(payload)
        if isinstance(payload, PermissionAsked):
            self._around.publish(
                PermissionUpdated(id=payload.id, session_id=self.id, state="pending", ask=payload)
            )
        elif isinstance(payload, PermissionAnswered):
            over = "superseded" if payload.outcome == "superseded" else "answered"
            self._around.publish(
                PermissionUpdated(
                    id=payload.id,
                    session_id=self.id,
                    state="superseded" if over == "superseded" else "answered",
                    outcome=payload.outcome,
                    by=payload.by,
                )
            )
        return receipt

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
            if draft.type in _NOTED:
                self._take_note(draft)

    def _take_note(self, draft: Draft) -> None:
        if draft.type == "session-info-update":
            self._retitle(codec.decode(draft))
        else:
            self._remember(draft)

    def _retitle(self, info: object) -> None:
        if not isinstance(info, SessionInfoUpdate):
            return
        title = self.meta.title if info.title is UNSET else info.title
        updated_at = self.meta.updated_at if info.updated_at is UNSET else info.updated_at
        self.meta = msgspec.structs.replace(self.meta, title=title, updated_at=updated_at)
        self._around.publish(self.snapshot())
        self._saving = asyncio.create_task(self._save_meta())

    async def _save_meta(self) -> None:
        with suppress(LegationError):  # best effort: the event itself is what counts
            await self.stream.set_meta(self.meta.encode())

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

    def question(self, request: CreateElicitationRequest) -> Awaitable[CreateElicitationResponse]:
        if self._questions is None:
            raise RpcFault(ErrorCode.METHOD_NOT_FOUND, "elicitation is not offered")
        answer = self._questions.ask(request, self._turn.id if self._turn else None)
        if self._turn and self._turn.cancelled:
            self._questions.cancel_all()
        else:
            self._move("requires-action", "question")
        return answer

    @property
    def _waiting(self) -> bool:
        """The agent waits for us."""
        return self._permissions.waiting or (self._questions is not None and self._questions.waiting)

    def _withdraw_all(self) -> None:
        self._permissions.cancel_all()
        if self._questions is not None:
            self._questions.cancel_all()

    def _ask(self, request: RequestPermissionRequest) -> Ask:
        call: AnyToolCall = request.tool_call
        known = self._tool_calls.get(call.tool_call_id)
        call = merged(known, call) if known else call
        now = self._clock.now_ms()
        try:
            action = Action.from_tool_call(self.agent.child.name, call, cwd=self.meta.cwd)
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
        if self._turn and not self._turn.cancelled and not self._waiting:
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
        self._must_be_usable("prompt")
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

    def _must_be_usable(self, what: str) -> None:
        if self.status in ("closed", "deleted"):
            raise SessionClosed(f"cannot {what} session {self.id}: it is {self.status}")
        _ = self.agent

    async def cancel(self) -> None:
        """Ask the agent to end the turn. Permissions it waits for are answered `cancelled`. Without a turn
        nothing is sent: it would hit the next one."""
        turn = self._turn
        if turn is None or turn.cancelled:
            return
        turn.cancel()
        try:
            if turn.sent:  # else it would overtake the prompt; `_run` sends it then
                await self._cancel_at_agent()
        finally:
            self._withdraw_all()  # after it, so that no agent takes `cancelled` for a mere no and goes on

    async def _cancel_at_agent(self) -> None:
        with suppress(TransportClosed, AgentExited):  # the agent is ending, and the turn with it
            await self.agent.cancel(self.meta.agent_session_id)

    # The turn.

    async def _run(self, turn: Turn, prompt: tuple[ContentBlock, ...]) -> None:
        answered = partial(self._answered, turn)
        asking = asyncio.create_task(
            self.agent.prompt(self.meta.agent_session_id, prompt, on_answer=answered)
        )
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
        self._withdraw_all()
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
            left = turn.time_left(TOOL_PATIENCE if self._tool_at_work() else 1)
            if self._waiting:
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

    def _tool_at_work(self) -> bool:
        """A build may be silent for long: that is no idleness."""
        return any(call.status == "in_progress" for call in self._tool_calls.values())

    async def _stop_agent(self) -> None:
        what = f"the agent did not end a cancelled turn within {CANCEL_GRACE:g} s and is stopped"
        self.note(Diagnostic(code=DiagnosticCode.AGENT_KILL, message=what))
        await self._around.replace_agent(self, what)

    def _stuck(self) -> TimedOut:
        return TimedOut(
            f"cannot finish the turn of session {self.id}: no message of the agent came for"
            f" {self._limits.idle:g} s; prompt it again, or raise idle_timeout"
        )
