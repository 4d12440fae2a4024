"""A server that misbehaves on the wire as told: raw bytes over a real socket, a thread for each connection."""

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

LIMIT = 20.0  # seconds that a connection of a test may last at most
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
HELLO = b": legation\nretry: 20\n\n"


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


class Cut(Exception):
    """Raised by a script: the connection is reset."""


Script = Callable[[Asked], Iterable[bytes]]


@dataclass
class FaultServer:
    script: Script
    asked: list[Asked] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    connections: int = 0

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def close(self) -> None:
        self.over.set()
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), 1).close()  # wakes `accept`
        self._accepting.join(LIMIT)
        self._listener.close()
        for thread in self._threads:
            thread.join(LIMIT)
            assert not thread.is_alive()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            if self.over.is_set():
                connection.close()
                return
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(LIMIT)
        with connection, suppress(OSError):
            asked = _read_request(connection)
            if asked is None:
                return
            self.asked.append(asked)
            try:
                for piece in self.script(asked):
                    connection.sendall(piece)
            except Cut:
                # A reset rather than an orderly end.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _read_request(connection: socket.socket) -> Asked | None:
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            return None
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    while len(body) < int(headers.get("content-length", "0")):
        body += connection.recv(65536)
    parts = urlsplit(target)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    return Asked(method, parts.path, query, headers, body)


@contextmanager
def serving(script: Script) -> Iterator[FaultServer]:
    server = FaultServer(script)
    try:
        yield server
    finally:
        server.close()


def in_turn(*answers: bytes | Iterable[bytes]) -> Script:
    """One answer for each request, the last one for all that follow."""
    left = list(answers)

    def script(_: Asked) -> Iterable[bytes]:
        answer = left.pop(0) if len(left) > 1 else left[0]
        return [answer] if isinstance(answer, bytes) else answer

    return script


def answer(status: int, body: bytes, media: str = "application/json", **headers: str) -> bytes:
    lines = [
        f"HTTP/1.1 {status} X",
        f"Content-Type: {media}",
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def ok(value: object) -> bytes:
    return answer(200, json.dumps(value).encode())


def problem(status: int, code: str, detail: str, data: object = None, **headers: str) -> bytes:
    body = {"type": "x", "title": "X", "status": status, "detail": detail, "code": code, "data": data}
    return answer(status, json.dumps(body).encode(), "application/problem+json", **headers)


def html(status: int, **headers: str) -> bytes:
    return answer(status, b"<html>Bad Gateway, says a proxy</html>", "text/html", **headers)


def event(seq: int, raw: str = "{}") -> bytes:
    return f'id: {seq}\ndata: {{"seq":{seq},"at":{1000 + seq},"type":"t","raw":{raw}}}\n\n'.encode()


def tagged(stream: str, seq: int) -> bytes:
    line = f'{{"seq":{seq},"at":1,"type":"t","raw":{{}}}}'
    return f'id: 0.0\ndata: {{"stream":"{stream}","event":{line}}}\n\n'.encode()


def notice(name: str, **data: str) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


END = notice("end", reason="deleted")
BYE = notice("bye", reason="shutdown")
