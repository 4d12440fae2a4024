"""/openapi.json and the interactive docs made from it: three static files, no framework, nothing from elsewhere."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from legation.errors import NotFound
from legation.server.http.access import OPEN
from legation.server.http.call import Call
from legation.server.http.openapi import Json
from legation.server.http.routes import Routes
from legation.server.http.static import IfNoneMatch, Static, static_files


def docs_routes(document: Json) -> Routes:
    routes = Routes(tag="docs")
    openapi = Static.of(msgspec.json.encode(document), "application/json")
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
