"""What OpenCode waits for in one session: permissions and questions, asked of the host and answered in time.

INV-O11 Every request is answered once, with `once` or `reject`; an answer that comes when the turn is being ended is
        not sent.
INV-O12 A rejection voids every other open request of the same session: it is sent when all of them are decided.
INV-O13 An answer that is not ours is noticed. The agent's own commands know the server's password.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from legation.agents.native import Permission
from legation.agents.opencode import questions
from legation.agents.opencode.requests import PermissionRequest, QuestionRequest
from legation.agents.opencode.tasks import Tasks
from legation.errors import LegationError
from legation.wire.acp.elicitation import CreateElicitationRequest, CreateElicitationResponse
from legation.wire.acp.toolcall import ToolCallPatch

UNDECIDED: Final = "Nobody decided on this call. Go on without it, or say what you need it for."
DENIED: Final = "This call was denied. Go on without it, or say what you need it for."

_log = logging.getLogger(__name__)


class Host(Protocol):
    """The driver's side of the questions."""

    @property
    def can_ask_questions(self) -> bool: ...
    def ask_permission(self, session_id: str, call: ToolCallPatch) -> asyncio.Task[Permission]: ...
    def ask_question(self, request: CreateElicitationRequest) -> asyncio.Task[CreateElicitationResponse]: ...


Send = Callable[[str, dict[str, object]], Awaitable[None]]


@dataclass(slots=True, eq=False)
class _Open:
    request: PermissionRequest
    task: asyncio.Task[Permission]
    decision: Permission | None = None
    sent: str | None = None


class Asks:
    """`send` posts an answer to a path of the server."""

    def __init__(self, session_id: str, host: Host, send: Send) -> None:
        self._session_id = session_id
        self._host = host
        self._send = send
        self._permissions: dict[str, _Open] = {}
        self._questions: dict[str, asyncio.Task[CreateElicitationResponse]] = {}
        self._released: set[asyncio.Task[Any]] = set()  # asked, and waited for no more
        self._sending = Tasks(f"legation-opencode-answer-{session_id}")

    def knows(self, request_id: str) -> bool:
        return request_id in self._permissions or request_id in self._questions

    def permission(self, request: PermissionRequest, call: ToolCallPatch) -> None:
        asked = _Open(request, self._host.ask_permission(self._session_id, call))
        self._permissions[request.id] = asked
        asked.task.add_done_callback(partial(self._decided, asked))

    def question(self, request: QuestionRequest) -> None:
        if not self._host.can_ask_questions:
            self._sending.start(
                self._post(f"/question/{request.id}/reply", {"answers": questions.unanswerable(request)})
            )
            return
        task = self._host.ask_question(questions.form(self._session_id, request))
        self._questions[request.id] = task
        task.add_done_callback(partial(self._answered, request))

    def reject(self, request: QuestionRequest) -> None:
        self._sending.start(self._post(f"/question/{request.id}/reject", {}))

    def replied(self, request_id: str, reply: str) -> bool:
        """OpenCode tells that a permission was answered; False where the answer is not ours (INV-O13)."""
        asked = self._permissions.pop(request_id, None)
        if asked is None:
            return True
        asked.task.cancel()
        self._settle(asked.request.session_id)
        return reply == "reject" or asked.sent == reply

    def question_ended(self, request_id: str) -> None:
        task = self._questions.pop(request_id, None)
        if task is not None:
            task.cancel()

    def keep_only(self, open_ids: set[str]) -> None:
        """After a gap in the events: what is not open any more was answered or dropped meanwhile."""
        for request_id in [each for each in self._permissions if each not in open_ids]:
            self.replied(request_id, "reject")
        for request_id in [each for each in self._questions if each not in open_ids]:
            self.question_ended(request_id)

    def release(self) -> None:
        """The host ends the turn, and answers for everybody: what it says is not sent."""
        self._released |= {*(asked.task for asked in self._permissions.values()), *self._questions.values()}
        self._permissions.clear()
        self._questions.clear()

    def withdraw(self) -> None:
        """The turn is over, or we end it: nobody need answer any more."""
        self.release()
        for task in self._released:
            task.cancel()
        self._released.clear()

    async def close(self) -> None:
        self.withdraw()
        await self._sending.close()

    def _decided(self, asked: _Open, task: asyncio.Task[Permission]) -> None:
        if self._permissions.get(asked.request.id) is not asked:
            return  # withdrawn
        if task.cancelled() or task.exception() is not None:
            asked.decision = Permission(allowed=False, message=UNDECIDED)
        else:
            asked.decision = task.result()
        self._settle(asked.request.session_id)

    def _settle(self, session_id: str) -> None:
        """INV-O12. An approval that was sent is safe when OpenCode has told of it."""
        there = [each for each in self._permissions.values() if each.request.session_id == session_id]
        waiting = any(each.decision is None or each.decision.allowed for each in there)
        for asked, body in _answers(there):
            if asked.sent is None and (body["reply"] == "once" or not waiting):
                asked.sent = str(body["reply"])
                self._sending.start(self._reply(asked, body))

    async def _reply(self, asked: _Open, body: dict[str, object]) -> None:
        if not await self._post(f"/permission/{asked.request.id}/reply", body):
            self.replied(asked.request.id, "reject")  # it is not waited for any more

    def _answered(self, request: QuestionRequest, task: asyncio.Task[CreateElicitationResponse]) -> None:
        if self._questions.pop(request.id, None) is None:
            return  # withdrawn
        path, answer = f"/question/{request.id}", None
        if not task.cancelled() and task.exception() is None:
            answer = task.result()
        if answer is not None and answer.action == "accept":
            self._sending.start(
                self._post(f"{path}/reply", {"answers": questions.answers(request, answer.content)})
            )
        else:
            self._sending.start(self._post(f"{path}/reject", {}))

    async def _post(self, path: str, body: dict[str, object]) -> bool:
        try:
            await self._send(path, body)
        except LegationError as error:  # it is not waited for any more, or the server is gone
            _log.info("cannot answer %s: %s", path, error.message)
            return False
        return True


def _answers(asked: list[_Open]) -> Iterator[tuple[_Open, dict[str, object]]]:
    for each in asked:
        decision = each.decision
        if decision is None:
            continue
        if decision.allowed:
            yield each, {"reply": "once"}
        else:  # with words, for without them the turn would end
            words = decision.message or (UNDECIDED if decision.cancelled else DENIED)
            yield each, {"reply": "reject", "message": words}
