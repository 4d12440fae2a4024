"""Is it alive, is it ready, what is it; and stop it."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Final

import legation
from legation.errors import LegationError, Unavailable
from legation.server.http.access import OPEN, needs
from legation.server.http.call import Call
from legation.server.http.routes import Routes
from legation.wire.api.server import Check, Health, Readiness, ServerInfo

CHECK_LIMIT: Final = 2.0  # seconds for the database to answer: its time

logger = logging.getLogger("legation.server")
routes = Routes(tag="server")


@routes.get("/v1/health", access=OPEN)
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
async def stop(call: Call) -> Health:
    """Stop the server: streams get their last word, what is in flight may end, then the process exits."""
    logger.info("asked to stop", extra={"request_id": call.request_id, "principal": call.principal.id})
    call.services.stop()
    return Health()


async def _database_answers(call: Call) -> bool:
    try:
        async with asyncio.timeout(CHECK_LIMIT):
            await call.services.database.ping()
    except (LegationError, TimeoutError):
        return False
    return True
