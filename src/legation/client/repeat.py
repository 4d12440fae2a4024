"""When to try again, and how long to wait before it. No I/O; chance and time are given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Final, TypeAlias

from legation.client.failure import Failure
from legation.client.operation import REPEATABLE, Method
from legation.errors import LegationError

REPEATS: Final = 3  # of one call, beyond its first try
FIRST_PAUSE: Final = 0.2
MOST_PAUSE: Final = 30.0  # the caller's time: a server that asks for more gets the error passed on instead
LONG_ENOUGH: Final = 10.0  # a stream that held so long was well; its end starts the count anew
PATIENCE: Final = 600.0  # the follower's time without a sign of the server

# Told why, when the server of what is followed cannot be reached; then None, when it is back.
Outages: TypeAlias = Callable[[LegationError | None], None]


def zero_to_one() -> float:
    from random import random  # most calls are never repeated

    return random()  # noqa: S311 - spreads load, keeps no secret


@dataclass(slots=True)
class Tries:
    """Of one call that is answered and done."""

    method: Method
    left: int
    chance: Callable[[], float] = zero_to_one
    pause: float = FIRST_PAUSE

    def pause_after(self, failure: Failure) -> float:
        """Seconds to wait before the next try; raises the error when there is none."""
        wait = failure.retry_after or 0.0
        if not failure.passing or self.method not in REPEATABLE or self.left <= 0 or wait > MOST_PAUSE:
            raise failure.error
        self.left -= 1
        pause = max(wait, self.pause * _jitter(self.chance))
        self.pause *= 2
        return pause


class Reconnects:
    """Of a stream that is followed: at once after it went well, then ever more slowly, until patience ends."""

    def __init__(
        self,
        patience: float = PATIENCE,
        chance: Callable[[], float] = zero_to_one,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self.base = 1.0  # seconds, as the server's `retry:` asks for
        self._patience = patience
        self._chance = chance
        self._now = now
        self._failed = 0
        self._sign_of_life = self._opened = now()

    def opened(self) -> None:
        self._opened = self._now()

    def heard(self) -> None:
        self._sign_of_life = self._now()

    def progressed(self) -> None:
        self._failed = 0

    def pause_after(self, failure: Failure) -> float:
        """Seconds to wait before the next connection; raises the error when patience has run out."""
        now = self._now()
        if self._sign_of_life - self._opened >= LONG_ENOUGH:
            self._failed = 0
        left = self._sign_of_life + self._patience - now
        if left <= 0:
            raise failure.error
        pause = self._next_pause()
        return min(max(pause, min(failure.retry_after or 0.0, MOST_PAUSE)), left)

    def _next_pause(self) -> float:
        doublings = self._failed - 1
        self._failed += 1
        if doublings < 0:
            return 0.0
        return min(self.base * 2.0 ** min(doublings, 16), MOST_PAUSE) * _jitter(self._chance)


def _jitter(chance: Callable[[], float]) -> float:
    """Half to one, so that a thousand clients of one restarted server do not come back in step."""
    return 0.5 + chance() / 2
