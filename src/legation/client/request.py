"""One request of the HTTP API as a value: what is sent, how the answer is read, what went wrong, when to try again. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar
from urllib.parse import parse_qs, urlsplit

import msgspec

from legation.client.part_file import BodyFilter
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
from legation.wire.api.shape import Page

# One call of the HTTP API as a value: what to send and how to read the answer. No I/O.

T = TypeVar("T")
HttpMethod = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
Query = tuple[tuple[str, str], ...]

# Doing these twice is doing them once; the rest is never repeated by us.
REPEATABLE: Final[frozenset[HttpMethod]] = frozenset({"GET", "PUT", "DELETE"})


_LINK: Final = re.compile(r'<([^>]*)>\s*;[^,]*?\brel\s*=\s*"?next"?(?=[\s;,]|$)')


class ApiResponse(NamedTuple):
    """An answer that is a success. The names of headers count in any case."""

    headers: Mapping[str, str]
    body: bytes


Read = Callable[[ApiResponse], T]


@dataclass(frozen=True, slots=True)
class ApiRequest(Generic[T]):
    method: HttpMethod
    path: str
    read: Read[T]
    query: Query = ()
    body: bytes | None = None
    wait: float | None = None  # seconds for the answer, where it takes its time; else Timeouts.read
    cursor: str = "after"  # of a list: the parameter that asks for the page behind


@dataclass(frozen=True, slots=True)
class FileDownload:
    """An operation whose answer becomes a file that is there completely or not at all."""

    operation: ApiRequest[None]
    to: Path
    through: Callable[[], BodyFilter]  # made anew for every attempt


@dataclass(frozen=True, slots=True)
class AsJson(Generic[T]):
    kind: type[T]

    def __call__(self, answered: ApiResponse) -> T:
        return msgspec.json.decode(answered.body, type=self.kind)


def of_body(read: Callable[[bytes], T]) -> Read[T]:
    return lambda answered: read(answered.body)


def as_linked(kind: type[T]) -> Read[Page[T]]:
    """A bare array whose next page stands in the `Link` header."""
    items = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]  # it is one at run time
    return lambda answered: Page(items=items.decode(answered.body), next=_next(answered.headers))


def _next(headers: Mapping[str, str]) -> str | None:
    """Take `after` alone from the link: the token goes where it was given for, whatever a link says."""
    found = _LINK.search(headers.get("link", ""))
    if found is None:
        return None
    after = parse_qs(urlsplit(found[1]).query).get("after")
    if not after:
        raise ValueError("a link to the next page without `after`")
    return after[-1]


def nothing(answered: ApiResponse) -> None:
    """Read an answer without content; a body that a later version adds is not looked at."""


def get(path: str, kind: type[T], query: Mapping[str, object] | None = None) -> ApiRequest[T]:
    return ApiRequest("GET", path, AsJson(kind), query_of(query or {}))


def get_linked(path: str, kind: type[T], query: Mapping[str, object]) -> ApiRequest[Page[T]]:
    return ApiRequest("GET", path, as_linked(kind), query_of(query))


def sending(method: HttpMethod, path: str, body: msgspec.Struct, kind: type[T]) -> ApiRequest[T]:
    return ApiRequest(method, path, AsJson(kind), body=encoded(body))


def encoded(body: msgspec.Struct) -> bytes:
    try:
        return msgspec.json.encode(body)
    except (TypeError, ValueError, RecursionError):  # its words may hold what was to be sent
        raise InvalidParams("cannot send this: it holds a value that JSON has no word for") from None


def query_of(values: Mapping[str, object]) -> Query:
    """None is left out: the server's default holds."""
    return tuple((name, str(value)) for name, value in values.items() if value is not None)


# What went wrong with one try, as an error of our tree, and whether another try may help. No I/O.
#
# INV-C3  No message holds the token, a query or a body: a message names the method and the address only.

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


class RequestFailure(NamedTuple):
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
    operation: ApiRequest[T], what: str, status: int, headers: Mapping[str, str], body: bytes
) -> T | RequestFailure:
    """The answer as its type, or what is wrong with it."""
    if not 200 <= status < 300:
        return refused(what, status, headers, body)
    try:
        return operation.read(ApiResponse(headers, body))
    except (ValueError, RecursionError) as error:
        return RequestFailure(_unreadable(what, headers, error), passing=False)


def refused(what: str, status: int, headers: Mapping[str, str], body: bytes) -> RequestFailure:
    wait = _retry_after(headers)
    return RequestFailure(_refusal(what, status, headers, body, wait), status in PASSING, wait)


def told(problem: bytes) -> LegationError:
    """A refusal in a body that had begun already."""
    headers = {"content-type": "application/problem+json"}
    status = (_problem(headers, problem) or _Problem()).status
    return refused("send it", status, headers, problem).error


def unreachable(what: str, error: Exception, *, timed_out: bool, passing: bool) -> RequestFailure:
    """`error` is the transport's; it may hold the whole request, so only its kind and words are kept."""
    if timed_out:
        message = (
            f"cannot {what}: the server did not answer in time; see whether it is up, or allow more time"
        )
        return RequestFailure(TimedOut(message), passing)
    why = _ERRNO.sub("", str(error)).strip().rstrip(".") or type(error).__name__
    return RequestFailure(
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
    """Choose the error by its code; one that a newer server has and we do not know, by its status.

    408 says that a wait ran out, whoever says it and under whatever code: nobody answered an approval."""
    if code in _BY_CODE and status != 408:
        return _BY_CODE[code]
    fallback = InvalidParams if 300 <= status < 500 else InternalError
    return _BY_STATUS.get(status, fallback)


def _stranger(what: str, status: int, headers: Mapping[str, str]) -> str:
    """Say that whoever answered did not speak as Legation does: a proxy, or another program."""
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


# When to try again, and how long to wait before it. No I/O; chance and time are given.

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
    """The tries of one call that is answered and done."""

    method: HttpMethod
    left: int
    chance: Callable[[], float] = zero_to_one
    pause: float = FIRST_PAUSE

    def pause_after(self, failure: RequestFailure) -> float:
        """Seconds to wait before the next try; raises the error when there is none."""
        wait = failure.retry_after or 0.0
        if not failure.passing or self.method not in REPEATABLE or self.left <= 0 or wait > MOST_PAUSE:
            raise failure.error
        self.left -= 1
        pause = max(wait, self.pause * _jitter(self.chance))
        self.pause *= 2
        return pause


class Reconnects:
    """The pauses of a stream that is followed: none after it went well, then ever more slowly, until patience ends."""

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

    def pause_after(self, failure: RequestFailure) -> float:
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
