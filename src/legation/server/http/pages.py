"""Pages of ours: static files of the package, and the interactive docs made from /openapi.json."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Annotated, Final

import msgspec
from starlette.responses import Response

from legation.errors import NotFound
from legation.server.http.openapi import Json
from legation.server.http.routes import OPEN, Call, Header, Routes

ASSETS: Final = Path(__file__).parents[1] / "assets"
_MEDIA: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
}

IfNoneMatch = Annotated[str | None, Header("If-None-Match")]
AcceptEncoding = Annotated[str | None, Header("Accept-Encoding")]


class StaticFile(msgspec.Struct, frozen=True):
    """A file that changes only with the program: kept by the browser, asked for again by its tag."""

    data: bytes
    media: str
    tag: str

    @classmethod
    def of(cls, data: bytes, media: str) -> StaticFile:
        return cls(data, media, f'"{hashlib.sha256(data).hexdigest()[:32]}"')

    def answer(self, known: str | None, accepts: str | None = None) -> Response:
        headers = {"etag": self.tag, "cache-control": "no-cache", "vary": "Accept-Encoding"}
        if known is not None and (known.strip() == "*" or self.tag in known):
            return Response(status_code=304, headers=headers)
        headers["content-type"] = self.media
        if accepts is not None and "gzip" in accepts:
            return Response(_gzipped(self.data), headers={**headers, "content-encoding": "gzip"})
        return Response(self.data, headers=headers)


@cache
def _gzipped(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def read_files(folder: Path) -> dict[str, StaticFile]:
    """Read the files of a page, by their path below its folder."""
    return {
        str(each.relative_to(folder)): StaticFile.of(each.read_bytes(), _MEDIA[each.suffix])
        for each in sorted(folder.rglob("*"))
        if each.suffix in _MEDIA
    }


def add_page(routes: Routes, path: str, folder: str) -> None:
    """Declare a page of ours and the files of its folder; the page is the one that is HTML."""

    @cache
    def files() -> dict[str, StaticFile]:  # read when one is first asked for: most servers show no page
        return read_files(ASSETS / folder)

    @routes.get(path, access=OPEN, media="text/html", listed=False)
    async def read_page(call: Call, if_none_match: IfNoneMatch = None) -> Response:  # noqa: ARG001
        """The page."""
        page = next(file for name, file in files().items() if name.endswith(".html"))
        return page.answer(if_none_match)

    @routes.get(f"{path}/{{name}}", access=OPEN, media="*/*", listed=False)
    async def read_file(call: Call, name: str, if_none_match: IfNoneMatch = None) -> Response:  # noqa: ARG001
        """A file of the page."""
        if name not in files():
            raise NotFound(f"cannot find this file; the page is at {path}")
        return files()[name].answer(if_none_match)


def docs_routes(document: Callable[[], Json]) -> Routes:
    """Declare /openapi.json and the interactive docs made from it."""
    routes = Routes(tag="docs")

    @cache
    def openapi() -> StaticFile:
        return StaticFile.of(msgspec.json.encode(document()), "application/json")

    @routes.get("/openapi.json", access=OPEN, listed=False)
    async def read_openapi(call: Call, if_none_match: IfNoneMatch = None) -> Response:  # noqa: ARG001
        """This document."""
        return openapi().answer(if_none_match)

    add_page(routes, "/docs", "docs")
    return routes
