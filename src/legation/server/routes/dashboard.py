"""The dashboard under /ui: one page for every address of it, and the files that it is made of.

The page is open: it holds nothing of anybody's. What it shows comes from the API, with the cookie of the browser.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from starlette.responses import RedirectResponse, Response

from legation.errors import NotFound
from legation.server.http.pages import AcceptEncoding, IfNoneMatch, StaticFile, read_files
from legation.server.http.routes import OPEN, Call, Routes

FOLDER: Final = Path(__file__).parents[2] / "dashboard"
_ROOT: Final = b"@/"  # in the page, in front of what is relative to Legation's own root

routes = Routes(tag="dashboard")


@cache
def _files() -> dict[str, StaticFile]:
    return read_files(FOLDER)


@cache
def _page(depth: int) -> StaticFile:
    # Relative, because Legation may stand behind a proxy, below a path of its own.
    data = (FOLDER / "index.html").read_bytes().replace(_ROOT, b"../" * depth or b"./")
    return StaticFile.of(data, "text/html; charset=utf-8")


@routes.get("/", access=OPEN, media="text/html", listed=False)
async def home(_: Call) -> Response:
    """To the inbox, where a browser begins."""
    return RedirectResponse("ui/inbox", status_code=303)


@routes.get("/ui", access=OPEN, media="text/html", listed=False)
async def begin_dashboard(_: Call) -> Response:
    """To the inbox."""
    return RedirectResponse("ui/inbox", status_code=303)


@routes.get("/ui/", access=OPEN, media="text/html", listed=False, unread=True)
async def begin_dashboard_below(_: Call) -> Response:
    """To the inbox, from an address with a slash at its end."""
    return RedirectResponse("inbox", status_code=303)


@routes.get("/ui/{page}", access=OPEN, media="text/html", listed=False, unread=True)
async def read_dashboard(_: Call) -> Response:
    """The page, at an address of one part; its own search stands in the query."""
    return _page(1).answer(None)


@routes.get("/ui/{page}/{id}", access=OPEN, media="text/html", listed=False, unread=True)
async def read_dashboard_item(_: Call) -> Response:
    """The page, at one item or session."""
    return _page(2).answer(None)


@routes.get("/ui/{page}/{id}/{kind}/{name}", access=OPEN, media="text/html", listed=False, unread=True)
async def read_dashboard_question(_: Call) -> Response:
    """The page, at a question of a session."""
    return _page(4).answer(None)


@routes.get("/ui/assets/{name}", access=OPEN, media="*/*", listed=False)
async def read_dashboard_file(
    _: Call, name: str, if_none_match: IfNoneMatch = None, accept_encoding: AcceptEncoding = None
) -> Response:
    """A file of the dashboard."""
    return _file(name).answer(if_none_match, accept_encoding)


@routes.get("/ui/assets/{folder}/{name}", access=OPEN, media="*/*", listed=False)
async def read_dashboard_module(
    _: Call, folder: str, name: str, if_none_match: IfNoneMatch = None, accept_encoding: AcceptEncoding = None
) -> Response:
    """A file in a folder of the dashboard."""
    return _file(f"{folder}/{name}").answer(if_none_match, accept_encoding)


def _file(name: str) -> StaticFile:
    if name not in _files():
        raise NotFound("cannot find this file; the dashboard is at /ui")
    return _files()[name]
