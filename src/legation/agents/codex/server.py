"""The app server of Codex: one process for many threads, each of which has an owner here.

It speaks JSON-RPC without the member `jsonrpc`, one message a line.

INV-1  What is said of a thread goes to its owner and nobody else; a sub-agent's thread belongs to its parent's owner.
INV-2  Every request is answered; one about a thread that nobody owns, or that nobody could be shown, is declined.
INV-3  When it ends every owner learns of it, after all that it had said.
INV-4  Messages are handed on in the order in which they came, an answer to us in its place among them.
INV-5  A line that is no message is reported and skipped; it never ends the connection.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from legation.agents.codex.launch import overrides
from legation.agents.codex.messages import (
    Addressed,
    CodexModel,
    CodexNotification,
    CodexRequest,
    ModelPage,
    ThreadOf,
    ThreadRead,
)
from legation.agents.codex.permissions import declined
from legation.agents.driver import OnAnswer
from legation.agents.messages import READ_ERRORS, id_key, read_answer, read_error, read_message
from legation.agents.native import TOO_LONG, DriverContext, read_lines
from legation.agents.rpc import (
    OUTBOX_LIMIT,
    REQUESTS_AT_ONCE,
    SHOWN_BYTES,
    TOO_MANY,
    WRITE_TIMEOUT,
    AgentRefused,
    OutgoingCalls,
    Output,
    skipped,
)
from legation.errors import AgentError, LegationError, TimedOut, TransportClosed
from legation.proc import Child, Command, Exit
from legation.tasks import TaskSet
from legation.wire import jsontext
from legation.wire.acp.rpc import ErrorCode, RpcError
from legation.wire.event_types import DiagnosticCode
from legation.wire.jsontext import members

CLIENT = {"name": "legation", "title": "Legation", "version": "1"}
PARENT_LIMIT = 5.0  # seconds to say whose sub-agent a thread is: the server's time
DEEPEST = 8  # sub-agents of sub-agents that are looked through

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class ThreadOwner(Protocol):
    """An agent of the host. `heard` and `asked` are called while reading and must not wait."""

    def heard(self, thread_id: str, heard: CodexNotification) -> None: ...
    def asked(self, thread_id: str, asked: CodexRequest) -> None: ...
    def adopt(self, thread_id: str, parent: str) -> None:
        """A sub-agent's thread is its as well."""

    def heard_of_all(self, heard: CodexNotification) -> None:
        """Hear what is about no thread."""

    def trouble(self, code: DiagnosticCode, message: str) -> None: ...
    def lost(self, error: LegationError) -> None: ...
    async def room(self) -> None: ...


class CodexServer:
    """Reads from the start on. Whoever makes it stops it."""

    def __init__(self, child: Child) -> None:
        self.models: tuple[CodexModel, ...] = ()
        self._child = child
        self._calls = OutgoingCalls(child)
        self._owners: dict[str, ThreadOwner] = {}
        self._agents: list[ThreadOwner] = []
        self._touched: set[ThreadOwner] = set()
        self._looking = TaskSet("legation-codex-parent")
        self._ended = False
        self._output = Output(child, self._read, trouble=self._trouble, over=self._lost)

    @classmethod
    async def start(cls, context: DriverContext, timeout: float, command: Command) -> CodexServer:
        """The command is `codex app-server`. Its folder is its home, for no thread is to find it in another's."""
        argv = (*command.argv, *overrides(command.env))
        placed = replace(command, argv=argv, cwd=Path(command.env["HOME"]))
        server = cls(await context.launcher.spawn(placed, context.pipes))
        try:
            async with asyncio.timeout(timeout):
                await server._greet(timeout)
        except BaseException as error:
            said = server._output.said()
            await asyncio.shield(server.stop(grace=0))
            if isinstance(error, TimeoutError):
                what = f"cannot start {command.name!r}: it was not ready within {timeout:g} s{said}"
                raise TimedOut(what) from None
            raise
        return server

    async def _greet(self, timeout: float) -> None:
        """Experimental parts are plan mode and the folders of a thread."""
        hello = {"clientInfo": CLIENT, "capabilities": {"experimentalApi": True}}
        await self.call("initialize", hello, object, timeout)
        self._output.stray.settle()
        self._calls.write(method="initialized")
        self.models = (await self.call("model/list", {}, ModelPage, timeout)).data

    @property
    def ended(self) -> bool:
        return self._ended

    @property
    def pid(self) -> int:
        return self._child.pid

    def stderr_tail(self) -> str:
        return self._child.stderr_tail()

    async def wait(self) -> Exit:
        return await self._output.wait()

    async def stop(self, grace: float) -> Exit:
        self._ended = True
        return await self._output.stop(grace)

    # Owners.

    def join(self, agent: ThreadOwner) -> None:
        self._agents.append(agent)

    def leave(self, agent: ThreadOwner) -> None:
        if agent in self._agents:
            self._agents.remove(agent)
        for thread_id in [each for each, owner in self._owners.items() if owner is agent]:
            del self._owners[thread_id]

    def own(self, thread_id: str, owner: ThreadOwner) -> None:
        self._owners[thread_id] = owner

    def disown(self, thread_id: str) -> None:
        self._owners.pop(thread_id, None)

    # We ask.

    async def call(
        self,
        method: str,
        params: object,
        shape: type[_T],
        timeout: float,
        on_answer: OnAnswer[_T] = None,
    ) -> _T:
        try:
            read = partial(_read_answer, method, shape)
            return await self._calls.ask(method, params, read, timeout, on_answer)
        except TransportClosed:
            raise await self._output.end(f"complete {method}") from None

    # It speaks.

    def _heard(self, heard: CodexNotification) -> None:
        thread_id = _thread_of(heard.params)
        owner = self._owners.get(thread_id) if thread_id else None
        if thread_id is None:
            for agent in self._agents:
                agent.heard_of_all(heard)
        elif owner is not None:
            self._touched.add(owner)
            owner.heard(thread_id, heard)
        # else it is of a thread that was left, or of a sub-agent whose parent was

    def _asked(self, asked: CodexRequest) -> None:
        if asked.is_cut:
            what = f"the agent asked {asked.method[:SHOWN_BYTES]!r}, was refused, and nobody was asked: {TOO_LONG}"
            self._trouble(DiagnosticCode.AGENT_UNREADABLE_PERMISSION, what)
            asked.answer(declined(asked))
            return
        thread_id = _thread_of(asked.params)
        owner = self._owners.get(thread_id) if thread_id else None
        if thread_id is not None and owner is not None:
            self._touched.add(owner)
            self._pass_on(owner, thread_id, asked)
        elif thread_id is not None and len(self._looking) < REQUESTS_AT_ONCE:
            self._looking.start(self._find_parent(thread_id, asked))
        else:
            what = f"the agent asked {asked.method[:SHOWN_BYTES]!r}, was refused, and nobody was asked: {TOO_MANY}"
            self._trouble(
                DiagnosticCode.AGENT_UNREADABLE_PERMISSION,
                what if thread_id else f"{what}, or it names no thread",
            )
            asked.answer(declined(asked))

    def _pass_on(self, owner: ThreadOwner, thread_id: str, asked: CodexRequest) -> None:
        try:
            owner.asked(thread_id, asked)
        except Exception:  # noqa: BLE001 - nothing that is asked of one thread may end the others
            _log.exception("cannot put a question of %r", self._child.name)
            asked.answer(declined(asked))  # INV-2
            self._trouble(DiagnosticCode.AGENT_PROCESS_ERROR, "a message of the agent could not be handled")

    async def _find_parent(self, thread_id: str, asked: CodexRequest) -> None:
        """A sub-agent may ask before its parent has said that it began one."""
        above: str | None = thread_id
        with suppress(LegationError):
            for _ in range(DEEPEST):
                if above is None or above in self._owners:
                    break
                found = await self.call("thread/read", ThreadOf(thread_id=above), ThreadRead, PARENT_LIMIT)
                above = found.thread.parent_thread_id
        owner = self._owners.get(above) if above else None
        if owner is None or above is None:
            asked.answer(declined(asked))
        else:
            owner.adopt(thread_id, above)
            self._pass_on(owner, thread_id, asked)

    def _trouble(self, code: DiagnosticCode, message: str) -> None:
        for agent in self._agents:
            agent.trouble(code, message)

    # Its end.

    async def _read(self) -> None:
        try:
            await read_lines(self._child, self._take, self._room, self._trouble)
        finally:
            self._ended = True
            self._calls.close()
            await self._looking.close()

    def _lost(self, end: LegationError) -> None:
        for agent in [*self._agents]:
            agent.lost(end)

    async def _room(self) -> None:
        touched, self._touched = self._touched, set()
        for owner in touched:
            await owner.room()
        if self._child.unsent > OUTBOX_LIMIT:
            await self._child.drain(WRITE_TIMEOUT)

    def _take(self, line: bytes, brief: bytes) -> None:
        try:
            if line.strip():
                self._hear(line, brief)
        except Exception:  # noqa: BLE001 - nothing that is said of one thread may end the others
            _log.exception("cannot handle a message of %r", self._child.name)
            self._trouble(DiagnosticCode.AGENT_PROCESS_ERROR, "a message of the agent could not be handled")

    def _hear(self, line: bytes, brief: bytes) -> None:
        message = read_message(brief if brief.isascii() else brief.decode(errors="replace").encode())
        if message is None or not (message.method or message.id):
            self._output.stray.add(line)
            self._trouble(DiagnosticCode.AGENT_STRAY_LINE, skipped(line))
            return
        params, is_cut = bytes(message.params), brief is not line
        if not message.method:
            error, result = bytes(message.error), bytes(message.result) or b"null"
            odd = self._calls.take(id_key(bytes(message.id)), read_error(error) if error else result)
            if odd:
                self._trouble(DiagnosticCode.AGENT_LATE_RESPONSE, odd)
        elif message.id:
            raw_id = bytes(message.id)
            self._asked(CodexRequest(message.method, params, line, raw_id, self._write_answer, is_cut))
        else:
            self._heard(CodexNotification(message.method, params, line, is_cut))

    def _write_answer(self, raw_id: bytes, answer: object) -> None:
        part = b"error" if isinstance(answer, RpcError) else b"result"
        with suppress(LegationError):  # the server went away with its question
            self._child.write(b'{"id":%b,"%b":%b}\n' % (raw_id, part, jsontext.write(answer)))


def _thread_of(params: bytes) -> str | None:
    try:
        return msgspec.json.decode(params, type=Addressed).thread_id
    except (ValueError, RecursionError):
        return _odd_thread_of(params)


def _odd_thread_of(params: bytes) -> str | None:
    """Too deep, or with halves of characters: it is one thread's all the same, and not everybody's."""
    try:
        found = jsontext.read(members(params).get("threadId", b"null"))
    except jsontext.READ_ERRORS:
        return None
    return found if isinstance(found, str) else None


def _read_answer(method: str, shape: type[_T], raw: bytes | RpcError) -> _T | AgentError:
    if isinstance(raw, RpcError):
        return AgentRefused(method, raw)
    try:
        return read_answer(raw, shape)
    except READ_ERRORS:
        error = RpcError(ErrorCode.INTERNAL_ERROR, "the answer has not the form that was expected")
        return AgentRefused(method, error)
