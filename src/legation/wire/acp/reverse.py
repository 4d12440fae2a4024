"""fs/* and terminal/*: what an agent asks of its client."""

from legation.wire.acp.mcp import NameValue
from legation.wire.acp.shape import Shape


class ReadTextFileRequest(Shape):
    """`line` counts from 1."""

    session_id: str
    path: str
    line: int | None = None
    limit: int | None = None


class ReadTextFileResponse(Shape):
    content: str


class WriteTextFileRequest(Shape):
    session_id: str
    path: str
    content: str


class CreateTerminalRequest(Shape):
    session_id: str
    command: str
    args: tuple[str, ...] = ()
    env: tuple[NameValue, ...] = ()
    cwd: str | None = None
    output_byte_limit: int | None = None


class CreateTerminalResponse(Shape):
    terminal_id: str


class TerminalRequest(Shape):
    """terminal/output, wait_for_exit, kill and release name nothing but the terminal."""

    session_id: str
    terminal_id: str


class TerminalExitStatus(Shape):
    """Also the answer to terminal/wait_for_exit."""

    exit_code: int | None = None
    signal: str | None = None


class TerminalOutputResponse(Shape):
    output: str
    truncated: bool
    exit_status: TerminalExitStatus | None = None
