"""Who asks: what any credential becomes before anything is decided about its request."""

from dataclasses import dataclass
from typing import Final, Literal, get_args

Role = Literal["owner", "operator", "approver", "viewer"]
Scope = Literal["read", "operate", "approve", "manage", "instance"]
Level = Literal[0, 1, 2]  # what it may decide as: nothing, a supervisor, a person

SCOPES: Final[frozenset[Scope]] = frozenset(get_args(Scope))

# What each scope opens, in words for --help and the docs.
SCOPE_MEANINGS: Final[dict[Scope, str]] = {
    "read": "see the workspace: sessions, runs, approvals, streams",
    "operate": "start, steer and stop sessions and runs",
    "approve": "decide approvals and give grants",
    "manage": "members, tokens, the audit log and the workspace itself",
    "instance": "users, workspaces, keys and backups of the whole installation",
}

ROLE_SCOPES: Final[dict[Role, frozenset[Scope]]] = {
    "owner": frozenset({"read", "operate", "approve", "manage"}),
    "operator": frozenset({"read", "operate"}),
    "approver": frozenset({"read", "approve"}),
    "viewer": frozenset({"read"}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """`kind` is an open set: later surfaces add theirs and touch no route."""

    kind: str  # "user" (a signed-in person), "token", "process" (the server's own), later "runner", ...
    id: str
    workspace: str
    scopes: frozenset[Scope]
    level: Level
    user: str | None = None  # the person behind it, to whom its work is attributed
