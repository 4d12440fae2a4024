"""The questions (elicitations) that one session's agent waits for.

INV-8 of `inquiries` holds. The protocol knows three answers. `decline` is a person's no, so nothing else is
told as one: a question that nobody answered in time, that its handler failed at, or whose turn is over, is
answered `cancel`, which says that nobody chose. The log says which of these it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import cast

from legation.agents.rpc import UNWRITABLE, RpcFault
from legation.clock import Clock
from legation.errors import InvalidParams
from legation.host.handlers import QuestionHandler, question_modes
from legation.host.inquiries import Inquiries
from legation.ids import new_id
from legation.store.stream import Receipt
from legation.wire import jsontext
from legation.wire.acp.elicitation import (
    CreateElicitationRequest,
    CreateElicitationResponse,
    ElicitationValue,
)
from legation.wire.acp.rpc import ErrorCode
from legation.wire.diagnostic import DiagnosticCode
from legation.wire.lifecycle import QuestionAnswered, QuestionAsked, QuestionOutcome
from legation.wire.payload import Payload

HANDLER = "handler"

_OUTCOMES: Mapping[str, QuestionOutcome] = {
    "accept": "accepted",
    "decline": "declined",
    "cancel": "cancelled",
}
_ACTIONS: Mapping[str, str] = {outcome: action for action, outcome in _OUTCOMES.items()}


@dataclass(frozen=True, slots=True)
class Reply:
    outcome: QuestionOutcome
    by: str
    reason: str | None = None
    content: Mapping[str, ElicitationValue] | None = None


class Questions(Inquiries[CreateElicitationRequest, Reply, CreateElicitationResponse]):
    withdrawn = Reply("superseded", "agent", "the agent no longer waits for the answer")
    turn_over = Reply("cancelled", "client", "the turn was cancelled or is over")

    def __init__(
        self,
        *,
        handler: QuestionHandler,
        record: Callable[[Payload], Receipt | None],
        clock: Clock,
        limit: float,
        changed: Callable[[], None],
    ) -> None:
        super().__init__(record=record, clock=clock, limit=limit, changed=changed)
        self._handler = handler

    def ask(
        self, request: CreateElicitationRequest, turn: str | None = None
    ) -> asyncio.Future[CreateElicitationResponse]:
        """Recorded at once, in its place among the updates. Cancelling the answer takes the question back."""
        if request.mode not in question_modes(self._handler):
            raise RpcFault(ErrorCode.INVALID_PARAMS, "this mode of elicitation is not offered")
        now = self._clock.now_ms()
        asked = QuestionAsked(
            id=new_id("qst", now_ms=now),
            message=request.message,
            mode=request.mode,
            requested_schema=request.requested_schema,
            url=request.url,
            elicitation_id=request.elicitation_id,
            tool_call_id=request.tool_call_id,
            turn=turn,
            expires_at=now + int(self._limit * 1000),
        )
        self._record(asked)
        return self._begin(asked.id, request, self._ask(request))

    def respond(self, question_id: str, answer: CreateElicitationResponse, by: str) -> bool:
        """False where nobody waits for it. What is no answer to it is refused, and it goes on waiting."""
        asked = self.asked(question_id)
        if asked is None:
            return False
        verdict = self._verdict(asked, answer)
        if verdict.by != HANDLER:
            raise InvalidParams(f"cannot answer question {question_id}: {verdict.reason}; correct the answer")
        return self.settle(question_id, replace(verdict, by=by))

    async def _ask(self, request: CreateElicitationRequest) -> object:
        return await self._handler.ask(request)  # here it may fail as it likes

    def _expired(self) -> Reply:
        return Reply("expired", "timeout", f"nobody answered within {self._limit:g} s")

    def _cut_off(self, why: str) -> Reply:
        return Reply("superseded", "legation", why)

    def _failed(self, how: str) -> Reply:
        return Reply("cancelled", "legation", f"the handler {how}")

    def _verdict(self, asked: CreateElicitationRequest, decided: object) -> Reply:
        if not isinstance(decided, CreateElicitationResponse) or decided.action not in _OUTCOMES:
            return self._failed("gave no answer")
        if decided.action != "accept" or asked.mode != "form" or decided.content is None:
            return Reply(_OUTCOMES[decided.action], HANDLER)
        content = _plain(decided.content)
        if content is None:
            return self._failed("filled in the form with what is no JSON object")
        return Reply("accepted", HANDLER, content=content)

    def _told(
        self, inquiry_id: str, _asked: CreateElicitationRequest, verdict: Reply
    ) -> tuple[Payload, CreateElicitationResponse]:
        recorded = QuestionAnswered(
            id=inquiry_id,
            outcome=verdict.outcome,
            by=verdict.by,
            content=verdict.content,
            reason=verdict.reason,
        )
        action = _ACTIONS.get(verdict.outcome, "cancel")
        return recorded, CreateElicitationResponse(action=action, content=verdict.content)


def answer_without_session(trouble: Callable[[DiagnosticCode, str], None]) -> CreateElicitationResponse:
    """For a question about a request instead of a session: there is no log for it and nobody to show it to."""
    what = "a question of the agent that belongs to no session was answered with cancel"
    trouble(DiagnosticCode.AGENT_UNKNOWN_SESSION, what)
    return CreateElicitationResponse(action="cancel")


def _plain(content: object) -> dict[str, ElicitationValue] | None:
    """A copy that nobody changes any more; None for what is no object, or cannot be written."""
    if not isinstance(content, Mapping):
        return None
    try:
        copied: object = jsontext.read(jsontext.write(dict(content)))
    except UNWRITABLE:
        return None
    return cast(dict[str, ElicitationValue], copied)
