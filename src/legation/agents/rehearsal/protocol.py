"""JSON-RPC 2.0 over two byte pipes, one message a line.

Threads rather than asyncio: the process starts in half the time, a step of a script is plain
blocking code, and a client that does not read stops just the turn that writes to it.

One thread reads the pipe, the main thread handles what was read in its order, and each turn
has a thread of its own. Writes are whole lines under one lock.
"""

import json
import os
import queue
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, TypeAlias

Json: TypeAlias = Mapping[str, object]
RequestId: TypeAlias = int | str | None

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
REQUEST_CANCELLED = -32800
AUTH_REQUIRED = -32000
NOT_FOUND = -32002

READ_SIZE = 1 << 16
JOB_LIMIT = 10.0  # the main thread's time to come round to a job
INBOX_LINES = 1000  # beyond this the client is held back by its own full pipe


class MethodError(Exception):
    def __init__(self, code: int, message: str, data: Json | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class PeerGoneError(Exception):
    """The client closed our output; whatever was being said has no listener."""


@dataclass(frozen=True, slots=True)
class ClientReply:
    result: object = None
    error: Json | None = None

    @property
    def fields(self) -> Json:
        return self.result if isinstance(self.result, Mapping) else {}

    @property
    def complaint(self) -> str:
        error = self.error or {}
        return f"error {error.get('code')}: {error.get('message')}"


@dataclass(slots=True)
class PendingRequest:
    """A request of ours: its box receives the reply, or None when the wait is called off."""

    id: int
    box: "queue.SimpleQueue[ClientReply | None]" = field(default_factory=queue.SimpleQueue)


def encode(message: Json) -> bytes:
    try:
        return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # a lone surrogate has no UTF-8 form, only an escape
        return json.dumps(message, separators=(",", ":")).encode()


class Connection:
    def __init__(
        self,
        on_request: Callable[[RequestId, str, Json], None],
        on_notification: Callable[[str, Json], None],
        source: int = 0,
        sink: int = 1,
    ) -> None:
        self._on_request = on_request
        self._on_notification = on_notification
        self._source = source
        self._sink = sink
        self._inbox: queue.Queue[bytes | Callable[[], None] | None] = queue.Queue(INBOX_LINES)
        self._writing = threading.Lock()
        self._pending: dict[int, PendingRequest] = {}
        self._next_id = 1

    def run(self) -> None:
        """Handles what comes in until the client closes its end."""
        threading.Thread(target=self._read, name="reader", daemon=True).start()
        self.serve(None)

    def serve(self, seconds: float | None) -> None:
        """Handles lines and jobs until the end of input, or until nothing came for so long."""
        try:
            while (item := self._inbox.get(timeout=seconds)) is not None:
                if callable(item):
                    item()
                else:
                    self._receive(item)
        except (queue.Empty, PeerGoneError):
            return

    def on_main_thread(self, job: Callable[[], None]) -> None:
        """Runs a job where Python allows it to touch signal handlers, and waits for it."""
        done = threading.Event()

        def run() -> None:
            job()
            done.set()

        self._inbox.put(run)
        done.wait(JOB_LIMIT)

    def notify(self, method: str, params: Json) -> None:
        self.send({"jsonrpc": "2.0", "method": method, "params": params})

    def respond(self, request_id: RequestId, result: Json) -> None:
        self.send({"jsonrpc": "2.0", "id": request_id, "result": result})

    def respond_error(self, request_id: RequestId, error: MethodError) -> None:
        body: dict[str, object] = {"code": error.code, "message": error.message}
        if error.data is not None:
            body["data"] = error.data
        self.send({"jsonrpc": "2.0", "id": request_id, "error": body})

    def request(self, method: str, params: Json) -> PendingRequest:
        with self._writing:
            pending = PendingRequest(self._next_id)
            self._next_id += 1
            self._pending[pending.id] = pending
        self.send({"jsonrpc": "2.0", "id": pending.id, "method": method, "params": params})
        return pending

    def send(self, message: Json) -> None:
        self.write(encode(message) + b"\n")

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        with self._writing:
            try:
                while view:
                    view = view[os.write(self._sink, view) :]
            except ConnectionError as error:
                raise PeerGoneError from error

    def _read(self) -> None:
        rest = b""
        while block := os.read(self._source, READ_SIZE):
            *lines, rest = (rest + block).split(b"\n") if b"\n" in block else (rest + block,)
            for line in lines:
                self._inbox.put(line)
        if rest:
            self._inbox.put(rest)
        self._inbox.put(None)

    def _receive(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            message = json.loads(line.decode(), parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            self.respond_error(None, MethodError(PARSE_ERROR, "cannot parse the line as JSON"))
            return
        if isinstance(message, dict):
            self._route(message)
        else:
            self.respond_error(None, MethodError(INVALID_REQUEST, "cannot take a message that is no object"))

    def _route(self, message: Json) -> None:
        method, request_id = message.get("method"), message.get("id")
        if method is None and ("result" in message or "error" in message):
            self._settle(message)
        elif not _well_formed(message):
            known = request_id if isinstance(request_id, (int, str)) else None
            self.respond_error(
                known, MethodError(INVALID_REQUEST, "cannot take this as a JSON-RPC 2.0 message")
            )
        else:
            self._call(str(method), message)

    def _call(self, method: str, message: Json) -> None:
        params = message.get("params", {})
        if "id" not in message:
            if isinstance(params, Mapping):
                self._on_notification(method, params)
            return
        request_id = message["id"]
        assert request_id is None or isinstance(request_id, (int, str))
        if isinstance(params, Mapping):
            self._on_request(request_id, method, params)
        else:
            error = MethodError(INVALID_PARAMS, "cannot read params: send an object")
            self.respond_error(request_id, error)

    def _settle(self, message: Json) -> None:
        key = message.get("id")
        pending = self._pending.pop(key, None) if isinstance(key, int) else None
        if pending is None:
            return  # a reply to nothing we asked
        error = message.get("error")
        pending.box.put(ClientReply(message.get("result"), error if isinstance(error, Mapping) else None))


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _is_request_id(value: object) -> bool:
    return value is None or (isinstance(value, (int, str)) and not isinstance(value, bool))


def _well_formed(message: Json) -> bool:
    named = isinstance(message.get("method"), str)
    return message.get("jsonrpc") == "2.0" and named and _is_request_id(message.get("id"))


# Params, read one field at a time; anything amiss is -32602 with the field's name.

SESSION_ID = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
BLOCK_FIELDS: Mapping[str, tuple[str, ...]] = {
    "text": ("text",),
    "image": ("data", "mimeType"),
    "resource_link": ("name", "uri"),
    "resource": (),
}
SERVER_FIELDS: Mapping[str, tuple[tuple[str, type], ...]] = {
    "stdio": (("name", str), ("command", str), ("args", list), ("env", list)),
    "http": (("name", str), ("url", str), ("headers", list)),
}


def refuse(field: str, wanted: str) -> NoReturn:
    raise MethodError(INVALID_PARAMS, f"cannot read params: {field} must be {wanted}")


def text(params: Json, field: str) -> str:
    value = params.get(field)
    return value if isinstance(value, str) else refuse(field, "a string")


def optional_text(params: Json, field: str) -> str | None:
    return None if params.get(field) is None else text(params, field)


def whole_number(params: Json, field: str) -> int:
    value = params.get(field)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 65535:
        refuse(field, "a whole number from 0 to 65535")
    return value


def session_id(params: Json) -> str:
    value = text(params, "sessionId")
    return value if SESSION_ID.match(value) else refuse("sessionId", "an id that this agent gave out")


def folder(params: Json) -> Path:
    path = Path(text(params, "cwd"))
    if not path.is_absolute():
        refuse("cwd", "an absolute path")
    if not path.is_dir():
        refuse("cwd", "an existing folder")
    if params.get("additionalDirectories"):
        refuse("additionalDirectories", "empty: this agent does not offer them")
    return path


def mcp_servers(params: Json, *, required: bool = True) -> None:
    if "mcpServers" not in params and required:
        refuse("mcpServers", "a list (it may be empty)")
    for server in items(params.get("mcpServers") or [], "mcpServers"):
        transport = str(server.get("type", "stdio"))
        for name, kind in SERVER_FIELDS.get(transport) or refuse("mcpServers", "stdio or http servers"):
            if not isinstance(server.get(name), kind):
                refuse(f"mcpServers[].{name}", "given for this kind of server")


def prompt(params: Json) -> list[Json]:
    blocks = items(params.get("prompt"), "prompt")
    if not blocks:
        refuse("prompt", "a list of at least one content block")
    for block in blocks:
        kind = block.get("type")
        if kind not in BLOCK_FIELDS:
            refuse("prompt[].type", "one of " + ", ".join(BLOCK_FIELDS))
        for name in BLOCK_FIELDS[str(kind)]:
            if not isinstance(block.get(name), str):
                refuse(f"prompt[].{name}", "a string")
    return blocks


def items(value: object, field: str) -> list[Json]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        refuse(field, "a list")
    if not all(isinstance(item, Mapping) for item in value):
        refuse(field, "a list of objects")
    return list(value)


def inner(value: object, *path: str) -> object:
    """The value at a path of keys, or None where any of them is missing."""
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
