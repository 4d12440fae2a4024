"""Files and terminals of the client that is connected, for the agents of its sessions.

INV-H1  What a client offers it serves, with its own idea of what may be read; where none does, the host serves it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec

from legation.agents.rpc import RpcFault
from legation.errors import TransportClosed
from legation.host.services import DefaultFs
from legation.server.sessions.clients import Answered, Following, SessionClients
from legation.wire.acp.reverse import (
    CreateTerminalRequest,
    CreateTerminalResponse,
    ReadTextFileRequest,
    ReadTextFileResponse,
    TerminalExitStatus,
    TerminalOutputResponse,
    TerminalRequest,
    WriteTextFileRequest,
)
from legation.wire.acp.rpc import ClientMethod, ErrorCode
from legation.wire.acp.shape import Shape
from legation.wire.members import one_line, renamed

ANSWER_LIMIT: Final = 60.0  # seconds for a file, or a word of a terminal: the client's time

T = TypeVar("T")


async def ask(client: Following, method: str, request: Shape, shape: type[T], limit: float | None) -> T:
    """What it answers, an error as the agent is to see it."""
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


class ClientFiles:
    """The files of one workspace's sessions; `default` are those that the host serves."""

    def __init__(self, clients: SessionClients, workspace: str, default: DefaultFs) -> None:
        self._clients = clients
        self._workspace = workspace
        self._default = default

    async def read_text_file(self, request: ReadTextFileRequest) -> ReadTextFileResponse:
        client = self._clients.offering(self._workspace, request.session_id, "fs", "readTextFile")
        if client is None:
            return await self._default.read_text_file(request)
        return await ask(client, ClientMethod.READ_TEXT_FILE, request, ReadTextFileResponse, ANSWER_LIMIT)

    async def write_text_file(self, request: WriteTextFileRequest) -> None:
        client = self._clients.offering(self._workspace, request.session_id, "fs", "writeTextFile")
        if client is None:
            await self._default.write_text_file(request)
        else:
            await ask(client, ClientMethod.WRITE_TEXT_FILE, request, dict[str, object], ANSWER_LIMIT)


class ClientExtensions:
    """Requests of agents that no protocol names, put to every client that follows. INV-H2  The first answer counts, and
    whoever was slower is told that nothing is asked any more; that a client does not know the method is no answer, unless
    none does."""

    def __init__(self, clients: SessionClients, workspace: str) -> None:
        self._clients = clients
        self._workspace = workspace

    async def request(self, session_ids: Sequence[str], method: str, params: bytes) -> object:
        asked: dict[asyncio.Task[Answered], None] = {}
        known: list[Following] = []
        for session_id in session_ids:
            told = msgspec.Raw(renamed(params, session_id))
            for client in self._clients.of(self._workspace, session_id):
                if client not in known:
                    known.append(client)
                    asked[asyncio.ensure_future(client.calls.ask(method, told))] = None
        try:
            return _result(await _first(list(asked)), method)
        finally:
            for each in asked:
                each.cancel()
            if asked:
                await asyncio.wait(asked)


async def _first(asked: list[asyncio.Task[Answered]]) -> Answered | None:
    waiting, unknown = set(asked), None
    while waiting:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            if isinstance(each.exception(), TransportClosed):
                continue  # it has gone
            answered = each.result()
            if answered.error is None or answered.error.code != ErrorCode.METHOD_NOT_FOUND:
                return answered
            unknown = answered
    return unknown


def _result(answered: Answered | None, method: str) -> object:
    if answered is None:
        raise RpcFault(ErrorCode.METHOD_NOT_FOUND, f"nobody is there who could answer {method}")
    if answered.error is not None:
        fault = RpcFault(answered.error.code, answered.error.message)
        fault.error = answered.error  # with its data
        raise fault
    return msgspec.Raw(one_line(answered.result))


class ClientTerminals:
    """Terminals of clients alone: the host has none, so agents are offered them only where their client has."""

    offered: Final = False

    def __init__(self, clients: SessionClients, workspace: str) -> None:
        self._clients = clients
        self._workspace = workspace
        self._at: dict[tuple[str, str], Following] = {}  # session and terminal: whose it is

    async def create(self, request: CreateTerminalRequest) -> str:
        client = self._clients.offering(self._workspace, request.session_id, "terminal")
        if client is None:
            raise RpcFault(ErrorCode.METHOD_NOT_FOUND, "no client that has terminals is connected")
        made = await ask(client, ClientMethod.TERMINAL_CREATE, request, CreateTerminalResponse, ANSWER_LIMIT)
        self._at[request.session_id, made.terminal_id] = client
        return made.terminal_id

    async def output(self, session_id: str, terminal_id: str) -> TerminalOutputResponse:
        return await self._ask(ClientMethod.TERMINAL_OUTPUT, session_id, terminal_id, TerminalOutputResponse)

    async def wait_for_exit(self, session_id: str, terminal_id: str) -> TerminalExitStatus:
        """As long as the command takes."""
        method = ClientMethod.TERMINAL_WAIT_FOR_EXIT
        return await self._ask(method, session_id, terminal_id, TerminalExitStatus, None)

    async def kill(self, session_id: str, terminal_id: str) -> None:
        await self._ask(ClientMethod.TERMINAL_KILL, session_id, terminal_id, dict[str, object])

    async def release(self, session_id: str, terminal_id: str) -> None:
        try:
            await self._ask(ClientMethod.TERMINAL_RELEASE, session_id, terminal_id, dict[str, object])
        finally:
            self._at.pop((session_id, terminal_id), None)

    async def cleanup_session(self, session_id: str) -> None:
        """Told, not waited for: the client has gone, perhaps, and its terminals with it."""
        for session, terminal_id in [key for key in self._at if key[0] == session_id]:
            client = self._at.pop((session, terminal_id))
            client.calls.tell(
                ClientMethod.TERMINAL_RELEASE, TerminalRequest(session_id=session, terminal_id=terminal_id)
            )

    async def _ask(
        self,
        method: str,
        session_id: str,
        terminal_id: str,
        shape: type[T],
        limit: float | None = ANSWER_LIMIT,
    ) -> T:
        client = self._at.get((session_id, terminal_id))
        if client is None:
            raise RpcFault(ErrorCode.INVALID_PARAMS, "the session has no such terminal")
        request = TerminalRequest(session_id=session_id, terminal_id=terminal_id)
        return await ask(client, method, request, shape, limit)
