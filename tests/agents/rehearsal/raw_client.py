"""A client of a few lines that shares no code with Legation: raw NDJSON, every wait bounded."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WAIT = 20.0  # the agent's time for anything, on a busy machine
Handler = Callable[[dict[str, Any]], Any]

EVERYTHING = {
    "fs": {"readTextFile": True, "writeTextFile": True},
    "terminal": True,
    "session": {"configOptions": {"boolean": {}}, "notices": {}, "compaction": {}},
    "elicitation": {"form": {}, "url": {}},
}


class RefusedError(Exception):
    """Raised by a handler to answer with a JSON-RPC error."""


def signals_as_usual() -> None:
    """Whoever starts the tests by nohup, or in the background of a shell, has them ignore some signals."""
    for ignored in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(ignored, signal.SIG_DFL)


def choose(option: str) -> Handler:
    return lambda _: {"outcome": {"outcome": "selected", "optionId": option}}


@dataclass
class Played:
    """All that one request brought: updates, requests of the agent, and the answer."""

    updates: list[dict[str, Any]] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    answer: dict[str, Any] = field(default_factory=dict)

    @property
    def stop(self) -> str:
        return str(self.answer["result"]["stopReason"])

    @property
    def text(self) -> str:
        return "".join(u["content"]["text"] for u in self.of("agent_message_chunk"))

    def of(self, tag: str) -> list[dict[str, Any]]:
        return [update for update in self.updates if update["sessionUpdate"] == tag]

    def statuses(self) -> list[str]:
        return [
            u["status"] for u in self.updates if u["sessionUpdate"].startswith("tool_call") and "status" in u
        ]

    @property
    def outcome(self) -> dict[str, Any]:
        """The last word on the last tool call."""
        return self.of("tool_call_update")[-1]


class RawClient:
    def __init__(self, home: Path, *options: str, env: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "legation.agents.rehearsal", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"HOME": str(home), "PATH": os.defpath, "TMPDIR": str(home), **(env or {})},
            start_new_session=True,
            preexec_fn=signals_as_usual,
        )
        self.handlers: dict[str, Handler] = {"session/request_permission": choose("allow-once")}
        self.lines: list[bytes] = []
        self.messages: list[dict[str, Any]] = []
        self.stderr = bytearray()
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._last_id = 100
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._read, self._drain)]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self._queue.put(line)
        self._queue.put(None)

    def _drain(self) -> None:
        assert self.process.stderr
        while block := os.read(self.process.stderr.fileno(), 1 << 16):
            self.stderr += block

    def write(self, data: bytes) -> None:
        assert self.process.stdin
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def send(self, **message: Any) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def read_line(self) -> bytes | None:
        line = self._queue.get(timeout=WAIT)
        if line is not None:
            self.lines.append(line)
        return line

    def read(self) -> dict[str, Any]:
        line = self.read_line()
        assert line is not None, f"the agent closed its output: {bytes(self.stderr)!r}"
        message = json.loads(line)
        if isinstance(message, dict):
            self.messages.append(message)
        return message if isinstance(message, dict) else {}

    def ask(self, method: str, params: Any) -> int:
        self._last_id += 1
        self.send(id=self._last_id, method=method, params=params)
        return self._last_id

    def call(self, method: str, params: Any = None) -> Played:
        return self.until(self.ask(method, {} if params is None else params))

    def until(self, request_id: int, stop: Callable[[dict[str, Any]], bool] | None = None) -> Played:
        """Everything up to the answer, or up to a message that `stop` recognises."""
        played = Played()
        while True:
            message = self.read()
            if message.get("method") == "session/update":
                played.updates.append(message["params"]["update"])
            elif "method" in message:
                played.requests.append(message)
            elif message.get("id") == request_id:
                played.answer = message
                return played
            if stop and stop(message):
                return played
            if "method" in message and "id" in message:
                self._answer(message)

    def _answer(self, message: dict[str, Any]) -> None:
        handler = self.handlers.get(message["method"])
        if handler is None:
            self.send(id=message["id"], error={"code": -32601, "message": "no such method"})
            return
        try:
            self.send(id=message["id"], result=handler(message["params"]))
        except RefusedError as error:
            self.send(id=message["id"], error={"code": -32000, "message": str(error)})

    def open(self, cwd: Path, capabilities: Mapping[str, Any] = EVERYTHING) -> str:
        self.call("initialize", {"protocolVersion": 1, "clientCapabilities": capabilities})
        return self.new(cwd)

    def new(self, cwd: Path) -> str:
        answer = self.call("session/new", {"cwd": str(cwd), "mcpServers": []}).answer
        return str(answer["result"]["sessionId"])

    def start(self, session: str, *steps: str) -> int:
        return self.ask("session/prompt", {"sessionId": session, "prompt": script(*steps)})

    def play(self, session: str, *steps: str) -> Played:
        return self.until(self.start(session, *steps))

    def prompt(self, session: str, text: str) -> Played:
        blocks = [{"type": "text", "text": text}]
        return self.call("session/prompt", {"sessionId": session, "prompt": blocks})

    def stderr_ended(self, seconds: float) -> bool:
        self._threads[1].join(seconds)
        return not self._threads[1].is_alive()

    def end_input(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()

    def close(self) -> int:
        """Ends it politely, and by force if that does not help."""
        try:
            if self.process.stdin and not self.process.stdin.closed:
                self.process.stdin.close()
            return self.process.wait(WAIT)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self.process.kill()
            return self.process.wait(WAIT)
        finally:
            for thread in self._threads:
                thread.join(WAIT)
            for pipe in (self.process.stdout, self.process.stderr):
                assert pipe
                pipe.close()


def script(*steps: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": "\n".join(("#!rehearse", *steps))}]
