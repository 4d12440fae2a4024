"""`legation events`: what was recorded, listed, replayed and followed."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from legation.cli.command import Json, SettingsFlags, connect_to, line, say, settings_of, tell
from legation.cli.folders import Folders
from legation.cli.view import SessionView, view_of
from legation.errors import InvalidParams, LegationError, NotFound, StorageFailed, Unavailable
from legation.host.options import read_meta
from legation.settings import Settings
from legation.store.codec import StreamInfo
from legation.store.jsonl import JsonlReader
from legation.wire import event_types
from legation.wire.api.sessions import SessionInfo
from legation.wire.event_types import SessionStatus
from legation.wire.events import Event

TITLE_SHOWN = 50  # characters in the list


def events(
    session: Annotated[
        str | None,
        Parameter(help="A session's id, the start of one, or `last`. Without it, the sessions are listed."),
    ] = None,
    /,
    *,
    after: Annotated[int, Parameter(help="Start after the event with this number.")] = 0,
    follow: Annotated[bool, Parameter(negative="", help="Go on until the session ends.")] = False,
    all: Annotated[  # noqa: A002 - spelt as the flag
        bool, Parameter(negative="", help="Also what was recorded before its agent told the history anew.")
    ] = False,
    generation: Annotated[
        int | None, Parameter(help="Only this one of these records: 1 is the first.")
    ] = None,
    json: Json = False,
    settings: SettingsFlags | None = None,
) -> None:
    """List recorded sessions, or replay one: those of `legation exec`, and those of the server if one is up."""
    chosen = settings_of(settings)
    here = Folders(chosen.data_dir).sessions
    if session is None:
        _list(here, _sessions_there(chosen), json=json)
        return
    if after < 0:
        raise InvalidParams(f"cannot start after {after}; give a number from 0")
    if generation is not None and (all or generation < 1):
        raise InvalidParams(f"cannot show generation {generation}; count from 1, or give --all alone")
    known = {} if session in _names(here) else {each.session_id: each for each in _sessions_there(chosen)}
    there = known.get(_chosen(list(known), session) or "")
    if there is not None and not _is_newer_here(here, session, there):
        which: int | Literal["all"] | None = "all" if all else generation
        _replay_there(chosen, there.session_id, after, view_of(json=json), follow=follow, generation=which)
    else:
        _replay(_find(here, session), after, follow=follow, json=json, all_of_it=all, generation=generation)


def _is_newer_here(sessions: Path, wanted: str, there: SessionInfo) -> bool:
    """`last` is the newest of both places; else a start of an id is looked for at the server first."""
    names = _names(sessions) if wanted == "last" else ()
    if not names:
        return False
    first = JsonlReader(sessions / names[-1], names[-1]).read(0, _malformed)[:1]
    return bool(first) and first[0].at > there.created_at


def _find(sessions: Path, wanted: str) -> JsonlReader:
    name = _chosen(_names(sessions), wanted)
    if name is None:
        if wanted == "last":
            raise NotFound(
                "cannot find the last session: none is recorded yet; begin one with `legation exec`"
            )
        raise NotFound(f"cannot find session {wanted!r}; `legation events` lists them")
    return JsonlReader(sessions / name, name)


def _chosen(names: list[str], wanted: str) -> str | None:
    """Choose one of those, the oldest of which is first, by its id, the start of one, or `last`."""
    found = names[-1:] if wanted == "last" else [name for name in names if name.startswith(wanted)]
    if len(found) > 1 and wanted not in found:
        raise InvalidParams(
            f"cannot tell which session {wanted!r} is: {len(found)} start so; give more of it"
        )
    return wanted if wanted in found else next(iter(found), None)


def _names(sessions: Path) -> list[str]:
    """Oldest first: ids sort by time."""
    paths = sessions.iterdir() if sessions.is_dir() else ()
    return sorted(path.name for path in paths if JsonlReader(path, path.name).exists())


def _replay(
    reader: JsonlReader, after: int, *, follow: bool, json: bool, all_of_it: bool, generation: int | None
) -> None:
    view = view_of(json=json)
    first, last = (1, None) if all_of_it else reader.range_of(generation)
    for batch in reader.batches(max(after, first - 1), _malformed, follow=follow and last is None):
        for event in batch:
            if last is None or event.seq <= last:
                view.show(event)
        if last is not None and batch[-1].seq >= last:
            break
    view.end()


def _malformed(skipped: bytes) -> None:
    print(f"legation: skipped a malformed line of {len(skipped)} bytes", file=sys.stderr)


def _list(sessions: Path, there: list[SessionInfo], *, json: bool) -> None:
    names = _names(sessions)
    if not names and not there and not json:
        say('no session is recorded yet; make one with: legation exec --agent rehearsal "fix the test"')
    for name in names:
        reader = JsonlReader(sessions / name, name)
        try:
            info, first = reader.info(), reader.read(0, _malformed)[:1]
            row = _row(info, first, alive=reader.being_written())
        except (OSError, StorageFailed) as error:  # one that is broken must not hide the others
            print(f"legation: cannot list session {name}: {error}", file=sys.stderr)
            continue
        _say(row, json=json)
    for each in there:
        _say(_row_there(each), json=json)


def _say(row: dict[str, object], *, json: bool) -> None:
    state = f"{row['state']}, turn cut" if row.get("cut") else str(row["state"])
    head = f"{line(str(row['id']))}  {row['started']}  {line(state):<11} {row['events']:>6} events  "
    tell(
        row,
        f"{head}{line(str(row['agent'] or '?'))}  {line(str(row['title'] or ''))[:TITLE_SHOWN]}",
        json=json,
    )


def _row_there(session: SessionInfo) -> dict[str, object]:
    return {
        "id": session.session_id,
        "started": _time(session.created_at),
        "state": session.status,
        "cut": session.cut,
        "events": session.event_count,
        "agent": session.agent,
        "cwd": session.directory,
        "title": session.title,
    }


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")


def _row(info: StreamInfo, first: list[Event], *, alive: bool) -> dict[str, object]:
    meta = read_meta(info.meta)
    started = _time(first[0].at) if first else "-"
    state = "running" if alive else "interrupted" if info.state == "open" else info.state
    return {
        "id": info.name,
        "started": started,
        "state": state,
        "events": info.head,
        "agent": meta.agent_definition_id if meta else None,
        "cwd": meta.cwd if meta else None,
        "title": meta.title if meta else None,
    }


def _sessions_there(settings: Settings) -> list[SessionInfo]:
    """List the server's sessions, oldest first; none where no server is up: what is on this machine is read without one."""
    try:
        with connect_to(settings) as server:
            return sorted(server.sessions.list(), key=lambda each: each.created_at)
    except Unavailable:
        return []
    except LegationError as error:
        print(f"legation: sessions of the server are left out: {error.message}", file=sys.stderr)
        return []


def _replay_there(
    settings: Settings,
    session: str,
    after: int,
    view: SessionView,
    *,
    follow: bool,
    generation: int | Literal["all"] | None = None,
) -> None:
    with connect_to(settings) as server:
        read = server.streams.follow if follow else server.streams.events
        for event in read(session, after, generation=generation):
            view.show(event)
            if follow and event.type == SessionStatus.event_type():
                status = event_types.decode(event)
                if isinstance(status, SessionStatus) and status.status in ("closed", "deleted"):
                    break
    view.end()
