"""Lists in parts: `?limit=&after=`, and bare arrays with a Link header (RFC 8288) as seed 001 has them."""

from __future__ import annotations

from typing import Annotated, Final, TypeVar
from urllib.parse import parse_qsl, quote, urlencode

from msgspec import Meta

from legation.server.http.routes import Call, RouteReply
from legation.wire.api.shape import Page

PageLimit = Annotated[int, Meta(ge=1, le=500)]  # `?limit=` of every list of identity
PLACE: Final = "after"  # the query parameter that says where a part begins

T = TypeVar("T")


def listed(call: Call, page: Page[T]) -> RouteReply[list[T]]:
    """Answer with the items, and `Link: </path?same query&after=...>; rel="next"` unless they are the last."""
    if page.next is None:
        return RouteReply(page.items)
    return RouteReply(page.items, headers={"Link": f'<{_further(call, page.next)}>; rel="next"'})


def _further(call: Call, place: str) -> str:
    # Without scheme and host: the caller knows better by which name it reaches us.
    asked = parse_qsl(call.request.url.query, keep_blank_values=True)  # `read_query` found it good
    kept = [(name, value) for name, value in asked if name != PLACE]
    return f"{quote(call.request.url.path, safe='/%')}?{urlencode([*kept, (PLACE, place)])}"
