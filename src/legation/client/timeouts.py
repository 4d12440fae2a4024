"""How long the client waits, in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# The server's time to copy its database before the first byte of a backup comes.
BACKUP_READ: Final = 300.0
# A person's time to answer an approval, an hour at most unless the owner says otherwise, and the tool's after it.
TOOL_READ: Final = 3600.0 + 300.0
# The server's time to read and verify whole chains, or to decide every recorded call once more.
LONG_READ: Final = 300.0
# The registry's time to give an agent that is not here yet, and the agent's to start.
INSTALL_READ: Final = 900.0
# An agent's time to start and to say what it offers.
ASK_AGENT_READ: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    connect: float = 5.0  # the network's time to open a connection
    read: float = 30.0  # the server's time between two parts of an answer
    stream: float = 45.0  # silence on a stream: three keep-alives missed


DEFAULT_TIMEOUTS: Final = Timeouts()
