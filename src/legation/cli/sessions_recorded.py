"""The server's sessions for `legation events`, which lists and replays them beside those of `legation exec`."""

from __future__ import annotations

import sys
from typing import Literal

from legation.cli.connection import connect_to
from legation.cli.view import View
from legation.errors import InvalidParams, LegationError, Unavailable
from legation.settings import Settings
from legation.wire import codec
from legation.wire.api.sessions import SessionInfo
from legation.wire.lifecycle import SessionStatus


def sessions_there(settings: Settings) -> list[SessionInfo]:
    """Oldest first; none where no server is up: what is on this machine can be read without one."""
    try:
        with connect_to(settings) as server:
            return sorted(server.sessions.list(), key=lambda each: each.created_at)
    except Unavailable:
        return []
    except LegationError as error:
        print(f"legation: sessions of the server are left out: {error.message}", file=sys.stderr)
        return []


def chosen_of(there: list[SessionInfo], wanted: str) -> SessionInfo | None:
    """By its id, the start of one, or `last`."""
    if wanted == "last":
        return there[-1] if there else None
    found = [each for each in there if each.session_id.startswith(wanted)]
    whole = [each for each in found if each.session_id == wanted]
    if len(found) > 1 and not whole:
        raise InvalidParams(
            f"cannot tell which session {wanted!r} is: {len(found)} start so; give more of it"
        )
    return next(iter(whole or found), None)


def replay_there(
    settings: Settings,
    session: str,
    after: int,
    view: View,
    *,
    follow: bool,
    generation: int | Literal["all"] | None = None,
) -> None:
    with connect_to(settings) as server:
        read = server.streams.follow if follow else server.streams.events
        for event in read(session, after, generation=generation):
            view.show(event)
            if follow and event.type == SessionStatus.event_type():
                status = codec.decode(event)
                if isinstance(status, SessionStatus) and status.status in ("closed", "deleted"):
                    break
    view.end()
