"""Sessions on disk, and one prompt being answered: what a step may say, ask and wait for.

One folder a session, so that load, resume and list work in the next process too: `session.json` (what it is now) and
`history.jsonl` (what was said). A flood is kept as its recipe and told again from it.
"""

import json
import os
import queue
import re
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from legation.agents.rehearsal.protocol import (
    NOT_FOUND,
    ClientReply,
    Connection,
    Json,
    MethodError,
    PendingRequest,
    encode,
    inner,
)

MODES: Mapping[str, str] = {
    "default": "Asks before it changes a file",
    "plan": "Says what it would change, and changes nothing",
    "bypass": "Changes files without asking",
}
MODELS: Mapping[str, str] = {"rehearsal-steady": "Rehearsal steady", "rehearsal-terse": "Rehearsal terse"}


@dataclass(slots=True)
class SavedSession:
    """All that is kept of a session besides its history."""

    id: str
    cwd: str
    title: str | None = None
    mode: str = "default"
    model: str = "rehearsal-steady"
    thoughts: bool = True
    prompts: int = 0
    updated_ns: int = 0
    chosen: dict[str, str] = field(default_factory=dict)  # the mock's options

    def info(self) -> Json:
        info: dict[str, object] = {
            "sessionId": self.id,
            "cwd": self.cwd,
            "updatedAt": timestamp(self.updated_ns),
        }
        return info if self.title is None else {**info, "title": self.title}

    def modes(self) -> Json:
        available = [
            {"id": name, "name": name.capitalize(), "description": text} for name, text in MODES.items()
        ]
        return {"currentModeId": self.mode, "availableModes": available}

    def options(self, *, boolean: bool) -> list[Json]:
        model: Json = {
            "id": "model",
            "name": "Model",
            "category": "model",
            "type": "select",
            "currentValue": self.model,
            "options": [{"value": value, "name": name} for value, name in MODELS.items()],
        }
        thoughts: Json = {
            "id": "thoughts",
            "name": "Show thoughts",
            "type": "boolean",
            "currentValue": self.thoughts,
        }
        return [model, thoughts] if boolean else [model]


@dataclass(slots=True)
class RehearsalSession:
    """An open session: its record, and what lives only as long as this process."""

    record: SavedSession
    store: "SessionStore"
    turn: "PromptTurn | None" = None
    remembered: dict[str, bool] = field(default_factory=dict)  # tool kind -> what "always" said

    @property
    def cwd(self) -> Path:
        return Path(self.record.cwd)

    def keep(self, entry: Json) -> None:
        self.store.append(self.record.id, entry)

    def save(self) -> None:
        self.store.save(self.record)


class SessionStore:
    def __init__(self, root: Path) -> None:
        self._root = root / "sessions"

    def create(self, cwd: Path) -> RehearsalSession:
        record = SavedSession(id=f"reh-{os.urandom(8).hex()}", cwd=str(cwd))
        (self._root / record.id).mkdir(mode=0o700, parents=True)
        self.save(record)
        return RehearsalSession(record, self)

    def open(self, session_id: str) -> RehearsalSession:
        record = self._read(self._root / session_id)
        if record is None:
            raise MethodError(NOT_FOUND, f"cannot find session {session_id}: start one with session/new")
        self._mend(session_id)
        return RehearsalSession(record, self)

    def records(self) -> list[SavedSession]:
        """Newest first."""
        folders = self._root.iterdir() if self._root.is_dir() else ()
        found = [record for folder in folders if (record := self._read(folder))]
        return sorted(found, key=lambda record: (-record.updated_ns, record.id))

    def save(self, record: SavedSession) -> None:
        folder = self._root / record.id
        if not folder.is_dir():
            return  # deleted while its last turn ended
        record.updated_ns = time.time_ns()
        fresh = folder / "session.json.new"
        fresh.write_text(json.dumps(asdict(record)))
        fresh.replace(folder / "session.json")

    def append(self, session_id: str, entry: Json) -> None:
        folder = self._root / session_id
        if folder.is_dir():
            with (folder / "history.jsonl").open("ab") as file:
                file.write(encode(entry) + b"\n")

    def history(self, session_id: str) -> Iterator[Json]:
        path = self._root / session_id / "history.jsonl"
        if not path.exists():
            return
        with path.open("rb") as file:
            for line in file:
                try:
                    yield json.loads(line)
                except ValueError:
                    continue  # torn by a crash in mid-write

    def delete(self, session_id: str) -> None:
        folder = self._root / session_id
        if folder.is_dir():
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()

    def _mend(self, session_id: str) -> None:
        """End a torn last line, so that the next entry gets a line of its own."""
        path = self._root / session_id / "history.jsonl"
        if path.exists() and path.stat().st_size and not path.read_bytes().endswith(b"\n"):
            with path.open("ab") as file:
                file.write(b"\n")

    def _read(self, folder: Path) -> SavedSession | None:
        try:
            return SavedSession(**json.loads((folder / "session.json").read_text()))
        except (OSError, ValueError, TypeError):
            return None


def timestamp(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, 10**9)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{rest // 10**6:03d}Z"


# The turn.

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
class PromptTurn:
    session: RehearsalSession
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
    _waiting: PendingRequest | None = None

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
        """Tell whether the client advertised a capability; an empty object counts as yes."""
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

    def ask_client(self, method: str, params: Json) -> ClientReply:
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

    def _take_back(self, pending: PendingRequest, *, expected: bool) -> None:
        """The client owes an answer `cancelled` to a permission; the rest is withdrawn at once."""
        if expected and self._answered(pending):
            return
        self.withdraw(pending)
        self._answered(pending)

    def withdraw(self, pending: PendingRequest) -> None:
        self.connection.notify("$/cancel_request", {"requestId": pending.id})

    def _answered(self, pending: PendingRequest) -> bool:
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
