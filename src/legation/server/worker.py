"""`legation worker`: connect to the shared database and stay. The work, runs, is still to come."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

from legation.clock import SystemClock
from legation.errors import ConfigInvalid
from legation.redact import Redactor
from legation.server import requirements
from legation.server.http.server import run as run_loop
from legation.server.installation import bring_up_to_date, load_installation_keys, open_database
from legation.server.logs import level_of, logging_to, secrets_of
from legation.settings import Settings, variable
from legation.store.secrets.vault import check_keys

logger = logging.getLogger("legation.worker")


def run(settings: Settings) -> None:
    if settings.database_url is None:
        raise ConfigInvalid(
            "cannot start a worker without Postgres: a file has one owner, and `legation up` works on its own; set "
            f"{variable('database_url')}"
        )
    requirements.check(settings, "the worker")
    run_loop(_run(settings))


async def _run(settings: Settings) -> None:
    stopping, clock = asyncio.Event(), SystemClock()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    with logging_to(sys.stderr.fileno(), level_of(settings), Redactor(secrets_of(settings))):
        async with open_database(settings, clock) as database:
            await bring_up_to_date(database)
            await check_keys(database, load_installation_keys(settings), clock.now_ms())
            logger.info("ready; there are no runs to work on yet")
            await stopping.wait()
        logger.info("stopped")
