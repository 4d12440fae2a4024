"""Diagnostics: what went wrong or was done behind the events. A closed set of codes.

INV-7  A diagnostic names environment variables, never their values.
"""

from collections.abc import Mapping
from enum import StrEnum

from legation.wire.payload import Payload


class DiagnosticCode(StrEnum):
    AGENT_SPAWN = "agent/spawn"
    AGENT_SPAWN_FAILED = "agent/spawn-failed"
    AGENT_INITIALIZED = "agent/initialized"
    AGENT_INITIALIZE_FAILED = "agent/initialize-failed"
    AGENT_EXIT = "agent/exit"
    AGENT_PROCESS_ERROR = "agent/process-error"
    AGENT_STDERR = "agent/stderr"
    AGENT_RESTART_SCHEDULED = "agent/restart-scheduled"
    AGENT_RESTART_SUPPRESSED = "agent/restart-suppressed"
    AGENT_RESTART_EXHAUSTED = "agent/restart-exhausted"
    AGENT_KILL = "agent/kill"
    AGENT_STRAY_LINE = "agent/stray-line"
    AGENT_LINE_TOO_LONG = "agent/line-too-long"
    AGENT_UNKNOWN_SESSION = "agent/unknown-session"
    AGENT_UNREADABLE_PERMISSION = "agent/unreadable-permission"
    AGENT_LATE_RESPONSE = "agent/late-response"
    SESSION_RECOVERY_SKIPPED = "session/recovery-skipped"
    SESSION_LOAD_FAILED = "session/load-failed"
    SESSION_REPLAY_SHORTER = "session/replay-shorter"
    STORAGE_WRITE_FAILED = "storage/write-failed"
    STORAGE_RECOVERED = "storage/recovered"
    STORAGE_MALFORMED_LINE = "storage/malformed-line"
    EVENT_UNSERIALIZABLE = "event/unserializable"
    SUBSCRIBER_ERROR = "subscriber/error"
    CLOCK_JUMPED = "clock/jumped"


MEANINGS: Mapping[DiagnosticCode, str] = {
    DiagnosticCode.AGENT_SPAWN: "an agent process was started; names of its environment variables only",
    DiagnosticCode.AGENT_SPAWN_FAILED: "the agent's program could not be started",
    DiagnosticCode.AGENT_INITIALIZED: "the agent answered the handshake",
    DiagnosticCode.AGENT_INITIALIZE_FAILED: "the handshake failed, timed out or named another version",
    DiagnosticCode.AGENT_EXIT: "the process ended, with code or signal",
    DiagnosticCode.AGENT_PROCESS_ERROR: "a pipe to the process failed",
    DiagnosticCode.AGENT_STDERR: "the process wrote to its standard error",
    DiagnosticCode.AGENT_RESTART_SCHEDULED: "a crashed agent will be started again after a pause",
    DiagnosticCode.AGENT_RESTART_SUPPRESSED: "the restart policy says not to start it again",
    DiagnosticCode.AGENT_RESTART_EXHAUSTED: "it crashed too often in a row",
    DiagnosticCode.AGENT_KILL: "it did not stop in time and was killed",
    DiagnosticCode.AGENT_STRAY_LINE: "a line that is no protocol message was skipped",
    DiagnosticCode.AGENT_LINE_TOO_LONG: "a line beyond the hard cap was skipped",
    DiagnosticCode.AGENT_UNKNOWN_SESSION: "an update or a question came for a session that nobody opened",
    DiagnosticCode.AGENT_UNREADABLE_PERMISSION: "a permission could not be read, so nobody was asked and nothing allowed",
    DiagnosticCode.AGENT_LATE_RESPONSE: "an answer came to a request that nobody waits for any more",
    DiagnosticCode.SESSION_RECOVERY_SKIPPED: "a session could not be taken up again after a restart",
    DiagnosticCode.SESSION_LOAD_FAILED: "the agent could not load the session",
    DiagnosticCode.SESSION_REPLAY_SHORTER: "the agent told less of a session than is recorded, which stays",
    DiagnosticCode.STORAGE_WRITE_FAILED: "events were delivered from memory and could not be stored yet",
    DiagnosticCode.STORAGE_RECOVERED: "a damaged end of a log was cut off, or waiting events were stored at last",
    DiagnosticCode.STORAGE_MALFORMED_LINE: "a line of a stored log could not be read and was skipped",
    DiagnosticCode.EVENT_UNSERIALIZABLE: "an event could not be written as JSON and was rejected",
    DiagnosticCode.SUBSCRIBER_ERROR: "a subscriber raised an error; the others were not disturbed",
    DiagnosticCode.CLOCK_JUMPED: "the machine's clock went forward, or was set back, by more than an hour",
}


class Diagnostic(Payload):
    """Something to know that is no part of the conversation; never changes the state of a session."""

    code: DiagnosticCode
    message: str
    agent_id: str | None = None
    session_id: str | None = None
    data: Mapping[str, object] | None = None
