"""Other origins and other hosts: nobody unless listed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from legation.errors import ConfigInvalid
from legation.server.http.answers import Headers, Written
from legation.server.http.expectation import invalid

_EXPOSED: Final = b"ETag, Link, Location, Request-Id, Retry-After"
_ALLOWED_HEADERS: Final = (
    b"Authorization, Content-Type, Last-Event-ID, Legation-Workspace, Prefer, X-Request-Id"
)
_PREFLIGHT_SECONDS: Final = b"600"  # the browser's: how long it may remember the answer


class Origins:
    """Exact origins (`https://app.example.org`) whose pages may call with the user's credentials."""

    def __init__(self, origins: Collection[str]) -> None:
        for origin in origins:
            scheme, _, rest = origin.partition("://")
            if scheme not in ("http", "https") or not rest or "/" in rest or "*" in rest:
                raise ConfigInvalid(
                    f"cannot allow the origin {origin}; name exact origins such as https://app.example.org"
                )
        self._origins = frozenset(origin.lower().encode("ascii") for origin in origins)

    def headers(self, request: Mapping[bytes, bytes]) -> Headers:
        if not self._origins:
            return ()
        vary = (b"vary", b"Origin")
        origin = request.get(b"origin", b"")
        if origin.lower() not in self._origins:
            return (vary,)
        return (
            vary,
            (b"access-control-allow-origin", origin),
            (b"access-control-allow-credentials", b"true"),
            (b"access-control-expose-headers", _EXPOSED),
        )

    def preflight(self, method: str, request: Mapping[bytes, bytes], allow: str) -> Written | None:
        """The answer to a browser that asks before it calls; None if this is not one, or not from a listed origin."""
        if method != "OPTIONS" or b"access-control-request-method" not in request:
            return None
        if request.get(b"origin", b"").lower() not in self._origins:
            return None
        return Written(
            204,
            headers=(
                (b"access-control-allow-methods", allow.encode("ascii")),
                (b"access-control-allow-headers", _ALLOWED_HEADERS),
                (b"access-control-max-age", _PREFLIGHT_SECONDS),
            ),
        )


class Hosts:
    """The names by which the server may be called: a page elsewhere whose name was made to point here is refused."""

    def __init__(self, names: Collection[str] | None) -> None:
        self._names = None if names is None else frozenset(name.lower().strip("[]") for name in names)

    def check(self, request: Mapping[bytes, bytes]) -> None:
        if self._names is None:
            return
        if _name(request.get(b"host", b"").decode("latin-1")) not in self._names:
            raise invalid("header.Host", "a name that this server is called by")


def _name(host: str) -> str:
    """Without the port; an IPv6 address without its brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()
