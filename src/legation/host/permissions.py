"""The permissions that one session's agent waits for.

INV-8  A permission is answered exactly once, by whoever comes first: the approver, the clock, the end of the
       turn, the agent itself. The answer is on the disk before the agent hears it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import get_args

from legation.clock import Clock
from legation.store.stream import Receipt
from legation.wire.acp.permission import RequestPermissionResponse, Selected
from legation.wire.ask import Approver, Ask, Decision, Outcome, choose_option, permission_outcome
from legation.wire.lifecycle import PermissionAnswered, PermissionAsked
from legation.wire.payload import Payload

WITHDRAWN = Decision("superseded", "agent", "the agent no longer waits for the answer")
TURN_OVER = Decision("cancelled", "client", "the turn was cancelled or is over")

_OUTCOMES = frozenset(get_args(Outcome))
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class _Question:
    ask: Ask
    answer: asyncio.Future[RequestPermissionResponse]
    deciding: asyncio.Task[Decision]
    timer: asyncio.Task[None]


class Permissions:
    """`record` appends events to the session, or returns None where it takes no more; `limit` is how many
    seconds there are to answer; `changed` is called when a question was answered."""

    def __init__(
        self,
        *,
        approver: Approver,
        record: Callable[[Payload], Receipt | None],
        clock: Clock,
        limit: float,
        changed: Callable[[], None],
    ) -> None:
        self._approver = approver
        self._record = record
        self._clock = clock
        self._limit = limit
        self._changed = changed
        self._open: dict[str, _Question] = {}
        self._telling: set[asyncio.Task[None]] = set()

    @property
    def waiting(self) -> bool:
        return bool(self._open)

    def ask(self, ask: Ask) -> asyncio.Future[RequestPermissionResponse]:
        """Recorded at once, in its place among the updates; the answer comes when somebody has decided.
        Cancelling it takes the question back."""
        self._record(PermissionAsked.from_ask(ask))
        question = _Question(
            ask,
            asyncio.get_running_loop().create_future(),
            asyncio.create_task(self._approver.decide(ask)),
            asyncio.create_task(self._clock.sleep(self._limit)),
        )
        self._open[ask.id] = question
        question.deciding.add_done_callback(partial(self._decided, question))
        question.timer.add_done_callback(partial(self._expired, question))
        question.answer.add_done_callback(partial(self._withdrawn, question))
        return question.answer

    def cancel_all(self) -> None:
        """The turn is over: whoever was asked need not answer any more."""
        for question in list(self._open.values()):
            self._close(question, _cancelled_by(question) or TURN_OVER)

    def _decided(self, question: _Question, deciding: asyncio.Task[Decision]) -> None:
        self._close(question, _verdict(deciding))

    def _expired(self, question: _Question, timer: asyncio.Task[None]) -> None:
        if not timer.cancelled():
            reason = f"nobody answered within {self._limit:g} s"
            self._close(question, Decision("expired", "timeout", reason))

    def _withdrawn(self, question: _Question, answer: asyncio.Future[RequestPermissionResponse]) -> None:
        if answer.cancelled():
            self._close(question, WITHDRAWN)

    def _close(self, question: _Question, decision: Decision) -> None:
        if self._open.pop(question.ask.id, None) is None:
            return  # another was first
        question.deciding.cancel()
        question.timer.cancel()
        decision = WITHDRAWN if question.answer.cancelled() else _possible(question.ask, decision)
        outcome = permission_outcome(question.ask.options, decision)
        told = outcome.option_id if isinstance(outcome, Selected) else None
        receipt = self._record(PermissionAnswered.from_decision(question.ask.id, decision, told))
        self._changed()
        if not question.answer.done():
            response = RequestPermissionResponse(outcome=outcome)
            telling = asyncio.create_task(_tell(question, receipt, response))
            self._telling.add(telling)
            telling.add_done_callback(self._telling.discard)


async def _tell(question: _Question, receipt: Receipt | None, response: RequestPermissionResponse) -> None:
    """The agent hears it once it is on the disk; with a disk that fails for good it hears nothing."""
    if receipt is None:
        question.answer.cancel()
        return
    try:
        await receipt
    except Exception:  # noqa: BLE001 - a task boundary: what could not be recorded is not told
        _log.exception("cannot answer a permission: it could not be recorded")
        question.answer.cancel()
    if not question.answer.done():
        question.answer.set_result(response)


def _cancelled_by(question: _Question) -> Decision | None:
    """Whoever was asked and cancelled the turn instead of answering."""
    deciding = question.deciding
    decision = _verdict(deciding) if deciding.done() else None
    return decision if decision and decision.outcome == "cancelled" else None


def _verdict(deciding: asyncio.Task[Decision]) -> Decision:
    """What the approver said; one that fails says no."""
    if deciding.cancelled():
        return Decision("denied", "legation", "the approver gave up")
    error = deciding.exception()
    if error:
        _log.error("cannot decide a permission: the approver failed", exc_info=error)
        return Decision("denied", "legation", f"the approver failed ({type(error).__name__})")
    decision: object = deciding.result()
    if isinstance(decision, Decision) and decision.outcome in _OUTCOMES:
        return decision
    return Decision("denied", "legation", "the approver gave no decision")


def _possible(ask: Ask, decision: Decision) -> Decision:
    if decision.outcome == "approved" and choose_option(ask.options, "approved") is None:
        reason = f"{decision.by} approved it, but the agent offers no way to allow it once"
        return Decision("denied", "legation", reason)
    return decision
