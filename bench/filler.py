"""Years of record in seconds: an event log with as many sessions as wanted, written by the log's own store.

Each is as a server leaves it: how it was asked for, a turn, and its end for every other one.

python -m bench.filler FOLDER COUNT      # FOLDER is the data folder of a server that is not running
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from legation.host.options import SessionMeta
from legation.server.sessions.record import Details, StoredExit
from legation.store.codec import Append, Backend, Create, Op, SetMeta, SetState, key_of
from legation.store.datafolder import EVENTS, make_folder
from legation.store.sqlite import SqliteBackend
from legation.wire.acp.updates import Text
from legation.wire.event_types import PromptFinished, PromptStarted, SessionStatus, draft
from legation.wire.events import Event
from legation.wire.universal.shapes import Metadata

BEGAN = 1_700_000_000_000  # ms: when the first began; each of the others a minute after the one before
APART = 60_000
AT_ONCE = 1000  # sessions in one commit
CRASHED = 100  # of so many open ones the agent of one ended by itself


def name_of(number: int) -> str:
    return f"old-{number:07}"


def fill(backend: Backend, count: int, *, workspace: str = "local", first: int = 0) -> None:
    """Write `count` sessions, from the number `first` on: odd ones have ended, even ones wait for the next message."""
    backend.open(lambda _: None)
    try:
        for start in range(first, first + count, AT_ONCE):
            numbers = range(start, min(start + AT_ONCE, first + count))
            backend.commit([op for number in numbers for op in _session(number, workspace)])
    finally:
        backend.close()


def details_of(number: int, agent: str = "rehearsal") -> Details:
    began = BEGAN + number * APART
    crashed = StoredExit(reason="crashed", code=1) if number % (2 * CRASHED) == 0 else None
    given = Metadata(agent, "build", None, "default", None)
    return Details(agent=agent, given=given, created_at=began, updated_at=began + 1000, exit=crashed)


def _session(number: int, workspace: str) -> Iterator[Op]:
    name, details = name_of(number), details_of(number)
    key = key_of(name, workspace)
    meta = SessionMeta(
        agent_session_id=f"native-{number}",
        cwd=f"/srv/projects/{number % 97}",
        agent_definition_id=details.agent,
        title=f"Session {number}",
        details=details.plain(),
    )
    yield Create(key, workspace)
    yield SetMeta(key, meta.encode())
    yield Append(key, list(_events(number, details.created_at)))
    if number % 2:
        yield SetState(key, "closed")


def _events(number: int, at: int) -> Iterator[Event]:
    said = f"Look at file {number} and say what it does, in one sentence."
    payloads = (
        SessionStatus(status="active"),
        PromptStarted(turn=f"trn_{number}", prompt=(Text(text=said),)),
        PromptFinished(turn=f"trn_{number}", stop_reason="end_turn"),
        SessionStatus(status="disconnected", reason="stopped"),
    )
    for seq, payload in enumerate(payloads, 1):
        made = draft(payload)
        yield Event(seq, at + seq, made.type, made.raw)


def main() -> None:
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    make_folder(folder)
    fill(SqliteBackend(folder / EVENTS), count)


if __name__ == "__main__":
    main()
