"""What a projection says of its session that is not in the log: fixed when the session is made."""

from typing import Final

import msgspec

STRIDE: Final = 8
"""More numbers than one event of the log can ever use, the ends of what it begins included (INV-U3)."""


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """As it was asked for. What changes later is told by status items."""

    agent: str
    agent_mode: str | None = None
    model: str | None = None
    permission_mode: str | None = None
    variant: str | None = None


class SessionFacts(msgspec.Struct, frozen=True):
    """`session_id` is the client's name for it, `native_session_id` the agent's."""

    session_id: str
    agent: str
    native_session_id: str | None
    metadata: Metadata


def floor(seq: int) -> int:
    """The number before the first one that a reading from this event on gives out."""
    return STRIDE * (seq - 1)
