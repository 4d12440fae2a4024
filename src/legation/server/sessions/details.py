"""What the server keeps of a session beside its events: how it was asked for, how it is set, what waits for it.

It stands in the stream's metadata, in the clear, so nothing of it is a secret: MCP servers are in the vault.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast, dataclass_transform

import msgspec

from legation.wire.acp.content import ResourceLink
from legation.wire.api.approvals import Value
from legation.wire.api.sessions import PermissionMode
from legation.wire.universal.shapes import Metadata


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Kept(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A member that a later release adds is ignored by an older one."""


class Message(Kept):
    """One that was accepted. Those of releases that gave them no id have none."""

    text: str
    links: tuple[ResourceLink, ...] = ()
    id: str = ""

    @property
    def size(self) -> int:
        return len(self.text) + sum(len(link.uri) for link in self.links)


class Begun(Kept):
    """A message on its way to the agent: whatever the log has of its turn stands above `after`."""

    message: Message
    after: int


class Exit(Kept):
    """How the agent's process ended, where it was not we who ended it."""

    reason: str
    code: int | None = None
    signal: int | None = None
    stderr: str | None = None

    @property
    def words(self) -> str:
        how = f"signal {self.signal}" if self.signal is not None else f"exit code {self.code}"
        return f"{self.reason}: {how}"

    def shown(self) -> dict[str, Value]:
        return {"reason": self.reason, "code": self.code, "signal": self.signal, "stderr": self.stderr}


class Cut(Kept):
    """The last turn, where it ended without a word of its agent's: the server, or the agent's process, ended before."""

    at: int  # when that was noticed
    reason: str

    def shown(self) -> dict[str, Value]:
        return {"at": self.at, "reason": self.reason}


class Sealed(Kept):
    """Where in the vault the MCP servers are."""

    owner: str
    bundle: str


class Deletion(Kept):
    """Who deleted it, and when. It is gone for everybody once this is on the disk; what is left of it is removed then, or
    at the next start of a server that was killed."""

    kind: str
    by: str
    at: int
    audit_id: str  # of the row that says so: one, however often the rest is tried
    via: str | None = None


class Details(Kept):
    """`given` is as it was asked for; the others are as they are now. `first_mode` is the agent's own."""

    agent: str
    given: Metadata
    created_at: int
    updated_at: int
    agent_mode: str = "build"
    permission_mode: PermissionMode = "default"
    model: str | None = None
    variant: str | None = None
    directory: str | None = None
    mcp: tuple[str, ...] = ()
    skills: tuple[str, ...] = ()
    sealed: Sealed | None = None
    grant: str | None = None  # what the permission mode stands for
    first_mode: str | None = None
    exit: Exit | None = None
    queue: tuple[Message, ...] = ()
    begun: Begun | None = None
    deletion: Deletion | None = None
    prompted: int | None = (
        None  # a client of ACP has the word: what the log has of its turn stands above that
    )
    cut: Cut | None = None  # until the next turn begins
    continues: str | None = None
    untold: bool = False  # its agent has not heard what was said in the session that it continues
    continued_by: str | None = None

    @property
    def mode(self) -> str:
        """The agent's, as it is to be."""
        return "plan" if self.permission_mode == "plan" else self.agent_mode

    def plain(self) -> dict[str, object]:
        return cast(dict[str, object], msgspec.to_builtins(self))


def foreign(agent: str, now: int) -> Details:
    """Of a session that a client of ACP opens."""
    given = Metadata(agent, "build", None, "default", None)
    return Details(agent=agent, given=given, created_at=now, updated_at=now)


def read_details(given: Mapping[str, object] | None) -> Details | None:
    """None for a session that was not made here."""
    try:
        return None if given is None else msgspec.convert(given, Details)
    except msgspec.ValidationError:
        return None
