"""`/`: where a browser begins."""

from __future__ import annotations

from starlette.responses import RedirectResponse, Response

from legation.server.http.access import OPEN
from legation.server.http.call import Call
from legation.server.http.routes import Routes

routes = Routes(tag="docs")


@routes.get("/", access=OPEN, media="text/html", listed=False)
async def home(_: Call) -> Response:
    """To the interactive docs, until there is a dashboard."""
    return RedirectResponse("/docs", status_code=303)
