"""`/v1/processes`: commands on the server's machine, as sandbox-agent 0.4 has them. See docs/processes-api.md."""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated, Final, cast

from msgspec import Meta
from starlette.responses import Response

from legation.errors import Conflict, NotFound, TooLarge, Unavailable
from legation.server.http.request import OwnOrigins, until_disconnected
from legation.server.http.routes import Call, Routes, needs
from legation.server.processes.output import LogFollower, log_entry
from legation.server.processes.processes import OperatorProcess
from legation.server.processes.websocket import (
    TerminalAttachment,
    WebSocketUpgrade,
    check_handshake,
    input_bytes,
)
from legation.server.routes.streams import LastEventId, credential_of
from legation.server.streaming.multiplex import read_position
from legation.server.streaming.sse import EventStream
from legation.wire.api.processes import (
    LogStream,
    NewProcess,
    NewProcessRun,
    ProcessConfig,
    ProcessInfo,
    ProcessInput,
    ProcessInputTaken,
    ProcessList,
    ProcessLogs,
    ProcessOwner,
    ProcessRunResult,
    TerminalSize,
    WaitMs,
)

ACCESS: Final = needs("operate")
TERMINALS: Final = re.compile(rb"/v1/processes/[^/]+/terminal/ws")  # the addresses that `Upgrades` serves
STOP_WAIT_MS: Final = 2000  # the process's time to end, before the answer says that it still runs
KILL_WAIT_MS: Final = 1000

Count = Annotated[int, Meta(ge=0, le=2**53)]

routes = Routes(tag="processes", tolerant=True)


@routes.get("/v1/processes", access=ACCESS)
async def list_processes(call: Call, owner: ProcessOwner | None = None) -> ProcessList:
    """The processes of the workspace, running and ended, the oldest first.

    The last 64 that have ended are kept."""
    return ProcessList(processes=call.services.processes.list(call.principal, owner))


@routes.post("/v1/processes", access=ACCESS, errors=(Conflict, NotFound, Unavailable))
async def start_process(call: Call, body: NewProcess) -> ProcessInfo:
    """Start a process, with pipes or with a terminal.

    It runs as the server's user, in one of the allowed folders, with an environment of its own."""
    return await call.services.processes.start(call.principal, body)


@routes.get("/v1/processes/config", access=ACCESS)
async def read_process_config(call: Call) -> ProcessConfig:
    """The workspace's limits."""
    return call.services.processes.config(call.principal)


@routes.post("/v1/processes/config", access=ACCESS)
async def set_process_config(call: Call, body: ProcessConfig) -> ProcessConfig:
    """Set the workspace's limits, for what is started from now on, until the server stops."""
    return call.services.processes.configure(call.principal, body)


@routes.post("/v1/processes/run", access=ACCESS, errors=(Conflict, NotFound, Unavailable))
async def run_process(call: Call, body: NewProcessRun) -> ProcessRunResult:
    """Run a command to its end and return what it wrote.

    At the end of its time, or when the caller closes the connection, it is ended with all it started."""
    return await call.services.processes.run(
        call.principal, body, partial(until_disconnected, call.request.receive)
    )


@routes.get("/v1/processes/{process}", access=ACCESS)
async def read_process(call: Call, process: str) -> ProcessInfo:
    """One process."""
    return _process(call, process).info()


@routes.delete("/v1/processes/{process}", access=ACCESS, errors=(Conflict,))
async def delete_process(call: Call, process: str) -> None:
    """Forget a process that has ended, and its log."""
    call.services.processes.remove(call.principal, process)


@routes.post("/v1/processes/{process}/stop", access=ACCESS)
async def stop_process(call: Call, process: str, wait_ms: WaitMs = STOP_WAIT_MS) -> ProcessInfo:
    """Ask a process to end (TERM; at a terminal HUP too) and wait for it; whatever it started ends with it."""
    found = _process(call, process)
    await found.stop(wait_ms / 1000)
    return found.info()


@routes.post("/v1/processes/{process}/kill", access=ACCESS)
async def kill_process(call: Call, process: str, wait_ms: WaitMs = KILL_WAIT_MS) -> ProcessInfo:
    """End a process, and whatever it started, at once (KILL)."""
    found = _process(call, process)
    await found.kill(wait_ms / 1000)
    return found.info()


@routes.get("/v1/processes/{process}/logs", access=ACCESS)
async def read_process_logs(
    call: Call,
    process: str,
    *,
    stream: LogStream | None = None,
    tail: Count | None = None,
    since: Count | None = None,
    follow: bool = False,
    last_event_id: LastEventId = None,
) -> ProcessLogs:
    """What a process has written, as far as it is kept.

    With `follow` as server-sent events, `event: log`, and what is to come too, until the process has ended. A
    `Last-Event-ID` wins over `since`."""
    found = _process(call, process)
    wanted: LogStream = stream or ("pty" if found.tty else "combined")
    after = read_position(last_event_id, "Last-Event-ID") if follow and last_event_id else since or 0
    if tail is not None:
        pieces = [each for each in found.log.since(after) if each.is_of(wanted)]
        after = pieces[-tail].sequence - 1 if 0 < tail <= len(pieces) else after if tail else found.log.head
    if follow:
        body = LogFollower(
            found.log, wanted, after, credential_of(call, "operate").holds, call.services.clock
        )
        return cast(ProcessLogs, EventStream(body))  # a Response goes out as it is, whatever is declared
    return ProcessLogs(
        process_id=found.id,
        stream=wanted,
        entries=[log_entry(each) for each in found.log.since(after) if each.is_of(wanted)],
        first_sequence=found.log.first,
        dropped_bytes=found.log.dropped_bytes,
    )


@routes.post("/v1/processes/{process}/input", access=ACCESS, errors=(Conflict, TooLarge))
async def write_to_process(call: Call, process: str, body: ProcessInput) -> ProcessInputTaken:
    """Type into a process's terminal, or write to its standard input."""
    most = call.services.processes.config(call.principal).max_input_bytes_per_request
    found = _process(call, process)
    data = input_bytes(body.data, body.encoding or "base64", most)
    found.write(data)
    return ProcessInputTaken(bytes_written=len(data))


@routes.post("/v1/processes/{process}/terminal/resize", access=ACCESS, errors=(Conflict,))
async def resize_terminal(call: Call, process: str, body: TerminalSize) -> TerminalSize:
    """Change the size of a process's terminal."""
    _process(call, process).resize(body.cols, body.rows)
    return body


@routes.get("/v1/processes/{process}/terminal/ws", access=ACCESS, status=101, errors=(Conflict,))
async def open_terminal(call: Call, process: str) -> Response:
    """The terminal of a process, over a WebSocket.

    Binary frames are what it shows; docs/processes-api.md describes the others. Here alone a browser may send its token
    as `?access_token=`; a page of another origin is refused, unless it is listed."""
    found = _process(call, process)
    services = call.services
    check_handshake(call.request, OwnOrigins(services.public_url, services.settings.cors_origins))
    if not found.tty:
        raise Conflict("cannot open the terminal of this process: it has none; start it with `tty`")
    most = call.services.processes.config(call.principal).max_input_bytes_per_request
    return WebSocketUpgrade(
        TerminalAttachment(found, most, credential_of(call, "operate").holds, services.clock).serve
    )


def _process(call: Call, process_id: str) -> OperatorProcess:
    return call.services.processes.find(call.principal, process_id)
