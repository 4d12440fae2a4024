"""The mesh port: supervisors of this machine without a credential, as seed 001's program calls.

INV-M1  It listens on loopback alone, and serves approvals, grants (to read) and traces, nothing else.
INV-M2  Whoever brings no Authorization header is `agent:supervisor`, level 1: it never decides what needs a person.
INV-M3  No page in a browser gets through, wherever it comes from: its requests are refused, and so is every name
        that is not this machine's.
INV-M4  While agents run that no jail keeps off it, a caller without a credential is refused: it may be one of them.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from legation.clock import Clock
from legation.errors import ConfigInvalid, Conflict, Forbidden, LegationError
from legation.proc.registry import listed
from legation.server.address import LOOPBACK_NAMES, listen
from legation.server.http.app import App, AppOptions, request_id, write_problem
from legation.server.http.routes import Authenticate, Routes
from legation.server.sessions.hosts import CHILDREN
from legation.store.datafolder import SERVERS
from legation.wire.principal import Principal

if TYPE_CHECKING:
    from legation.server.instance import Services

IPV4: Final = "127.0.0.1"
IPV6: Final = "::1"
TRIES: Final = 16  # of a free port that both addresses have
HOSTS: Final = LOOPBACK_NAMES
ONLY_READ: Final = frozenset({"grants"})  # tags: a grant takes a person in any case


def take_mesh(port: int | None) -> tuple[socket.socket, ...]:
    """Listen on both loopback addresses, as far as the machine has them; on none without a port. Port 0: any."""
    if port is None:
        return ()
    for _ in range(TRIES if port == 0 else 1):
        first = _listen(IPV4, port)
        number = int(first.getsockname()[1])
        try:
            return (first, _listen(IPV6, number)) if _has_ipv6() else (first,)
        except LegationError as error:
            first.close()
            refusal = error
    raise refusal


def mesh_url(sockets: Sequence[socket.socket]) -> str | None:
    return f"http://localhost:{sockets[0].getsockname()[1]}" if sockets else None


def agents_running(data_dir: Path) -> int:
    """Count those that this server or a command on its data folder has started, and those of servers beside it, which reach
    this one as well. None is jailed yet: each of them counts."""
    usual = data_dir.parent.parent if data_dir.parent.name == SERVERS else data_dir
    beside = {usual, *(usual / SERVERS).glob("*")} - {data_dir}
    # What a killed one left there nobody cleans up before its folder is used again.
    return sum(each.state != "ended" or bool(each.left) for each in listed(data_dir / CHILDREN)) + sum(
        each.state not in ("ended", "gone") for place in beside for each in listed(place / CHILDREN)
    )


def mesh_app(
    groups: Sequence[Routes],
    *,
    services: Services,
    authenticate: Authenticate,
    options: AppOptions,
    running: Callable[[], int],
) -> ASGIApp:
    """Make the application of the mesh port: all of `groups`, but of those of `ONLY_READ` tags only what reads."""
    operations = [
        operation
        for group in groups
        for operation in group.operations
        if operation.method == "GET" or group.tag not in ONLY_READ
    ]
    authenticate_caller = MeshAuthenticator(
        authenticate, services.installed.workspace, running, services.settings.mesh_with_agents
    )
    return NoBrowsers(App(operations, services, authenticate_caller, options), options.clock)


class MeshAuthenticator(msgspec.Struct, frozen=True):
    """Tell who calls the mesh port. A cookie says nothing here: it is a browser's."""

    authenticate: Authenticate
    workspace: str
    running: Callable[[], int]
    with_agents: bool

    async def __call__(self, request: Request) -> Principal:
        if "authorization" in request.headers:
            return await self.authenticate(request)
        if not self.with_agents and (count := await asyncio.to_thread(self.running)):
            raise Forbidden(
                f"cannot take this without a credential while agents run ({count}), because it could be one of them; "
                "send the token of a supervisor, or set LEGATION_MESH_WITH_AGENTS=true if you trust them",
                {"agents": count},
            )
        return Principal(
            kind="agent",
            id="supervisor",
            workspace=self.workspace,
            scopes=frozenset({"read", "approve"}),
            level=1,
        )


class NoBrowsers(msgspec.Struct, frozen=True):
    """Refuse whatever a browser marks as a page's: a page on any site can make its browser call this machine."""

    app: ASGIApp
    clock: Clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope.get("headers", ()))
        if scope["type"] != "http" or not _from_a_page(headers):
            await self.app(scope, receive, send)
            return
        error = Forbidden(
            "cannot take this from a page in a browser; call it from a program, or use Legation's own page"
        )
        number = request_id(headers, self.clock)
        await write_problem(error, number).send(send, number, (), head=scope["method"] == "HEAD")


def _from_a_page(headers: Mapping[bytes, bytes]) -> bool:
    return b"origin" in headers or headers.get(b"sec-fetch-site", b"none") != b"none"


def _listen(host: str, port: int) -> socket.socket:
    where = f"cannot listen on {host}:{port} for supervisors"
    try:
        return listen(host, port)
    except Conflict:
        raise Conflict(
            f"{where}: another program does; stop that one, or choose another with --mesh-port"
        ) from None
    except Forbidden:
        raise Forbidden(
            f"{where}: the system does not allow it; choose a port from 1024 up with --mesh-port"
        ) from None
    except ConfigInvalid:
        raise ConfigInvalid(f"{where}: the machine has no such address; leave out --mesh-port") from None


def _has_ipv6() -> bool:
    # `localhost` may mean ::1: where the machine has that, nobody else may answer there in our place.
    if not socket.has_ipv6:
        return False
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind((IPV6, 0))
    except OSError:
        return False
    return True
