"""A registry of the test's own, on loopback: it serves what it is given, well or badly, and counts."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from legation.agents.install.folder import FileMark, digest
from legation.agents.install.lock import Package

PATIENCE = 30.0  # seconds for a stalled answer to be let go on: the test's time


@dataclass
class Served:
    body: bytes
    cut_at: int | None = None  # says the whole length and sends less
    stall: bool = False  # sends half, and the rest when `LocalRegistry.go_on` is set


@dataclass
class LocalRegistry:
    url: str = ""
    files: dict[str, Served] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    reached: threading.Event = field(default_factory=threading.Event)  # a stalled answer has begun
    go_on: threading.Event = field(default_factory=threading.Event)

    @property
    def environ(self) -> dict[str, str]:
        return {"NPM_CONFIG_REGISTRY": self.url, "HOME": "/nonexistent", "PATH": "/usr/bin:/bin"}

    def serve(self, package: Package, body: bytes, **how: object) -> None:
        short = package.name.rpartition("/")[2]
        path = f"/{package.name}/-/{short}-{package.version}.tgz"
        self.files[path] = Served(body, **how)  # type: ignore[arg-type]

    def serve_elsewhere(self, package: Package, body: bytes) -> None:
        """Not in the usual place: only the list of versions tells where."""
        self.files["/somewhere/else.tgz"] = Served(body)
        dist = {"dist": {"tarball": f"{self.url}/somewhere/else.tgz"}}
        listing = json.dumps({"versions": {package.version: dist}}).encode()
        self.files["/" + package.name.replace("/", "%2F")] = Served(listing)


@contextmanager
def local_registry() -> Iterator[LocalRegistry]:
    registry = LocalRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            registry.asked.append(self.path)
            registry.tokens.append(self.headers.get("Authorization"))
            served = registry.files.get(self.path)
            if served is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(served.body)))
            self.end_headers()
            self._send(served)

        def _send(self, served: Served) -> None:
            body = served.body if served.cut_at is None else served.body[: served.cut_at]
            half = len(body) // 2 if served.stall else 0
            try:
                self.wfile.write(body[:half])
                self.wfile.flush()
                if served.stall:
                    registry.reached.set()
                    registry.go_on.wait(PATIENCE)
                self.wfile.write(body[half:])
            except OSError:  # whoever asked has gone
                self.close_connection = True

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    registry.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield registry
    finally:
        registry.go_on.set()
        server.shutdown()
        thread.join()
        server.server_close()


def tarball(files: dict[str, bytes], programs: tuple[str, ...] = ()) -> bytes:
    """A good one, as npm makes them."""
    return packed([member(f"package/{name}", body, name in programs) for name, body in files.items()])


def member(name: str, body: bytes = b"", program: bool = False) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(body), 0o755 if program else 0o644
    return info, body


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, b""


def packed(members: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, body in members:
            tar.addfile(info, io.BytesIO(body))
    return gzip.compress(out.getvalue(), mtime=0)


def locked(
    name: str,
    body: bytes,
    content: dict[str, bytes] | None = None,
    programs: tuple[str, ...] = (),
    at: str | None = None,
    **more: object,
) -> Package:
    """How the lock names a tarball; `content` is what must come out, worked out apart from the code under test."""
    marks = [
        FileMark(path, len(data), hashlib.sha256(data).hexdigest(), path in programs)
        for path, data in (content or {}).items()
    ]
    fields: dict[str, object] = {
        "at": at or f"node_modules/{name}",
        "name": name,
        "version": "1.0.0",
        "integrity": integrity(body),
        "packed": len(body),
        "size": sum(mark.size for mark in marks),
        "files": len(marks),
        "tree": digest(marks),
        **more,
    }
    return Package(**fields)  # type: ignore[arg-type]


def integrity(body: bytes) -> str:
    return f"sha512-{base64.b64encode(hashlib.sha512(body).digest()).decode()}"


def everything_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
