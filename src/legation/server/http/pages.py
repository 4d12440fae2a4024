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


def static_files(folder: str) -> dict[str, StaticFile]:
    """Read the files of one page, by name."""
    return {
        path.name: StaticFile.of(path.read_bytes(), _MEDIA[path.suffix])
        for path in sorted((ASSETS / folder).iterdir())
        if path.suffix in _MEDIA
    }


def docs_routes(document: Json) -> Routes:
    routes = Routes(tag="docs")
    openapi = StaticFile.of(msgspec.json.encode(document), "application/json")
    files = static_files("docs")

    @routes.get("/openapi.json", access=OPEN, listed=False)
    async def read_openapi(call: Call, if_none_match: IfNoneMatch = None) -> Response:  # noqa: ARG001
        """This document."""
        return openapi.answer(if_none_match)

    @routes.get("/docs", access=OPEN, media="text/html", listed=False)
    async def read_docs(call: Call, if_none_match: IfNoneMatch = None) -> Response:  # noqa: ARG001
        """The interactive docs."""
        return files["docs.html"].answer(if_none_match)

    @routes.get("/docs/{name}", access=OPEN, media="*/*", listed=False)
    async def read_docs_file(call: Call, name: str, if_none_match: IfNoneMatch = None) -> Response:  # noqa: ARG001
        """A file of the interactive docs."""
        if name not in files:
            raise NotFound("cannot find this file; the docs are at /docs")
        return files[name].answer(if_none_match)

    return routes
