"""One request of the HTTP API as a value: to which server and in what time, what is sent, how the answer is read, what went
wrong, when to try again. No I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import msgspec
from msgspec.structs import replace

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
from legation.secret import Secret
from legation.wire.api.shape import Page

if TYPE_CHECKING:
    from httpx2 import Request


class BodyFilter(Protocol):
    """A change of a body on its way into a file, made anew for every attempt."""

    def update(self, data: bytes) -> bytes: ...
    def finish(self) -> bytes: ...


class Unchanged:
    def update(self, data: bytes) -> bytes:
        return data

    def finish(self) -> bytes:
        return b""


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


class ApiRequest(msgspec.Struct, Generic[T], frozen=True):
    method: HttpMethod
    path: str
    read: Read[T]
    query: Query = ()
    body: bytes | None = None
    wait: float | None = None  # seconds for the answer, where it takes its time; else Timeouts.read
    cursor: str = "after"  # of a list: the parameter that asks for the page behind
    key: str | None = None  # `Idempotency-Key`: sent again it is the same, so that it may be repeated

    @property
    def repeatable(self) -> bool:
        return self.key is not None or self.method in REPEATABLE


class PollRequest(msgspec.Struct, Generic[T], frozen=True):
    """An operation that is asked again until it is answered with what is waited for."""

    operation: ApiRequest[T]
    is_over: Callable[[T], bool]
    limit: float | None  # seconds; None: for as long as it takes
    late: str  # the words of TimedOut


class FileDownload(msgspec.Struct, frozen=True):
    """An operation whose answer becomes a file that is there completely or not at all."""

    operation: ApiRequest[None]
    to: Path
    through: Callable[[], BodyFilter]  # made anew for every attempt


class AsJson(msgspec.Struct, Generic[T], frozen=True):
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


def next_page(operation: ApiRequest[Page[T]], page: Page[T]) -> ApiRequest[Page[T]] | None:
    if page.next is None:
        return None
    if (operation.cursor, page.next) in operation.query:
        raise InternalError("cannot read the list: the server gives one page for ever; bring it up to date")
    others = tuple(pair for pair in operation.query if pair[0] != operation.cursor)
    return replace(operation, query=(*others, (operation.cursor, page.next)))


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
    by_code = {each.value: kind for each, kind in leaves().items()}
    if code in by_code and status != 408:
        return by_code[code]
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


class Tries(msgspec.Struct):
    """The tries of one call that is answered and done."""

    repeatable: bool
    left: int
    chance: Callable[[], float] = zero_to_one
    pause: float = FIRST_PAUSE

    def pause_after(self, failure: RequestFailure) -> float:
        """Seconds to wait before the next try; raises the error when there is none."""
        wait = failure.retry_after or 0.0
        if not failure.passing or not self.repeatable or self.left <= 0 or wait > MOST_PAUSE:
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


# Where a client talks to and as whom. The token is never part of the address, and never in a repr.


class ServerTarget(msgspec.Struct, frozen=True):
    base: str  # scheme, host, port and path prefix, without a slash at the end
    is_plain: bool  # HTTP without TLS
    is_local: bool  # on this machine: no proxy has any business between us and it
    token: Secret | None  # None: a server that takes callers without one
    workspace: str | None = None
    certificate: str | None = None  # the only one to trust, in PEM; None: those that the system trusts

    def url(self, path: str, query: tuple[tuple[str, str], ...] = ()) -> str:
        return f"{self.base}{path}{'?' if query else ''}{urlencode(query)}"

    def sign(self, request: Request) -> Request:
        """The token is put on when the request leaves, and stands nowhere before."""
        if self.token is not None:
            request.headers["Authorization"] = f"Bearer {self.token.reveal()}"
        return request


class Located(msgspec.Struct):
    """The server as it is now. `again` looks for it: after a restart it has another token, and maybe another address.

    INV-C9  What may have reached a server is not sent to the next one by this: only what met no server at all, or one
    that did not know the token. A token that is refused by the server it is for stays refused."""

    now: ServerTarget
    again: Callable[[], ServerTarget] | None = None  # None: it is where it was said to be

    def after(self, failure: RequestFailure, tried: ServerTarget) -> RequestFailure | None:
        """Say what remains of a failure of a try at `tried`; None: that did not take it, and there is another to ask."""
        refused = isinstance(failure.error, Unauthenticated)
        if self.again is None or not (failure.passing or failure.unsent or refused):
            return failure
        try:
            self.now = self.again()
        except LegationError as away:  # it stops, or starts: its file says nothing yet
            return RequestFailure(away, passing=True, unsent=True) if refused else failure
        untaken = failure.unsent or refused
        return None if untaken and self.now != tried else failure


def target(
    url: str, token: str | Secret | None, workspace: str | None = None, certificate: str | None = None
) -> ServerTarget:
    secret = Secret(token, "token") if isinstance(token, str) else token
    if secret is not None and not _fits_a_header(secret.reveal()):
        raise InvalidParams("cannot use the token: it holds spaces or characters beyond ASCII; copy it again")
    if workspace is not None and not _fits_a_header(workspace):
        raise InvalidParams("cannot use the workspace: give its id, as `legation workspaces` shows it")
    base, host = _base(url)
    return ServerTarget(base, base.startswith("http:"), _is_local(host), secret, workspace, certificate)


def segment(value: str) -> str:
    """One id or name as a part of a path, whatever it holds."""
    if value in ("", ".", ".."):
        raise InvalidParams(
            "cannot make an address of an empty or dotted id: give the id as the server shows it"
        )
    try:
        return quote(value, safe="")
    except UnicodeEncodeError:
        raise InvalidParams(
            "cannot make an address of an id that is not valid Unicode: give it as the server shows it"
        ) from None


def _base(url: str) -> tuple[str, str]:
    """And its host."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        usable = parts.scheme in ("http", "https") and host != "" and parts.port != 0
    except ValueError:
        usable = False
    if not usable or any(not " " < char < "\x7f" for char in url):
        raise InvalidParams("cannot use the server's address: write it like http://127.0.0.1:4517")
    if parts.username is not None or parts.query or parts.fragment:  # may hold a secret: not repeated here
        raise InvalidParams(
            "cannot use the server's address: leave out user, password, query and fragment; give the token apart"
        )
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}", host


def _is_local(host: str) -> bool:
    from ipaddress import ip_address

    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _fits_a_header(value: str) -> bool:
    return value != "" and all("!" <= char <= "~" for char in value)


# How long the client waits, in seconds.

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
class Spawn:
    """A server for this program alone; it ends with it."""

    host: str = "127.0.0.1"
    port: int | None = None  # None: a free one
    token: str | Secret | None = field(default=None, repr=False)  # None: a new one of 24 random bytes
    binary: str | Sequence[str] | None = None  # None: $LEGATION_BIN, else this Python's own legation
    data_dir: Path | None = None  # None: a private folder, removed afterwards
    log: Literal["inherit", "silent"] | Path = (
        "inherit"  # where its messages go: to our stderr, nowhere, a file
    )
    wait: float = 15.0  # seconds for it to become healthy
    env: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold keys


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    connect: float = 5.0  # the network's time to open a connection
    read: float = 30.0  # the server's time between two parts of an answer
    stream: float = 45.0  # silence on a stream: three keep-alives missed


DEFAULT_TIMEOUTS: Final = Timeouts()
