"""A browser sends its cookie with whatever page makes it call us: a change is taken from our own pages alone.

Another port of this machine is the same *site* for a browser, so that SameSite does not keep it out; this does.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from starlette.requests import Request

from legation.errors import Forbidden
from legation.server.http.cors import read_origin

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_OURS: Final = frozenset({"same-origin", "none"})  # "none": the person's own doing, no page's


class OwnOrigins:
    """`public_url`, whatever name the request is addressed to, and the origins that the owner listed."""

    def __init__(self, public_url: str, listed: Collection[str] = ()) -> None:
        known = map(read_origin, (public_url.rstrip("/"), *listed))
        self._origins = frozenset(origin for origin in known if origin is not None)

    def check(self, request: Request) -> None:
        """For a call that a cookie vouches for: the page that made it must be known, and ours."""
        if request.method not in SAFE_METHODS and not self._is_ours(request):
            raise Forbidden(
                "cannot take this from a page of another site; open Legation's own page, or call with a token"
            )

    def check_page(self, request: Request) -> None:
        """For a call that needs no cookie: only a page that is known to be another's is refused."""
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
