"""What one session's agent has asked and waits for, whoever answers it.

INV-8  Each is answered exactly once, by whoever comes first: the one who was asked, the clock, the end of the
       turn, the agent itself. The answer is on the disk before the agent hears it.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

from legation.clock import Clock
from legation.store.stream import Receipt
from legation.wire.payload import Payload

_log = logging.getLogger(__name__)


class Verdict(Protocol):
    @property
    def outcome(self) -> str: ...


A = TypeVar("A")  # what is asked
V = TypeVar("V", bound=Verdict)
R = TypeVar("R")  # what the agent is told


@dataclass(frozen=True, slots=True, eq=False)
class Inquiry(Generic[A, R]):
    id: str
    asked: A
    answer: asyncio.Future[R]
    deciding: asyncio.Task[object]
    timer: asyncio.Task[None]


class Inquiries(ABC, Generic[A, V, R]):
    """`record` appends events to the session, or returns None where it takes no more; `limit` is how many
    seconds there are to answer; `changed` is called when one was answered."""

    withdrawn: V  # the agent no longer waits
    turn_over: V

    def __init__(
        self,
        *,
        record: Callable[[Payload], Receipt | None],
        clock: Clock,
        limit: float,
        changed: Callable[[], None],
    ) -> None:
        self._record = record
        self._clock = clock
        self._limit = limit
        self._changed = changed
        self._open: dict[str, Inquiry[A, R]] = {}
        self._telling: set[asyncio.Task[None]] = set()

    @abstractmethod
    def _expired(self) -> V: ...

    @abstractmethod
    def _cut_off(self, why: str) -> V: ...

    @abstractmethod
    def _failed(self, how: str) -> V:
        """Whoever was asked gave no answer; `how` goes after their name."""

    @abstractmethod
    def _verdict(self, asked: A, decided: object) -> V:
        """What was decided by whoever was asked, which may be anything."""

    @abstractmethod
    def _told(self, inquiry_id: str, asked: A, verdict: V) -> tuple[Payload, R]:
        """What is recorded, and what the agent hears."""

    @property
    def waiting(self) -> bool:
        return bool(self._open)

    def settle(self, inquiry_id: str, verdict: V) -> bool:
        """Answered by somebody who was not asked by us; False: nobody waits for it."""
        inquiry = self._open.get(inquiry_id)
        if inquiry is None:
            return False
        self._close(inquiry, verdict)
        return True

    def asked(self, inquiry_id: str) -> A | None:
        """What waits under that id."""
        inquiry = self._open.get(inquiry_id)
        return None if inquiry is None else inquiry.asked

    def cancel_all(self, why: str | None = None) -> None:
        """The turn is over: whoever was asked need not answer any more. `why`: it was cut off."""
        over = self.turn_over if why is None else self._cut_off(why)
        for inquiry in list(self._open.values()):
            self._close(inquiry, self._cancelled_by(inquiry) or over)

    def _begin(
        self, inquiry_id: str, asked: A, decide: Coroutine[object, object, object]
    ) -> asyncio.Future[R]:
        """It was recorded, in its place among the updates; the answer comes when somebody has decided.
        Cancelling it takes the question back."""
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        deciding, timer = asyncio.create_task(decide), asyncio.create_task(self._clock.sleep(self._limit))
        inquiry = Inquiry(inquiry_id, asked, answer, deciding, timer)
        self._open[inquiry_id] = inquiry
        deciding.add_done_callback(partial(self._on_decided, inquiry))
        timer.add_done_callback(partial(self._on_expired, inquiry))
        answer.add_done_callback(partial(self._on_withdrawn, inquiry))
        return answer

    def _on_decided(self, inquiry: Inquiry[A, R], _: asyncio.Task[object]) -> None:
        if inquiry.id in self._open:
            self._close(inquiry, self._decided(inquiry))

    def _on_expired(self, inquiry: Inquiry[A, R], timer: asyncio.Task[None]) -> None:
        if not timer.cancelled():
            self._close(inquiry, self._expired())

    def _on_withdrawn(self, inquiry: Inquiry[A, R], answer: asyncio.Future[R]) -> None:
        if answer.cancelled():
            self._close(inquiry, self.withdrawn)

    def _cancelled_by(self, inquiry: Inquiry[A, R]) -> V | None:
        """Whoever was asked and cancelled the turn instead of answering."""
        verdict = self._decided(inquiry) if inquiry.deciding.done() else None
        return verdict if verdict and verdict.outcome == "cancelled" else None

    def _decided(self, inquiry: Inquiry[A, R]) -> V:
        if inquiry.deciding.cancelled():
            return self._failed("gave up")
        if error := inquiry.deciding.exception():
            _log.error("cannot answer the agent: whoever was asked failed", exc_info=error)
            return self._failed(f"failed ({type(error).__name__})")
        return self._verdict(inquiry.asked, inquiry.deciding.result())

    def _close(self, inquiry: Inquiry[A, R], verdict: V) -> None:
        if self._open.pop(inquiry.id, None) is None:
            return  # another was first
        inquiry.deciding.cancel()
        inquiry.timer.cancel()
        verdict = self.withdrawn if inquiry.answer.cancelled() else verdict
        recorded, response = self._told(inquiry.id, inquiry.asked, verdict)
        receipt = self._record(recorded)
        self._changed()
        if not inquiry.answer.done():
            telling = asyncio.create_task(_tell(inquiry.answer, receipt, response))
            self._telling.add(telling)
            telling.add_done_callback(self._telling.discard)


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
