"""`legation up` and `legation server`: everything opened, served until told to stop, everything closed."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace
from starlette.types import ASGIApp

import legation
from legation.clock import SystemClock
from legation.errors import ConfigInvalid, StorageFailed
from legation.redact import Redactor
from legation.server import requirements
from legation.server.address import own_certificate
from legation.server.auth import make_authenticate
from legation.server.http.app import AppOptions, Metrics, make_app
from legation.server.http.server import Tls, UvicornServer
from legation.server.http.server import run as run_loop
from legation.server.installation import free_folder, prepare_folder
from legation.server.instance import Mode, Services, open_instance
from legation.server.logs import level_of, log_request, logging_to, secrets_of
from legation.server.mesh import HOSTS, agents_running, mesh_app, mesh_url, take_mesh
from legation.server.processes.websocket import WebSocketUpgrades
from legation.server.routes import MESH_ROUTES, ROUTES
from legation.server.routes.processes import TERMINALS
from legation.server.routes.sign_in import make_link
from legation.server.worker import embedded_worker
from legation.settings import Settings
from legation.store.datafolder import LOGS
from legation.store.files import write_atomically
from legation.wire.api.server import SERVER_FILE, ServerFile

logger = logging.getLogger("legation.server")

# Seconds for which the loop may keep a thread from going on. The writer of the log needs its turn a few times for each
# commit. It must be shorter than a turn of the loop beside a busy agent: uvloop lets go of the interpreter between two
# turns and takes it again before the thread wakes, which then begins to count anew.
SWITCH_S: Final = 0.0002
GARBAGE: Final = (
    10_000,
    10,
    10,
)  # new objects between two looks for garbage: after 700, as usual, looks are a fifteenth of a busy server
OPEN_TO_ALL: Final = (
    "--no-token: whoever reaches %s runs agents and has the files of the allowed folders, without a credential. Approvals, "
    "grants, tokens and trust need one while agents run; but over /v1/acp a client answers what its own connection was "
    "asked, so that an agent on this machine could be that client and allow itself anything"
)


class Up(msgspec.Struct, frozen=True):
    """A server that listens."""

    url: str
    sign_in_link: str  # for a person at a terminal; it opens once
    mesh_url: str | None  # for supervisors of this machine


class ServerStart(msgspec.Struct, frozen=True):
    """The start of a server, beyond its settings. `no_token` is for the command line alone: no file and no variable
    opens a server to whoever reaches it."""

    mode: Mode
    announce: Callable[[Up], None]
    exit_with_parent: bool = False
    no_token: bool = False

    def beside_others(self, settings: Settings) -> bool:
        """Tell whether it was started as programs start sandbox-agent's, any number of which can run at once."""
        as_there = self.no_token or settings.source("token").startswith("flag")
        chosen = settings.source("data_dir") != "default" or settings.database_url is not None
        return self.mode == "server" and as_there and not chosen


def run(
    settings: Settings,
    *,
    mode: Mode,
    announce: Callable[[Up], None],
    exit_with_parent: bool = False,
    no_token: bool = False,
) -> None:
    """Run a server until it is told to stop, by a signal, by `POST /v1/stop` or by its parent's end."""
    start = ServerStart(mode, announce, exit_with_parent, no_token)
    requirements.check(settings, no_token=no_token)
    _allow_many_connections()
    sys.setswitchinterval(SWITCH_S)
    run_loop(_run(settings, start))


def _allow_many_connections() -> None:
    # Each takes a descriptor, and the usual limit of 1024 is soon used up by streams, or by somebody who means it.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _run(settings: Settings, start: ServerStart) -> None:
    with ExitStack() as listening:
        # Before anything else: of a port that is taken it is told while there is nothing to undo.
        mesh = take_mesh(settings.mesh_port)
        for sock in mesh:
            listening.callback(sock.close)
        usual = settings.data_dir
        if start.beside_others(settings):
            settings = listening.enter_context(free_folder(settings))
        prepare_folder(settings.data_dir)
        redactor = Redactor(secrets_of(settings))
        with logging_to(_log_target(settings, start.mode), level_of(settings), redactor):
            if settings.data_dir != usual:
                logger.warning(
                    "%s is another server's: this one keeps its data in %s", usual, settings.data_dir
                )
            await _serve(settings, start, redactor, mesh)


async def _serve(
    settings: Settings, start: ServerStart, redactor: Redactor, mesh: Sequence[socket.socket]
) -> None:
    loop = asyncio.get_running_loop()
    server: UvicornServer | None = None

    def stop() -> None:
        if server is not None:
            loop.call_soon(server.stop)  # after the answer to whoever asked

    async with open_instance(settings, mode=start.mode, clock=SystemClock(), stop=stop) as (
        services,
        address,
    ):
        for secret in (services.own_token, *services.toolbox.secrets):
            redactor.add(secret)
        link = ""
        if start.mode == "up":
            owner = services.installed
            link = (await make_link(services, owner.user, owner.workspace)).url
        here = Up(services.public_url, link, mesh_url(mesh))
        with ExitStack() as while_listening:

            def on_ready() -> None:
                while_listening.enter_context(_server_file(services))
                # What is there now stays to the end: to look through it for garbage would hold the loop for
                # some tens of milliseconds, whenever an agent's input has made enough of other things.
                gc.freeze()
                gc.set_threshold(*GARBAGE)
                start.announce(here)
                # Told first: whoever waits for the line that it listens has read it by then.
                if start.no_token:
                    logger.warning(OPEN_TO_ALL, services.address.local_url)
                logger.info("listening on %s", services.address.local_url)
                if here.mesh_url:
                    logger.info("supervisors of this machine may call %s", here.mesh_url)

            server = _make_server(services, mesh, on_ready, no_token=start.no_token)
            while_listening.enter_context(_stops(server, with_parent=start.exit_with_parent))
            async with embedded_worker(services):
                await server.serve_on([address.listener])
    logger.info("stopped")


def _make_server(
    services: Services, mesh: Sequence[socket.socket], on_ready: Callable[[], None], *, no_token: bool
) -> UvicornServer:
    settings, options = services.settings, _options(services)
    anybody = partial(agents_running, settings.data_dir) if no_token else None
    authenticate = make_authenticate(services, anybody=anybody)
    app: ASGIApp = make_app(ROUTES, services=services, authenticate=authenticate, options=options)
    if settings.processes:
        app = WebSocketUpgrades(app, TERMINALS, services.clock)
    beside: ASGIApp | None = None
    if mesh:
        beside = mesh_app(
            MESH_ROUTES,
            services=services,
            authenticate=authenticate,
            # Its figures are its own: two of one name would be counted as one.
            options=replace(options, cors_origins=(), allowed_hosts=HOSTS, metrics=Metrics()),
            running=partial(agents_running, settings.data_dir),
        )
    return UvicornServer(
        app,
        on_ready,
        _before_exit(services),
        tls=Tls(settings.tls_cert, settings.tls_key) if settings.tls_cert and settings.tls_key else None,
        trusted_proxies=settings.trusted_proxies,
        websockets=settings.processes,
        reader_timeout=settings.reader_timeout,
        mesh=beside,
        mesh_sockets=mesh,
    )


def _before_exit(services: Services) -> Callable[[], None]:
    """Tell those who wait for an approval or follow a stream of the end while there is time; no agent and no process takes
    longer for its own."""

    def tell() -> None:
        services.hosts.cut_turns()
        services.door.shut()
        services.acp.shut()
        services.hub.close()
        services.hosts.hurry()
        services.processes.hurry()

    return tell


def _options(services: Services) -> AppOptions:
    settings, metrics = services.settings, Metrics()
    metrics.gauge("legation_stream_readers", "Open stream bodies.", read=lambda: services.hub.readers)
    metrics.gauge(
        "legation_stream_events_delivered", "Events sent to readers.", read=lambda: services.hub.delivered
    )
    metrics.gauge(
        "legation_log_pending_bytes",
        "Appended, not yet on the disk.",
        read=lambda: services.log.pending_bytes,
    )
    return AppOptions(
        max_body_bytes=settings.max_body_bytes,
        cors_origins=settings.cors_origins,
        allowed_hosts=services.address.hosts,
        clock=services.clock,
        metrics=metrics,
        on_request=log_request,
        elsewhere=services.forwarder,
    )


@contextmanager
def _server_file(services: Services) -> Iterator[None]:
    """Keep `server.json` while the server is there, for its owner alone: the CLI of this machine finds it by that."""
    settings = services.settings
    content = ServerFile(
        url=services.address.local_url,
        token=services.own_token.reveal(),
        pid=os.getpid(),
        started_at=services.started_at,
        version=legation.__version__,
        certificate=own_certificate(settings),
    )
    path = settings.data_dir / SERVER_FILE
    try:
        write_atomically(path, msgspec.json.encode(content))
    except OSError as error:
        raise StorageFailed(f"cannot write {path}: {error.strerror}; free some space") from error
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()


@contextmanager
def _stops(server: UvicornServer, *, with_parent: bool) -> Iterator[None]:
    """Stop it also when its terminal is closed, and when its parent is gone."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if not server.should_exit:  # a second word would cut off what is in flight
            server.stop()

    def read() -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            loop.remove_reader(sys.stdin.fileno())
            stop()

    loop.add_signal_handler(signal.SIGHUP, stop)

    if with_parent:
        try:
            loop.add_reader(sys.stdin.fileno(), read)
        except OSError:
            raise ConfigInvalid(
                "cannot end with the parent: standard input is no pipe that closes with it; give it one, or leave "
                "out --exit-with-parent"
            ) from None
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        if with_parent:
            loop.remove_reader(sys.stdin.fileno())


def _log_target(settings: Settings, mode: Mode) -> Path | int:
    # `up` has a terminal to keep clean; a server's log belongs to whatever runs it.
    return settings.data_dir / LOGS / "server.jsonl" if mode == "up" else sys.stderr.fileno()
