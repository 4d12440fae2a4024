"""A real HTTP backend in threads of this process: it keeps every request, and answers by its path."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

LIMIT = 60.0  # seconds that a held answer waits for its release: a test's time


@dataclass(frozen=True)
class Seen:
    method: str
    path: str
    headers: dict[str, str]  # names in lower case
    body: bytes
    connection: tuple[str, int]  # whose it was

    @property
    def key(self) -> str:
        return self.headers["idempotency-key"]

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Reply:
    status: int = 200
    body: bytes = b""
    media: str | None = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False  # closed before the end that was promised


Answering = Callable[[Seen], Reply]


class Server(ThreadingHTTPServer):
    """Calls come all at once, and a server under test is killed in the middle of them."""

    daemon_threads = True
    request_queue_size = 512

    def handle_error(self, request: object, client_address: object) -> None:
        """A caller that was killed is no error of ours."""


class Backend:
    """`answers` by path; a path without one is echoed. `hold` keeps every answer back until `release`."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.answers: dict[str, Answering] = {}
        self.free = threading.Event()
        self.free.set()
        self.changed = threading.Condition()
        backend = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one(self) -> None:
                backend.serve(self)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_one  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self.server = Server(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def counts(self) -> Counter[str]:
        """How often each effect was asked for."""
        return Counter(each.key for each in self.seen)

    def wait_for(self, many: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.seen) >= many, LIMIT)

    def serve(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("content-length") or 0))
        seen = Seen(
            handler.command,
            handler.path,
            {name.lower(): value for name, value in handler.headers.items()},
            body,
            handler.client_address,
        )
        with self.changed:
            self.seen.append(seen)
            self.changed.notify_all()
        assert self.free.wait(LIMIT)
        answer = self.answers.get(urlsplit(seen.path).path, echo)(seen)
        handler.send_response(answer.status)
        for name, value in answer.headers.items():
            handler.send_header(name, value)
        if answer.media is not None:
            handler.send_header("Content-Type", answer.media)
        handler.send_header("Content-Length", str(len(answer.body) + (1 if answer.cut else 0)))
        handler.end_headers()
        handler.wfile.write(answer.body)
        if answer.cut:
            handler.close_connection = True


def echo(seen: Seen) -> Reply:
    return Reply(body=json.dumps({"got": json.loads(seen.body or b"null")}).encode())


@contextmanager
def backend() -> Iterator[Backend]:
    made = Backend()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.free.set()
        made.server.shutdown()
        made.server.server_close()
        thread.join()
