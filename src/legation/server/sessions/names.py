"""What a session may be called: the client chooses, and the name is that of its stream and of its folder."""

from __future__ import annotations

import re
from typing import Final

from legation.errors import InvalidParams

# Streams that are no sessions.
RESERVED: Final = frozenset(
    ("server", "host", "approvals", "traces", "trace", "policy", "runs", "sessions", "processes", "acp")
)
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}", re.ASCII)


def must_be_session_id(text: str) -> str:
    if _NAME.fullmatch(text) and text.strip(".") and text not in RESERVED:
        return text
    raise InvalidParams(
        "cannot use that as a session's id: give 1 to 128 letters, digits, `_`, `.` and `-`, not only dots, and none "
        f"of {', '.join(sorted(RESERVED))}",
        {"type": "invalid_request"},
    )
