"""A client for the scripted model: whole answers through the standard library, pieces through a bare socket."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

WAIT = 60.0  # the test's patience, in seconds
TOOLS = [{"name": "Write", "input_schema": {"type": "object"}}]


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, object]:
        found = json.loads(self.body)
        assert isinstance(found, dict)
        return found

    @property
    def events(self) -> list[dict[str, object]]:
        lines = self.body.decode().splitlines()
        return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


def body(text: str = "hello", **members: object) -> dict[str, object]:
    messages = [{"role": "user", "content": [{"type": "text", "text": text}]}]
    return {"model": "m-1", "max_tokens": 10, "messages": messages, "tools": TOOLS, **members}


async def ask(url: str, text: str = "hello", **members: object) -> Answer:
    return await send(url, "POST", "/v1/messages?beta=true", json.dumps(body(text, **members)).encode())


async def send(url: str, method: str, path: str, content: bytes = b"") -> Answer:
    return await asyncio.to_thread(_send, url, method, path, content)


def _send(url: str, method: str, path: str, content: bytes) -> Answer:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=WAIT)
    try:
        connection.request(method, path, content)
        answer = connection.getresponse()
        return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
    finally:
        connection.close()


async def open_stream(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Asks for a stream and leaves the rest to the caller."""
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    content = json.dumps(body(stream=True)).encode()
    writer.write(b"POST /v1/messages HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (len(content), content))
    return reader, writer
