"""session/list: the sessions with an agent, the last used first, in pages.

INV-P1  A session that nobody uses between two pages is on one of them, once.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from legation.errors import InvalidParams
from legation.host.host import AcpHost
from legation.host.meta import SessionMeta, read_meta
from legation.server.sessions.details import read_details
from legation.wire.acp.sessions import ListSessionsRequest, ListSessionsResponse, SessionInfo

PAGE: Final = 50  # sessions in one answer

_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_CURSOR: Final = re.compile(r"([0-9]{1,15})\.(.+)", re.ASCII)


class _Place(NamedTuple):
    """In the list: by when it was last used, then by id. The last of a page is the cursor of the next: what is used
    meanwhile moves to the front, and nothing else moves."""

    used: int  # ms
    session_id: str

    def cursor(self) -> str:
        return f"{self.used}.{self.session_id}"


async def list_sessions(host: AcpHost, agent: str, given: ListSessionsRequest) -> ListSessionsResponse:
    """As the log has them: none is taken into memory for that."""
    after = _read_cursor(given.cursor)
    infos = await host.log.streams(host.options.workspace)
    metas = [(info.name, info.state, read_meta(info.meta)) for info in infos]
    found = {
        _Place(_last_used(meta), name): meta
        for name, state, meta in metas
        if meta is not None and (state == "open" or meta.reopens)  # what is over cannot be loaded
        if meta.agent_definition_id == agent and given.cwd in (None, meta.cwd)
    }
    rest = sorted((place for place in found if after is None or place < after), reverse=True)
    page = rest[:PAGE]
    more = page[-1].cursor() if len(rest) > PAGE else None
    shown = tuple(_info(place, found[place]) for place in page)
    return ListSessionsResponse(sessions=shown, next_cursor=more)


def _read_cursor(text: str | None) -> _Place | None:
    if text is None:
        return None
    read = _CURSOR.fullmatch(text)
    if read is None:
        raise InvalidParams(
            "cannot read the cursor: give the `nextCursor` of a page as it is, or none for the first page"
        )
    return _Place(int(read[1]), read[2])


def _last_used(meta: SessionMeta) -> int:
    """By us, or as its agent says; 0 where neither knows."""
    details = read_details(meta.details)
    return max(details.updated_at if details else 0, _told(meta.updated_at))


def _told(updated_at: str | None) -> int:
    try:
        told = datetime.fromisoformat(updated_at or "")
        told = told.astimezone(UTC) if told.tzinfo else told.replace(tzinfo=UTC)
        return (told - _EPOCH) // timedelta(
            milliseconds=1
        )  # exact: rounded up, the end of 9999 would be no time
    except (ValueError, OverflowError):  # an agent may say anything
        return 0


def _info(place: _Place, meta: SessionMeta) -> SessionInfo:
    details = read_details(meta.details)
    cut = details.cut if details else None
    used = datetime.fromtimestamp(place.used / 1000, UTC).isoformat(timespec="milliseconds")
    return SessionInfo(
        session_id=place.session_id,
        cwd=meta.cwd,
        additional_directories=meta.additional_directories,
        title=meta.title,
        updated_at=used if place.used else None,
        meta={"legation": {"cut": cut.shown()}} if cut else None,
    )
