"""uvicorn's WebSocket, with the bounds and the silence that it leaves out.

INV-U3  A client that takes nothing is cut off: closing would wait for it to take what it does not take.
INV-U4  Nothing of a handshake is logged: its address may hold a token, its headers do.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

# Seconds: the client's time to take the last frames, once nobody serves it any more.
CLOSE_LIMIT: Final = 15.0

_quiet: Final = logging.getLogger("legation.server.websocket")
_quiet.setLevel(logging.ERROR)
# uvicorn says so of every handshake that is refused: whoever is nobody could fill the log with it.
_quiet.addFilter(lambda record: "without completing handshake" not in record.getMessage())


class BoundedWebSocket(WebSocketsSansIOProtocol):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.logger = _quiet
        self.conn.logger = _quiet
        self.conn.debug = False

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self.transport.abort()

    async def run_asgi(self) -> None:
        try:
            await super().run_asgi()
        finally:
            self.loop.call_later(CLOSE_LIMIT, self.transport.abort)
