"""One prompt being answered: what a step may say, ask and wait for."""

import os
import queue
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from legation.agents.rehearsal.connection import Connection, Json, Pending, Reply, encode
from legation.agents.rehearsal.params import inner
from legation.agents.rehearsal.sessions import Session

CHUNK = 24  # characters in one piece of streamed text, about
FLOOD_BATCH = 500
PERSON_PATIENCE = 24 * 3600.0  # a person's time to answer a question
CANCEL_GRACE = 2.0  # the client's time to answer what was open when it cancelled


class TurnCancelledError(Exception):
    pass


class TurnStoppedError(Exception):
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class StepFailedError(Exception):
    """A tool call that did not work out; the script goes on after it."""


@dataclass(slots=True)
class Turn:
    session: Session
    connection: Connection
    capabilities: Json
    blocks: list[Json]
    pace: float = 0.0
    cancelled: threading.Event = field(default_factory=threading.Event)
    cancelled_by_request: bool = False
    ignores_eof: threading.Event = field(default_factory=threading.Event)
    late: list[Json] = field(default_factory=list)
    plan: list[dict[str, str]] = field(default_factory=list)
    characters: int = 0
    executes: bool = False  # may run programs, and touch files itself
    _waiting: Pending | None = None

    @property
    def text(self) -> str:
        return "\n".join(str(block["text"]) for block in self.blocks if block["type"] == "text")

    def cancel(self, *, by_request: bool = False) -> None:
        self.cancelled_by_request = self.cancelled_by_request or by_request
        self.cancelled.set()
        if self._waiting:
            self._waiting.box.put(None)

    def check(self) -> None:
        if self.cancelled.is_set():
            raise TurnCancelledError

    def pause(self, seconds: float) -> None:
        self.cancelled.wait(seconds)
        self.check()

    def offers(self, *path: str) -> bool:
        """Whether the client advertised a capability; an empty object counts as yes."""
        return inner(self.capabilities, *path) not in (None, False)

    def update(self, update: Json, *, keep: bool = True) -> None:
        """Tells the client, and the history unless it is a live matter only."""
        if keep:
            self.session.keep({"update": update})
        self.send_update(update)

    def send_update(self, update: Json) -> None:
        params = {"sessionId": self.session.record.id, "update": update}
        self.connection.notify("session/update", params)

    def message(self, text: str) -> None:
        """A whole message in one piece."""
        self.characters += len(text)
        self.update(chunk("agent_message_chunk", text, new_id("msg")))

    def say(self, text: str) -> None:
        self._stream("agent_message_chunk", text)

    def think(self, text: str) -> None:
        if self.session.record.thoughts:
            self._stream("agent_thought_chunk", text)

    def _stream(self, tag: str, text: str) -> None:
        message_id = new_id("msg")
        self.characters += len(text)
        for piece in pieces(text):
            self.update(chunk(tag, piece, message_id))
            if self.pace:
                self.pause(self.pace)

    def show_plan(self) -> None:
        entries = [{**entry, "priority": "medium"} for entry in self.plan]
        self.update({"sessionUpdate": "plan", "entries": entries})

    def flood(self, count: int, size: int) -> None:
        told = 0
        try:
            for batch in flood_lines(self.session.record.id, count, size):
                self.check()
                self.connection.write(batch)
                told = min(count, told + FLOOD_BATCH)
        finally:
            self.session.keep({"flood": [told, size]})

    def ask_client(self, method: str, params: Json) -> Reply:
        self.check()
        params = {"sessionId": self.session.record.id, **params}
        self._waiting = pending = self.connection.request(method, params)
        if self.cancelled.is_set():
            pending.box.put(None)
        try:
            reply = pending.box.get(timeout=PERSON_PATIENCE)
            if reply is None:
                self._take_back(pending, expected=method == "session/request_permission")
                raise TurnCancelledError
        except queue.Empty:
            raise StepFailedError(f"no answer to {method}") from None
        finally:
            self._waiting = None
        return reply

    def _take_back(self, pending: Pending, *, expected: bool) -> None:
        """The client owes an answer `cancelled` to a permission; the rest is withdrawn at once."""
        if expected and self._answered(pending):
            return
        self.withdraw(pending)
        self._answered(pending)

    def withdraw(self, pending: Pending) -> None:
        self.connection.notify("$/cancel_request", {"requestId": pending.id})

    def _answered(self, pending: Pending) -> bool:
        try:
            while pending.box.get(timeout=CANCEL_GRACE) is None:
                continue
        except queue.Empty:
            return False
        return True

    def locate(self, path: str, *, forced: bool = False) -> Path:
        """An absolute path inside the working folder; a hostile script may leave it."""
        if forced:
            return self.session.cwd / Path(path).expanduser()
        home = self.session.cwd.resolve()
        found = (home / path).resolve()
        if not found.is_relative_to(home):
            raise StepFailedError(f"cannot touch {path}: it is outside the working folder")
        return found


def new_id(prefix: str) -> str:
    return f"{prefix}_{os.urandom(6).hex()}"


def text_block(text: str) -> Json:
    return {"type": "text", "text": text}


def chunk(tag: str, text: str, message_id: str | None = None) -> Json:
    update: dict[str, object] = {"sessionUpdate": tag, "content": text_block(text)}
    return update if message_id is None else {**update, "messageId": message_id}


def pieces(text: str) -> Iterator[str]:
    piece = ""
    for word in re.findall(r"\S+\s*|\s+", text):
        piece += word
        if len(piece) >= CHUNK:
            yield piece
            piece = ""
    if piece:
        yield piece


def flood_lines(session_id: str, count: int, size: int) -> Iterator[bytes]:
    """Numbered message chunks with a text of `size` characters, many lines at a time."""
    update = chunk("agent_message_chunk", "NUMBER" + "." * max(0, size - 8), "msg_flood")
    params = {"sessionId": session_id, "update": update}
    line = encode({"jsonrpc": "2.0", "method": "session/update", "params": params})
    head, tail = line.split(b"NUMBER")
    for start in range(0, count, FLOOD_BATCH):
        numbers = range(start, min(count, start + FLOOD_BATCH))
        yield b"".join([b"%b%08d%b\n" % (head, number, tail) for number in numbers])
