"""Handlers for what agents ask of whoever is connected: files, terminals, extensions and questions.

INV-H1  What a client offers it serves, with its own idea of what may be read; where none does, the host serves it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar, Final, TypeAlias, TypeVar

import msgspec

from legation.agents.rpc import RpcFault
from legation.errors import TransportClosed
from legation.host.requests.services import DefaultFs
from legation.server.sessions.clients import ClientAnswer, SessionClient, SessionClients
from legation.wire.acp.methods import (
    CreateElicitationRequest,
    CreateElicitationResponse,
    CreateTerminalRequest,
    CreateTerminalResponse,
    ReadTextFileRequest,
    ReadTextFileResponse,
    TerminalExitStatus,
    TerminalOutputResponse,
    TerminalRequest,
    WriteTextFileRequest,
)
from legation.wire.acp.rpc import ClientMethod, ErrorCode, Shape
from legation.wire.jsontext import one_line, renamed

ANSWER_LIMIT: Final = 60.0  # seconds for a file, or a word of a terminal: the client's time

T = TypeVar("T")
Key: TypeAlias = tuple[str, str]  # a session and a terminal of its


async def ask(client: SessionClient, method: str, request: Shape, shape: type[T], limit: float | None) -> T:
    """Return what it answers, an error as the agent is to see it."""
    try:
        async with asyncio.timeout(limit):
            answered = await client.calls.ask(method, request)
    except TimeoutError:
        raise RpcFault(ErrorCode.INTERNAL_ERROR, "the client did not answer in time") from None
    except TransportClosed:
        raise RpcFault(ErrorCode.INTERNAL_ERROR, "the client has gone") from None
    if answered.error is not None:
        raise RpcFault(answered.error.code, answered.error.message)
    try:
        return msgspec.convert(answered.value() or {}, shape)
    except msgspec.ValidationError:
        raise RpcFault(ErrorCode.INTERNAL_ERROR, "the client's answer cannot be read") from None


class ClientFiles(DefaultFs):
    """The files of one workspace's sessions; those that no client serves are the host's to serve."""

    def __init__(self, clients: SessionClients, workspace: str) -> None:
        super().__init__()
        self.clients, self.workspace = clients, workspace

    async def read_text_file(self, request: ReadTextFileRequest) -> ReadTextFileResponse:
        client = self.clients.offering(self.workspace, request.session_id, "fs", "readTextFile")
        if client is None:
            return await super().read_text_file(request)
        return await ask(client, ClientMethod.READ_TEXT_FILE, request, ReadTextFileResponse, ANSWER_LIMIT)

    async def write_text_file(self, request: WriteTextFileRequest) -> None:
        client = self.clients.offering(self.workspace, request.session_id, "fs", "writeTextFile")
        if client is None:
            await super().write_text_file(request)
        else:
            await ask(client, ClientMethod.WRITE_TEXT_FILE, request, dict[str, object], ANSWER_LIMIT)


@dataclass(slots=True)
class ClientExtensions:
    """Requests of agents that no protocol names, put to every client that follows. INV-H2 The first answer counts, and
    the slower are told so; that a client does not know the method is no answer, unless none does."""

    clients: SessionClients
    workspace: str

    async def request(self, session_ids: Sequence[str], method: str, params: bytes) -> object:
        asked: dict[SessionClient, asyncio.Task[ClientAnswer]] = {}
        for session_id in session_ids:
            told = msgspec.Raw(renamed(params, session_id))
            for client in self.clients.of(self.workspace, session_id):
                if client not in asked:
                    asked[client] = asyncio.create_task(client.calls.ask(method, told))
        answered: ClientAnswer | None = None
        try:
            for coming in asyncio.as_completed(asked.values()):
                with suppress(TransportClosed):  # it has gone
                    answered = await coming
                    if answered.error is None or answered.error.code != ErrorCode.METHOD_NOT_FOUND:
                        break
        finally:
            for each in asked.values():
                each.cancel()
            if asked:
                await asyncio.wait(asked.values())
        if answered is None:
            raise RpcFault(ErrorCode.METHOD_NOT_FOUND, f"nobody is there who could answer {method}")
        if answered.error is not None:
            fault = RpcFault(answered.error.code, answered.error.message)
            fault.error = answered.error  # with its data
            raise fault
        return msgspec.Raw(one_line(answered.result))


@dataclass(slots=True)
class ClientTerminals:
    """Terminals of clients alone: the host has none, so agents are offered them only where their client has."""

    offered: ClassVar[bool] = False

    clients: SessionClients
    workspace: str
    _at: dict[Key, SessionClient] = field(default_factory=dict)  # whose it is

    async def create(self, request: CreateTerminalRequest) -> str:
        client = self.clients.offering(self.workspace, request.session_id, "terminal")
        if client is None:
            raise RpcFault(ErrorCode.METHOD_NOT_FOUND, "no client that has terminals is connected")
        made = await ask(client, ClientMethod.TERMINAL_CREATE, request, CreateTerminalResponse, ANSWER_LIMIT)
        self._at[request.session_id, made.terminal_id] = client
        return made.terminal_id

    async def output(self, session_id: str, terminal_id: str) -> TerminalOutputResponse:
        return await self._ask(
            ClientMethod.TERMINAL_OUTPUT, (session_id, terminal_id), TerminalOutputResponse
        )

    async def wait_for_exit(self, session_id: str, terminal_id: str) -> TerminalExitStatus:
        """Wait as long as the command takes."""
        key = session_id, terminal_id
        return await self._ask(ClientMethod.TERMINAL_WAIT_FOR_EXIT, key, TerminalExitStatus, None)

    async def kill(self, session_id: str, terminal_id: str) -> None:
        await self._ask(ClientMethod.TERMINAL_KILL, (session_id, terminal_id), dict[str, object])

    async def release(self, session_id: str, terminal_id: str) -> None:
        try:
            await self._ask(ClientMethod.TERMINAL_RELEASE, (session_id, terminal_id), dict[str, object])
        finally:
            self._at.pop((session_id, terminal_id), None)

    async def cleanup_session(self, session_id: str) -> None:
        """Told, not waited for: the client has gone, perhaps, and its terminals with it."""
        for key in [key for key in self._at if key[0] == session_id]:
            self._at.pop(key).calls.tell(ClientMethod.TERMINAL_RELEASE, _request(key))

    async def _ask(self, method: str, key: Key, shape: type[T], limit: float | None = ANSWER_LIMIT) -> T:
        # INV-T1 of `host/requests/handlers.py`: nobody else asks for it.
        return await ask(self._at[key], method, _request(key), shape, limit)


def _request(key: Key) -> TerminalRequest:
    return TerminalRequest(session_id=key[0], terminal_id=key[1])


class WaitingQuestions:
    """A handler that never answers: whoever replies to the session does, or the time is over."""

    modes: Final = frozenset(("form", "url"))

    async def ask(self, _request: CreateElicitationRequest) -> CreateElicitationResponse:
        never: asyncio.Future[CreateElicitationResponse] = asyncio.get_running_loop().create_future()
        return await never
