"""A way to reach a person, and how it says that it did not."""

from __future__ import annotations

from typing import Protocol

from legation.approvals.notify.notice import Notice
from legation.errors import Unavailable


class NotDelivered(Unavailable):
    """The notice did not get through. `again`: trying once more may help. Its words hold no secret."""

    def __init__(self, message: str, *, again: bool = True) -> None:
        super().__init__(message)
        self.again = again


class Channel(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def gathers(self) -> bool:
        """Whether people read it: what comes in a burst is then told together."""

    async def send(self, notice: Notice) -> None:
        """Once, within a bound of its own; raises NotDelivered. A repetition is recognisable as one."""
