"""`GET /v1/backup`: the whole installation as one file, while it runs."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path

from starlette.responses import Response, StreamingResponse

import legation
from legation.agents.catalogue import custom
from legation.approvals.policy.load import files_of
from legation.approvals.policy.problems import Problems
from legation.errors import Conflict, Forbidden
from legation.server.http.access import needs
from legation.server.http.call import Call
from legation.server.http.routes import Routes
from legation.server.services import Services
from legation.settings import Settings, config_file
from legation.store.archive import Written, archive
from legation.store.audit import record

routes = Routes(tag="server")


@routes.get("/v1/backup", access=needs("backup"), media="application/x-tar", errors=(Conflict,))
async def backup(call: Call, *, keys: bool = False) -> Response:
    """A copy of the data folder as a tar, with the agents, policies and tools files in force, wherever they are;
    `legation restore` takes it.

    Prompts and agents' answers of all workspaces can be read in it: `legation backup --passphrase-file` seals it on its
    way into a file. `keys=true` puts the keys and the settings file in as well: whoever has the file can then open everything in it. A tar that broke off
    has no manifest at its end and is refused. With Postgres, back up the database with its own tools.
    """
    services = call.services
    if keys and call.principal.level < 2:
        raise Forbidden(
            "cannot give out the keys to a program's credential; use a person's, or leave the keys out"
        )
    if services.database.dialect != "sqlite":
        raise Conflict("cannot back up Postgres: use pg_dump for the database, and copy the data folder")
    if services.backing_up.locked():
        raise Conflict("cannot back up now: another backup is being taken; try again when it is done")
    now = services.clock.now_ms()
    await services.database.transact(record, call.principal, "backup.made", "server", {"keys": keys}, now)
    return StreamingResponse(_pieces(services, now, keys=keys), media_type="application/x-tar")


async def _pieces(services: Services, now: int, *, keys: bool) -> AsyncIterator[bytes]:
    """One at a time: each takes as much room as the databases, for as long as its reader likes."""
    folder = services.settings.data_dir
    async with services.backing_up:
        written = await asyncio.to_thread(_written, services.settings, keys=keys)
        pieces = archive(folder, with_keys=keys, made_at=now, legation=legation.__version__, written=written)
        async with aclosing(pieces):
            async for piece in pieces:
                yield piece


def _written(settings: Settings, *, keys: bool) -> list[Written]:
    """What the owner wrote and this server goes by: without it a restored one would not be the same. Certificates belong
    to the machine, and settings may hold keys: they are in it only where those are."""
    found = [("agents.toml", settings.agents or settings.data_dir / custom.FILE)]
    if settings.policy is not None:
        found += _numbered("policy", files_of(settings.policy, Problems()))
    if settings.tools is not None:
        found += _numbered("tools", [settings.tools])
    if keys and (chosen := config_file(os.environ)).is_absolute():
        found.append(("legation.toml", chosen))
    return found


def _numbered(folder: str, files: list[Path]) -> Iterator[Written]:
    """Under names that any disk takes, and no two of them alike."""
    for number, file in enumerate(files, 1):
        plain = re.sub(r"[^A-Za-z0-9._-]", "_", file.name)[-100:]
        yield f"{folder}/{plain if plain == file.name else f'{number}-{plain}'}", file
