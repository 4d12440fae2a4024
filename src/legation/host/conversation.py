"""Conversation of an agent and its client in one session: prompts, turns, permissions, questions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from legation.agents.rpc import AgentRefused, RpcFault
from legation.clock import new_id
from legation.errors import (
    AgentExited,
    Conflict,
    InvalidParams,
    LegationError,
    PromptInFlight,
    TimedOut,
    TransportClosed,
)
from legation.host.requests.asks import Permissions, Questions, Undecided
from legation.host.requests.handlers import ApproveAll, RuledApprover, Service, Unasked
from legation.host.turn import (
    CANCEL_GRACE,
    CutWords,
    Decided,
    PromptResult,
    SessionTurn,
    ToolCalls,
    TurnEnd,
    real_path,
)
from legation.wire import event_types
from legation.wire.acp.methods import (
    CreateElicitationRequest,
    CreateElicitationResponse,
    CreateTerminalResponse,
    PermissionOption,
    PromptResponse,
    RequestPermissionRequest,
    RequestPermissionResponse,
)
from legation.wire.acp.rpc import ErrorCode, RpcError
from legation.wire.acp.updates import ContentBlock, Diff, UserMessageChunk
from legation.wire.action import EFFECTLESS, MAX_PATH, Action, Ask, Decision, canonical_path, kind_of
from legation.wire.event_types import (
    CUT,
    Diagnostic,
    DiagnosticCode,
    PromptFinished,
    PromptStarted,
    TurnState,
    UnaskedEffect,
)
from legation.wire.events import Draft

if TYPE_CHECKING:
    from legation.host.host import AcpHost
    from legation.host.session import Session
    from legation.store.stream import Receipt

JUDGE_LIMIT = 30.0  # seconds to judge what was done unasked: the store's time
TOOL_PATIENCE = 6  # times the idle limit that an agent may be silent while a tool of its works
SETTLE_LIMIT = 5.0  # seconds from the end of an agent to that of its turn: the loop's time

# What whoever decides what Legation does for an agent can say: these are no options of the agent's.
SERVICE_OPTIONS: Final = (
    PermissionOption(option_id="allow_once", name="Allow", kind="allow_once"),
    PermissionOption(option_id="reject_once", name="Refuse", kind="reject_once"),
)
_OPEN: Final = frozenset(("policy", "legation", "timeout", "client", "agent", "unattended"))

_log = logging.getLogger(__name__)


class Conversation:
    def __init__(self, session: Session, core: AcpHost) -> None:
        options = core.options
        self.tool_calls = ToolCalls()
        self._decided = Decided(self.tool_calls)
        self.judging: set[asyncio.Task[object]] = set()  # of what was done unasked
        self._approver = options.approver or Undecided()
        self._session = session
        self._clock = core.clock
        self._limits = options.limits
        self.permissions = Permissions(
            approver=self._approver,
            record=session.note_permission,
            reserve=session.reserve_permission,
            clock=self._clock,
            limit=self._limits.permission,
            changed=self._go_on,
            tell_decided=self._decided.settle,
        )
        self.questions = Questions(
            handler=options.questions,
            record=session.note,
            clock=self._clock,
            limit=self._limits.permission,
            changed=self._go_on,
        )
        self.turn: SessionTurn | None = None
        self._running: asyncio.Task[None] | None = None
        self._own_requests: set[asyncio.Task[object]] = set()  # of the agent, which end with the turn

    # The agent asks.

    def permission(self, request: RequestPermissionRequest) -> Awaitable[RequestPermissionResponse]:
        call = self.tool_calls.whole(request.tool_call)
        if unseen := ", ".join(sorted(self.tool_calls.unseen(request.tool_call))):
            what = f"of its tool call no more than a part is known ({unseen})"
            raise RpcFault(ErrorCode.INVALID_PARAMS, what)
        try:
            action = Action.from_tool_call(
                self._session.agent.name, call, cwd=self._session.meta.cwd, home=self._session.home
            )
        except InvalidParams as error:
            raise RpcFault(ErrorCode.INVALID_PARAMS, error.message) from None
        diffs = tuple(each for each in call.content or () if isinstance(each, Diff))
        ask = self._ask_about(action, call.title or action.tool, call.tool_call_id)
        edits = self._session.agent.takes_edits
        return self._put(replace(ask, options=request.options, diffs=diffs, editable=edits))

    def _put(self, ask: Ask) -> asyncio.Future[RequestPermissionResponse]:
        self._decided.begin(ask)
        answer = self.permissions.ask(ask)
        if self.turn and self.turn.cancelled:
            self.permissions.cancel_all()  # asked too late: the turn is being ended
        elif self.turn:
            self._session.note(TurnState(turn=self.turn.id, state="requires-action", reason=ask.id))
        return answer

    # The agent has something done for it.

    def serve(self, service: Service, do: Callable[[], Awaitable[object]]) -> Awaitable[object]:
        """Decided like a permission, unless one for the same call and place was just given; then done."""
        if service.kind == "read" and not isinstance(self._approver, RuledApprover):
            return do()  # without rules nobody has a word to say on what is read
        path = self._place(service)
        action = Action(
            agent=self._agent_name(),
            tool=service.tool,
            kind=service.kind,
            params=service.params,
            paths=() if path is None else (path,),
            command=service.command,
            unclear=("env",) if "env" in service.params else (),
        )
        real, turn = None if path is None else real_path(path), self.turn.id if self.turn else None
        # An environment is no part of what an agent asks about, and can make any command another.
        if "env" not in service.params and self._decided.covers(action, real, turn, self._session.meta.cwd):
            return self._do(service, real, do)
        call, diffs = self.tool_calls.about(path, service.command), (service.diff,) if service.diff else ()
        ask = replace(self._ask_about(action, service.title, call), options=SERVICE_OPTIONS, diffs=diffs)
        answer = self._put(ask)

        async def do_if_allowed() -> object:
            await answer
            decision = self._decided.decision(ask)
            if decision is None or decision.outcome != "approved":
                raise RpcFault(ErrorCode.INVALID_PARAMS, _refusal(service, decision))
            return await self._do(service, real, do)

        doing = asyncio.ensure_future(do_if_allowed())

        def over(_: object) -> None:
            if doing.cancelled():  # perhaps before its first step: the agent no longer waits
                answer.cancel()

        doing.add_done_callback(over)
        return doing

    async def _do(self, service: Service, real: str | None, do: Callable[[], Awaitable[object]]) -> object:
        path = self._place(service)
        if path is not None and real_path(path) != real:
            what = f"cannot {service.verb} {path}: it leads elsewhere than when it was decided; ask again"
            raise RpcFault(ErrorCode.INVALID_PARAMS, what)
        result = await do()
        if isinstance(result, CreateTerminalResponse):
            self._decided.opened(result.terminal_id)
        return result

    def _place(self, service: Service) -> str | None:
        if service.path is None:
            return None
        if not service.path.startswith("/") or "\0" in service.path:
            raise RpcFault(ErrorCode.INVALID_PARAMS, "the path must be absolute")
        if len(service.path) > MAX_PATH:
            raise RpcFault(ErrorCode.INVALID_PARAMS, "the path is too long")
        return canonical_path(service.path, cwd=self._session.meta.cwd)

    # The agent has done something.

    def take_call(self, draft: Draft) -> None:
        """Take what it says of a tool call. One that was carried out must have been asked about."""
        call = self.tool_calls.take(draft)
        if call is None or call.status != "completed" or kind_of(call) in EFFECTLESS:
            return
        try:
            action = Action.from_tool_call(
                self._agent_name(), call, cwd=self._session.meta.cwd, home=self._session.home
            )
        except InvalidParams:  # not to be judged by its arguments, so by its kind alone
            action = Action(agent=self._agent_name(), tool=call.kind or "other", kind=call.kind or "other")
        if hidden := self.tool_calls.hidden(call):  # no rule lets pass what nobody has seen
            action = replace(action, unclear=(*action.unclear, *hidden))
        turn = self.turn
        if self._decided.was_asked(call, action, turn.id if turn else None):
            return
        ask = self._ask_about(action, call.title or action.tool, call.tool_call_id)
        if isinstance(self._approver, RuledApprover):
            self._judge(self._tell_unasked(self._approver, ask, turn))
        elif not isinstance(self._approver, ApproveAll):  # who has allowed all beforehand is not alarmed
            self._session.note(_unasked_effect(ask, None))

    def unasking(self, mode: str) -> None:
        """Trace a mode in which it does not ask, as the change of mode that it amounts to."""
        action = Action(
            agent=self._agent_name(), tool="switch_mode", kind="switch_mode", params={"mode": mode}
        )
        if isinstance(self._approver, RuledApprover):
            self._judge(self._judged(self._approver, self._ask_about(action, f"mode {mode}")))

    def _judge(self, work: Coroutine[object, object, object]) -> None:
        task = asyncio.create_task(work, name=f"legation-judges-{self._session.id}")
        self.judging.add(task)
        task.add_done_callback(self.judging.discard)

    async def _judged(self, rules: RuledApprover, ask: Ask) -> Unasked:
        try:
            async with asyncio.timeout(JUDGE_LIMIT):
                return await rules.unasked(ask)
        except Exception:  # noqa: BLE001 - a task boundary: what cannot be judged was not allowed
            _log.exception("cannot judge what an agent did unasked")
            return Unasked("deny", "legation", "it could not be judged", ends=True)

    async def _tell_unasked(self, rules: RuledApprover, ask: Ask, turn: SessionTurn | None) -> None:
        """Recorded before the turn is ended for it."""
        found = await self._judged(rules, ask)
        if found.policy == "allow":
            return
        ends = found.ends and turn is not None and self.turn is turn
        self._session.note(_unasked_effect(ask, found, ends=ends))
        if ends and turn is not None and turn.unasked is None:
            turn.unasked = found.rule
            if turn.answer is None:  # else it would hit the next one
                await self.cancel()

    def _agent_name(self) -> str:
        try:
            return self._session.agent.name
        except AgentExited:  # its last words
            return self._session.meta.agent_definition_id or "agent"

    # The agent asks a person.

    def question(self, request: CreateElicitationRequest) -> Awaitable[CreateElicitationResponse]:
        answer = self.questions.ask(request, self.turn.id if self.turn else None)
        self._decided.questioned(request.tool_call_id)
        if self.turn and self.turn.cancelled:
            self.questions.cancel_all()
        elif self.turn:
            self._session.note(TurnState(turn=self.turn.id, state="requires-action", reason="question"))
        return answer

    @property
    def waiting(self) -> bool:
        """The agent waits for us."""
        return bool(self.permissions.waiting or self.questions.waiting)

    def _withdraw_all(self, turn: SessionTurn | None) -> None:
        why = turn.cut.waited if turn is not None and turn.cut is not None else None
        self.permissions.cancel_all(why)
        self.questions.cancel_all(why)
        for each in self._own_requests:
            each.cancel()

    def ends_with_turn(self, asking: asyncio.Task[object]) -> None:
        """Cancel with the turn that runs what the agent has asked by a method of its own."""
        if self.turn is None:
            return
        self._own_requests.add(asking)
        asking.add_done_callback(self._own_requests.discard)
        if self.turn.cancelled:
            asking.cancel()

    def _ask_about(self, action: Action, title: str, tool_call_id: str | None = None) -> Ask:
        now = self._clock.now_ms()
        return Ask(
            id=new_id("apr", now_ms=now),
            session_id=self._session.id,
            action=action,
            options=(),
            title=title,
            asked_at=now,
            tool_call_id=tool_call_id,
            turn=self.turn.id if self.turn else None,
            cwd=self._session.meta.cwd,
            home=self._session.home,
        )

    def _go_on(self) -> None:
        self._session.heard()
        if self.turn and not self.turn.cancelled and not self.waiting:
            self._session.note(TurnState(turn=self.turn.id, state="running"))

    # The client speaks.

    async def prompt(self, prompt: tuple[ContentBlock, ...]) -> PromptResult:
        """Returns when the turn is over and all of it is on the disk. Only a crash or a stuck agent raises."""
        end = await self.until_over(self.begin(prompt))
        if end.error:
            raise end.error
        return end.result

    def begin(self, prompt: tuple[ContentBlock, ...], *, message: str | None = None) -> SessionTurn:
        """Begin a turn at once, awaiting nothing: nobody comes between. Where this raises the log has nothing of it."""
        if self.turn:
            raise PromptInFlight(
                f"cannot prompt session {self._session.id}: a turn is running; wait or cancel it"
            )
        self._session.must_be_usable("prompt")
        turn = SessionTurn(new_id("trn", now_ms=self._clock.now_ms()), self._clock, self._limits.idle)
        stored = self._session.record(
            PromptStarted(turn=turn.id, prompt=prompt, message=message),
            TurnState(turn=turn.id, state="running"),
        )
        self.turn = turn
        self.tool_calls.clear()
        self._decided.begin_turn()
        turn.running = self._running = asyncio.create_task(
            self._run(turn, prompt, stored if message else None), name=f"legation-{turn.id}"
        )
        return turn

    async def until_over(self, turn: SessionTurn) -> TurnEnd:
        """Return its end when all of it is on the disk. A cancelled caller cancels the turn, which its agent ends."""
        assert turn.running
        try:
            await asyncio.shield(turn.running)
        except asyncio.CancelledError:
            await self.cancel()
            raise
        assert turn.end
        if turn.end.receipt:
            await turn.end.receipt
        return turn.end

    async def steer(self, prompt: tuple[ContentBlock, ...]) -> None:
        """Say something to the turn that runs, recorded when the agent has it."""
        self._session.must_be_usable("steer")
        if self.turn is None or self.turn.cancelled:
            raise Conflict(f"cannot steer session {self._session.id}: no turn runs; send it as a message")
        name, limit = self._session.meta.agent_session_id, self._limits.start
        await self._session.agent.steer(name, prompt, limit)
        self._session.updates([event_types.draft(UserMessageChunk(content=block)) for block in prompt])

    async def cancel(self) -> None:
        """Ask the agent to end the turn; what it waits for is answered `cancelled`. Without a turn nothing is sent."""
        turn = self.turn
        if turn is None or turn.cancelled:
            return
        turn.cancel()
        try:
            if turn.sent:  # else it would overtake the prompt; `_run` sends it then
                await self._cancel_at_agent()
        finally:
            self._withdraw_all(turn)  # after it, so that no agent takes `cancelled` for a mere no and goes on

    def cut(self, why: CutWords) -> None:
        """The turn that runs, if one does, is about to be ended by its host: where no agent was faster, its end says why."""
        if self.turn is not None:
            self.turn.cut = self.turn.cut or why

    async def _cancel_at_agent(self) -> None:
        with suppress(TransportClosed, AgentExited):  # the agent is ending, and the turn with it
            await self._session.agent.cancel(self._session.meta.agent_session_id)

    async def idle(self) -> None:
        """Returns when no turn runs."""
        while self.turn is not None and self._running is not None:
            await asyncio.wait({self._running})

    async def settle(self) -> None:
        """The turn is over, as far as that depends on us and on time, and nobody need answer any more."""
        if self._running:
            await asyncio.wait({self._running}, timeout=SETTLE_LIMIT)
        self._withdraw_all(self.turn)

    # The turn.

    async def _run(self, turn: SessionTurn, prompt: tuple[ContentBlock, ...], stored: Receipt | None) -> None:
        answered, asking = partial(self._answered, turn), None
        try:
            # Killed before that, a host would leave no turn of the message, and the next one would say it again.
            if stored is not None:
                await stored
            asking = asyncio.create_task(
                self._session.agent.prompt(self._session.meta.agent_session_id, prompt, on_answer=answered)
            )
            await asyncio.sleep(0)  # in its first step the prompt is written
            turn.sent = True
            if turn.cancelled:
                await self._cancel_at_agent()
            await self._watch(turn, asking)
            asking.result()
        except LegationError as error:
            if isinstance(error, AgentExited | TransportClosed):
                self._session.losing_agent()  # before the end of the turn is told: the next one is not for this agent
            self._answered(turn, error)
        finally:
            if asking is not None:
                asking.cancel()
            while self.judging and turn.end is None:
                await asyncio.wait(self.judging)  # bounded by `JUDGE_LIMIT`
            if turn.end is None and turn.answer is not None:
                self._conclude(turn, turn.answer)
            if self.turn is turn:
                self.turn = None

    def _answered(self, turn: SessionTurn, answer: PromptResponse | LegationError) -> None:
        """Conclude in the answer's place among the updates, unless something done unasked is being judged."""
        if turn.end or turn.answer is not None:
            return
        turn.answer = answer
        if not self.judging:
            self._conclude(turn, answer)

    def _conclude(self, turn: SessionTurn, answer: PromptResponse | LegationError) -> None:
        if turn.unasked is not None and (
            not isinstance(answer, LegationError) or isinstance(answer, AgentRefused)
        ):  # some answer a turn that is ended with an error of their own
            what = (
                f"cannot go on: the agent acted and nobody had allowed it, which {turn.unasked} does not; put it into a mode in "
                "which it asks, or let a policy allow it"
            )
            self._end(turn, PromptResult("cancelled", error=RpcError(ErrorCode.INVALID_REQUEST, what)))
        elif turn.cut is not None and (
            isinstance(answer, LegationError) or answer.stop_reason == "cancelled"
        ):
            error = answer if isinstance(answer, LegationError) else None
            told = RpcError(ErrorCode.INTERNAL_ERROR, turn.cut.ran, CUT)
            self._end(turn, PromptResult("cancelled", error=told), error)
        elif turn.stuck:
            silent = f"no message of the agent came for {self._limits.idle:g} s"
            what = f"cannot finish the turn of session {self._session.id}: {silent}"
            self._fail(turn, TimedOut(f"{what}; prompt it again, or raise idle_timeout"))
        elif isinstance(answer, AgentRefused):
            self._end(turn, PromptResult("end_turn", error=answer.error))
        elif isinstance(answer, LegationError):
            self._fail(turn, answer)
        else:
            self._end(turn, PromptResult(answer.stop_reason, usage=answer.usage))

    def _fail(self, turn: SessionTurn, error: LegationError) -> None:
        told = RpcError(ErrorCode.INTERNAL_ERROR, error.message)
        self._end(turn, PromptResult("cancelled", error=told), error)

    def _end(self, turn: SessionTurn, result: PromptResult, error: LegationError | None = None) -> None:
        self.turn, why = None, result.stop_reason
        self._withdraw_all(turn)
        if (owner := self._session.owner) is not None:
            owner.router.tell_unasked()
        finished = PromptFinished(turn=turn.id, stop_reason=why, error=result.error, usage=result.usage)
        receipt = self._session.note(finished, TurnState(turn=turn.id, state="idle", reason=why))
        turn.end = TurnEnd(result, receipt, error, turn.cancelled_by_client)

    async def _watch(self, turn: SessionTurn, asking: asyncio.Task[PromptResponse]) -> None:
        """Watch the turn: cancel an agent that shows no sign of life, stop one that does not obey."""
        while not asking.done():
            if turn.answer is not None:  # it came in the very moment in which its time was up
                await asyncio.wait({asking})
                return
            # A build may be silent for long: that is no idleness.
            patience = TOOL_PATIENCE if self.tool_calls.at_work() else 1
            left = turn.time_left(self._session.heard_at, patience)
            if self.waiting:
                self._session.heard()
                left = self._limits.idle  # it waits for us
            if left > 0:
                await turn.wait(asking, left)
            elif not turn.cancelled:
                turn.stuck = True
                await self.cancel()
            else:
                what = f"the agent did not end a cancelled turn within {CANCEL_GRACE:g} s and is stopped"
                self._session.note(Diagnostic(code=DiagnosticCode.AGENT_KILL, message=what))
                if self._session.owner is not None:
                    await self._session.owner.restart(what)
                await asyncio.wait({asking})


def _unasked_effect(ask: Ask, found: Unasked | None, *, ends: bool = False) -> UnaskedEffect:
    return UnaskedEffect(
        title=ask.title,
        action=ask.action,
        tool_call_id=ask.tool_call_id,
        turn=ask.turn,
        policy=found.policy if found else None,
        rule=found.rule if found else None,
        reason=found.reason if found else None,
        ends_turn=ends,
    )


def _refusal(service: Service, decision: Decision | None) -> str:
    """A person's reasons are his own, unless he has a word for the agent."""
    what = f"cannot {service.verb} {service.path or 'it'}"
    if decision is None:
        return f"{what}: nobody has decided it"
    words = decision.message or (decision.reason if decision.by in _OPEN else "")
    rule = decision.reason.partition(": ")[0] if decision.by == "policy" else ""
    by = f" by {rule}" if rule and decision.message else ""
    return f"{what}: {decision.outcome}{by}{f': {words}' if words else ''}"
