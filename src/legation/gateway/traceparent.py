"""W3C Trace Context: which distributed trace a request belongs to, told from one program to the next."""

from __future__ import annotations

import re
import secrets
from typing import Final

TRACE_ID: Final = re.compile(r"(?!0{32})[0-9a-f]{32}", re.ASCII)

_HEADER: Final = re.compile(
    r"(?P<version>(?!ff)[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<parent>[0-9a-f]{16})-[0-9a-f]{2}(?P<more>-.*)?",
    re.ASCII,
)
_SAMPLED: Final = "01"  # the call is on record here, so that a record of it further on can be found from it


def trace_id_of(header: str | None) -> str | None:
    """None without one, and of a malformed one: the standard says to go on as if there were none."""
    found = _HEADER.fullmatch(header or "")
    if found is None or (found["version"] == "00" and found["more"]):
        return None
    if found["parent"] == "0" * 16 or not TRACE_ID.fullmatch(found["trace"]):
        return None
    return found["trace"]


def traceparent(trace_id: str) -> str:
    """For whom we call: a span of its own in the trace."""
    return f"00-{trace_id}-{secrets.token_hex(8)}-{_SAMPLED}"
