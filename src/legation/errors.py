"""Every error Legation raises on purpose: one root, a closed set of codes, one table of what each means outside.

LegationError
├── ConfigInvalid
├── InvalidParams
│   ├── TooLarge
│   ├── UnsupportedMedia
│   ├── MethodNotAllowed
│   └── NotAcceptable
├── Unauthenticated
├── Forbidden
├── NotFound
├── Conflict
│   ├── AlreadyAnswered
│   ├── PromptInFlight
│   └── SessionClosed
├── AgentError
│   ├── AgentExited
│   ├── CapabilityUnsupported
│   └── TransportClosed
├── RateLimited
├── TimedOut
├── Cancelled
├── StorageFailed
├── Unavailable
└── InternalError

A message starts with "cannot", names the thing and ends with what to do. It never holds a secret, a prompt
or a tool's arguments; neither does `data`, which travels wherever the message does.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import ClassVar, Final, NamedTuple


class Code(StrEnum):
    CONFIG_INVALID = "legation/config-invalid"
    INVALID_PARAMS = "legation/invalid-params"
    NOT_FOUND = "legation/not-found"
    ALREADY_ANSWERED = "legation/already-answered"
    PROMPT_IN_FLIGHT = "legation/prompt-in-flight"
    SESSION_CLOSED = "legation/session-closed"
    AGENT_EXITED = "legation/agent-exited"
    AGENT_ERROR = "legation/agent-error"
    CAPABILITY_UNSUPPORTED = "legation/capability-unsupported"
    TRANSPORT_CLOSED = "legation/transport-closed"
    TIMEOUT = "legation/timeout"
    STORAGE_FAILED = "legation/storage-failed"
    TOO_LARGE = "legation/too-large"
    UNSUPPORTED_MEDIA = "legation/unsupported-media"
    METHOD_NOT_ALLOWED = "legation/method-not-allowed"
    NOT_ACCEPTABLE = "legation/not-acceptable"
    RATE_LIMITED = "legation/rate-limited"
    CONFLICT = "legation/conflict"
    FORBIDDEN = "legation/forbidden"
    UNAUTHENTICATED = "legation/unauthenticated"
    UNAVAILABLE = "legation/unavailable"
    CANCELLED = "legation/cancelled"
    INTERNAL = "legation/internal"


class Status(NamedTuple):
    http: int
    title: str
    exit: int


# Exit codes are a public contract: 1 is everything else, 2 is what the caller must correct, as shells have it;
# from 126 on they are the shell's, and 130 is its word for "interrupted".
STATUS: Final[Mapping[Code, Status]] = MappingProxyType(
    {
        Code.INTERNAL: Status(500, "Internal error", 1),
        Code.CONFIG_INVALID: Status(500, "Configuration is invalid", 2),
        Code.INVALID_PARAMS: Status(400, "Parameters are invalid", 2),
        Code.TOO_LARGE: Status(413, "Request is too large", 2),
        Code.UNSUPPORTED_MEDIA: Status(415, "Content type is not supported", 2),
        Code.METHOD_NOT_ALLOWED: Status(405, "Method is not allowed", 2),
        Code.NOT_ACCEPTABLE: Status(406, "No acceptable answer", 2),
        Code.NOT_FOUND: Status(404, "Not found", 3),
        Code.FORBIDDEN: Status(403, "Forbidden", 4),
        Code.UNAUTHENTICATED: Status(401, "Not authenticated", 4),
        Code.CONFLICT: Status(409, "Conflict", 5),
        Code.ALREADY_ANSWERED: Status(409, "Already answered", 5),
        Code.PROMPT_IN_FLIGHT: Status(409, "A prompt is in flight", 5),
        Code.SESSION_CLOSED: Status(410, "Session is closed", 5),
        Code.AGENT_ERROR: Status(502, "Agent answered with an error", 6),
        Code.CAPABILITY_UNSUPPORTED: Status(422, "Agent lacks the capability", 6),
        Code.AGENT_EXITED: Status(502, "Agent exited", 7),
        Code.TRANSPORT_CLOSED: Status(502, "Connection to the agent closed", 7),
        Code.TIMEOUT: Status(504, "Timed out", 8),
        Code.STORAGE_FAILED: Status(500, "Storage failed", 9),
        Code.RATE_LIMITED: Status(429, "Too many requests", 10),
        Code.UNAVAILABLE: Status(503, "Unavailable", 10),
        Code.CANCELLED: Status(499, "Cancelled", 130),
    }
)


class LegationError(Exception):
    """The root: catch it to catch them all, raise one of those below."""

    code: ClassVar[Code] = Code.INTERNAL

    def __init__(self, message: str, data: Mapping[str, object] | None = None) -> None:
        super().__init__(message, data)
        self.message = message
        self.data = data

    def __str__(self) -> str:
        return self.message

    @property
    def status(self) -> Status:
        return STATUS[self.code]


class ConfigInvalid(LegationError):
    """A setting, a policy or another file of the owner cannot be used; every problem is listed."""

    code = Code.CONFIG_INVALID


class InvalidParams(LegationError):
    """The request is malformed or asks for something impossible."""

    code = Code.INVALID_PARAMS


class TooLarge(InvalidParams):
    """The request is longer or deeper than the limit."""

    code = Code.TOO_LARGE


class UnsupportedMedia(InvalidParams):
    """The body is not of a type or charset that is understood."""

    code = Code.UNSUPPORTED_MEDIA


class MethodNotAllowed(InvalidParams):
    """The address exists, but not for this method."""

    code = Code.METHOD_NOT_ALLOWED


class NotAcceptable(InvalidParams):
    """The caller accepts none of the types that it could be answered in."""

    code = Code.NOT_ACCEPTABLE


class Unauthenticated(LegationError):
    """No valid credential came with the request."""

    code = Code.UNAUTHENTICATED


class Forbidden(LegationError):
    """The credential, a policy or a person does not allow it."""

    code = Code.FORBIDDEN


class NotFound(LegationError):
    """There is no such thing, or the caller may not know of it."""

    code = Code.NOT_FOUND


class Conflict(LegationError):
    """The thing is not in a state that allows it, or somebody else holds it."""

    code = Code.CONFLICT


class AlreadyAnswered(Conflict):
    """The approval or question was decided before; the first answer stands."""

    code = Code.ALREADY_ANSWERED


class PromptInFlight(Conflict):
    """The session is still working on a prompt; wait for it or cancel it."""

    code = Code.PROMPT_IN_FLIGHT


class SessionClosed(Conflict):
    """The session takes no more prompts; its events can still be read."""

    code = Code.SESSION_CLOSED


class AgentError(LegationError):
    """The agent refused the request or broke its protocol."""

    code = Code.AGENT_ERROR


class AgentExited(AgentError):
    """The agent's process ended before it answered."""

    code = Code.AGENT_EXITED
    stderr: str = ""  # what it said last, where that is known


class CapabilityUnsupported(AgentError):
    """The agent did not announce the capability that the request needs."""

    code = Code.CAPABILITY_UNSUPPORTED


class TransportClosed(AgentError):
    """The connection to the agent closed before it answered."""

    code = Code.TRANSPORT_CLOSED


class RateLimited(LegationError):
    """Too many in a short time; `data.retryAfter` says in how many seconds to try again."""

    code = Code.RATE_LIMITED


class TimedOut(LegationError):
    """A bounded wait ran out."""

    code = Code.TIMEOUT


class Cancelled(LegationError):
    """The caller cancelled it."""

    code = Code.CANCELLED


class StorageFailed(LegationError):
    """The log or the database could not be read or written."""

    code = Code.STORAGE_FAILED


class Unavailable(LegationError):
    """Something it needs is not there now; trying again later may work."""

    code = Code.UNAVAILABLE


class InternalError(LegationError):
    """A defect in Legation."""

    code = Code.INTERNAL


def problem(error: LegationError) -> dict[str, object]:
    """The members of an RFC 9457 problem; `code` and `data` are extensions of ours."""
    members: dict[str, object] = {
        "type": f"urn:legation:error:{_short(error.code)}",
        "title": error.status.title,
        "status": error.status.http,
        "detail": error.message,
        "code": error.code.value,
    }
    if error.data is not None:
        members["data"] = dict(error.data)
    return members


def leaves(root: type[LegationError] = LegationError) -> dict[Code, type[LegationError]]:
    """The one class that carries each code."""
    found: dict[Code, type[LegationError]] = {}
    for kind in root.__subclasses__():
        if kind.__module__ == __name__:  # an application may have subclasses of its own
            found |= {kind.code: kind, **leaves(kind)}
    return found


def _short(code: Code) -> str:
    return code.removeprefix("legation/")
