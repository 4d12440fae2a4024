"""A real HTTP receiver that answers as it is told."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Answer: TypeAlias = "int | Literal['hang', 'cut', 'flood'] | str"


@dataclass(frozen=True)
class Received:
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    answers: list[Answer]  # the last one stands for all that follow
    port: int = 0
    received: list[Received] = field(default_factory=list)
    arrived: asyncio.Queue[Received] = field(default_factory=asyncio.Queue)
    gone: asyncio.Event = field(default_factory=asyncio.Event)  # a caller has hung up on us
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def url(self, path: str = "/hook", scheme: str = "http", user: str = "", host: str = "127.0.0.1") -> str:
        return f"{scheme}://{user}{host}:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._answer(reader, writer, await read_request(reader))
        except asyncio.CancelledError:
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: Received
    ) -> None:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.received.append(request)
        self.arrived.put_nowait(request)
        if answer == "hang":
            await reader.read()
            self.gone.set()
        elif answer == "flood":
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            with suppress(ConnectionError):
                while True:
                    writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
                    await writer.drain()
            self.gone.set()
        elif isinstance(answer, int):
            writer.write(f"HTTP/1.1 {answer} X\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok".encode())
            await writer.drain()
        elif answer != "cut":
            writer.write(answer.encode())
            await writer.drain()

    async def end(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def read_request(reader: asyncio.StreamReader) -> Received:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in head[1:] if line)
    lower = {name.lower(): value for name, value in headers.items()}
    body = await reader.readexactly(int(lower["content-length"]))
    return Received(head[0].split(" ")[1], lower, body)


@asynccontextmanager
async def receiving(*answers: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    receiver = Receiver(list(answers) or [200])
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        await receiver.end()


def dead_port() -> int:
    """One that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
