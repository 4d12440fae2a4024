"""What the routes work with. `instance.py` opens it all; nothing else makes one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from legation.errors import LegationError

if TYPE_CHECKING:
    from legation.approvals.door import Door
    from legation.approvals.grants import GrantService
    from legation.approvals.policies import Policies
    from legation.approvals.queue import ApprovalQueue, Attendance, ChangeStream
    from legation.approvals.trace.chain import Ledger
    from legation.clock import Clock
    from legation.gateway.tools import Toolbox
    from legation.secret import Secret
    from legation.server.acp.connections import AcpConnections
    from legation.server.auth import ProcessTokens, TokenUses
    from legation.server.fs.files import Files
    from legation.server.processes.processes import Processes
    from legation.server.sessions.hosts import WorkspaceHosts
    from legation.server.sessions.service import SessionService
    from legation.server.streaming.hub import Hub
    from legation.settings import Settings
    from legation.store.blobs.base import Blobs, LinkSigner
    from legation.store.counters import Buckets
    from legation.store.database.transaction import Database
    from legation.store.identity.workspaces import Installation
    from legation.store.log import EventLog
    from legation.store.secrets.keys import Keys
    from legation.store.secrets.sealing import Sealer
    from legation.store.secrets.vault import Vault

logger = logging.getLogger("legation.server")

Mode = Literal["up", "server"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    settings: Settings
    mode: Mode
    clock: Clock
    started_at: int
    public_url: str
    local_url: str  # for the commands of this machine
    browser_url: str  # for links that people open
    database: Database
    keys: Keys
    rotating: asyncio.Lock  # the keys are being changed
    backing_up: asyncio.Lock
    replaying: asyncio.Lock  # somebody's policy is being tried
    keys_file: Path  # those of them that are no settings
    sealer: Sealer
    vault: Vault
    blobs: Blobs
    links: LinkSigner  # to blobs in a folder; S3 signs its own
    log: EventLog
    hub: Hub
    process_tokens: ProcessTokens
    token_uses: TokenUses
    buckets: Buckets
    policies: Policies
    ledger: Ledger
    inbox: ApprovalQueue
    changes: ChangeStream  # of approvals, as a stream
    attendance: Attendance
    grants: GrantService
    door: Door
    toolbox: Toolbox
    hosts: WorkspaceHosts  # agents and their sessions
    sessions: SessionService
    acp: AcpConnections  # clients that take us for an agent
    files: Files
    processes: Processes  # that operators started
    own_token: Secret  # the CLI's, for as long as this server runs
    installed: Installation  # the first workspace and its owner
    stop: Callable[[], None]

    async def shut_out(self) -> None:
        """After somebody was revoked, disabled, removed, demoted or signed out, perhaps: their streams end, and what they
        wait for is superseded. It is done, so it does not fail: a database that went away is asked again by the
        keeping of approvals, and what is consumed is checked in any case."""
        self.hub.recheck()
        try:
            await self.inbox.supersede_revoked()
        except LegationError as error:
            logger.warning("cannot supersede what a revoked credential waits for, and try again: %s", error)
