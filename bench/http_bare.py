"""The floor under both: an ASGI application that reads nothing and always answers the same."""

from typing import Any

ANSWER = b'{"id":"thing_1"}' * 15
HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(ANSWER))]


async def app(_: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 201, "headers": HEADERS})
    await send({"type": "http.response.body", "body": ANSWER})
