"""Processes over HTTP, in the shapes of sandbox-agent 0.4. What we add is only ever added to answers."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, field

from legation.wire.api.shape import RequestBody, ResponseBody

ProcessOwner = Literal["user", "desktop", "system"]
ProcessState = Literal["running", "exited"]
LogStream = Literal["stdout", "stderr", "combined", "pty"]

# What a workspace has unless it was set otherwise, and the most that its owner can raise it to.
USUAL_PROCESSES: Final = 64
USUAL_RUN_MS: Final = 300_000
USUAL_OUTPUT_BYTES: Final = 1 << 20  # of each stream of one run
USUAL_LOG_BYTES: Final = 10 << 20
USUAL_INPUT_BYTES: Final = 1 << 16
DEFAULT_RUN_MS: Final = 30_000
MAX_PROCESSES: Final = 256
MAX_RUN_MS: Final = 3_600_000
MAX_OUTPUT_BYTES: Final = 16 << 20
MAX_LOG_BYTES: Final = 64 << 20
MAX_INPUT_BYTES: Final = 1 << 19

MAX_WAIT_MS: Final = 60_000  # of an answer to stop or kill

Program = Annotated[str, Meta(min_length=1, max_length=4096)]
Arguments = Annotated[list[str], Meta(max_length=4096)]
Variables = Annotated[dict[str, str], Meta(max_length=1024)]
Folder = Annotated[str, Meta(max_length=8192)]
WaitMs = Annotated[int, Meta(ge=0, le=MAX_WAIT_MS)]
Cells = Annotated[int, Meta(ge=1, le=10_000)]  # of a terminal's side


class NewProcess(RequestBody):
    """`tty` gives it a terminal. Its input is open in any case; `interactive` is only kept, as a note of its purpose."""

    command: Program
    args: Arguments = field(default_factory=list)
    cwd: Folder | None = None
    env: Variables = field(default_factory=dict)
    tty: bool = False
    interactive: bool = False


class ProcessInfo(ResponseBody):
    """`exitCode` is null while it runs, and when a signal ended it: `exitSignal` names that one."""

    id: str
    command: str
    args: list[str]
    cwd: str | None
    tty: bool
    interactive: bool
    owner: ProcessOwner
    status: ProcessState
    pid: int | None
    exit_code: int | None
    exit_signal: str | None
    created_at_ms: int
    exited_at_ms: int | None


class ProcessList(ResponseBody):
    processes: list[ProcessInfo]


class NewProcessRun(RequestBody):
    command: Program
    args: Arguments = field(default_factory=list)
    cwd: Folder | None = None
    env: Variables = field(default_factory=dict)
    timeout_ms: Annotated[int, Meta(ge=1)] | None = None
    max_output_bytes: Annotated[int, Meta(ge=0)] | None = None


class ProcessRunResult(ResponseBody):
    """Bytes that are not UTF-8 become U+FFFD."""

    exit_code: int | None
    exit_signal: str | None
    timed_out: bool
    stdout: str
    stderr: str
    stdout_truncated: bool
    stderr_truncated: bool
    duration_ms: int


class ProcessLogEntry(ResponseBody):
    sequence: int
    stream: LogStream
    timestamp_ms: int
    data: str
    encoding: Literal["base64"]


class ProcessLogs(ResponseBody):
    """`firstSequence` is the oldest that is still kept; `droppedBytes` were written before it."""

    process_id: str
    stream: LogStream
    entries: list[ProcessLogEntry]
    first_sequence: int
    dropped_bytes: int


class ProcessInput(RequestBody):
    data: str
    encoding: Literal["base64", "utf8", "text"] | None = None  # base64 unless said


class ProcessInputTaken(ResponseBody):
    bytes_written: int


class TerminalSize(RequestBody):
    cols: Cells
    rows: Cells


class ProcessConfig(RequestBody):
    """The limits of a workspace. Less than what is usual may be set by any operator, more by its owner."""

    max_concurrent_processes: Annotated[int, Meta(ge=1, le=MAX_PROCESSES)] = USUAL_PROCESSES
    default_run_timeout_ms: Annotated[int, Meta(ge=1, le=MAX_RUN_MS)] = DEFAULT_RUN_MS
    max_run_timeout_ms: Annotated[int, Meta(ge=1, le=MAX_RUN_MS)] = USUAL_RUN_MS
    max_output_bytes: Annotated[int, Meta(ge=1, le=MAX_OUTPUT_BYTES)] = USUAL_OUTPUT_BYTES
    max_log_bytes_per_process: Annotated[int, Meta(ge=1, le=MAX_LOG_BYTES)] = USUAL_LOG_BYTES
    max_input_bytes_per_request: Annotated[int, Meta(ge=1, le=MAX_INPUT_BYTES)] = USUAL_INPUT_BYTES
