"""A session: a thread of the app server with its sub-agents' threads, and the turn that it is in.

INV-1  A prompt ends with the end of its turn, by the turn's id; other turns of the thread end nothing.
INV-2  A plan that was approved is carried out in the prompt that asked for it: a second turn, in the default mode.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from legation.agents.codex import permissions as asks
from legation.agents.codex.messages import (
    CodexNotification,
    CodexRequest,
    ItemNews,
    ProposedPlan,
    ResolvedNews,
    ThreadOf,
    TurnInterrupt,
    TurnNews,
    TurnOpened,
    TurnStart,
    TurnSteer,
    UsageNews,
    UserInput,
)
from legation.agents.codex.options import DEFAULT, PLAN, CodexOptions
from legation.agents.codex.permissions import CodexPermissions
from legation.agents.codex.server import CodexServer
from legation.agents.codex.translate import CodexTranslator, TokenMeter, failure
from legation.agents.driver import OnAnswer
from legation.agents.native import NativeAgent, PendingReply, PermissionDecision
from legation.errors import AgentError, Conflict, LegationError
from legation.wire.acp.methods import PromptResponse
from legation.wire.acp.updates import CurrentModeUpdate, ToolCall, ToolCallUpdate

TURN_LIMIT: Final = 60.0  # seconds to take a prompt, not to work on it: the server's time
INTERRUPT_LIMIT: Final = 10.0  # seconds to say that an interrupt was heard: the server's time
GO_ON: Final = "Carry out the plan."
_STARTING: Final = ""  # stands for a turn's id until the server has given it one

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class CodexTurn:
    """`id` is known once the server has taken the prompt."""

    reply: PendingReply[PromptResponse]
    id: str | None = None
    cancelled: bool = False
    plan: str | None = None


class CodexSession:
    """`id` is the thread's. Its agent makes it in the place of the server's answer."""

    def __init__(self, agent: NativeAgent, server: CodexServer, thread_id: str, choice: CodexOptions) -> None:
        self.id = thread_id
        self.choice = choice
        self.translator = CodexTranslator(thread_id)
        self._agent = agent
        self._server = server
        self._permissions = CodexPermissions(agent, thread_id, self.translator)
        self._tokens = TokenMeter()
        self._turn: CodexTurn | None = None
        self._running: dict[str, str] = {}  # thread -> its turn: this one's and those of sub-agents
        self._unwanted: set[str] = set()  # turns that were told to stop and have not ended
        self._idle = asyncio.Event()  # nothing is running
        self._idle.set()
        self._tasks: set[asyncio.Task[None]] = set()

    # We speak.

    async def prompt(
        self,
        given: tuple[UserInput, ...],
        on_answer: OnAnswer[PromptResponse],
    ) -> PromptResponse:
        turn = self._turn = CodexTurn(PendingReply(on_answer))
        self._tokens.begin_turn()
        try:
            await self._start(turn, given)
            return await turn.reply.value()
        finally:
            if self._turn is turn:
                self._turn = None

    async def steer(self, given: tuple[UserInput, ...], timeout: float) -> None:
        """More to think of for the turn that runs."""
        running = self._turn.id if self._turn else None
        if running is None:
            raise Conflict(f"cannot steer session {self.id}: no turn is running; prompt it")
        steer = TurnSteer(thread_id=self.id, expected_turn_id=running, input=given)
        await self._server.call("turn/steer", steer, object, timeout)

    def cancel(self) -> None:
        """Heard by the server in its time. Sub-agents would otherwise work on."""
        turn = self._turn
        if turn is not None:
            turn.cancelled = True
        for thread_id, turn_id in self._running.items():
            if turn_id != _STARTING:
                self._unwanted.add(turn_id)
                self._do(self._interrupt(thread_id, turn_id))

    async def leave(self, limit: float) -> bool:
        """End all that runs of it: its turn, and what it left running. False where it did not obey."""
        self.cancel()
        try:
            async with asyncio.timeout(limit):
                await self._idle.wait()
                await self._unsubscribe(limit)
        except TimeoutError:
            return self._server.ended
        return True

    async def _unsubscribe(self, limit: float) -> None:
        thread = ThreadOf(thread_id=self.id)
        for method in ("thread/backgroundTerminals/clean", "thread/unsubscribe"):
            with suppress(LegationError):  # it need not know the thread any more
                await self._server.call(method, thread, object, limit)

    def close(self, error: LegationError) -> None:
        """Tell whoever waits."""
        self._permissions.cancel_all()
        for task in self._tasks:
            task.cancel()
        self._running.clear()
        if self._turn is not None:
            self._turn.reply.fail(error)

    async def _start(self, turn: CodexTurn, given: tuple[UserInput, ...]) -> None:
        start = TurnStart(thread_id=self.id, input=given, collaboration_mode=self.choice.native())

        def opened(answer: TurnOpened | AgentError) -> None:
            if isinstance(answer, AgentError):
                self._runs_no_more(self.id, _STARTING)
                turn.reply.give(answer)
                return
            turn.id = answer.turn.id
            self._runs(self.id, turn.id)
            if turn.cancelled:
                self.cancel()

        self._runs(self.id, _STARTING)
        await self._server.call("turn/start", start, TurnOpened, TURN_LIMIT, opened)

    async def _interrupt(self, thread_id: str, turn_id: str) -> None:
        with suppress(LegationError):  # whoever cancelled sees that the turn does not end
            interrupt = TurnInterrupt(thread_id=thread_id, turn_id=turn_id)
            await self._server.call("turn/interrupt", interrupt, object, INTERRUPT_LIMIT)

    # It speaks.

    def heard(self, thread_id: str, heard: CodexNotification) -> None:
        match heard.method:
            case "turn/started":
                self._turn_began(thread_id, _read(heard, TurnNews))
            case "turn/completed":
                self._turn_ended(thread_id, _read(heard, TurnNews), heard)
            case "thread/tokenUsage/updated":
                self._used(thread_id, _read(heard, UsageNews), heard)
            case "serverRequest/resolved":
                resolved = _read(heard, ResolvedNews)
                if resolved:
                    self._permissions.cancel(resolved.request_id)
            case _:
                self._tell(thread_id, heard)

    def asked(self, thread_id: str, asked: CodexRequest) -> None:
        self._permissions.ask(thread_id, asked)

    def _tell(self, thread_id: str, heard: CodexNotification) -> None:
        updates = self.translator.updates(thread_id, heard)
        if updates is None:
            self._agent.say_unknown(self.id, heard.line)
        else:
            self._agent.say(self.id, *updates, native=heard.line)
        if heard.method == "item/completed" and thread_id == self.id and self._turn is not None:
            news = _read(heard, ItemNews)
            if (
                news and isinstance(news.item, ProposedPlan) and not heard.is_cut
            ):  # else nobody could approve of it
                self._turn.plan = news.item.text

    def _used(self, thread_id: str, news: UsageNews | None, heard: CodexNotification) -> None:
        if news is None:
            self._agent.say_unknown(self.id, heard.line)
        elif thread_id == self.id:  # a sub-agent has a window of its own
            self._agent.say(self.id, self._tokens.count(news.token_usage), native=heard.line)

    def _turn_began(self, thread_id: str, news: TurnNews | None) -> None:
        if news is None:
            return
        self._runs(thread_id, news.turn.id)
        if (
            news.turn.id in self._unwanted
        ):  # between its answer and this news Codex refuses to interrupt a turn
            self._do(self._interrupt(thread_id, news.turn.id))

    def _turn_ended(self, thread_id: str, news: TurnNews | None, heard: CodexNotification) -> None:
        if news is None:
            self._agent.say_unknown(self.id, heard.line)
            return
        self._runs_no_more(thread_id, news.turn.id)
        self._permissions.cancel_all(thread_id)
        turn = self._turn
        if thread_id != self.id or turn is None or turn.id != news.turn.id:
            return
        if news.turn.status in ("failed", "interrupted"):
            self._agent.say(self.id, *self.translator.broken_off(), native=heard.line)
        match news.turn.status:
            case "failed":
                turn.reply.give(failure(news.turn.error))
            case "interrupted":
                self._end(turn, "cancelled")
            case _ if turn.plan and self.choice.mode == PLAN and not turn.cancelled:
                self._propose(turn, turn.plan)
            case _:
                self._end(turn, "cancelled" if turn.cancelled else "end_turn")

    def _runs(self, thread_id: str, turn_id: str) -> None:
        self._running[thread_id] = turn_id
        self._idle.clear()

    def _runs_no_more(self, thread_id: str, turn_id: str) -> None:
        self._unwanted.discard(turn_id)
        if self._running.get(thread_id) == turn_id:
            del self._running[thread_id]
        if not self._running:
            self._idle.set()

    def _end(self, turn: CodexTurn, stop_reason: str) -> None:
        turn.reply.give(PromptResponse(stop_reason=stop_reason, usage=self._tokens.of_turn()))

    # A plan.

    def _propose(self, turn: CodexTurn, plan: str) -> None:
        """Codex does not ask whether its plan is good: that is left to its client."""
        call = asks.plan_call(turn.id or "", plan)
        self._agent.say(
            self.id,
            ToolCall(
                tool_call_id=call.tool_call_id,
                title=call.title or "",
                name=call.name,
                kind=call.kind,
                status=call.status,
                raw_input=call.raw_input,
                content=call.content,
            ),
        )
        self._do(self._decide(turn, call.tool_call_id, self._agent.ask_permission(self.id, call)))

    async def _decide(self, turn: CodexTurn, call_id: str, coming: asyncio.Task[PermissionDecision]) -> None:
        found = await coming
        status = "completed" if found.allowed else "failed"
        self._agent.say(self.id, ToolCallUpdate(tool_call_id=call_id, status=status))
        if turn.cancelled or not found.allowed:
            self._end(turn, "cancelled" if turn.cancelled or found.cancelled else "end_turn")
            return
        self.choice = self.choice.in_mode(DEFAULT)
        self._agent.say(self.id, CurrentModeUpdate(current_mode_id=DEFAULT))
        turn.id, turn.plan = None, None
        try:
            await self._start(turn, ({"type": "text", "text": GO_ON, "text_elements": []},))
        except AgentError as error:
            turn.reply.give(error)
        except LegationError as error:
            turn.reply.fail(error)

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=f"legation-codex-{self.id}")
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("cannot go on with a turn of Codex", exc_info=task.exception())


def _read(heard: CodexNotification, shape: type[_T]) -> _T | None:
    try:
        return msgspec.json.decode(heard.params, type=shape)
    except (ValueError, RecursionError):
        return None
