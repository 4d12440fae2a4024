"""What Claude Code asks: about each call of a tool, once; its user's opinion; whether a plan is good.

INV-1  Asking is total. A hook on every tool says `ask`, whatever rules, modes and other hooks say, and the question that
       follows goes to the host; that of a sub-agent too. Nothing is asked twice.
INV-2  Every request is answered, unless the program took it back. Only "this once" is ever answered.
INV-3  A request of which only a digest is known is refused (INV-N2).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Final

from legation.agents.answers import READ_ERRORS, fit
from legation.agents.claude import questions, tools
from legation.agents.claude.control import Control
from legation.agents.claude.messages import ControlRequest, Native
from legation.agents.native import NativeAgent, Permission
from legation.agents.rpc import REQUESTS_AT_ONCE
from legation.wire.acp.elicitation import CreateElicitationRequest, CreateElicitationResponse
from legation.wire.acp.toolcall import ToolCallPatch, ToolCallUpdate

HOOKS: Final = {"PreToolUse": [{"hookCallbackIds": ["legation"]}]}  # no matcher: on every tool
_ASK: Final = {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "ask"}}
_CANCELLED: Final = "The turn was cancelled."
_DENIED: Final = (
    "This was not permitted. Do not try it again in another way; go on without it or say what you need."
)
_DECLINED: Final = "The user declined to answer. Go on with your best judgement."
_NOBODY: Final = "Nobody can be asked in this session. Go on with your best judgement."

_log: Final = logging.getLogger(__name__)


class ToolRequest(Native):
    tool_name: str
    tool_use_id: str
    input: Mapping[str, object] = {}


class Elicitation(Native):
    """An MCP server's own question."""

    message: str
    mode: str = "form"
    requested_schema: Mapping[str, object] | None = None
    url: str | None = None
    elicitation_id: str | None = None


class Asking:
    """`stopping` says whether the turn is being cancelled, `ends` how many turns have ended."""

    def __init__(
        self,
        session_id: str,
        agent: NativeAgent,
        control: Control,
        *,
        can_ask: bool,
        stopping: Callable[[], bool],
        ends: Callable[[], int],
    ) -> None:
        self._session_id = session_id
        self._agent = agent
        self._control = control
        self._can_ask = can_ask
        self._stopping = stopping
        self._ends = ends
        self._open: dict[str, asyncio.Task[None]] = {}

    def take(self, line: ControlRequest, *, is_cut: bool = False) -> None:
        """Recorded, where there is something to record, before this returns."""
        subtype, number = line.request.get("subtype"), line.request_id
        if subtype == "hook_callback":
            self._control.answer(number, _ASK)
        elif is_cut:
            self._decline(line, self._agent.refused_permission().message or _DENIED)
        elif number in self._open or len(self._open) >= REQUESTS_AT_ONCE:
            self._decline(line, "Too many requests at once, or one with this id is under way.")
        else:
            try:
                self._ask(number, line.request)
            except READ_ERRORS:
                self._decline(line, "The request cannot be read.")
            except Exception:
                self._decline(line, "Legation cannot answer it.")  # INV-2
                raise

    def _ask(self, number: str, request: Mapping[str, object]) -> None:
        match request.get("subtype"):
            case "can_use_tool":
                self._tool(number, fit(dict(request), ToolRequest))
            case "elicitation":
                self._elicitation(number, fit(dict(request), Elicitation))
            case other:
                self._control.refuse(number, f"Legation does not know {other}")

    def _decline(self, line: ControlRequest, why: str) -> None:
        """What is no yes must be an unmistakable no."""
        if line.request.get("subtype") == "can_use_tool":
            self._control.answer(line.request_id, _deny(why))
        else:
            self._control.refuse(line.request_id, why)

    def withdraw(self, request_id: str) -> None:
        task = self._open.get(request_id)
        if task is not None:
            task.cancel()

    def withdraw_all(self) -> None:
        for task in self._open.values():
            task.cancel()

    async def end(self) -> None:
        """Nobody waits for an answer any more."""
        self.withdraw_all()
        if self._open:
            await asyncio.wait(self._open.values())

    def _begin(self, request_id: str, answering: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(answering, name=f"legation-claude-{request_id}")
        self._open[request_id] = task
        task.add_done_callback(partial(self._done, request_id))

    def _done(self, request_id: str, task: asyncio.Task[None]) -> None:
        del self._open[request_id]
        if not task.cancelled() and (error := task.exception()):
            _log.error("cannot answer a request of %r", self._agent.name, exc_info=error)
            self._control.refuse(request_id, "Legation cannot answer it")

    # Tools.

    def _tool(self, number: str, request: ToolRequest) -> None:
        if request.tool_name == tools.ASK:
            self._question(number, request)
        else:
            call = tools.described(request.tool_use_id, request.tool_name, request.input)
            asked = self._agent.ask_permission(self._session_id, call)
            self._begin(number, self._permitted(number, request, call, asked, self._ends()))

    async def _permitted(
        self,
        number: str,
        request: ToolRequest,
        call: ToolCallPatch,
        asked: asyncio.Task[Permission],
        ends: int,
    ) -> None:
        answer = await asked
        while answer.cancelled and self._ends() > ends and not self._stopping():
            # The turn is over, and a background task that began in it still waits: it is asked for outside a turn.
            ends = self._ends()
            answer = await self._agent.ask_permission(self._session_id, call)
        if answer.allowed:
            self._control.answer(number, self._allowed(request, answer))
        else:
            said = _CANCELLED if answer.cancelled else answer.message or _DENIED
            self._control.answer(number, _deny(said))

    def _allowed(self, request: ToolRequest, answer: Permission) -> Mapping[str, object]:
        update = ToolCallUpdate(tool_call_id=request.tool_use_id, status="in_progress")
        if answer.params is not None:
            changed = tools.described(request.tool_use_id, request.tool_name, answer.params)
            update = ToolCallUpdate(
                tool_call_id=request.tool_use_id,
                status="in_progress",
                title=changed.title,
                content=changed.content,
                locations=changed.locations,
                raw_input=answer.params,
            )
        self._agent.say(self._session_id, update)
        return _allow(request.input if answer.params is None else answer.params)

    # Questions.

    def _question(self, number: str, request: ToolRequest) -> None:
        asked = questions.read_questions(request.input)
        if not asked or not self._can_ask:
            self._control.answer(number, _deny(_NOBODY))
            return
        coming = self._agent.ask_question(questions.form(asked, self._session_id, request.tool_use_id))
        self._begin(number, self._answered(number, request, asked, coming))

    async def _answered(
        self,
        number: str,
        request: ToolRequest,
        asked: tuple[questions.Question, ...],
        coming: asyncio.Task[CreateElicitationResponse],
    ) -> None:
        answer = await coming
        if answer.action == "accept":
            given = questions.answers(asked, answer.content)
            self._control.answer(number, _allow({**request.input, "answers": given}))
        else:
            self._control.answer(number, _deny(_DECLINED))

    def _elicitation(self, number: str, request: Elicitation) -> None:
        if not self._can_ask or request.mode != "form":
            self._control.answer(number, {"action": "decline"})
            return
        coming = self._agent.ask_question(
            CreateElicitationRequest(
                mode="form",
                message=request.message,
                requested_schema=request.requested_schema,
                session_id=self._session_id,
            )
        )
        self._begin(number, self._filled_in(number, coming))

    async def _filled_in(self, number: str, coming: asyncio.Task[CreateElicitationResponse]) -> None:
        answer = await coming
        content = {"content": answer.content} if answer.action == "accept" else {}
        self._control.answer(number, {"action": answer.action, **content})


def _allow(given: Mapping[str, object]) -> Mapping[str, object]:
    return {"behavior": "allow", "updatedInput": given}


def _deny(message: str) -> Mapping[str, object]:
    return {"behavior": "deny", "message": message}
