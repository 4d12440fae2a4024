"""Requests of Claude Code: about each call of a tool, once; its user's opinion; whether a plan is good.

INV-1  Asking is total. A hook on every tool says `ask`, whatever rules, modes and other hooks say, and the question that
       follows goes to the host; that of a sub-agent too. Nothing is asked twice.
INV-2  Every request is answered, unless the program took it back. Only "this once" is ever answered.
INV-3  A request of which only a digest is known is refused (INV-N2).
INV-4  Only what was encoded here is written: one bad line would end the process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from legation.agents.claude import tools
from legation.agents.claude.messages import ClaudeShape, ControlAnswer, ControlRequest
from legation.agents.claude.turn import ClaudeTurns
from legation.agents.messages import READ_ERRORS, fit
from legation.agents.native import NativeAgent, PermissionDecision, question_field
from legation.agents.rpc import REQUESTS_AT_ONCE, TOO_MANY, AgentRefused
from legation.errors import LegationError, TimedOut
from legation.proc import Child
from legation.wire import jsontext
from legation.wire.acp.methods import CreateElicitationRequest, CreateElicitationResponse, ElicitationValue
from legation.wire.acp.rpc import ErrorCode, RpcError
from legation.wire.acp.updates import ToolCallPatch, ToolCallUpdate

HOOKS: Final = {"PreToolUse": [{"hookCallbackIds": ["legation"]}]}  # no matcher: on every tool
_ASK: Final = {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "ask"}}
_CANCELLED: Final = "The turn was cancelled."
_DENIED: Final = (
    "This was not permitted. Do not try it again in another way; go on without it or say what you need."
)
_DECLINED: Final = "The user declined to answer. Go on with your best judgement."
_NOBODY: Final = "Nobody can be asked in this session. Go on with your best judgement."

_log: Final = logging.getLogger(__name__)


class ToolRequest(ClaudeShape):
    """`can_use_tool`."""

    tool_name: str
    tool_use_id: str
    input: Mapping[str, object] = {}


class Elicitation(ClaudeShape):
    """An MCP server's own question."""

    message: str
    mode: str = "form"
    requested_schema: Mapping[str, object] | None = None
    url: str | None = None
    elicitation_id: str | None = None


class ClaudePermissions:
    """Answer the requests of one session."""

    def __init__(
        self,
        session_id: str,
        agent: NativeAgent,
        control: ControlProtocol,
        turns: ClaudeTurns,
        *,
        can_ask: bool,
    ) -> None:
        self._session_id = session_id
        self._agent = agent
        self._control = control
        self._can_ask = can_ask
        self._turns = turns
        self._open: dict[str, asyncio.Task[None]] = {}

    def take(self, line: ControlRequest, *, is_cut: bool = False) -> None:
        """Take a request; where there is something to record, that is done before this returns."""
        subtype, number = line.request.get("subtype"), line.request_id
        if subtype == "hook_callback":
            self._control.answer(number, _ASK)
        elif is_cut:
            self._decline(line, self._agent.refused_permission().message or _DENIED)
        elif number in self._open or len(self._open) >= REQUESTS_AT_ONCE:
            self._agent.tell_refused(TOO_MANY, line.request.get("tool_use_id"))
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
        """Refuse a request: what is no yes must be an unmistakable no."""
        if line.request.get("subtype") == "can_use_tool":
            self._control.answer(line.request_id, _deny(why))
        else:
            self._control.refuse(line.request_id, why)

    def cancel(self, request_id: str) -> None:
        task = self._open.get(request_id)
        if task is not None:
            task.cancel()

    def cancel_all(self) -> None:
        for task in self._open.values():
            task.cancel()

    async def close(self) -> None:
        """Take back all questions and wait until they are."""
        self.cancel_all()
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
            self._begin(number, self._permitted(number, request, call, asked, self._turns.ends))

    async def _permitted(
        self,
        number: str,
        request: ToolRequest,
        call: ToolCallPatch,
        asked: asyncio.Task[PermissionDecision],
        ends: int,
    ) -> None:
        answer = await asked
        while answer.cancelled and self._turns.ends > ends and not self._turns.stopping:
            # The turn is over, and a background task that began in it still waits: it is asked for outside a turn.
            ends = self._turns.ends
            answer = await self._agent.ask_permission(self._session_id, call)
        if answer.allowed:
            self._control.answer(number, self._allowed(request, answer))
        else:
            said = _CANCELLED if answer.cancelled else answer.message or _DENIED
            self._control.answer(number, _deny(said))

    def _allowed(self, request: ToolRequest, answer: PermissionDecision) -> Mapping[str, object]:
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
        asked = read_questions(request.input)
        if not asked or not self._can_ask:
            self._control.answer(number, _deny(_NOBODY))
            return
        coming = self._agent.ask_question(question_form(asked, self._session_id, request.tool_use_id))
        self._begin(number, self._answered(number, request, asked, coming))

    async def _answered(
        self,
        number: str,
        request: ToolRequest,
        asked: tuple[AskedQuestion, ...],
        coming: asyncio.Task[CreateElicitationResponse],
    ) -> None:
        answer = await coming
        if answer.action == "accept":
            given = question_answers(asked, answer.content)
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


# `AskUserQuestion` as an ACP form, and the filled-in form as the tool's answers.


class AskedOption(ClaudeShape):
    label: str
    description: str = ""


class AskedQuestion(ClaudeShape):
    question: str
    header: str = ""
    options: tuple[AskedOption, ...] = ()
    multiSelect: bool = False  # noqa: N815 - spelt as on the wire


class AskedQuestions(ClaudeShape):
    """The arguments of `AskUserQuestion`."""

    questions: tuple[AskedQuestion, ...]


def read_questions(given: object) -> tuple[AskedQuestion, ...]:
    """Read the questions of a call; none where it asks nothing that can be shown."""
    try:
        return fit(given, AskedQuestions).questions
    except READ_ERRORS:
        return ()


def question_form(
    questions: tuple[AskedQuestion, ...], session_id: str, call_id: str
) -> CreateElicitationRequest:
    """One field for each question; an answer in one's own words fits as well."""
    alone = questions[0].question if len(questions) == 1 else "Claude Code has some questions."
    properties = {
        _field_name(number): question_field(
            each.header or each.question, each.question, each.options, many=each.multiSelect
        )
        for number, each in enumerate(questions)
    }
    return CreateElicitationRequest(
        mode="form",
        message=alone,
        requested_schema={"type": "object", "properties": properties, "required": list(properties)},
        session_id=session_id,
        tool_call_id=call_id,
    )


def question_answers(
    questions: tuple[AskedQuestion, ...], content: Mapping[str, ElicitationValue] | None
) -> dict[str, str]:
    """Answers by the question's own text, as the tool wants them."""
    given = content or {}
    return {
        each.question: _answer_text(given[_field_name(number)])
        for number, each in enumerate(questions)
        if _field_name(number) in given
    }


def _field_name(number: int) -> str:
    return f"question_{number}"


def _answer_text(value: ElicitationValue) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(str(each) for each in value)
    return str(value)


# The control protocol: requests of ours and of the program's, beside the conversation on the same pipes.


_Answered = Callable[[ControlAnswer], None]


@dataclass(frozen=True, slots=True)
class _Pending:
    answer: asyncio.Future[ControlAnswer]
    on_answer: _Answered | None


class ControlProtocol:
    """Requests and answers over the pipes of one process."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._count = 0
        self._pending: dict[str, _Pending] = {}

    def write(self, message: Mapping[str, object]) -> None:
        self._child.write(jsontext.write(message) + b"\n")

    # Ours.

    def send(
        self, request: Mapping[str, object], on_answer: _Answered | None = None
    ) -> asyncio.Future[ControlAnswer]:
        """`on_answer` is called in the answer's place among the lines."""
        self._count += 1
        request_id = f"legation_{self._count}"
        answer: asyncio.Future[ControlAnswer] = asyncio.get_running_loop().create_future()
        self._pending[request_id] = _Pending(answer, on_answer)
        self.write({"type": "control_request", "request_id": request_id, "request": request})
        return answer

    async def call(self, method: str, request: Mapping[str, object], timeout: float) -> Mapping[str, object]:
        """Send a request and return the answer; `method` is ours, for what is told of a refusal. The time is the program's."""
        answer = self.send(request)
        try:
            async with asyncio.timeout(timeout):
                found = await answer
        except TimeoutError:
            raise TimedOut(f"cannot complete {method}: the agent did not answer within {timeout} s") from None
        if found.subtype != "success":
            raise AgentRefused(method, RpcError(ErrorCode.INTERNAL_ERROR, found.error or "it gave no reason"))
        return found.response

    def take(self, answer: ControlAnswer) -> None:
        """Our own answers come back too, and count for nothing."""
        pending = self._pending.pop(answer.request_id, None)
        if pending is None or pending.answer.done():
            return
        if pending.on_answer is not None:
            pending.on_answer(answer)
        pending.answer.set_result(answer)

    def close(self, error: LegationError) -> None:
        """There will be no answers any more."""
        for pending in self._pending.values():
            if not pending.answer.done():
                pending.answer.set_exception(error)
                pending.answer.exception()  # nobody need wait for it
        self._pending.clear()

    # The program's.

    def answer(self, request_id: str, response: Mapping[str, object]) -> None:
        self._respond({"subtype": "success", "request_id": request_id, "response": response})

    def refuse(self, request_id: str, error: str) -> None:
        self._respond({"subtype": "error", "request_id": request_id, "error": error})

    def _respond(self, response: Mapping[str, object]) -> None:
        with suppress(LegationError):  # it went away with its question
            self.write({"type": "control_response", "response": response})
