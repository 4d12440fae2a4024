"""Connections that nobody uses any more: their agents are stopped; the next message starts them again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from legation.clock import Clock
from legation.errors import LegationError

IDLE: Final = 900.0  # seconds without a reader, a message or a request at work: a client's time to come back
LOOK_EVERY: Final = 60.0  # seconds between two looks

logger = logging.getLogger("legation.acp")


class Restable(Protocol):
    @property
    def idle_since(self) -> float | None:
        """By the monotonic clock; None while somebody uses it."""

    async def rest(self) -> None: ...


async def rest_idle(connections: Callable[[], Iterable[Restable]], clock: Clock) -> None:
    """For as long as it is not cancelled. A client that was killed leaves its connection open."""
    while True:
        await clock.sleep(LOOK_EVERY)
        for connection in list(connections()):
            since = connection.idle_since
            if since is not None and clock.monotonic() - since > IDLE:
                try:
                    await connection.rest()
                except LegationError as error:
                    logger.warning(
                        "cannot stop the agent of a connection that nobody uses: %s", error.message
                    )
