"""Hosts and origins: which names the server is called by, and which pages may call it."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from starlette.requests import Request

from legation.errors import ConfigInvalid, Forbidden
from legation.server.http.request import invalid
from legation.server.http.response import Headers, Written

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_EXPOSED: Final = b"ETag, Link, Location, Request-Id, Retry-After"
_ALLOWED_HEADERS: Final = (
    b"Authorization, Content-Type, Last-Event-ID, Legation-Workspace, Prefer, X-Request-Id"
)
_PREFLIGHT_SECONDS: Final = b"600"  # the browser's: how long it may remember the answer
_LONGEST: Final = 262  # bytes of `name:port`: 255 of a name, its port, and an address' brackets
_AUTHORITY: Final = re.compile(
    r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*))(?::(?P<port>[0-9]{1,5}))?",
    re.ASCII,
)
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_OURS: Final = frozenset({"same-origin", "none"})  # "none": the person's own doing, no page's


class Authority(NamedTuple):
    """Addressee of a request, in one spelling: lower case, an IPv6 address in its short form, no brackets."""

    name: str
    port: int | None


class PageOrigin(NamedTuple):
    scheme: str
    name: str
    port: int


@lru_cache(maxsize=256)  # a server has few names, and is called by them all day
def read_authority(text: str) -> Authority | None:
    """Read `name`, `name:port` or `[address]:port`; None for every other spelling."""
    # What is read leniently here is read otherwise elsewhere, and then a foreign name passes for ours.
    found = _AUTHORITY.fullmatch(text) if len(text) <= _LONGEST else None
    if found is None:
        return None
    port = None if found["port"] is None else int(found["port"])
    if port is not None and not 0 < port < 65536:
        return None
    if found["name"] is not None:
        return Authority(found["name"].lower(), port)
    try:
        return Authority(str(ipaddress.IPv6Address(found["address"])), port)
    except ValueError:
        return None


def read_origin(text: str) -> PageOrigin | None:
    """Read `scheme://authority` as browsers send it, with the port that the scheme implies; None for whatever is none."""
    scheme, _, rest = text.partition("://")
    scheme = scheme.lower()
    authority = read_authority(rest) if scheme in _DEFAULT_PORTS else None
    if authority is None:
        return None
    return PageOrigin(scheme, authority.name, authority.port or _DEFAULT_PORTS[scheme])


class Origins:
    """Exact origins (`https://app.example.org`) whose pages may call with the user's credentials."""

    def __init__(self, origins: Collection[str]) -> None:
        for origin in origins:
            if read_origin(origin) is None:
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
        """Answer a browser that asks before it calls; None if this is not one, or not from a listed origin."""
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
    """The names by which the server may be called: a page elsewhere whose name was made to point here is refused.

    INV-H1  A request names exactly one host, in a spelling that has one meaning; an HTTP/1.0 one may name none where
            every name will do."""

    def __init__(self, names: Collection[str] | None) -> None:
        self._names = None if names is None else frozenset(map(_name, names))

    def check(self, headers: Iterable[tuple[bytes, bytes]], http_version: str = "1.1") -> None:
        found = [value for name, value in headers if name == b"host"]
        if not found and self._names is None and http_version == "1.0":
            return
        asked = read_authority(found[0].decode("latin-1")) if len(found) == 1 else None
        if asked is None or (self._names is not None and asked.name not in self._names):
            raise invalid("header.Host", "a name that this server is called by")


def _name(listed: str) -> str:
    """Read it as a request's; an IPv6 address may be listed with its brackets or without."""
    bare = listed.strip("[]")
    read = read_authority(f"[{bare}]" if ":" in bare else bare)
    return bare.lower() if read is None else read.name


class OwnOrigins:
    """Origins of our own pages: `public_url`, the name that a request is addressed to, and those that the owner listed.

    A browser sends its cookie with whatever page makes it call us, so a change is taken from these alone. Another port of
    this machine is the same *site* for a browser: SameSite does not keep that out, this does."""

    def __init__(self, public_url: str, listed: Collection[str] = ()) -> None:
        known = map(read_origin, (public_url.rstrip("/"), *listed))
        self._origins = frozenset(origin for origin in known if origin is not None)

    def check(self, request: Request) -> None:
        """Refuse a call that a cookie vouches for, unless the page that made it is known, and ours."""
        if request.method not in SAFE_METHODS and not self._is_ours(request):
            raise Forbidden(
                "cannot take this from a page of another site; open Legation's own page, or call with a token"
            )

    def check_page(self, request: Request) -> None:
        """Refuse a call that needs no cookie only if its page is known to be another's."""
        if ("origin" in request.headers or "sec-fetch-site" in request.headers) and not self._is_ours(
            request
        ):
            raise Forbidden("cannot sign in from a page of another site; open the link itself")

    def _is_ours(self, request: Request) -> bool:
        origins, sites = (request.headers.getlist(name) for name in ("origin", "sec-fetch-site"))
        if len(origins) > 1 or len(sites) > 1:  # no browser says it twice
            return False
        origin = read_origin(origins[0]) if origins else None
        if origins and origin is None and origins[0] != "null":
            return False  # nor in a spelling of its own, whatever else it says
        if sites and sites[0] in _OURS:
            return True
        # The scheme counts: the page of the same name over http may be anybody's on the way.
        addressed = read_origin(f"{request.scope['scheme']}://{request.headers.get('host', '')}")
        return origin is not None and (origin in self._origins or origin == addressed)
