"""Requests that OpenCode waits with in one session: permissions and questions, asked of the host when all is known that
they must be judged by, and answered in time.

INV-O11 Every request is answered once, with `once` or `reject`; an answer that comes when the turn is being ended is
        not sent.
INV-O12 A rejection voids every other open request of the same session: it is sent when all of them are decided.
INV-O13 An answer that is not ours is noticed. The agent's own commands know the server's password.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from legation.agents.native import PermissionDecision, question_field
from legation.agents.opencode.messages import (
    PermissionRequest,
    QuestionRequest,
    ToolPart,
    ToolPending,
)
from legation.agents.opencode.server import RemoteSession
from legation.agents.opencode.tools import asked_call
from legation.agents.opencode.translate import OpenCodeTranslator
from legation.agents.opencode.turn import OpenCodeTurns, foreign_answer
from legation.errors import LegationError
from legation.tasks import TaskSet
from legation.wire.acp.methods import CreateElicitationRequest, CreateElicitationResponse, ElicitationValue
from legation.wire.acp.updates import SessionUpdate, ToolCallPatch
from legation.wire.event_types import DiagnosticCode

EARLY_LIMIT: Final = 2.0  # seconds from a permission to the arguments of its call: the server's time


UNDECIDED: Final = "Nobody decided on this call. Go on without it, or say what you need it for."
DENIED: Final = "This call was denied. Go on without it, or say what you need it for."

_log = logging.getLogger(__name__)


class OpenCodeHost(Protocol):
    """The driver, as its sessions see it."""

    @property
    def can_ask_questions(self) -> bool: ...
    def say(self, session_id: str, *updates: SessionUpdate, native: bytes = b"") -> None: ...
    def say_unknown(self, session_id: str, line: bytes) -> None: ...
    def mark_cut(self, session_id: str, call_id: str) -> None: ...
    def trouble(self, code: DiagnosticCode, message: str) -> None: ...
    def ask_permission(self, session_id: str, call: ToolCallPatch) -> asyncio.Task[PermissionDecision]: ...
    def ask_question(self, request: CreateElicitationRequest) -> asyncio.Task[CreateElicitationResponse]: ...


@dataclass(slots=True, eq=False)
class _Open:
    request: PermissionRequest
    task: asyncio.Task[PermissionDecision]
    decision: PermissionDecision | None = None
    sent: str | None = None


class OpenCodePermissions:
    """Put requests to the host when it can judge them, and answer them: a permission may come before the arguments of its
    call."""

    def __init__(
        self,
        session_id: str,
        host: OpenCodeHost,
        remote: RemoteSession,
        translator: OpenCodeTranslator,
        turns: OpenCodeTurns,
    ) -> None:
        self._session_id = session_id
        self._host = host
        self._remote = remote
        self._translator = translator
        self._turns = turns
        self._early: dict[str, PermissionRequest] = {}  # asked before the call's arguments were told
        self._permissions: dict[str, _Open] = {}
        self._questions: dict[str, asyncio.Task[CreateElicitationResponse]] = {}
        self._released: set[asyncio.Task[Any]] = set()  # asked, and waited for no more
        self._tasks = TaskSet(f"legation-opencode-answer-{session_id}")

    def permission(self, request: PermissionRequest) -> None:
        if self._is_asked(request.id) or self._turns.ending:
            return
        part = self._translator.call(request.tool.call_id) if request.tool else None
        if request.tool is not None and (part is None or isinstance(part.state, ToolPending)):
            if request.id not in self._early:  # of an MCP tool: its arguments are told right behind
                self._early[request.id] = request
                self._tasks.start(self._ask_late(request.id))
            return
        self._ask(request)

    def told(self, part: ToolPart) -> None:
        """A call, as it is now."""
        if not isinstance(part.state, ToolPending):
            self._ask_early(lambda each: each.tool is not None and each.tool.call_id == part.call_id)

    def question(self, request: QuestionRequest) -> None:
        if self._is_asked(request.id) or self._turns.ending:
            return
        if not self._host.can_ask_questions:
            self._tasks.start(self._post(f"/question/{request.id}/reply", {"answers": no_answers(request)}))
            return
        task = self._host.ask_question(question_form(self._session_id, request))
        self._questions[request.id] = task
        task.add_done_callback(partial(self._answered, request))

    def reject(self, request: QuestionRequest) -> None:
        """Reject a question that nobody could be shown."""
        self._tasks.start(self._post(f"/question/{request.id}/reject", {}))

    def replied(self, request_id: str, reply: str) -> None:
        """OpenCode tells that a permission was answered (INV-O13). What was not even asked yet can only have been withdrawn."""
        if self._early.pop(request_id, None) is not None:
            ours = reply == "reject"
        else:
            ours = self._settled(request_id, reply)
        if not ours:
            forged = foreign_answer()
            self._host.trouble(DiagnosticCode.AGENT_PROCESS_ERROR, forged.message)
            self._turns.cut(forged)

    def question_ended(self, request_id: str) -> None:
        task = self._questions.pop(request_id, None)
        if task is not None:
            task.cancel()

    def keep_only(self, open_ids: set[str]) -> None:
        """Forget what is not open any more after a gap in the events: it was answered or dropped meanwhile."""
        for request_id in [each for each in self._permissions if each not in open_ids]:
            self._settled(request_id, "reject")
        for request_id in [each for each in self._questions if each not in open_ids]:
            self.question_ended(request_id)

    def release(self) -> None:
        """The host ends the turn, and answers for everybody: what it says is not sent, and nothing else is asked."""
        self._early.clear()
        self._released |= {*(asked.task for asked in self._permissions.values()), *self._questions.values()}
        self._permissions.clear()
        self._questions.clear()

    def cancel_all(self) -> None:
        """The turn is over, or we end it: nobody need answer any more."""
        self.release()
        for task in self._released:
            task.cancel()
        self._released.clear()

    async def close(self) -> None:
        self.cancel_all()
        await self._tasks.close()

    def _is_asked(self, request_id: str) -> bool:
        return request_id in self._permissions or request_id in self._questions

    async def _ask_late(self, request_id: str) -> None:
        await self._turns.until_over(EARLY_LIMIT)
        self._ask_early(lambda request: request.id == request_id)

    def _ask_early(self, due: Callable[[PermissionRequest], bool]) -> None:
        for request in [each for each in self._early.values() if due(each)]:
            del self._early[request.id]
            if not self._turns.ending:
                self._ask(request)

    def _ask(self, request: PermissionRequest) -> None:
        part = self._translator.call(request.tool.call_id) if request.tool else None
        call = asked_call(request, part, self._translator.names)
        asked = _Open(request, self._host.ask_permission(self._session_id, call))
        self._permissions[request.id] = asked
        asked.task.add_done_callback(partial(self._decided, asked))

    def _settled(self, request_id: str, reply: str) -> bool:
        """Close a permission that was answered; False where the answer is not ours."""
        asked = self._permissions.pop(request_id, None)
        if asked is None:
            return True
        asked.task.cancel()
        self._settle(asked.request.session_id)
        return reply == "reject" or asked.sent == reply

    def _decided(self, asked: _Open, task: asyncio.Task[PermissionDecision]) -> None:
        if self._permissions.get(asked.request.id) is not asked:
            return  # withdrawn
        if task.cancelled() or task.exception() is not None:
            asked.decision = PermissionDecision(allowed=False, message=UNDECIDED)
        else:
            asked.decision = task.result()
        self._settle(asked.request.session_id)

    def _settle(self, session_id: str) -> None:
        """Send what is decided (INV-O12). An approval that was sent is safe when OpenCode has told of it."""
        there = [each for each in self._permissions.values() if each.request.session_id == session_id]
        waiting = any(each.decision is None or each.decision.allowed for each in there)
        for asked, body in _replies(there):
            if asked.sent is None and (body["reply"] == "once" or not waiting):
                asked.sent = str(body["reply"])
                self._tasks.start(self._reply(asked, body))

    async def _reply(self, asked: _Open, body: dict[str, object]) -> None:
        if not await self._post(f"/permission/{asked.request.id}/reply", body):
            self._settled(asked.request.id, "reject")  # it is not waited for any more

    def _answered(self, request: QuestionRequest, task: asyncio.Task[CreateElicitationResponse]) -> None:
        if self._questions.pop(request.id, None) is None:
            return  # withdrawn
        path, answer = f"/question/{request.id}", None
        if not task.cancelled() and task.exception() is None:
            answer = task.result()
        if answer is not None and answer.action == "accept":
            self._tasks.start(
                self._post(f"{path}/reply", {"answers": question_answers(request, answer.content)})
            )
        else:
            self._tasks.start(self._post(f"{path}/reject", {}))

    async def _post(self, path: str, body: dict[str, object]) -> bool:
        try:
            await self._remote.answer(path, body)
        except LegationError as error:  # it is not waited for any more, or the server is gone
            _log.info("cannot answer %s: %s", path, error.message)
            return False
        return True


def _replies(asked: list[_Open]) -> Iterator[tuple[_Open, dict[str, object]]]:
    for each in asked:
        decision = each.decision
        if decision is None:
            continue
        if decision.allowed:
            yield each, {"reply": "once"}
        else:  # with words, for without them the turn would end
            words = decision.message or (UNDECIDED if decision.cancelled else DENIED)
            yield each, {"reply": "reject", "message": words}


# Questions as forms, and their answers as OpenCode wants them: a list of labels for each question.


NOBODY: Final = "Nobody can be asked here. Decide by yourself, and say what you chose."
_CUSTOM: Final = "Type your own answer, or add to what you chose above (optional)."


def question_form(session_id: str, request: QuestionRequest) -> CreateElicitationRequest:
    """One field for each question, and one for an answer of one's own where that is welcome."""
    fields: dict[str, Any] = {}
    for number, question in enumerate(request.questions):
        many = bool(question.multiple and question.options)
        title = question.header or question.question
        fields[_field_name(number)] = question_field(title, question.question, question.options, many=many)
        if question.custom is not False:
            own = {"type": "string", "title": "Other", "description": _CUSTOM}
            fields[f"{_field_name(number)}_custom"] = own
    return CreateElicitationRequest(
        mode="form",
        message="\n".join(question.question for question in request.questions),
        requested_schema={"type": "object", "properties": fields},
        session_id=session_id,
        tool_call_id=request.tool.call_id if request.tool else None,
    )


def question_answers(
    request: QuestionRequest, content: Mapping[str, ElicitationValue] | None
) -> list[list[str]]:
    given = content or {}
    return [
        [*_labels(given.get(_field_name(number))), *_labels(given.get(f"{_field_name(number)}_custom"))]
        for number in range(len(request.questions))
    ]


def no_answers(request: QuestionRequest) -> list[list[str]]:
    return [[NOBODY] for _ in request.questions]


def _field_name(number: int) -> str:
    return f"question_{number}"


def _labels(value: ElicitationValue | None) -> list[str]:
    if value is None or value == "":
        return []
    return [str(each) for each in value] if isinstance(value, list | tuple) else [str(value)]
