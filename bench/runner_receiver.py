"""A caller of runners that costs as little as can be: answers 200, or 503 while it is down.

Prints its port. `POST /up` lets it be up, `POST /down` takes it down, `POST /sizes` gives the lengths of what it has taken.
"""

from __future__ import annotations

import asyncio
import json

import uvloop

GOOD = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
DOWN = b"HTTP/1.1 503 Down\r\ncontent-length: 0\r\n\r\n"


class Receiver(asyncio.Protocol):
    is_up = True
    sizes: list[int] = []  # noqa: RUF012 - of the process, not of a connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._data = bytearray()
        self._wanted = 0
        self._path = b""

    def data_received(self, data: bytes) -> None:
        self._data += data
        while True:
            if not self._wanted:
                end = self._data.find(b"\r\n\r\n")
                if end < 0:
                    return
                head = bytes(self._data[:end]).lower()
                length = head.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0]
                self._path = head.split(b" ", 2)[1]
                self._length = int(length)
                self._wanted = end + 4 + self._length
            if len(self._data) < self._wanted:
                return
            del self._data[: self._wanted]
            self._wanted = 0
            if self._path in (b"/up", b"/down"):
                Receiver.is_up = self._path == b"/up"
            if self._path == b"/sizes":
                told = json.dumps(Receiver.sizes).encode()
                answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(told), told)
                self._transport.write(answer)  # type: ignore[attr-defined]
                continue
            good = Receiver.is_up or self._path == b"/down"
            if good and self._path == b"/reports":
                Receiver.sizes.append(self._length)
            self._transport.write(GOOD if good else DOWN)  # type: ignore[attr-defined]


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Receiver, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
