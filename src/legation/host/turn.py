"""One turn of a session: from the prompt to its one end, with the times in which the agent must show life."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, NamedTuple

from legation.agents.rpc import AgentRefused
from legation.clock import Clock
from legation.errors import AgentExited, Cancelled, LegationError, TimedOut, TransportClosed
from legation.store.stream import Receipt
from legation.wire.acp.content import ContentBlock
from legation.wire.acp.rpc import AgentMethod, ErrorCode, RpcError
from legation.wire.acp.sessions import PromptResponse, Usage
from legation.wire.lifecycle import PromptFinished, PromptStarted, TurnState
from legation.wire.payload import Payload

CANCEL_GRACE = 10.0  # seconds an agent has to end a cancelled turn: its time; after that it is stopped


class CutWords(NamedTuple):
    """What is said where a host ends, or has ended, in the midst of things."""

    ran: str  # of a turn
    waited: str  # of a question


@dataclass(frozen=True, slots=True)
class PromptResult:
    """How a turn ended. With an `error`, the stop reason is a placeholder."""

    stop_reason: str
    error: RpcError | None = None
    usage: Usage | None = None

    def raise_for_error(self) -> None:
        """For those who want an exception where the agent answered with an error: `AgentRefused`."""
        if self.error is not None:
            raise AgentRefused(AgentMethod.SESSION_PROMPT, self.error)


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """How a turn ended, for whoever took it: `told` is for a client. `receipt` is None where the session took no more events."""

    result: PromptResult
    receipt: Receipt | None = None
    error: LegationError | None = None  # its agent is gone, or showed no sign of life
    cancelled: bool = False  # by whoever took it

    @property
    def cut(self) -> str | None:
        """Why its agent could not end it, where that is gone."""
        return self.error.message if isinstance(self.error, AgentExited | TransportClosed) else None

    def told(self) -> PromptResult:
        """Raises where there is no answer of the agent's. Who cancelled it gets what he asked for, however that came."""
        if self.cancelled and isinstance(self.error, AgentExited | TransportClosed | TimedOut):
            raise Cancelled(
                f"cannot finish the turn: it was cancelled ({self.error.message})"
            ) from self.error
        if self.error is not None:
            raise self.error
        refused = self.result.error is not None and self.result.error.code == ErrorCode.REQUEST_CANCELLED
        return PromptResult("cancelled") if self.cancelled and refused else self.result


def unplayed_turn(
    turn: str, prompt: tuple[ContentBlock, ...], error: RpcError, *, message: str | None = None
) -> tuple[Payload, ...]:
    """All of a turn that no agent has seen: what was to be said, and why it was not."""
    return (
        PromptStarted(turn=turn, prompt=prompt, message=message),
        PromptFinished(turn=turn, stop_reason="cancelled", error=error),
        TurnState(turn=turn, state="idle", reason="cancelled"),
    )


class Turn:
    def __init__(self, turn_id: str, clock: Clock, idle: float) -> None:
        self.id = turn_id
        self.sent = False  # the prompt is on its way to the agent
        self.stuck = False  # no sign of life came for the idle time
        self.unasked: str | None = None  # what it did without asking, where that ends it
        self.cut: CutWords | None = None  # why its host ends it
        self.answer: PromptResponse | LegationError | None = None  # the agent's
        self.end: TurnEnd | None = None
        self.running: asyncio.Task[None] | None = None  # until there is an end
        self._clock = clock
        self._idle = idle
        self._heard = clock.monotonic()
        self._cancelled_at: float | None = None
        self._cancelling: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def cancelled(self) -> bool:
        return self._cancelled_at is not None

    @property
    def cancelled_by_client(self) -> bool:
        """And not by us, for something that the agent did or did not do."""
        return self.cancelled and not self.stuck and self.unasked is None and self.cut is None

    def heard(self) -> None:
        self._heard = self._clock.monotonic()

    def cancel(self) -> None:
        self._cancelled_at = self._clock.monotonic()
        self._cancelling.set_result(None)

    def time_left(self, patience: float) -> float:
        """`patience` times the idle limit may pass without a sign of life."""
        if self._cancelled_at is not None:
            return self._cancelled_at + CANCEL_GRACE - self._clock.monotonic()
        return self._heard + self._idle * patience - self._clock.monotonic()

    async def wait(self, asking: asyncio.Task[Any], seconds: float) -> None:
        """For the answer, for a cancel, or for that long."""
        timer = asyncio.create_task(self._clock.sleep(seconds))
        first: set[asyncio.Future[Any]] = {asking, timer}
        if not self.cancelled:
            first.add(self._cancelling)
        try:
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
