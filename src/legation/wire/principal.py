"""Principals: what any credential becomes before anything is decided about its request."""

import re
from typing import Final, Literal, get_args

import msgspec

Role = Literal["owner", "operator", "approver", "viewer"]
Scope = Literal["read", "call", "operate", "approve", "manage", "instance", "backup"]
Level = Literal[0, 1, 2]  # what it may decide as: nothing, a supervisor, a person

SCOPES: Final[frozenset[Scope]] = frozenset(get_args(Scope))

# What each scope opens, in words for --help and the docs.
SCOPE_MEANINGS: Final[dict[Scope, str]] = {
    "read": "see the workspace: sessions, runs, approvals, streams",
    # Apart from `operate`: whoever starts sessions chooses an agent's name, and with it the rules that hold for it.
    "call": "call tools behind the rules, and ask what would be decided",
    "operate": "start, steer and stop sessions and runs",
    "approve": "decide approvals and give grants",
    "manage": "members, tokens, the audit log and the workspace itself",
    "instance": "users, workspaces and keys of the whole installation",
    # Apart from `instance`: whoever makes users need not read what is said in every workspace.
    "backup": "take a copy of the whole installation, in which prompts and agents' answers can be read",
}

ROLE_SCOPES: Final[dict[Role, frozenset[Scope]]] = {
    "owner": frozenset({"read", "call", "operate", "approve", "manage"}),
    "operator": frozenset({"read", "call", "operate"}),
    "approver": frozenset({"read", "approve"}),
    "viewer": frozenset({"read"}),
}

# Of an admin of the installation, beside those of their role. A token has them only if they are named.
ADMIN_SCOPES: Final[frozenset[Scope]] = frozenset({"instance", "backup"})

# Of an agent's token: what it has unless more is asked for, and what it never has, whoever makes it.
AGENT_SCOPES: Final[frozenset[Scope]] = frozenset({"call"})
NEVER_AN_AGENTS: Final[frozenset[Scope]] = frozenset({"manage", *ADMIN_SCOPES})

_AGENT_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,127}", re.ASCII)
AGENT_NAME_RULE: Final = (
    "letters, digits, `_`, `.`, `@` and `-`, a letter or digit first, at most 128 characters"
)


def is_agent_name(text: str) -> bool:
    """A name that a policy can mean exactly: none of it is a pattern's."""
    return _AGENT_NAME.fullmatch(text) is not None


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """`kind` is an open set: later surfaces add theirs and touch no route."""

    kind: str  # "user" (a signed-in person), "token", "process" (the server's own), later "runner", ...
    id: str
    workspace: str
    scopes: frozenset[Scope]
    level: Level
    user: str | None = None  # the person behind it, to whom its work is attributed
    agent: str | None = None  # of an agent's own credential: as which it acts, and it acts as no other
    via: str | None = None  # of a person who acts by a credential of the process's: which
    version: int | None = None  # of a browser's: the user's number when it signed in, which ends with it

    @property
    def asker(self) -> tuple[str, str]:
        """The credential as the one that asks: it never answers. A person who asks by one may answer by another."""
        return (self.kind, self.id) if self.via is None else ("process", self.via)
