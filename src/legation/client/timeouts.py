"""How long the client waits, in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# The server's time to copy its database before the first byte of a backup comes.
BACKUP_READ: Final = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    connect: float = 5.0  # the network's time to open a connection
    read: float = 30.0  # the server's time between two parts of an answer
    stream: float = 45.0  # silence on a stream: three keep-alives missed


DEFAULT_TIMEOUTS: Final = Timeouts()
