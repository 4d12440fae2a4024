"""What went wrong with one try, as an error of our tree, and whether another try may help. No I/O.

INV-C3  No message holds the token, a query or a body: a message names the method and the address only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

import msgspec

from legation.client.operation import Answered, Operation
from legation.errors import (
    Conflict,
    Forbidden,
    InternalError,
    InvalidParams,
    LegationError,
    NotFound,
    RateLimited,
    TimedOut,
    TooLarge,
    Unauthenticated,
    Unavailable,
    leaves,
)

T = TypeVar("T")

_ERRNO: Final = re.compile(r"\[Errno -?\d+\] |\[SSL[^\]]*\] | \(_ssl\.c:\d+\)")  # for programmers
_REQUEST: Final = "urn:legation:request:"

# Somebody between us and the server, or the server itself, is busy or being restarted.
PASSING: Final = frozenset({429, 502, 503, 504})
_BY_CODE: Final[Mapping[str, type[LegationError]]] = {code.value: kind for code, kind in leaves().items()}
_BY_STATUS: Final[Mapping[int, type[LegationError]]] = {
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    408: TimedOut,
    409: Conflict,
    413: TooLarge,
    429: RateLimited,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}


class Failure(NamedTuple):
    error: LegationError
    passing: bool  # another try may help
    retry_after: float | None = None  # seconds that the server asks to wait
    unsent: bool = False  # there was not even a connection


class _Problem(msgspec.Struct):
    code: str = ""
    detail: str = ""
    data: dict[str, object] | None = None
    instance: str = ""
    status: int = 500


def received(
    operation: Operation[T], what: str, status: int, headers: Mapping[str, str], body: bytes
) -> T | Failure:
    """The answer as its type, or what is wrong with it."""
    if not 200 <= status < 300:
        return refused(what, status, headers, body)
    try:
        return operation.read(Answered(headers, body))
    except (ValueError, RecursionError) as error:
        return Failure(_unreadable(what, headers, error), passing=False)


def refused(what: str, status: int, headers: Mapping[str, str], body: bytes) -> Failure:
    wait = _retry_after(headers)
    return Failure(_refusal(what, status, headers, body, wait), status in PASSING, wait)


def told(problem: bytes) -> LegationError:
    """A refusal in a body that had begun already."""
    headers = {"content-type": "application/problem+json"}
    status = (_problem(headers, problem) or _Problem()).status
    return refused("send it", status, headers, problem).error


def unreachable(what: str, error: Exception, *, timed_out: bool, passing: bool) -> Failure:
    """`error` is the transport's; it may hold the whole request, so only its kind and words are kept."""
    if timed_out:
        message = (
            f"cannot {what}: the server did not answer in time; see whether it is up, or allow more time"
        )
        return Failure(TimedOut(message), passing)
    why = _ERRNO.sub("", str(error)).strip().rstrip(".") or type(error).__name__
    return Failure(
        Unavailable(f"cannot {what}: {why}; see whether the server is up at that address"), passing
    )


def _refusal(
    what: str, status: int, headers: Mapping[str, str], body: bytes, wait: float | None
) -> LegationError:
    problem = _problem(headers, body)
    data: dict[str, object] = dict((problem and problem.data) or {})
    named = problem.instance if problem else ""
    if request_id := headers.get("request-id") or named.removeprefix(_REQUEST):
        data["requestId"] = request_id
    if wait is not None:
        data.setdefault("retryAfter", wait)
    if problem and problem.detail:
        return _kind(status, problem.code)(problem.detail, data or None)
    return _kind(status, "")(_stranger(what, status, headers), data or None)


def _kind(status: int, code: str) -> type[LegationError]:
    """By its code; one that a newer server has and we do not know, by its status.

    408 says that a wait ran out, whoever says it and under whatever code: nobody answered an approval."""
    if code in _BY_CODE and status != 408:
        return _BY_CODE[code]
    fallback = InvalidParams if 300 <= status < 500 else InternalError
    return _BY_STATUS.get(status, fallback)


def _stranger(what: str, status: int, headers: Mapping[str, str]) -> str:
    """Whoever answered, it did not speak as Legation does: a proxy, or another program."""
    if 300 <= status < 400:
        place = urlsplit(headers.get("location", ""))
        where = f"{place.scheme}://{place.hostname}" if place.hostname else "another path"
        return f"cannot {what}: the address redirects to {where}; connect to the final address"
    return (
        f"cannot {what}: answered with HTTP {status}, and not by Legation; see what stands at that address "
        "or between it and you"
    )


def _unreadable(what: str, headers: Mapping[str, str], error: Exception) -> LegationError:
    if not _is_json(headers):
        return Unavailable(f"cannot {what}: what answered is not Legation; see what stands at that address")
    why = str(error).rstrip(".")
    return InternalError(
        f"cannot {what}: the answer is not as expected ({why}); bring client and server to the same version"
    )


def _problem(headers: Mapping[str, str], body: bytes) -> _Problem | None:
    if not _is_json(headers):
        return None
    try:
        return msgspec.json.decode(body, type=_Problem)
    except (ValueError, RecursionError):
        return None


def _is_json(headers: Mapping[str, str]) -> bool:
    media = headers.get("content-type", "").split(";")[0].strip().lower()
    return media in ("application/json", "application/problem+json")


def _retry_after(headers: Mapping[str, str]) -> float | None:
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return float(value)
    return _seconds_until(value) if value else None


def _seconds_until(date: str) -> float | None:
    import time
    from email.utils import parsedate_to_datetime  # rarely needed

    try:
        return max(0.0, parsedate_to_datetime(date).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None
