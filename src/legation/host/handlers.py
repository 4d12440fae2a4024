"""What a host does for its agents, as seams: anybody's object may serve files, terminals and questions.

INV-6  The agent is told of exactly those methods that the handlers implement, and is served through the same look
       at them: `read_method`, `write_method`, `is_complete_terminal`, `question_modes`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol, TypeAlias, TypeGuard

from legation.wire.acp.capabilities import (
    ClientCapabilities,
    ClientSessionCapabilities,
    ConfigOptionsCapabilities,
    ElicitationCapabilities,
    FileSystemCapabilities,
    Supported,
)
from legation.wire.acp.elicitation import (
    ELICITATION_MODES,
    CreateElicitationRequest,
    CreateElicitationResponse,
)
from legation.wire.acp.reverse import (
    CreateTerminalRequest,
    ReadTextFileRequest,
    ReadTextFileResponse,
    TerminalExitStatus,
    TerminalOutputResponse,
    WriteTextFileRequest,
)

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
        """The result. `session_ids` are ours: the session that the agent named, else all that it has. Raise `RpcFault` for
        an error of choice: METHOD_NOT_FOUND where nobody is there."""


class TerminalHandler(Protocol):
    """All of it or nothing. Any error of choice is raised as `RpcFault`."""

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
        """Which of "form" and "url" it can show."""

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
    return ClientCapabilities(
        fs=FileSystemCapabilities(
            read_text_file=read_method(fs) is not None, write_text_file=write_method(fs) is not None
        ),
        # A handler that serves only some agents says so, and whoever starts one of those offers it.
        terminal=is_complete_terminal(terminal) and getattr(terminal, "offered", True),
        elicitation=_elicitation(question_modes(questions)),
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
    """Those of the protocol that the handler can show; a mode of another name is of no use to an agent."""
    if _method(questions, "ask") is None:
        return frozenset()
    return frozenset(ELICITATION_MODES).intersection(getattr(questions, "modes", None) or ())


def _elicitation(modes: frozenset[str]) -> ElicitationCapabilities | None:
    if not modes:
        return None
    return ElicitationCapabilities(
        form=Supported() if "form" in modes else None, url=Supported() if "url" in modes else None
    )


def _method(handler: object | None, name: str) -> Callable[..., Any] | None:
    method: Callable[..., Any] | None = getattr(handler, name, None)
    if not callable(method) or getattr(method, "__func__", None) in _EMPTY:
        return None
    return method
