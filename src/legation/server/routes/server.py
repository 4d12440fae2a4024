"""Routes about the server itself: health, stop, keys, backup, and what sandbox-agent has that Legation leaves out."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace
from starlette.responses import Response, StreamingResponse

import legation
from legation.errors import Conflict, Forbidden, LegationError, Unavailable
from legation.server.http.openapi import PROBLEM_MEDIA
from legation.server.http.routes import OPEN, Call, Routes, needs
from legation.server.routes.traces import NDJSON
from legation.settings import Age, Settings, config_file
from legation.store.audit import record
from legation.store.secrets.sealer import drop_older_keys, open_key_file, rotate_key_file
from legation.store.secrets.vault import check_keys, keys_named
from legation.store.sizes import KINDS, growth
from legation.wire.api.server import (
    USUAL_KINDS,
    Check,
    Health,
    KeysRotated,
    KindSize,
    Prune,
    PruneProgress,
    Readiness,
    ServerInfo,
    Sizes,
    Stopping,
)

if TYPE_CHECKING:
    from legation.server.instance import Services
    from legation.store.backup import Written

CHECK_LIMIT: Final = 2.0  # seconds for the database to answer: its time
LEFT_OUT: Final = {
    "/v1/desktop": "the desktop of sandbox-agent; start a program with /v1/processes instead",
    "/opencode": "the OpenCode-compatible API of sandbox-agent; use /v1/sessions, or /v1/acp",
}

logger = logging.getLogger("legation.server")
routes = Routes(tag="server")
left_out_routes = Routes(tag="left out")


@routes.get("/v1/health", access=OPEN, unread=True)
async def health(_: Call) -> Health:
    """The process is alive."""
    return Health()


@routes.get("/v1/ready", access=OPEN, errors=(Unavailable,))
async def ready(call: Call) -> Readiness:
    """The server can do its work: the database answers and the event log takes events.

    If not, 503, and `data.failing` names what is missing.
    """
    checks = {"database": await _database_answers(call), "log": call.services.log.healthy}
    failing = [name for name, ok in checks.items() if not ok]
    if failing:
        raise Unavailable(
            f"cannot serve now: {' and '.join(failing)} failing; see the log of the server",
            {"failing": failing},
        )
    return Readiness(ready=True, checks=[Check(name=name, ok=True) for name in checks])


@routes.get("/v1/server", access=needs("read"))
async def server(call: Call) -> ServerInfo:
    """What this server is."""
    services = call.services
    return ServerInfo(
        version=legation.__version__,
        mode=services.mode,
        database=services.database.dialect,
        schema_version=await services.database.version(),
        url=services.public_url,
        pid=os.getpid(),
        started_at=services.started_at,
    )


@routes.post("/v1/stop", access=needs("instance"), status=202)
async def stop(call: Call, cancel_runs: bool = False) -> Stopping:
    """Stop the server: streams get their last word, what is in flight may end, then the process exits.

    `runs` are at work on its machine. Their runners go on, and end by themselves after `orphanAfter` seconds without a server. With `cancelRuns` they are cancelled instead: the
    server goes on for as long as there are any (`stopping` is false), to be asked again."""
    from legation.runner.config import ORPHAN_AFTER
    from legation.runs.lists import cancel_runs_of, count_runs_of
    from legation.runs.run import TOPIC

    services = call.services
    runs = await services.database.read(count_runs_of, services.name)
    if cancel_runs and runs:
        now = services.clock.now_ms()
        await services.database.transact(cancel_runs_of, call.principal, services.name, now_ms=now)
        services.database.notify(TOPIC)
        return Stopping(stopping=False, runs=runs, orphan_after=ORPHAN_AFTER)
    logger.info("asked to stop", extra={"request_id": call.request_id, "principal": call.principal.id})
    services.stop()
    return Stopping(runs=runs, orphan_after=ORPHAN_AFTER)


async def _database_answers(call: Call) -> bool:
    try:
        async with asyncio.timeout(CHECK_LIMIT):
            await call.services.database.ping()
    except (LegationError, TimeoutError):
        return False
    return True


@routes.post("/v1/keys/rotate", access=needs("instance"), errors=(Conflict,))
async def rotate_keys(call: Call) -> KeysRotated:
    """Seal with a new vault key from now on, re-wrap what is sealed, and forget the old key.

    Where the key is a setting it is changed there, `new,old`, and this re-wraps what the old one sealed. It can be
    broken off and called again at any point. Backups made before need the old key.
    """
    services = call.services
    if services.rotating.locked():
        raise Conflict("cannot rotate the keys now: a rotation is under way; wait for that")
    async with services.rotating:
        count = await (_rotate_file(services) if services.settings.vault_key is None else _rewrap(services))
    key_id = services.sealer.current_key_id
    await services.database.transact(
        record,
        call.principal,
        "keys.rotated",
        "vault",
        {"key": key_id, "rewrapped": count},
        services.clock.now_ms(),
    )
    return KeysRotated(key_id=key_id, rewrapped=count)


async def _rotate_file(services: Services) -> int:
    await asyncio.to_thread(rotate_key_file, services.keys_file)
    ring = (await asyncio.to_thread(open_key_file, services.keys_file)).vault
    await check_keys(services.database, replace(services.keys, vault=ring), services.clock.now_ms())
    services.sealer.use(ring)
    count = await _rewrap(services)
    await asyncio.to_thread(drop_older_keys, services.keys_file)
    return count


async def _rewrap(services: Services) -> int:
    count = await services.vault.rewrap_all()
    left = await services.database.transact(keys_named) - {services.sealer.current_key_id}
    if left:
        raise Conflict(
            f"cannot forget key {', '.join(sorted(left))}: another server still seals with it; restart that one with the "
            "new key, then rotate again"
        )
    return count


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


@routes.get("/v1/sizes", access=needs("instance"))
async def read_sizes(call: Call) -> Sizes:
    """How large everything is that this server keeps, of all workspaces, by kind, as of the last hour; and when the disk of its
    data folder is full at the rate of the last week. What a workspace could do without, a dry run of `POST /v1/prune` says."""
    samples = await call.services.retention.samples()
    last, rate = samples[-1], growth(samples)
    return Sizes(
        at=last.at,
        kinds=[
            KindSize(kind=kind, bytes=last.kinds.get(kind, 0), about=about) for kind, about in KINDS.items()
        ],
        disk_free=last.disk_free,
        grows_per_day=rate and rate.own,
        disk_fills_per_day=rate and rate.disk,
        full_in_days=rate and rate.full_in_days,
    )


@routes.post("/v1/prune", access=needs("manage"), media=NDJSON, errors=(Conflict,))
async def prune(call: Call, body: Prune) -> Response:
    """Delete what is older, in this workspace, in small steps beside all other work: one JSON line for each, and a last one
    for each kind with `done`. `dryRun` only counts.

    `sessions` are those that ended or that nobody used since, `work` the folders of those that were terminated, `content`
    what the trace has of what was said, `traces` its steps; the last two by whole days (UTC). What is at work stays. It may
    be broken off at any time, and done again.
    """
    services = call.services
    age = Age(body.older_than)
    if services.retention.pruning.locked():
        raise Conflict("cannot prune now: another prune is under way; try again when it is done")
    told = services.retention.prune(call.principal, body.kinds or USUAL_KINDS, age, dry=body.dry_run)
    return StreamingResponse(_lines(told), media_type=NDJSON)


async def _lines(told: AsyncGenerator[PruneProgress]) -> AsyncIterator[bytes]:
    last: PruneProgress | None = None
    async with aclosing(told):
        try:
            async for last in told:
                yield msgspec.json.encode(last) + b"\n"
        except LegationError as error:  # the answer has begun: what is wrong is a line of it
            broken = last or PruneProgress(kind="sessions", count=0, of=0, bytes=0, done=False)
            yield (
                msgspec.json.encode(msgspec.structs.replace(broken, done=False, problem=error.message))
                + b"\n"
            )


async def _pieces(services: Services, now: int, *, keys: bool) -> AsyncIterator[bytes]:
    from legation.store.backup import archive

    # One at a time: each takes as much room as the databases, for as long as its reader likes.
    folder = services.settings.data_dir
    async with services.backing_up:
        written = await asyncio.to_thread(_written, services.settings, keys=keys)
        pieces = archive(folder, with_keys=keys, made_at=now, legation=legation.__version__, written=written)
        async with aclosing(pieces):
            async for piece in pieces:
                yield piece


def _written(settings: Settings, *, keys: bool) -> list[Written]:
    """List what the owner wrote and this server goes by: without it a restored one would not be the same."""
    from legation.agents.catalogue.entries import CUSTOM_FILE
    from legation.approvals.policy.document import Problems
    from legation.approvals.policy.load import files_of

    # Certificates belong to the machine, and settings may hold keys: they are in it only where those are.
    found = [("agents.toml", settings.agents or settings.data_dir / CUSTOM_FILE)]
    if settings.policy is not None:
        found += _numbered("policy", files_of(settings.policy, Problems()))
    if settings.tools is not None:
        found += _numbered("tools", [settings.tools])
    if keys and (chosen := config_file(os.environ)).is_absolute():
        found.append(("legation.toml", chosen))
    return found


def _numbered(folder: str, files: list[Path]) -> Iterator[Written]:
    """Name them as any disk takes it, and no two of them alike."""
    for number, file in enumerate(files, 1):
        plain = re.sub(r"[^A-Za-z0-9._-]", "_", file.name)[-100:]
        yield f"{folder}/{plain if plain == file.name else f'{number}-{plain}'}", file


def _leave_out(path: str, words: str) -> None:
    async def left_out(call: Call) -> Response:
        """Say that Legation leaves it out."""
        members = {
            "type": "urn:legation:error:not-implemented",
            "title": "Not implemented",
            "status": 501,
            "detail": f"cannot do this: Legation leaves out {words}",
            "instance": f"urn:legation:request:{call.request_id}",
        }
        return Response(msgspec.json.encode(members), status_code=501, media_type=PROBLEM_MEDIA)

    declare = left_out_routes
    for below in ("", "/{a}", "/{a}/{b}", "/{a}/{b}/{c}", "/{a}/{b}/{c}/{d}"):
        for route in (declare.get, declare.post, declare.put, declare.patch, declare.delete):
            route(path + below, access=OPEN, status=501, media=PROBLEM_MEDIA, listed=False, unread=True)(
                left_out
            )


for _path, _words in LEFT_OUT.items():
    _leave_out(_path, _words)
