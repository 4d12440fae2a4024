"""The server's hosts, one for each workspace: agents and sessions in this process, whose permissions go to the door.

Each is made by whoever first needs it, so that a server without sessions does not pay for it. What a server that was
killed left running is ended at the next start in any case.

INV-H1  Nothing that it started outlives the server.
INV-H2  The door keeps the time of a permission, not the host: who answers late is told by the door.
INV-H3  A host sees the streams and the agents' homes of its own workspace, and asks as that workspace.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from legation.approvals.approval import LONGEST_WAIT_MS
from legation.approvals.door import Door
from legation.errors import Unavailable
from legation.redact import Redactor
from legation.server.inbox import InboxItems
from legation.server.sessions.clients import SessionClients
from legation.settings import Settings
from legation.store.forbidden import ForbiddenPlaces
from legation.store.log import EventLog
from legation.store.trust import TrustedFolders
from legation.wire.principal import Principal

if TYPE_CHECKING:
    from legation.host.host import AcpHost
    from legation.host.launch import AgentLauncher

CHILDREN: Final = "children"  # of the data folder: one small file for each agent that runs
LATER: Final = 60.0  # seconds beyond the longest that an approval may wait: the door's time to say so


@dataclass(eq=False)
class WorkspaceHosts:
    """Hosts by workspace; at the end of `async with` they are disposed of, with every agent."""

    settings: Settings
    log: EventLog
    door: Door
    first: str  # workspace of the machine's owner
    redactor: Redactor  # hides in what agents say, before it is stored or seen
    forbidden: ForbiddenPlaces  # opened for no agent
    clients: SessionClients  # of sessions that have some, to serve files and terminals
    items: InboxItems  # is told what sessions ask, and how their turns end
    _hosts: dict[str, AcpHost] = field(default_factory=dict, init=False)
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _closed: bool = field(default=False, init=False)
    _hurried: bool = field(default=False, init=False)

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(_end_leftovers, self.settings.data_dir / CHILDREN)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closed = True
        async with self._opening:
            hosts = list(self._hosts.values())
            outcomes = await asyncio.gather(*[each.dispose() for each in hosts], return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    def hurry(self) -> None:
        """The server has a second to end, whatever its agents do."""
        self._hurried = True
        for host in self._hosts.values():
            host.hurry()

    @cached_property
    def launcher(self) -> AgentLauncher:
        """Launcher of agents. Nothing of agents is loaded before somebody asks for one."""
        from legation.host.launch import AgentLauncher

        settings, executes = self.settings, self.settings.rehearsal_executes
        return AgentLauncher(settings.data_dir, settings.agents, self.first, self.redactor, executes=executes)

    async def host(self, workspace: str | None = None) -> AcpHost:
        """Open that of the workspace, the first unless another is named."""
        name = workspace or self.first
        async with self._opening:
            if self._closed:
                raise Unavailable("cannot use agents any more: the server stops; try again when it is back")
            if name not in self._hosts:
                self._hosts[name] = await self._open(name)
                if self._hurried:
                    self._hosts[name].hurry()
            return self._hosts[name]

    def cut_turns(self) -> None:
        """The server stops: turns that run end with a word on that."""
        if self._hosts:
            from legation.server.sessions.messages import cut_words

            for host in self._hosts.values():
                host.cut_turns(cut_words("stopped"))

    def trusted(self, workspace: str) -> TrustedFolders:
        return TrustedFolders(self.settings.data_dir, workspace)

    async def _open(self, workspace: str) -> AcpHost:
        from legation.host.host import AcpHost
        from legation.host.options import HostOptions, Limits
        from legation.host.requests.door_approver import DoorApprover
        from legation.server.sessions.client_handlers import (
            ClientExtensions,
            ClientFiles,
            ClientTerminals,
            WaitingQuestions,
        )

        settings, forbidden = self.settings, self.forbidden.in_workspace(workspace)
        # Not the credential of whoever started a session: that one may answer what its agent asks.
        requester = Principal(kind="process", id="host", workspace=workspace, scopes=frozenset(), level=0)
        options = HostOptions(
            approver=DoorApprover(self.door, requester),
            questions=WaitingQuestions(),
            fs=ClientFiles(self.clients, workspace),
            terminal=ClientTerminals(self.clients, workspace),
            extensions=ClientExtensions(self.clients, workspace),
            workspace=workspace,
            limits=Limits(
                start=settings.start_timeout,
                idle=settings.idle_timeout,
                permission=LONGEST_WAIT_MS / 1000 + LATER,
            ),
            kill_timeout_ms=settings.stop_grace * 1000,
            max_line=settings.max_line_bytes,
            redact=self.redactor.bytes,
            data_dir=settings.data_dir,
            forbidden=forbidden,
            trusts=self.trusted(workspace).trusts,
            observe=partial(self.items.note, workspace),
        )
        return await AcpHost(options, log=self.log).__aenter__()


def _end_leftovers(children: Path) -> None:
    """End what a server, or an exec, on the same folder left when it was killed. Blocks."""
    if not children.is_dir() or not any(children.iterdir()):
        return
    from legation.proc import reap

    reap(children)
