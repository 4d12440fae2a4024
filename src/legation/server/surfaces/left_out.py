"""What sandbox-agent has and Legation leaves out: it says so, with 501, instead of a bare 404."""

from __future__ import annotations

from typing import Final

import msgspec
from starlette.responses import Response

from legation.server.http.access import OPEN
from legation.server.http.call import Call
from legation.server.http.operations import Handler
from legation.server.http.problems import PROBLEM_MEDIA
from legation.server.http.routes import Routes

LEFT_OUT: Final = {
    "/v1/desktop": "the desktop of sandbox-agent; start a program with /v1/processes instead",
    "/v1/config": "the MCP and skills files of sandbox-agent; give `mcp` and `skills` to POST /v1/sessions/{id}",
    "/opencode": "the OpenCode-compatible API of sandbox-agent; use /v1/sessions, or /v1/acp",
}

routes = Routes(tag="left out")


def _declare(path: str, words: str) -> None:
    async def left_out(call: Call) -> Response:
        """What Legation leaves out."""
        members = {
            "type": "urn:legation:error:not-implemented",
            "title": "Not implemented",
            "status": 501,
            "detail": f"cannot do this: Legation leaves out {words}",
            "instance": f"urn:legation:request:{call.request_id}",
        }
        return Response(msgspec.json.encode(members), status_code=501, media_type=PROBLEM_MEDIA)

    async def left_out_1(call: Call, a: str) -> Response:
        """What Legation leaves out."""
        del a
        return await left_out(call)

    async def left_out_2(call: Call, a: str, b: str) -> Response:
        """What Legation leaves out."""
        del a, b
        return await left_out(call)

    async def left_out_3(call: Call, a: str, b: str, c: str) -> Response:
        """What Legation leaves out."""
        del a, b, c
        return await left_out(call)

    async def left_out_4(call: Call, a: str, b: str, c: str, d: str) -> Response:
        """What Legation leaves out."""
        del a, b, c, d
        return await left_out(call)

    handlers: tuple[Handler, ...] = (left_out, left_out_1, left_out_2, left_out_3, left_out_4)
    for depth, handler in enumerate(handlers):
        below = "".join(f"/{{{name}}}" for name in "abcd"[:depth])
        for route in (routes.get, routes.post, routes.put, routes.patch, routes.delete):
            declared = route(
                path + below, access=OPEN, status=501, media=PROBLEM_MEDIA, listed=False, any_query=True
            )
            declared(handler)


for _path, _words in LEFT_OUT.items():
    _declare(_path, _words)
