"""Requests of agents to their client, as seams: anybody's object may serve files, terminals and questions, and
decide what an agent asks for.

INV-6   The agent is told of exactly those methods that the handlers implement, and is served through the same look
        at them: `read_method`, `write_method`, `is_complete_terminal`, `question_modes`.
INV-T1  A terminal is reached only by the session that created it, from its creation to its release, whatever the
        handler behind it checks.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias, TypeGuard, runtime_checkable

import msgspec

from legation.agents.rpc import RpcFault, read_params
from legation.wire.acp.methods import (
    ELICITATION_MODES,
    ClientCapabilities,
    ClientSessionCapabilities,
    ConfigOptionsCapabilities,
    CreateElicitationRequest,
    CreateElicitationResponse,
    CreateTerminalRequest,
    CreateTerminalResponse,
    ElicitationCapabilities,
    FileSystemCapabilities,
    ReadTextFileRequest,
    ReadTextFileResponse,
    Supported,
    TerminalExitStatus,
    TerminalOutputResponse,
    TerminalRequest,
    WriteTextFileRequest,
)
from legation.wire.acp.rpc import ClientMethod, ErrorCode
from legation.wire.acp.updates import Diff, ToolKind
from legation.wire.action import Ask, Decision, RuleAction

Read: TypeAlias = Callable[[ReadTextFileRequest], Awaitable[ReadTextFileResponse]]
Write: TypeAlias = Callable[[WriteTextFileRequest], Awaitable[None]]


class FileReader(Protocol):
    async def read_text_file(self, request: ReadTextFileRequest) -> ReadTextFileResponse: ...


class FileWriter(Protocol):
    async def write_text_file(self, request: WriteTextFileRequest) -> None: ...


FsHandler: TypeAlias = FileReader | FileWriter
"""Either method may be missing, or None."""


class ExtensionHandler(Protocol):
    """Serves requests of agents that no protocol names (`_vendor/...`)."""

    def request(self, session_ids: Sequence[str], method: str, params: bytes) -> Awaitable[object]:
        """Return the result. `session_ids` are ours: the session that the agent named, else all that it has. Raise
        `RpcFault` for an error of choice: METHOD_NOT_FOUND where nobody is there."""


class TerminalHandler(Protocol):
    """Terminals for agents: all of it or nothing. Any error of choice is raised as `RpcFault`."""

    async def create(self, request: CreateTerminalRequest) -> str:
        """The new terminal's id; its command has been started."""

    async def output(self, session_id: str, terminal_id: str) -> TerminalOutputResponse: ...
    async def wait_for_exit(self, session_id: str, terminal_id: str) -> TerminalExitStatus: ...

    async def kill(self, session_id: str, terminal_id: str) -> None:
        """End the command; output and exit status can still be read."""

    async def release(self, session_id: str, terminal_id: str) -> None:
        """End the command and forget the terminal."""

    async def cleanup_session(self, session_id: str) -> None:
        """Release all that the session has left."""


class QuestionHandler(Protocol):
    @property
    def modes(self) -> frozenset[str]:
        """Modes that it can show, of "form" and "url"."""

    async def ask(self, request: CreateElicitationRequest) -> CreateElicitationResponse: ...


_TERMINAL_METHODS: Final = ("create", "output", "wait_for_exit", "kill", "release", "cleanup_session")
# A handler that derives from a seam inherits its empty methods, which implement nothing.
_EMPTY: Final = frozenset(
    member
    for seam in (FileReader, FileWriter, TerminalHandler, QuestionHandler)
    for member in vars(seam).values()
    if callable(member)
)


def derive_client_capabilities(
    fs: object | None, terminal: object | None, questions: object | None = None
) -> ClientCapabilities:
    modes = {mode: Supported() for mode in question_modes(questions)}
    return ClientCapabilities(
        fs=FileSystemCapabilities(
            read_text_file=read_method(fs) is not None, write_text_file=write_method(fs) is not None
        ),
        # A handler that serves only some agents says so, and whoever starts one of those offers it.
        terminal=is_complete_terminal(terminal) and getattr(terminal, "offered", True),
        elicitation=ElicitationCapabilities(form=modes.get("form"), url=modes.get("url")) if modes else None,
        # The log keeps whatever an agent says, so we can always take these.
        session=ClientSessionCapabilities(
            compaction=Supported(),
            config_options=ConfigOptionsCapabilities(boolean=Supported()),
            notices=Supported(),
        ),
    )


def read_method(fs: object | None) -> Read | None:
    return _method(fs, "read_text_file")


def write_method(fs: object | None) -> Write | None:
    return _method(fs, "write_text_file")


def is_complete_terminal(handler: object | None) -> TypeGuard[TerminalHandler]:
    return all(_method(handler, name) is not None for name in _TERMINAL_METHODS)


def question_modes(questions: object | None) -> frozenset[str]:
    """Return those of the protocol that the handler can show."""
    if _method(questions, "ask") is None:
        return frozenset()
    return frozenset(ELICITATION_MODES).intersection(getattr(questions, "modes", None) or ())


def _method(handler: object | None, name: str) -> Callable[..., Any] | None:
    method: Callable[..., Any] | None = getattr(handler, name, None)
    if not callable(method) or getattr(method, "__func__", None) in _EMPTY:
        return None
    return method


class OwnedTerminals:
    """A `TerminalHandler` around another; a terminal of nobody's or another's never gets as far as that one."""

    def __init__(self, handler: TerminalHandler) -> None:
        self._handler = handler
        self._owned: dict[str, set[str]] = {}  # by session

    async def create(self, request: CreateTerminalRequest) -> str:
        session_id = request.session_id
        owned = self._owned.setdefault(session_id, set())
        terminal_id = await self._handler.create(request)
        if self._owned.get(session_id) is not owned:  # the session was cleaned up meanwhile, without this one
            await self._handler.release(session_id, terminal_id)
            raise RpcFault(ErrorCode.INVALID_PARAMS, "the session was closed")
        owned.add(terminal_id)
        return terminal_id

    async def output(self, session_id: str, terminal_id: str) -> TerminalOutputResponse:
        return await self._handler_of(session_id, terminal_id).output(session_id, terminal_id)

    async def wait_for_exit(self, session_id: str, terminal_id: str) -> TerminalExitStatus:
        return await self._handler_of(session_id, terminal_id).wait_for_exit(session_id, terminal_id)

    async def kill(self, session_id: str, terminal_id: str) -> None:
        await self._handler_of(session_id, terminal_id).kill(session_id, terminal_id)

    async def release(self, session_id: str, terminal_id: str) -> None:
        handler = self._handler_of(session_id, terminal_id)
        self._owned[session_id].remove(terminal_id)
        await handler.release(session_id, terminal_id)

    async def cleanup_session(self, session_id: str) -> None:
        self._owned.pop(session_id, None)
        await self._handler.cleanup_session(session_id)

    def _handler_of(self, session_id: str, terminal_id: str) -> TerminalHandler:
        # The same words for another's and for none: its existence is nobody else's business.
        if terminal_id not in self._owned.get(session_id, ()):
            raise RpcFault(ErrorCode.INVALID_PARAMS, "the session has no such terminal")
        return self._handler


SHOWN_TEXT = 64 * 1024  # characters of a file that whoever is asked about it is shown

Serve = Callable[[str, bytes], Awaitable[object]]
"""Given Legation's id of the session and the raw parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Action that an agent wants its client to do for it, like any other of the agent's. `verb` is for people."""

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
        self.methods: dict[str, Serve] = {}
        if (read := read_method(fs)) is not None:
            self.methods[ClientMethod.READ_TEXT_FILE] = _with(ReadTextFileRequest, read)
        if (write := write_method(fs)) is not None:
            self.methods[ClientMethod.WRITE_TEXT_FILE] = _with(WriteTextFileRequest, write)
        if (terminal := self.terminal) is None:
            return

        async def create(request: CreateTerminalRequest) -> CreateTerminalResponse:
            return CreateTerminalResponse(terminal_id=await terminal.create(request))

        def named(call: Callable[[str, str], Awaitable[object]]) -> Serve:
            return _with(TerminalRequest, lambda request: call(request.session_id, request.terminal_id))

        self.methods |= {
            ClientMethod.TERMINAL_CREATE: _with(CreateTerminalRequest, create),
            ClientMethod.TERMINAL_OUTPUT: named(terminal.output),
            ClientMethod.TERMINAL_WAIT_FOR_EXIT: named(terminal.wait_for_exit),
            ClientMethod.TERMINAL_KILL: named(terminal.kill),
            ClientMethod.TERMINAL_RELEASE: named(terminal.release),
        }

    def service(self, method: str, params: bytes) -> Service | None:
        """Return what is to be decided before it is done; None for what only follows from that."""
        read = _SERVICES.get(method)
        return None if read is None else read(params)


def _with(shape: type[Any], call: Callable[[Any], Awaitable[object]]) -> Serve:
    async def serve(session_id: str, params: bytes) -> object:
        request = msgspec.structs.replace(read_params(params, shape), session_id=session_id)
        result = await call(request)
        return {} if result is None else result

    return serve


def _writing(params: bytes) -> Service:
    request = read_params(params, WriteTextFileRequest)
    path, text, diff = request.path, request.content, None
    if len(text) <= SHOWN_TEXT:
        told: dict[str, object] = {"path": path, "content": text}
        diff = Diff(path=path, new_text=text)
    else:  # the digest stands in: an approval is bound to what is written all the same
        digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
        told = {"path": path, "characters": len(text), "sha256": digest}
    return Service(tool="write_text_file", kind="edit", verb="write", params=told, path=path, diff=diff)


def _reading(params: bytes) -> Service:
    request = read_params(params, ReadTextFileRequest)
    told = {"path": request.path, "line": request.line, "limit": request.limit}
    given = {name: value for name, value in told.items() if value is not None}
    return Service(tool="read_text_file", kind="read", verb="read", params=given, path=request.path)


def _running(params: bytes) -> Service:
    request = read_params(params, CreateTerminalRequest)
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


# Approvers.


class Unasked(msgspec.Struct, frozen=True):
    """The rules' word on something that an agent did and asked nobody about; whether that ends its turn."""

    policy: RuleAction
    rule: str
    reason: str
    ends: bool = False


class Approver(Protocol):
    async def decide(self, ask: Ask) -> Decision: ...


@dataclass(frozen=True, slots=True)
class Prepared:
    """An approver's findings about an ask before it is told to anybody: `expires_at` is when there will be no answer
    any more, in epoch milliseconds, None where it cannot tell. `decide` goes on from there, with the ask as it was told."""

    expires_at: int | None
    decide: Callable[[Ask], Awaitable[Decision]]


@runtime_checkable
class Timekeeper(Protocol):
    """An approver that keeps the time of what it is asked itself."""

    async def prepare(self, ask: Ask) -> Prepared:
        """Called once, before the permission is on record; that keeps its place among the updates meanwhile."""


@runtime_checkable
class RuledApprover(Approver, Protocol):
    """One that has rules, and can say what they would have said."""

    async def unasked(self, ask: Ask) -> Unasked:
        """Judge what was done without asking, and trace what would not simply have been allowed."""


class DenyAll:
    """Nobody is there to ask."""

    async def decide(self, ask: Ask) -> Decision:  # noqa: ARG002 - the answer is the same for all
        return Decision(outcome="denied", by="unattended", reason="unattended: nobody is there to ask")


class ApproveAll:
    """The owner said yes beforehand."""

    async def decide(self, ask: Ask) -> Decision:  # noqa: ARG002 - the answer is the same for all
        return Decision(outcome="approved", by="flag --yes", reason="approved beforehand with --yes")
