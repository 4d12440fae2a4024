"""What agents may ask of their client: files, terminals, questions; only what a handler serves (INV-6)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

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

Serve = Callable[[str, bytes], Awaitable[object]]
"""Given Legation's id of the session and the raw parameters."""

_T = TypeVar("_T")


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


def decode(params: bytes, shape: type[_T]) -> _T:
    try:
        return msgspec.convert(jsontext.read(params), shape)
    except jsontext.READ_ERRORS as error:
        raise RpcFault(ErrorCode.INVALID_PARAMS, str(error)) from None
