"""Workers: `legation worker`, a process of its own beside servers, and the one that `legation up` has in it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import cache, partial
from hmac import compare_digest
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from legation.clock import Clock, SystemClock
from legation.errors import LegationError
from legation.redact import Redactor
from legation.runs.packs import EventPacks
from legation.runs.provider import Provider
from legation.runs.steps import Tools
from legation.runs.worker import Worker, WorkerOptions
from legation.server import requirements
from legation.server.address import listen
from legation.server.http.app import Metrics
from legation.server.http.server import UvicornServer
from legation.server.http.server import run as run_loop
from legation.server.installation import (
    bring_up_to_date,
    load_installation_keys,
    open_database,
    prepare_folder,
    server_name,
    steady,
)
from legation.server.instance import Services, served_folders
from legation.server.logs import level_of, logging_to, secrets_of
from legation.server.sessions.hosts import CHILDREN
from legation.settings import Settings
from legation.store.blobs.base import Blobs
from legation.store.database.transaction import Database
from legation.store.datafolder import SERVER
from legation.store.forbidden import ForbiddenPlaces
from legation.store.secrets.sealer import Sealer
from legation.store.secrets.vault import ContentStore, Vault, check_keys
from legation.tasks import in_thread

EMBEDDED_DRAIN: Final = 2.0  # seconds for the steps of a server that stops: whoever waits for its end
PING_LIMIT: Final = 3.0  # seconds: the database's time, for `/health`

logger = logging.getLogger("legation.worker")


def run(settings: Settings) -> None:
    """Work on runs until told to stop, by a signal."""
    requirements.check(settings, "the worker")
    run_loop(_run(settings))


async def _run(settings: Settings) -> None:
    prepare_folder(settings.data_dir)
    with logging_to(sys.stderr.fileno(), level_of(settings), Redactor(secrets_of(settings))):
        async with AsyncExitStack() as stack:
            wall = SystemClock()
            database = await stack.enter_async_context(open_database(settings, wall))
            await bring_up_to_date(database)
            clock = await stack.enter_async_context(steady(database, wall, logger.warning))
            keys = load_installation_keys(settings)
            await check_keys(database, keys, clock.now_ms())
            machine = server_name(settings.data_dir / SERVER)
            worker = make_worker(
                settings,
                database,
                clock,
                Sealer(keys.vault),
                machine,
                settings.report_url or "",
                _options(settings),
                _shared_blobs(settings),
            )
            await stack.enter_async_context(_status(settings, database, worker))
            with _drains(worker):
                logger.info("ready; worker %s of machine %s", worker.options.id, machine)
                await worker.run()
        logger.info("stopped; runners that are at work go on")


def make_worker(
    settings: Settings,
    database: Database,
    clock: Clock,
    sealer: Sealer,
    machine: str,
    report_url: str,
    options: WorkerOptions,
    blobs: Blobs | None = None,
) -> Worker:
    """Make a worker. It packs events of runs into `blobs`, which every server of the database must find."""

    @cache
    def sandbox() -> Provider:
        # A server whose runs nobody submits starts without agents and all that starts them.
        from legation.host.launch import AgentLauncher
        from legation.runs.sandbox import SandboxProvider
        from legation.server.fs import operations
        from legation.server.fs.paths import ServedFolders

        folders = served_folders(settings)
        forbidden = ForbiddenPlaces.in_force(settings, os.environ, folders)
        served = ServedFolders(folders, forbidden).everywhere()

        async def folder(path: str) -> Path:
            return await in_thread(operations.folder, served, path)

        return SandboxProvider(
            database=database,
            clock=clock,
            data_dir=settings.data_dir,
            children=settings.data_dir / CHILDREN,
            machine=machine,
            report_url=report_url.rstrip("/"),
            # No workspace is the owner's here, so that no variable or key of ours reaches an agent: what a run needs is in its submission.
            launcher=AgentLauncher(
                settings.data_dir, settings.agents, "", Redactor(), settings.rehearsal_executes
            ),
            folder=folder,
            forbidden=forbidden,
        )

    vault, content = Vault(database, sealer, clock), ContentStore(database, sealer, clock)
    tools = Tools(database, clock, machine, vault, content, {"sandbox": sandbox})
    if blobs is not None and settings.run_pack_after is not None:
        packs = EventPacks(database, content, blobs)
        tools = replace(tools, packs=packs, pack_after_ms=round(settings.run_pack_after * 1000))
    return Worker(tools, options)


def _shared_blobs(settings: Settings) -> Blobs | None:
    """Open the blobs that all servers share; a folder is one server's own."""
    if settings.blobs is None:
        return None
    from legation.store.blobs.s3 import S3Blobs

    return S3Blobs(settings.blobs)


def _options(settings: Settings, default_id: str = "") -> WorkerOptions:
    return WorkerOptions(
        id=settings.worker_id or default_id,
        concurrency=settings.worker_concurrency,
        lease=settings.worker_lease,
        poll=settings.worker_poll,
        machine_lost=settings.machine_lost,
    )


@asynccontextmanager
async def embedded_worker(services: Services) -> AsyncIterator[None]:
    """Work on runs for as long as the block lasts: in `legation up`, alone on its file; with Postgres only where it has a name."""
    settings = services.settings
    if services.mode != "up" or (services.database.dialect == "postgres" and settings.worker_id is None):
        yield
        return
    report_url = settings.report_url or services.address.local_url
    options = replace(_options(settings, services.name), drain=EMBEDDED_DRAIN)
    is_shared = services.database.dialect == "sqlite" or settings.blobs is not None
    worker = make_worker(
        settings,
        services.database,
        services.clock,
        services.sealer,
        services.name,
        report_url,
        options,
        services.blobs if is_shared else None,
    )
    task = asyncio.create_task(worker.run(), name="legation-worker")
    task.add_done_callback(_tell_end)
    try:
        yield
    finally:
        worker.drain()
        await asyncio.gather(task, return_exceptions=True)


def _tell_end(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("the worker has ended: runs stay where they are until the next start", exc_info=error)


@contextmanager
def _drains(worker: Worker) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, worker.drain)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


# `/health` and `/metrics` of a worker that is a process of its own.


@asynccontextmanager
async def _status(settings: Settings, database: Database, worker: Worker) -> AsyncIterator[None]:
    if settings.worker_port is None:
        yield
        return
    listener = listen(settings.host, settings.worker_port)
    server = UvicornServer(status_app(settings, database, worker))
    task = asyncio.create_task(server.serve_on([listener], signals=False), name="legation-worker-status")
    try:
        yield
    finally:
        server.stop()
        await asyncio.gather(task, return_exceptions=True)


def status_app(settings: Settings, database: Database, worker: Worker) -> Starlette:
    figures = worker.figures
    metrics = Metrics()
    for name, words in (
        ("claims", "Claims, empty ones included."),
        ("claimed", "Runs claimed."),
        ("steps", "Steps done."),
        ("failures", "Steps that failed."),
        ("lost", "Leases lost in the middle of a step."),
    ):
        metrics.gauge(f"legation_worker_{name}", words, read=partial(getattr, figures, name))
    metrics.gauge("legation_worker_busy", "Steps under way.", read=lambda: worker.busy)

    async def health(_: Request) -> Response:
        try:
            async with asyncio.timeout(PING_LIMIT):
                await database.ping()
        except (LegationError, TimeoutError):
            return JSONResponse({"status": "unavailable"}, 503)
        return JSONResponse({"status": "ok", "worker": worker.options.id, "busy": worker.busy})

    async def read_metrics(request: Request) -> Response:
        given = request.headers.get("authorization", "")
        if settings.token is not None and not compare_digest(
            given.encode(), f"Bearer {settings.token.reveal()}".encode()
        ):
            return PlainTextResponse("cannot show figures without the token\n", 401)
        return PlainTextResponse(metrics.render())

    return Starlette(routes=[Route("/health", health), Route("/metrics", read_metrics)])
