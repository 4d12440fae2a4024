"""Agents of sessions in which nothing has happened for a while: stopped; the next message starts them again.

INV-I1  Only an agent that can take its session up again is stopped, and never in a turn or while it waits for an answer.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final

from legation.clock import Clock
from legation.errors import LegationError
from legation.server.sessions.record import Record

if TYPE_CHECKING:
    from legation.host.session import Session

LOOK_EVERY: Final = 60.0  # seconds between two looks, at most

logger = logging.getLogger("legation.sessions")


class Resting:
    """`after` is in seconds; with 0 no agent is stopped."""

    def __init__(
        self, records: Iterable[Record], rest: Callable[[Record], Awaitable[None]], clock: Clock, after: float
    ) -> None:
        self._records = records
        self._rest = rest
        self._clock = clock
        self._after = after
        self._seen: dict[tuple[str, str], tuple[int, float]] = {}  # the last number of each, and since when

    async def run(self) -> None:
        """For as long as it is not cancelled."""
        while self._after > 0:
            await self._clock.sleep(min(LOOK_EVERY, self._after))
            await self._look()

    async def _look(self) -> None:
        now, seen = self._clock.monotonic(), {}
        for record in self._records:
            if record.working is not None or not may_rest(record.session):
                continue
            key = record.workspace, record.id
            head, since = self._seen.get(key, (record.head, now))
            seen[key] = record.head, since if head == record.head else now
            if now - seen[key][1] >= self._after:
                try:
                    await self._rest(record)
                except LegationError as error:
                    logger.warning(
                        "session %s: its idle agent could not be stopped: %s", record.id, error.message
                    )
        self._seen = seen


def may_rest(session: Session | None) -> bool:
    """INV-I1."""
    if session is None or session.status != "active" or session.busy or session.talk.waiting:
        return False
    if session.talk.tool_calls.at_work():  # a task in the background may be silent for long
        return False
    return session.agent.can_resume or session.agent.can_load
