"""Pages of ours: static files of the package, and the interactive docs made from /openapi.json."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec
from starlette.responses import Response

from legation.errors import NotFound
from legation.server.http.openapi import Json
from legation.server.http.routes import OPEN, Call, Header, Routes

ASSETS: Final = Path(__file__).parents[1] / "assets"
_MEDIA: Final = {".html": "text/html; charset=utf-8", ".css": "text/css", ".js": "text/javascript"}

IfNoneMatch = Annotated[str | None, Header("If-None-Match")]


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file that changes only with the program: kept by the browser, asked for again by its tag."""

    data: bytes
    media: str
    tag: str

    @classmethod
    def of(cls, data: bytes, media: str) -> StaticFile:
        return cls(data, media, f'"{hashlib.sha256(data).hexdigest()[:32]}"')

    def answer(self, known: str | None) -> Response:
        headers = {"etag": self.tag, "cache-control": "no-cache"}
        if known is not None and (known.strip() == "*" or self.tag in known):
            return Response(status_code=304, headers=headers)
        return Response(self.data, headers={**headers, "content-type": self.media})


def add_page(routes: Routes, path: str, folder: str) -> None:
    """Declare a page of ours and the files of its folder; the page is the one that is HTML."""
    files = {
        each.name: StaticFile.of(each.read_bytes(), _MEDIA[each.suffix])
        for each in sorted((ASSETS / folder).iterdir())
        if each.suffix in _MEDIA
    }
    page = next(file for name, file in files.items() if name.endswith(".html"))

    @routes.get(path, access=OPEN, media="text/html", listed=False)
    async def read_page(call: Call, if_none_match: IfNoneMatch = None) -> Response:  # noqa: ARG001
        """The page."""
        return page.answer(if_none_match)

    @routes.get(f"{path}/{{name}}", access=OPEN, media="*/*", listed=False)
    async def read_file(call: Call, name: str, if_none_match: IfNoneMatch = None) -> Response:  # noqa: ARG001
        """A file of the page."""
        if name not in files:
            raise NotFound(f"cannot find this file; the page is at {path}")
        return files[name].answer(if_none_match)


def docs_routes(document: Json) -> Routes:
    """Declare /openapi.json and the interactive docs made from it."""
    routes = Routes(tag="docs")
    openapi = StaticFile.of(msgspec.json.encode(document), "application/json")

    @routes.get("/openapi.json", access=OPEN, listed=False)
    async def read_openapi(call: Call, if_none_match: IfNoneMatch = None) -> Response:  # noqa: ARG001
        """This document."""
        return openapi.answer(if_none_match)

    add_page(routes, "/docs", "docs")
    return routes
