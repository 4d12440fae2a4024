"""What agents may ask of their client: files, terminals, questions; only what a handler serves (INV-6)."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from legation.agents.rpc import RpcFault
from legation.host.handlers import (
    QuestionHandler,
    derive_client_capabilities,
    is_complete_terminal,
    read_method,
    write_method,
)
from legation.host.ownership import OwnedTerminals
from legation.wire import jsontext
from legation.wire.acp.reverse import (
    CreateTerminalRequest,
    CreateTerminalResponse,
    ReadTextFileRequest,
    TerminalRequest,
    WriteTextFileRequest,
)
from legation.wire.acp.rpc import ClientMethod, ErrorCode
from legation.wire.acp.toolcall import Diff, ToolKind

SHOWN_TEXT = 64 * 1024  # characters of a file that whoever is asked about it is shown

Serve = Callable[[str, bytes], Awaitable[object]]
"""Given Legation's id of the session and the raw parameters."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What an agent wants its client to do for it: an action of the agent's like any other. `verb` is for people."""

    tool: str
    kind: ToolKind
    verb: str
    params: Mapping[str, object]
    path: str | None = None
    command: str | None = None
    diff: Diff | None = None

    @property
    def title(self) -> str:
        return f"{self.verb.capitalize()} {self.path or self.command}"


class Reverse:
    def __init__(self, fs: object | None, terminal: object | None, questions: QuestionHandler | None) -> None:
        self.capabilities = derive_client_capabilities(fs, terminal, questions)
        self.questions = questions if self.capabilities.elicitation else None
        self.terminal = OwnedTerminals(terminal) if is_complete_terminal(terminal) else None
        self._methods: dict[str, Serve] = {}
        read, write = read_method(fs), write_method(fs)
        if read is not None:
            self._methods[ClientMethod.READ_TEXT_FILE] = _with(ReadTextFileRequest, read)
        if write is not None:
            self._methods[ClientMethod.WRITE_TEXT_FILE] = _with(WriteTextFileRequest, write)
        if self.terminal is not None:
            self._offer_terminals(self.terminal)

    def method(self, name: str) -> Serve | None:
        return self._methods.get(name)

    def service(self, method: str, params: bytes) -> Service | None:
        """What is to be decided before it is done; None for what only follows from that."""
        read = _SERVICES.get(method)
        return None if read is None else read(params)

    def _offer_terminals(self, terminal: OwnedTerminals) -> None:
        async def create(request: CreateTerminalRequest) -> CreateTerminalResponse:
            return CreateTerminalResponse(terminal_id=await terminal.create(request))

        def named(call: Callable[[str, str], Awaitable[object]]) -> Serve:
            return _with(TerminalRequest, lambda request: call(request.session_id, request.terminal_id))

        self._methods |= {
            ClientMethod.TERMINAL_CREATE: _with(CreateTerminalRequest, create),
            ClientMethod.TERMINAL_OUTPUT: named(terminal.output),
            ClientMethod.TERMINAL_WAIT_FOR_EXIT: named(terminal.wait_for_exit),
            ClientMethod.TERMINAL_KILL: named(terminal.kill),
            ClientMethod.TERMINAL_RELEASE: named(terminal.release),
        }


def _with(shape: type[Any], call: Callable[[Any], Awaitable[object]]) -> Serve:
    async def serve(session_id: str, params: bytes) -> object:
        request = msgspec.structs.replace(decode(params, shape), session_id=session_id)
        result = await call(request)
        return {} if result is None else result

    return serve


def _writing(params: bytes) -> Service:
    request = decode(params, WriteTextFileRequest)
    path, text = request.path, request.content
    told: dict[str, object] = {"path": path, "content": text}
    if len(text) > SHOWN_TEXT:  # the digest stands in: an approval is bound to what is written all the same
        digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
        told = {"path": path, "characters": len(text), "sha256": digest}
    diff = Diff(path=path, new_text=text) if len(text) <= SHOWN_TEXT else None
    return Service(tool="write_text_file", kind="edit", verb="write", params=told, path=path, diff=diff)


def _reading(params: bytes) -> Service:
    request = decode(params, ReadTextFileRequest)
    told = {"path": request.path, "line": request.line, "limit": request.limit}
    given = {name: value for name, value in told.items() if value is not None}
    return Service(tool="read_text_file", kind="read", verb="read", params=given, path=request.path)


def _running(params: bytes) -> Service:
    request = decode(params, CreateTerminalRequest)
    line = shlex.join((request.command, *request.args))
    told: dict[str, object] = {"command": request.command, "args": list(request.args)}
    if request.cwd is not None:
        told["cwd"] = request.cwd
    if request.env:
        told["env"] = {each.name: each.value for each in request.env}
    return Service(tool="create_terminal", kind="execute", verb="run", params=told, command=line)


_SERVICES: Final[Mapping[str, Callable[[bytes], Service]]] = {
    ClientMethod.READ_TEXT_FILE: _reading,
    ClientMethod.WRITE_TEXT_FILE: _writing,
    ClientMethod.TERMINAL_CREATE: _running,
}


def decode(params: bytes, shape: type[_T]) -> _T:
    with suppress(ValueError, RecursionError):
        return msgspec.json.decode(params, type=shape)  # what it does not ask for is skipped, not made
    try:
        return msgspec.convert(jsontext.read(params), shape)
    except jsontext.READ_ERRORS as error:
        raise RpcFault(ErrorCode.INVALID_PARAMS, str(error)) from None
