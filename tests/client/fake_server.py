"""Stands in for `legation server` in the tests of `start`: healthy, or wrong in the way FAKE says."""

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

FAULT = os.environ.get("FAKE", "")


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        ours = self.headers.get("Authorization") == f"Bearer {os.environ['LEGATION_TOKEN']}"
        if self.path == "/v1/health" and FAULT != "sick":
            self.reply(200, {"status": "ok"})
        elif self.path == "/v1/server" and ours:
            self.reply(200, about())
        else:
            self.reply(503 if FAULT == "sick" else 401, {})

    def reply(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


def about() -> dict[str, object]:
    """As ServerInfo, with what a test wants to know of this process in its `url`."""
    seen = {"argv": sys.argv[1:], "env": dict(os.environ), "cwd": str(Path.cwd())}
    return {
        "version": "0",
        "mode": "server",
        "database": "sqlite",
        "schemaVersion": 1,
        "url": json.dumps(seen),
        "pid": os.getpid(),
        "startedAt": 1,
    }


def say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def main() -> None:
    say("fake server starts")
    if FAULT == "exits":
        say(f"no luck, and the token is {os.environ['LEGATION_TOKEN']}")
        sys.exit(3)
    if FAULT == "chatty":
        say("x" * 300_000)
    if FAULT == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen(["sleep", "600"])
        Path(os.environ["LEGATION_DATA_DIR"], "grandchild").write_text(str(child.pid))
    port = int(sys.argv[sys.argv.index("--port") + 1])
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    if FAULT != "stubborn":
        threading.Thread(target=leave_with_parent, daemon=True).start()
    server.serve_forever()


def leave_with_parent() -> None:
    sys.stdin.read()
    os._exit(0)


main()
