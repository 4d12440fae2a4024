"""The answer to a POST with a request: headers early, and a space now and then, until there is something to say.

A turn may take an hour, and what stands between (Node's `fetch`: five minutes; proxies: less) gives up on silence.
JSON may begin with spaces, so nobody who reads the whole body notices.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

QUICK: Final = 1.0  # seconds for an answer that goes out whole, with its length: the agent's time
SPACE_EVERY: Final = 5.0  # seconds of silence on the line: a quarter of what impatient proxies allow


class PatientReply(Response):
    media_type = "application/json"

    def __init__(
        self, coming: asyncio.Future[bytes], *, quick: float = QUICK, space: float = SPACE_EVERY
    ) -> None:
        self.status_code = 200
        self.background = None
        self._coming = coming
        self._quick = quick
        self._space = space
        self.init_headers({"content-type": "application/json", "x-accel-buffering": "no"})

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.wait({self._coming}, timeout=self._quick)
        headers = list(self.raw_headers)
        if self._coming.done():
            headers.append((b"content-length", b"%d" % len(self._coming.result())))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if not self._coming.done():
            await self._wait(receive, send)
        if self._coming.done():
            await send({"type": "http.response.body", "body": self._coming.result(), "more_body": False})

    async def _wait(self, receive: Receive, send: Send) -> None:
        leaving = asyncio.create_task(_until_gone(receive))
        try:
            while not leaving.done():
                await send({"type": "http.response.body", "body": b" ", "more_body": True})
                first: set[asyncio.Future[Any]] = {self._coming, leaving}
                await asyncio.wait(first, timeout=self._space, return_when=asyncio.FIRST_COMPLETED)
                if self._coming.done():
                    return
        finally:
            leaving.cancel()
            with suppress(asyncio.CancelledError):
                await leaving


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
