"""Errors as they leave the server: RFC 9457 problems."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from legation.errors import Code, LegationError, RateLimited, Unauthenticated, Unavailable, problem
from legation.server.http.answers import Headers, Written

PROBLEM_MEDIA: Final = "application/problem+json"
CHALLENGE: Final = 'Bearer realm="legation"'

_encoder: Final = msgspec.json.Encoder(enc_hook=str)


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong (RFC 9457). `code` is one of a closed set; `data.path` and `data.expected` say what to correct."""

    type: str
    title: str
    status: int
    detail: str
    code: Code
    instance: str
    data: dict[str, Any] | None = None


def write_problem(error: LegationError, request_id: str, headers: Headers = ()) -> Written:
    members = problem(error)
    members["instance"] = f"urn:legation:request:{request_id}"
    return Written(
        status=error.status.http,
        media=PROBLEM_MEDIA.encode(),
        body=_encoder.encode(members),
        headers=[*_headers(error), *headers],
    )


def _headers(error: LegationError) -> list[tuple[bytes, bytes]]:
    if isinstance(error, Unauthenticated):
        return [(b"www-authenticate", CHALLENGE.encode())]
    after = (error.data or {}).get("retryAfter")
    if isinstance(error, RateLimited | Unavailable) and isinstance(after, int | float):
        return [(b"retry-after", str(max(1, -int(-after // 1))).encode())]  # whole seconds, rounded up
    return []
