"""Start an agent: found in the catalogue, installed if it is locked and missing, given its MCP servers.

Keys and whatever else of the server's environment go to agents of the first workspace alone: they are its owner's. What
an agent says of its keys is hidden before anybody sees it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from legation.agents.catalogue.catalogue import Catalogue
from legation.agents.driver import AskingModes, SessionStart
from legation.agents.drivers import DriverName
from legation.agents.install.installer import Progress, unseen
from legation.errors import Cancelled, InvalidParams, NotFound, TimedOut, Unavailable
from legation.host.options import AgentDefinition
from legation.redact import Redactor
from legation.store.trust import TrustedFolders
from legation.wire.acp.methods import McpServer, NameValue
from legation.wire.api.sessions import LocalMcp, RemoteMcp

if TYPE_CHECKING:
    from legation.agents.catalogue.catalogue import LocalAgent
    from legation.agents.catalogue.entries import CatalogueEntry
    from legation.agents.catalogue.options import AgentOptions
    from legation.agents.catalogue.program import Start
    from legation.host.host import AcpHost
    from legation.secret import Secret
    from legation.wire.event_types import AgentUpdated


INSTALL_LIMIT: Final = 900.0  # seconds for an agent to arrive from its registry: the network's time

logger = logging.getLogger("legation.sessions")


@dataclass(frozen=True, slots=True)
class Launch:
    """Definition of an agent, the ACP `authenticate` method that takes its key, and keys to hide in what it says."""

    definition: AgentDefinition
    key_method: str | None = None
    keys: tuple[Secret, ...] = ()


class AgentProgram(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Start of an agent as a worker gives it, in the place of a command line that speaks ACP. `trusted`: what the folder it works in
    says for agents counts."""

    command: str
    driver: DriverName = "acp"
    args: tuple[str, ...] = ()
    beginning: SessionStart = msgspec.field(default_factory=SessionStart)
    modes: AskingModes = msgspec.field(default_factory=AskingModes)
    key_method: str | None = None
    trusted: bool = False


def launch_of(
    catalogue: Catalogue,
    entry: CatalogueEntry,
    start: Start,
    cwd: Path,
    *,
    trusted: bool,
    owners: bool = True,
) -> Launch:
    """Start an agent that is here in this folder. `owners`: with what is passed on to it, and its keys. Blocks."""
    start = start.within(cwd, trusted=trusted)
    env, keys = dict(start.env), catalogue.keys(entry.name)
    if not owners:
        env, keys = {name: env[name] for name in env.keys() - set(entry.passes)}, {}
    definition = AgentDefinition(
        id=entry.name,
        command=start.argv[0],
        args=start.argv[1:],
        cwd=cwd,
        env={**env, **{name: key.reveal() for name, key in keys.items()}},
        driver=start.driver,
        beginning=start.beginning,
        modes=start.modes,
        fs=start.fs,
    )
    methods = (method for name, method in entry.key_methods.items() if name in keys)
    hidden = tuple(key for key in keys.values() if entry.is_key(key.name))
    return Launch(definition, next(methods, None), hidden)


async def start_agent(host: AcpHost, launch: Launch, *, terminals: bool = False) -> AgentUpdated:
    """Start an agent with its key: there is one that is ready for sessions, or none."""
    try:
        started = await host.spawn_agent(launch.definition, terminals=terminals)
    except BaseException:
        await asyncio.shield(_forget_failed(host))
        raise
    offered = {str(each.get("id")) for each in started.auth_methods or ()}
    if launch.key_method in offered:
        try:
            await host.authenticate(started.agent_id, str(launch.key_method))
        except BaseException:
            await asyncio.shield(host.dispose_agent(started.agent_id))
            raise
    return started


async def _forget_failed(host: AcpHost) -> None:
    """Agents that never came to life: whoever wanted one is told, and nothing is to be known of it."""
    for agent in host.get_agents():
        if agent.reason in ("spawn-failed", "initialize-failed"):
            await host.dispose_agent(agent.agent_id)


def hide(keys: Iterable[Secret], redactor: Redactor) -> None:
    for key in keys:
        try:
            redactor.add(key)
        except InvalidParams as error:  # one so short keeps no agent from starting
            logger.warning("a key of an agent is not hidden in what it says: %s", error.message)


@dataclass(eq=False)
class AgentLauncher:
    """Launcher of a server's agents. `custom_file` has the owner's own; `redactor` is that of what agents say."""

    data_dir: Path
    custom_file: Path | None
    first_workspace: str
    redactor: Redactor
    executes: bool = False
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    @cached_property
    def catalogue(self) -> Catalogue:
        return Catalogue(self.data_dir, custom_file=self.custom_file, executes=self.executes)

    async def agents(self) -> tuple[LocalAgent, ...]:
        return await asyncio.to_thread(self.catalogue.agents)

    async def agent(self, name: str) -> LocalAgent:
        return await asyncio.to_thread(self.catalogue.agent, name)

    async def options(self, name: str, *, again: bool = False) -> AgentOptions:
        """Return what it offers; the first time it is started to be asked, one agent at a time."""
        from legation.agents.catalogue.options import options_of

        async with self._asking:
            return await options_of(self.catalogue, name, again=again)

    async def entry(self, name: str) -> CatalogueEntry:
        try:
            return await asyncio.to_thread(self.catalogue.entry, name)
        except NotFound as error:
            raise InvalidParams(error.message, {"type": "unsupported_agent"}) from None

    async def launch(self, workspace: str, agent: str, cwd: Path, version: str | None = None) -> Launch:
        entry = await self.entry(agent)
        start = await self._start(entry)
        trusted = await asyncio.to_thread(TrustedFolders(self.data_dir, workspace).trusts, str(cwd))
        owners = workspace == self.first_workspace
        launch = await asyncio.to_thread(
            launch_of, self.catalogue, entry, start, cwd, trusted=trusted, owners=owners
        )
        if version is not None:
            found = await asyncio.to_thread(self.catalogue.version_of, entry.name)
            if found != version:
                here = f"the one here is {found or 'unknown'}"
                raise InvalidParams(
                    f"cannot use that version of {entry.name}: {here}; leave agentVersion out"
                )
        hide(launch.keys, self.redactor)
        return launch

    async def _start(self, entry: CatalogueEntry) -> Start:
        try:
            return await asyncio.to_thread(self.catalogue.start, entry.name)
        except Unavailable:
            if entry.origin != "known" or self.catalogue.lock.wanted(entry.package) is None:
                raise
        await self.install(entry.name)
        return await asyncio.to_thread(self.catalogue.start, entry.name)

    async def install(
        self, name: str, version: str | None = None, *, again: bool = False, told: Progress = unseen
    ) -> None:
        """Bounded; whoever no longer waits for it ends it at the next bytes. `told` is called in other threads."""
        until, gone = time.monotonic() + INSTALL_LIMIT, False

        def progress(done: int, total: int) -> None:
            told(done, total)
            if gone:
                raise Cancelled(f"cannot go on installing {name}: nobody waits for it; start it again")
            if time.monotonic() > until:
                raise TimedOut(
                    f"cannot install {name} within {INSTALL_LIMIT:g} s; try again, or run `legation agents install {name}`",
                    {"type": "install_failed"},
                )

        try:
            await asyncio.to_thread(self.catalogue.install, name, version, progress=progress, again=again)
        finally:
            gone = True


# MCP servers of a session: as a client gives them, and as the agent gets them.

MOST_SERVERS: Final = 64  # servers of one session
_IN_FOLDER: Final = 'cd "$0" && exec "$@"'  # ACP has no folder for a server: a shell goes there first


def servers_of(given: Mapping[str, LocalMcp | RemoteMcp] | None) -> tuple[McpServer, ...]:
    """Return those that are enabled, in the order given."""
    if given and len(given) > MOST_SERVERS:
        raise InvalidParams(f"cannot give a session more than {MOST_SERVERS} MCP servers; leave some out")
    return tuple(
        _local(name, each) if isinstance(each, LocalMcp) else _remote(name, each)
        for name, each in (given or {}).items()
        if each.enabled is not False
    )


def _local(name: str, given: LocalMcp) -> McpServer:
    words = [given.command] if isinstance(given.command, str) else list(given.command)
    if not words or not words[0]:
        raise InvalidParams(f"cannot start MCP server {name[:40]!r}: there is no command; give one")
    words += given.args
    if given.cwd is not None:
        words = ["/bin/sh", "-c", _IN_FOLDER, given.cwd, *words]
    return McpServer.stdio(name, words[0], tuple(words[1:]), given.env)


def _remote(name: str, given: RemoteMcp) -> McpServer:
    if not given.url.startswith(("http://", "https://")):
        raise InvalidParams(f"cannot reach MCP server {name[:40]!r}: give a URL of http or https")
    if given.bearer_token_env_var is not None or given.env_headers or given.oauth not in (None, False):
        raise InvalidParams(
            f"cannot use bearerTokenEnvVar, envHeaders or oauth of MCP server {name[:40]!r}: they would send variables of"
            " the server to an address of the caller's choice; give `headers`"
        )
    headers = tuple(NameValue(name=key, value=value) for key, value in (given.headers or {}).items())
    return McpServer(name=name, type=given.transport or "http", url=given.url, headers=headers)
