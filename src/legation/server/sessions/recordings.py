"""Sessions that `legation exec` ran by itself on this machine, as its files have them: to be listed, and to be changed by nobody
but their own process."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from legation.errors import LegationError
from legation.host.options import read_meta
from legation.store.datafolder import SESSIONS
from legation.store.jsonl import JsonlReader
from legation.wire import event_types
from legation.wire.api.sessions import Recording
from legation.wire.event_types import PermissionAnswered, PermissionAsked

# Of the last events, for what waits: nobody asks twice before the first is answered.
_LOOKED_THROUGH: Final = 500

logger = logging.getLogger("legation.sessions")


def read_recordings(data_dir: Path, limit: int) -> list[Recording]:
    """List the newest, the newest first. One that cannot be read must not hide the others."""
    folder, found = data_dir / SESSIONS, list[Recording]()
    names = sorted((each.name for each in folder.iterdir()), reverse=True) if folder.is_dir() else []
    for name in names:
        if len(found) == limit:
            break
        reader = JsonlReader(folder / name, name)
        try:
            if reader.exists():
                found.append(_recording(reader))
        except (OSError, ValueError, LegationError) as error:
            logger.info("cannot read what exec recorded as %s: %s", name[:80], type(error).__name__)
    return found


def _recording(reader: JsonlReader) -> Recording:
    info, alive = reader.info(), reader.being_written()
    meta, first = read_meta(info.meta), reader.read(0, _skip)[:1]
    last = reader.read(max(0, info.head - _LOOKED_THROUGH), _skip)
    began = first[0].at if first else 0
    open_asks: dict[str, str] = {}
    if alive:
        for payload in map(event_types.decode, last):
            if isinstance(payload, PermissionAsked):
                open_asks[payload.id] = payload.title
            elif isinstance(payload, PermissionAnswered):
                open_asks.pop(payload.id, None)
    return Recording(
        session_id=info.name,
        agent=(meta.agent_definition_id if meta else None) or "",
        directory=meta.cwd if meta else None,
        title=meta.title if meta else None,
        status="running" if alive else "interrupted" if info.state == "open" else "closed",
        event_count=info.head,
        created_at=began,
        updated_at=last[-1].at if last else began,
        asks=next(iter(open_asks.values()), None),
    )


def _skip(_: bytes) -> None:
    """Pass over a malformed line: `legation events` tells of it."""
