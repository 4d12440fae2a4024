"""Starting an agent only to ask: does it speak ACP, and what does it offer?

It gets a clean environment, a home and a folder that are new and go with it, and placeholders for its key and for
its model's address and proxies that lead nowhere, so that it reaches nobody and spends nothing. Every wait is bounded, and nothing of it stays.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from legation.agents.catalogue.found import Start
from legation.agents.driver import Driver, OpenRequest
from legation.agents.drivers import open_driver
from legation.agents.native import DriverContext
from legation.agents.pool import Pool
from legation.agents.rpc import RpcFault
from legation.errors import LegationError
from legation.proc import Command, Launcher, Pipes, ProcessLauncher, child_environment
from legation.wire.acp.capabilities import ClientCapabilities
from legation.wire.acp.rpc import ErrorCode
from legation.wire.acp.sessions import NewSessionResponse
from legation.wire.diagnostic import DiagnosticCode
from legation.wire.events import Draft

ANSWER_LIMIT: Final = 60.0  # seconds for the handshake, and again for a session: the agent's time to start
STOP_GRACE: Final = 1.0  # seconds to end by itself: nothing of it is kept, so that there is nothing to finish
# Some look for news or plug-ins at their start, whatever they are told about their model; and some talk to parts of
# themselves over loopback.
_PROXIES: Final = {
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "http://127.0.0.1:9"),
    "NO_PROXY": "127.0.0.1,localhost",
}
NO_WAY_OUT: Final = _PROXIES | {name.lower(): value for name, value in _PROXIES.items()}


@dataclass(frozen=True, slots=True)
class Probed:
    """`setup` is None where no session was asked for, or the agent refused one: then `refusal` says why."""

    seconds: float
    protocol: int
    version: str | None
    sign_in_ways: tuple[str, ...]
    setup: NewSessionResponse | None = None
    refusal: str | None = None


class NoInbox:
    """Nobody is interested in what it says, and it may do nothing."""

    def updates(self, session_id: str, drafts: list[Draft]) -> None: ...
    def trouble(self, code: DiagnosticCode, message: str) -> None: ...
    def notification(self, method: str, params: bytes) -> None: ...
    async def keep(self, _session_id: str, draft: Draft) -> Draft:
        return draft

    async def room(self) -> None: ...

    def request(self, method: str, params: bytes) -> Awaitable[object]:  # noqa: ARG002
        raise RpcFault(ErrorCode.METHOD_NOT_FOUND, f"{method} is not offered")


async def probe(
    name: str,
    start: Start,
    placeholders: Mapping[str, str],
    *,
    session: bool,
    key_method: str | None = None,
    launcher: Launcher | None = None,
    timeout: float = ANSWER_LIMIT,
) -> Probed:
    """Raises what starting it and the handshake raise. With `key_method` it is told to use the placeholder key."""
    with tempfile.TemporaryDirectory(prefix="legation-probe-", ignore_cleanup_errors=True) as folder:
        command = _command(name, start, placeholders, Path(folder))
        began = time.monotonic()
        context = DriverContext(
            command, launcher or ProcessLauncher(), Pipes(), NoInbox(), Pool(), lambda _folder: False
        )
        agent = await open_driver(start.driver, context)
        try:
            await agent.initialize(ClientCapabilities(), timeout)
            seconds = time.monotonic() - began
            setup, refusal = (
                await _session(agent, str(command.cwd), key_method, timeout) if session else (None, None)
            )
            info = agent.info
            return Probed(
                round(seconds, 3),
                agent.version,
                info.version if info else None,
                tuple(way.id for way in agent.auth_methods),
                setup,
                refusal,
            )
        finally:
            await asyncio.shield(agent.stop(STOP_GRACE))


async def _session(
    agent: Driver, cwd: str, key_method: str | None, timeout: float
) -> tuple[NewSessionResponse | None, str | None]:
    try:
        if key_method in {way.id for way in agent.auth_methods}:
            await agent.authenticate(str(key_method), timeout)
        return await agent.new_session(OpenRequest(cwd), timeout), None
    except LegationError as error:
        return None, error.message


def _command(name: str, start: Start, placeholders: Mapping[str, str], folder: Path) -> Command:
    """Home, work and temporary files side by side: some agents want none of them above another."""
    places = {place: folder / place for place in ("home", "work", "tmp")}
    for place in places.values():
        place.mkdir()
    passed = {**start.env, **NO_WAY_OUT, **placeholders}
    env = child_environment(passed, home=places["home"], tmp=places["tmp"])
    return Command(start.argv, places["work"], env, name)
