"""A caller of runners that keeps all it knows in a file, works until a test kills it, and goes on from there.

argv: PORT FILE TOKEN. What is answered with 200 is on the disk; each permission is approved, to be used. A line of the file
that has no end was never answered.
"""

import hashlib
import hmac
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

PORT, FILE, TOKEN = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
POLL = 0.2  # seconds that a poll is held

lock = Lock()
whole = FILE.read_bytes() if FILE.exists() else b""
whole = whole[: whole.rfind(b"\n") + 1]
lines: list[dict[str, Any]] = [json.loads(line) for line in whole.splitlines()]
file = os.open(FILE, os.O_WRONLY | os.O_CREAT)
os.ftruncate(file, len(whole))
os.lseek(file, len(whole), os.SEEK_SET)


def keep(**line: Any) -> None:
    lines.append(line)
    os.write(file, json.dumps(line).encode() + b"\n")
    os.fsync(file)


def of(kind: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["line"] == kind]


def commands() -> list[dict[str, Any]]:
    asked = [line["report"]["permission"]["id"] for line in of("report") if "options" in line["text"]]
    told = {"kind": "answer", "outcome": "approved", "by": "ada", "mustUse": True}
    return [{"id": at, "permission": each, **told} for at, each in enumerate(asked, 1)]


class Keeper(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        with lock:
            if not self.is_signed(body):
                self.answer(401)
            elif "/use?" in self.path:
                number = int(self.path.split("/use?")[0].rpartition("/")[2])
                if number not in [line["number"] for line in of("use")]:
                    keep(line="use", number=number)
                self.answer(200)
            else:
                self.answer(self.take(body.decode()))

    def take(self, text: str) -> int:
        report = json.loads(text)
        if report["kind"] == "heartbeat":
            return 200
        taken = of("report")
        sequence = report["sequence"]
        if sequence <= len(taken):
            same = taken[sequence - 1]["text"] == text
            keep(line="again" if same else "another body", number=sequence)
            return 200
        if sequence != len(taken) + 1:
            keep(line="a gap", number=sequence)
            return 400
        keep(line="report", text=text, report=report)
        return 200

    def do_GET(self) -> None:
        after = int(self.path.split("after=")[1].split("&")[0])
        until = time.monotonic() + POLL
        with lock:
            good = self.is_signed(b"")
        while not (found := commands()[after:]) and time.monotonic() < until:
            time.sleep(0.01)
        self.answer(200 if good else 401, {"commands": found})

    def is_signed(self, body: bytes) -> bool:
        """And was never used before, in an earlier life either."""
        stamp, nonce = (self.headers[f"x-supervisor-{name}"] for name in ("timestamp", "nonce"))
        wanted = hmac.new(TOKEN.encode(), f"{stamp}.{nonce}.".encode() + body, hashlib.sha256).hexdigest()
        fresh = nonce not in [line["nonce"] for line in of("nonce")]
        keep(line="nonce", nonce=nonce)
        return fresh and self.headers["x-supervisor-signature"] == f"sha256={wanted}"

    def answer(self, status: int, told: object = None) -> None:
        body = json.dumps(told or {}).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


if __name__ == "__main__":
    ThreadingHTTPServer.daemon_threads = True
    ThreadingHTTPServer(("127.0.0.1", PORT), Keeper).serve_forever()
