"""A browser sends its cookie with whatever page makes it call us: a change is taken from our own pages alone.

Another port of this machine is the same *site* for a browser, so that SameSite does not keep it out; this does.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request

from legation.errors import Forbidden

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_OURS: Final = frozenset({"same-origin", "none"})  # "none": the person's own doing, no page's


class OwnOrigins:
    """`public_url`, whatever name the request is addressed to, and the origins that the owner listed."""

    def __init__(self, public_url: str, listed: Collection[str] = ()) -> None:
        parts = urlsplit(public_url)
        self._origins = frozenset(
            {f"{parts.scheme}://{parts.netloc}".lower(), *(each.lower() for each in listed)}
        )

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
        if request.headers.get("sec-fetch-site") in _OURS:
            return True
        origin = request.headers.get("origin", "").lower()
        return origin in self._origins or (
            origin != "" and urlsplit(origin).netloc == request.headers.get("host", "").lower()
        )
