"""Agent servers that several agents of a host share: one for each key, for as long as somebody uses it.

INV-P1  Two agents share a server only if they would start the same program in the same environment and home.
INV-P2  The last one to leave stops it; what it wrote to its temporary folder goes with it.
INV-P3  A server that no longer obeys is retired: whoever comes later gets another.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree
from typing import Generic, Protocol, TypeVar, cast

from legation.clock import new_id
from legation.proc import Command, Exit
from legation.wire import jsontext

_T = TypeVar("_T", bound="Server")


class Server(Protocol):
    @property
    def ended(self) -> bool:
        """Tell whether it has ended, or is about to: it takes nobody any more."""

    async def wait(self) -> Exit: ...
    async def stop(self, grace: float) -> Exit: ...


def pool_key(command: Command, *more: str) -> str:
    """`more` is whatever else must be the same: a setting that the server is started with."""
    env = {name: value for name, value in command.env.items() if name != "TMPDIR"}
    told = [command.name, list(command.argv), sorted(env.items()), more]
    return hashlib.sha256(jsontext.write(told)).hexdigest()


@dataclass(slots=True, eq=False)
class _Shared:
    server: Server
    tmp: Path
    users: int = 0


class Lease(Generic[_T]):
    def __init__(self, pool: Pool, key: str, shared: _Shared) -> None:
        self._pool, self._key, self._shared = pool, key, shared
        self._left: asyncio.Task[None] | None = None

    @property
    def server(self) -> _T:
        return cast(_T, self._shared.server)

    @property
    def alone(self) -> bool:
        """Tell whether nobody else uses the server now: to leave it is to stop it."""
        return self._shared.users == 1

    async def leave(self, grace: float, *, retire: bool = False) -> None:
        """Idempotent; a cancelled caller changes nothing. With `retire` nobody else comes to this server (INV-P3)."""
        if self._left is None:
            self._left = asyncio.create_task(self._pool.leave(self._key, self._shared, grace, retire=retire))
        await asyncio.shield(self._left)


class Pool:
    def __init__(self) -> None:
        self._shared: dict[str, _Shared] = {}
        self._starting: dict[str, asyncio.Lock] = {}

    async def lease(self, key: str, command: Command, start: Callable[[Command], Awaitable[_T]]) -> Lease[_T]:
        """`start` gets the command with a temporary folder of the server's own, and is called by one at a time."""
        lock = self._starting.setdefault(key, asyncio.Lock())
        async with lock:
            shared = self._shared.get(key)
            if shared is None or shared.server.ended:
                shared = self._shared[key] = await self._start(command, start)
            shared.users += 1
            return Lease(self, key, shared)

    async def _start(self, command: Command, start: Callable[[Command], Awaitable[_T]]) -> _Shared:
        tmp = Path(command.env["TMPDIR"]).parent / new_id("tmp")
        await asyncio.to_thread(tmp.mkdir, parents=True, mode=0o700)
        try:
            server = await start(replace(command, env={**command.env, "TMPDIR": str(tmp)}))
        except BaseException:
            await asyncio.shield(asyncio.to_thread(rmtree, tmp, ignore_errors=True))
            raise
        return _Shared(server, tmp)

    async def leave(self, key: str, shared: _Shared, grace: float, *, retire: bool) -> None:
        shared.users -= 1
        if (retire or shared.users == 0) and self._shared.get(key) is shared:
            del self._shared[key]
        if shared.users == 0:
            try:
                await shared.server.stop(grace)
            finally:
                await asyncio.to_thread(rmtree, shared.tmp, ignore_errors=True)
