"""Questions that one session's agent has asked and waits for: permissions and questions, whoever answers them.

INV-8  Each is answered exactly once, by whoever comes first: the one who was asked, the clock, the end of the
       turn, the agent itself. The answer is on the disk before the agent hears it.

The protocol knows three answers to a question (an elicitation). `decline` is a person's no, so nothing else is
told as one: a question that nobody answered in time, that its handler failed at, or whose turn is over, is
answered `cancel`, which says that nobody chose. The log says which of these it was.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar, cast, get_args

from msgspec.structs import replace

from legation.agents.rpc import UNWRITABLE, RpcFault
from legation.clock import Clock, new_id
from legation.errors import InvalidParams
from legation.host.requests.handlers import Approver, QuestionHandler, Timekeeper, question_modes
from legation.store.stream import Receipt, ReservedEvent
from legation.tasks import TaskSet
from legation.wire import jsontext
from legation.wire.acp.methods import (
    CancelledOutcome,
    CreateElicitationRequest,
    CreateElicitationResponse,
    ElicitationValue,
    PermissionOption,
    PermissionOutcome,
    RequestPermissionResponse,
    SelectedOutcome,
)
from legation.wire.acp.rpc import ErrorCode
from legation.wire.action import Ask, Decision, Outcome, choose_option, offers_only_always, permission_outcome
from legation.wire.event_types import (
    DiagnosticCode,
    PermissionAnswered,
    PermissionAsked,
    QuestionAnswered,
    QuestionAsked,
    QuestionOutcome,
)
from legation.wire.events import Payload

_log = logging.getLogger(__name__)


A = TypeVar("A")  # what is asked
V = TypeVar("V", bound="Decision | QuestionReply")
R = TypeVar("R")  # what the agent is told


@dataclass(frozen=True, slots=True, eq=False)
class PendingQuestion(Generic[A, R]):
    id: str
    asked: A
    answer: asyncio.Future[R]
    deciding: asyncio.Task[object]
    timer: asyncio.Task[None]


@dataclass(kw_only=True, eq=False)
class PendingQuestions(ABC, Generic[A, V, R]):
    """Questions of one kind that wait. `record` appends events, or returns None where no more are taken; `limit` is in
    seconds; `changed` is called when one was answered."""

    record: Callable[..., Receipt | None]
    clock: Clock
    limit: float
    changed: Callable[[], None]
    waiting: dict[str, PendingQuestion[A, R]] = field(default_factory=dict, init=False)  # by their ids
    _telling: TaskSet = field(default_factory=lambda: TaskSet("legation-answers"), init=False)

    ended: ClassVar[type[Any]]  # made of an outcome, by whom and why, where nobody who was asked decided
    failed: ClassVar[tuple[str, str]]  # who was asked and gave no answer, and the outcome then

    def _failed(self, how: str) -> V:
        who, outcome = self.failed
        verdict: V = self.ended(outcome, "legation", f"the {who} {how}")
        return verdict

    @abstractmethod
    def _verdict(self, asked: A, decided: object) -> V:
        """Read what was decided by whoever was asked, which may be anything."""

    @abstractmethod
    def _told(self, question_id: str, asked: A, verdict: V) -> tuple[Payload, R]:
        """Return what is recorded, and what the agent hears."""

    def settle(self, question_id: str, verdict: V) -> bool:
        """Answered by somebody who was not asked by us; False: nobody waits for it."""
        question = self.waiting.get(question_id)
        if question is not None:
            self._close(question, verdict)
        return question is not None

    def asked(self, question_id: str) -> A | None:
        """Return what waits under that id."""
        question = self.waiting.get(question_id)
        return None if question is None else question.asked

    def cancel_all(self, why: str | None = None) -> None:
        """The turn is over: whoever was asked need not answer any more. `why`: it was cut off."""
        if why is None:
            over = self.ended("cancelled", "client", "the turn was cancelled or is over")
        else:
            over = self.ended("superseded", "legation", why)
        for question in list(self.waiting.values()):
            decided = self._decided(question) if question.deciding.done() else over
            # Whoever was asked may have cancelled the turn instead of answering.
            self._close(question, decided if decided.outcome == "cancelled" else over)

    def _begin(
        self, question_id: str, asked: A, decide: Coroutine[object, object, object]
    ) -> asyncio.Future[R]:
        """Wait for a decision; what asks was recorded, in its place. Cancelling the answer takes the question back."""
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        deciding, timer = asyncio.create_task(decide), asyncio.create_task(self.clock.sleep(self.limit))
        question = self.waiting[question_id] = PendingQuestion(question_id, asked, answer, deciding, timer)
        for ending in (deciding, timer, answer):
            ending.add_done_callback(partial(self._on_end, question))
        return answer

    def _on_end(self, question: PendingQuestion[A, R], _ended: asyncio.Future[Any]) -> None:
        """Close it by whatever came first: withdrawn (which `_close` looks at), decided, or its time over."""
        if question.id in self.waiting:
            late = self.ended("expired", "timeout", f"nobody answered within {self.limit:g} s")
            self._close(question, self._decided(question) if question.deciding.done() else late)

    def _decided(self, question: PendingQuestion[A, R]) -> V:
        if question.deciding.cancelled():
            return self._failed("gave up")
        if error := question.deciding.exception():
            _log.error("cannot answer the agent: whoever was asked failed", exc_info=error)
            return self._failed(f"failed ({type(error).__name__})")
        return self._verdict(question.asked, question.deciding.result())

    def _close(self, question: PendingQuestion[A, R], verdict: V) -> None:
        if self.waiting.pop(question.id, None) is None:
            return  # another was first
        question.deciding.cancel()
        question.timer.cancel()
        if question.answer.cancelled():
            verdict = self.ended("superseded", "agent", "the agent no longer waits for the answer")
        recorded, response = self._told(question.id, question.asked, verdict)
        receipt = self.record(recorded)
        self.changed()
        if not question.answer.done():
            self._telling.start(_tell(question.answer, receipt, response))


async def _tell(answer: asyncio.Future[R], receipt: Receipt | None, response: R) -> None:
    """The agent hears it once it is on the disk; with a disk that fails for good it hears nothing."""
    if receipt is None:
        answer.cancel()
        return
    try:
        await receipt
    except Exception:  # noqa: BLE001 - a task boundary: what could not be recorded is not told
        _log.exception("cannot answer the agent: the answer could not be recorded")
        answer.cancel()
    if not answer.done():
        answer.set_result(response)


META = "legation"  # whose member of `_meta` it is

PREPARE_LIMIT = 15.0  # seconds to find out what rule an action meets: the disk's time and the shell parser's

_OUTCOMES = frozenset(get_args(Outcome))


@dataclass(kw_only=True, eq=False)
class Permissions(PendingQuestions[Ask, Decision, RequestPermissionResponse]):
    ended = Decision
    failed = "approver", "denied"

    approver: Approver
    reserve: Callable[[PermissionAsked], ReservedEvent | None]  # a place, which `record` fills later
    tell_decided: Callable[[Ask, Decision], None]
    # Places of those whose end is being found out.
    _untold: dict[str, ReservedEvent | None] = field(default_factory=dict, init=False)

    def ask(self, ask: Ask) -> asyncio.Future[RequestPermissionResponse]:
        if isinstance(self.approver, Timekeeper):
            self._untold[ask.id] = self.reserve(PermissionAsked.from_ask(ask))
        else:
            ask = self._timed(ask, None)
            self.record(PermissionAsked.from_ask(ask))
        return self._begin(ask.id, ask, self._decide(ask))

    def _timed(self, ask: Ask, told: int | None) -> Ask:
        """Set the end that it really has: that of whoever decides, unless the host's own time is over before."""
        own = ask.asked_at + int(self.limit * 1000)
        return replace(ask, expires_at=own if told is None else min(own, told))

    async def _decide(self, ask: Ask) -> object:
        """Find out when it ends, and decide it by the same facts."""
        if not isinstance(self.approver, Timekeeper):
            return await self.approver.decide(ask)
        preparing = asyncio.ensure_future(self.approver.prepare(ask))
        try:
            await asyncio.wait({preparing}, timeout=PREPARE_LIMIT)
            if not preparing.done():
                # What stands behind it has waited enough; to say no time is better than a false one.
                self._tell_asked(ask)
            prepared = await preparing
        finally:
            preparing.cancel()
        if ask.id in self._untold:
            ask = self._timed(ask, prepared.expires_at)
            self._tell_asked(ask)
        return await prepared.decide(ask)

    def _tell_asked(self, ask: Ask) -> None:
        if ask.id in self._untold:
            self.record(PermissionAsked.from_ask(ask), self._untold.pop(ask.id))

    def _verdict(self, _asked: Ask, decided: object) -> Decision:
        if isinstance(decided, Decision) and decided.outcome in _OUTCOMES:
            return decided
        return self._failed("gave no decision")

    def _told(
        self, question_id: str, asked: Ask, verdict: Decision
    ) -> tuple[Payload, RequestPermissionResponse]:
        self._tell_asked(asked)  # it ended before anybody knew when it would
        decision, granted = verdict, verdict.grant is not None
        if (
            verdict.outcome == "approved"
            and choose_option(asked.options, "approved", granted=granted) is None
        ):
            reason = f"{verdict.by} approved it, but the agent offers no way to allow it once"
            if offers_only_always(asked.options):
                reason += ": only always, which takes a grant for the tool; see `legation grants`"
            decision = Decision("denied", "legation", reason)
        elif verdict.params is not None and not asked.editable:
            reason = f"{verdict.by} approved other arguments, and the agent acts on its own"
            decision = Decision("denied", "legation", reason)
        self.tell_decided(asked, decision)
        outcome = permission_outcome(asked.options, decision)
        told = outcome.option_id if isinstance(outcome, SelectedOutcome) else None
        recorded = PermissionAnswered.from_decision(question_id, decision, told)
        # ACP has no member for what an agent is told besides the option, so it goes where extensions go.
        words = {"message": decision.message, "params": decision.params}
        said = {name: value for name, value in words.items() if value is not None}
        return recorded, RequestPermissionResponse(outcome=outcome, meta={META: said} if said else None)


HANDLER = "handler"

_ANSWERS: Mapping[str, QuestionOutcome] = {
    "accept": "accepted",
    "decline": "declined",
    "cancel": "cancelled",
}
_ACTIONS: Mapping[str, str] = {outcome: action for action, outcome in _ANSWERS.items()}


@dataclass(frozen=True, slots=True)
class QuestionReply:
    outcome: QuestionOutcome
    by: str
    reason: str | None = None
    content: Mapping[str, ElicitationValue] | None = None


@dataclass(kw_only=True, eq=False)
class Questions(PendingQuestions[CreateElicitationRequest, QuestionReply, CreateElicitationResponse]):
    ended = QuestionReply
    failed = "handler", "cancelled"

    handler: QuestionHandler | None  # None where the agent may ask none: no mode is offered

    def ask(
        self, request: CreateElicitationRequest, turn: str | None = None
    ) -> asyncio.Future[CreateElicitationResponse]:
        """Recorded at once, in its place among the updates. Cancelling the answer takes the question back."""
        if request.mode not in question_modes(self.handler):
            raise RpcFault(ErrorCode.INVALID_PARAMS, "this mode of elicitation is not offered")
        now = self.clock.now_ms()
        asked = QuestionAsked(
            id=new_id("qst", now_ms=now),
            message=request.message,
            mode=request.mode,
            requested_schema=request.requested_schema,
            url=request.url,
            elicitation_id=request.elicitation_id,
            tool_call_id=request.tool_call_id,
            turn=turn,
            expires_at=now + int(self.limit * 1000),
        )
        self.record(asked)
        return self._begin(asked.id, request, self._ask(request))

    def respond(self, question_id: str, answer: CreateElicitationResponse, by: str) -> bool:
        """Answer it; False where nobody waits. What is no answer to it is refused, and it goes on waiting."""
        asked = self.asked(question_id)
        if asked is None:
            return False
        verdict = self._verdict(asked, answer)
        if verdict.by != HANDLER:
            raise InvalidParams(f"cannot answer question {question_id}: {verdict.reason}; correct the answer")
        return self.settle(question_id, dataclasses.replace(verdict, by=by))

    async def _ask(self, request: CreateElicitationRequest) -> object:
        assert self.handler is not None
        return await self.handler.ask(request)  # here it may fail as it likes

    def _verdict(self, asked: CreateElicitationRequest, decided: object) -> QuestionReply:
        if not isinstance(decided, CreateElicitationResponse) or decided.action not in _ANSWERS:
            return self._failed("gave no answer")
        if decided.action != "accept" or asked.mode != "form" or decided.content is None:
            return QuestionReply(_ANSWERS[decided.action], HANDLER)
        content = _plain_content(decided.content)
        if content is None:
            return self._failed("filled in the form with what is no JSON object")
        return QuestionReply("accepted", HANDLER, content=content)

    def _told(
        self, question_id: str, _asked: CreateElicitationRequest, verdict: QuestionReply
    ) -> tuple[Payload, CreateElicitationResponse]:
        recorded = QuestionAnswered(
            id=question_id,
            outcome=verdict.outcome,
            by=verdict.by,
            content=verdict.content,
            reason=verdict.reason,
        )
        action = _ACTIONS.get(verdict.outcome, "cancel")
        return recorded, CreateElicitationResponse(action=action, content=verdict.content)


def answer_without_session(trouble: Callable[[DiagnosticCode, str], None]) -> CreateElicitationResponse:
    """Answer a question about a request: there is no log for it, and nobody to show it to."""
    what = "a question of the agent that belongs to no session was answered with cancel"
    trouble(DiagnosticCode.AGENT_UNKNOWN_SESSION, what)
    return CreateElicitationResponse(action="cancel")


def _plain_content(content: object) -> dict[str, ElicitationValue] | None:
    """A copy that nobody changes any more; None for what is no object, or cannot be written."""
    if not isinstance(content, Mapping):
        return None
    try:
        copied: object = jsontext.read(jsontext.write(dict(content)))
    except UNWRITABLE:
        return None
    return cast(dict[str, ElicitationValue], copied)


class Undecided:
    """Approver that decides nothing: somebody answers with `respond_permission`, or the time is over."""

    async def decide(self, _ask: Ask) -> Decision:
        never: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        return await never


def decision_of(options: Sequence[PermissionOption], outcome: PermissionOutcome, by: str) -> Decision:
    match outcome:
        case CancelledOutcome():
            return Decision("cancelled", by, "answered: cancelled")
        case SelectedOutcome(option_id=chosen):
            kinds = {option.option_id: option.kind for option in options}
            if chosen not in kinds:
                raise InvalidParams(f"cannot choose {chosen!r}: the agent offers {', '.join(kinds)}")
            # "Always" is a grant of Legation's, never the agent's: only this once is said to it.
            allowed = kinds[chosen].startswith("allow")
            return Decision("approved" if allowed else "denied", by, f"answered: {kinds[chosen]}", chosen)
