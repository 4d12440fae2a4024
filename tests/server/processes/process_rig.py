"""A real server in this process, with the routes of processes and the real credentials, and ways to call it."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.server.rig import Rig, open_rig

from legation.clock import SystemClock
from legation.proc import ProcessLauncher, Registry
from legation.server.address import listen
from legation.server.auth import make_authenticate
from legation.server.fs.files import Files
from legation.server.fs.paths import ServedFolders
from legation.server.http.app import AppOptions, make_app
from legation.server.http.server import UvicornServer
from legation.server.processes.processes import OperatorProcess, Processes
from legation.server.processes.websocket import WebSocketUpgrades
from legation.server.routes.processes import TERMINALS, routes
from legation.store.forbidden import ForbiddenPlaces
from legation.wire.principal import Principal

LIMIT = 60.0  # seconds: a loaded machine's time for anything that should happen at once


class With:
    """The services, and the processes that they do not have yet."""

    def __init__(self, services: object, processes: Processes) -> None:
        self._services = services
        self.processes = processes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._services, name)


@dataclass
class Recorded:
    """Stands for the audit log."""

    starts: list[tuple[str, str, bool]] = field(default_factory=list)
    fails: Exception | None = None

    async def __call__(self, principal: Principal, process_id: str, program: str, *, tty: bool) -> None:
        assert process_id.startswith("proc_")
        if self.fails is not None:
            raise self.fails
        self.starts.append((principal.workspace, program, tty))


@dataclass
class ProcessRig:
    rig: Rig
    processes: Processes
    recorded: Recorded
    folder: Path
    children: Path
    port: int
    ada: dict[str, str]  # an operator of the first workspace
    eve: dict[str, str]  # and of the second
    client: httpx2.AsyncClient  # as ada
    serving: UvicornServer

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ws(self, process_id: str, query: str = "") -> str:
        return f"ws://127.0.0.1:{self.port}/v1/processes/{process_id}/terminal/ws{query}"

    async def start(self, command: str, *args: str, **more: object) -> dict[str, Any]:
        answer = await self.client.post("/v1/processes", json={"command": command, "args": [*args], **more})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def sh(self, script: str, **more: object) -> dict[str, Any]:
        return await self.start("sh", "-c", script, **more)

    async def post(self, path: str, body: object = None, **more: Any) -> httpx2.Response:
        return await self.client.post(f"/v1/processes{path}", json=body, **more)

    async def get(self, path: str, **more: Any) -> httpx2.Response:
        return await self.client.get(f"/v1/processes{path}", **more)

    def process(self, process_id: str, workspace: str = "local") -> OperatorProcess:
        nobody = Principal(kind="test", id="test", workspace=workspace, scopes=frozenset(), level=0)
        return self.processes.find(nobody, process_id)

    async def ended(self, process_id: str) -> dict[str, Any]:
        assert await self.process(process_id).wait(LIMIT)
        found: dict[str, Any] = (await self.get(f"/{process_id}")).json()
        return found

    async def shown(
        self, process_id: str, holds: Callable[[bytes], bool] | bytes, workspace: str = "local"
    ) -> bytes:
        """All that it has written, as soon as that holds."""
        log = self.process(process_id, workspace).log
        good = holds if callable(holds) else lambda data: holds in data
        async with asyncio.timeout(LIMIT):
            while not good(data := b"".join(each.data for each in log.since(0))):
                assert not log.closed, data[-2000:]
                await log.changed(log.head, LIMIT)
        return data


def text(entries: list[dict[str, Any]], stream: str | None = None) -> bytes:
    return b"".join(b64decode(each["data"]) for each in entries if stream in (None, each["stream"]))


def alive(pid: int) -> bool:
    """Zombies are not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def gone(pid: int) -> None:
    async with asyncio.timeout(LIMIT):
        while alive(pid):
            await asyncio.sleep(0.02)


@asynccontextmanager
async def serving(app: object, **options: Any) -> AsyncIterator[tuple[UvicornServer, int]]:
    listener = listen("127.0.0.1", 0)
    ready = asyncio.Event()
    server = UvicornServer(app, ready.set, **options)  # type: ignore[arg-type]
    port: int = listener.getsockname()[1]
    task = asyncio.create_task(server.serve_on([listener]))
    try:
        async with asyncio.timeout(LIMIT):
            await ready.wait()
        yield server, port
    finally:
        server.stop()
        async with asyncio.timeout(LIMIT):
            await task


async def no_session(_session: str, _workspace: str) -> None: ...


@asynccontextmanager
async def open_process_rig(
    folder: Path, request: pytest.FixtureRequest, *, enabled: bool = True, websockets: bool = True
) -> AsyncIterator[ProcessRig]:
    work, data = folder / "work", folder / "data"
    work.mkdir()
    recorded, children = Recorded(), data / "children"
    async with open_rig("sqlite", data, request, cors_origins="https://listed.test") as rig:
        files = Files(ServedFolders([work], ForbiddenPlaces([data])), no_session)
        async with Processes(
            launcher=ProcessLauncher(registry=Registry(children)),
            folder=files.folder,
            homes=data / "processes",
            record=recorded,
            clock=SystemClock(),
            enabled=enabled,
        ) as processes:
            app = make_app(
                [routes],
                services=With(rig.services, processes),  # type: ignore[arg-type]
                authenticate=make_authenticate(rig.services),
                options=AppOptions(allowed_hosts=["127.0.0.1"], clock=SystemClock()),
            )
            around = WebSocketUpgrades(app, TERMINALS, SystemClock())
            async with serving(around, websockets=websockets) as (server, port):
                ada = await rig.bearer(rig.people["operator"])
                eve = await rig.bearer(rig.people["stranger"], workspace=rig.other)
                client = httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=ada, timeout=LIMIT)
                async with client:
                    yield ProcessRig(rig, processes, recorded, work, children, port, ada, eve, client, server)
    assert list(children.glob("*.child")) == []
