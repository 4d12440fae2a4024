"""The audit log: who changed what, written in the very transaction that changes it.

INV-A1  A row never holds a secret or anything that somebody typed: ids, addresses, numbers and fixed words only.
        Names, labels and e-mail addresses stay in their own tables, where the target's id leads.
INV-A2  A change and its row are one transaction: there is never one without the other.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, get_args

import msgspec

from legation.clock import new_id
from legation.errors import InternalError
from legation.store.database.transaction import Queries, Row, Statement, Transaction, Value
from legation.store.secrets.sealer import must_be_plain
from legation.wire.api.identity import AuditEntry
from legation.wire.principal import Principal

Change = Literal[
    "user.created", "user.changed", "user.disabled", "user.enabled", "user.signed-in", "user.signed-out",
    "workspace.created", "member.set", "member.removed",
    "token.created", "token.revoked", "link.created", "grant.created", "grant.revoked",
    "keys.rotated", "backup.made", "server.started", "server.stopped", "process.started",
    "folder.trusted", "folder.untrusted", "session.deleted", "data.pruned",
    "run.submitted", "run.refused", "run.cancelled", "run.messaged", "run.paused", "run.resumed", "template.created",
]  # fmt: skip

# What each says of its target, in words for the docs.
MEANINGS: Final[dict[Change, str]] = {
    "user.created": "a user was made",
    "user.changed": "a user's name, e-mail address or admin right changed; `changed` lists which",
    "user.disabled": "a user was shut out: no credential of theirs works",
    "user.enabled": "a disabled user was let in again",
    "user.signed-in": "a one-time link became a browser session",
    "user.signed-out": "every browser session of a user ended",
    "workspace.created": "a workspace was made",
    "member.set": "a user became a member, or has another role; `role` is the new one",
    "member.removed": "a user is no longer a member",
    "token.created": "an API token was made; `kind` and `scopes` say what it may do",
    "token.revoked": "an API token no longer works",
    "link.created": "a one-time sign-in link was made for a user",
    "grant.created": "agents may use tools without asking until `expiresAt`; the grant says which",
    "grant.revoked": "a grant lets nothing pass any more",
    "keys.rotated": "a new vault key became the current one; `rewrapped` values were under an older one",
    "backup.made": "a backup of the whole installation was made",
    "server.started": "a server started; `version` is Legation's",
    "server.stopped": "a server stopped in good order",
    "process.started": "an operator starts a program on the server's machine; `program` is its name where that is plain, `tty` whether it has a terminal",
    "folder.trusted": "what a repository says to agents counts in a folder; the list of trusted folders says which",
    "folder.untrusted": "it no longer counts in a folder",
    "session.deleted": "a session was deleted, with all that was recorded of it; an id that may hold a secret is given as the beginning of its SHA-256",
    "data.pruned": "what is older than `before` (ms since the epoch) is being deleted; the target is the kind, `count` how many there were",
    "run.submitted": "a run was submitted; `agent` and `template` say of what",
    "run.refused": "a run, or what was asked of one, was not taken; `code` says why",
    "run.cancelled": "the end of a run was asked for",
    "run.messaged": "something further was said to the agent of a run",
    "run.paused": "the agent of a run is to stop for a while",
    "run.resumed": "a paused, suspended or failed run is to go on",
    "template.created": "a template of runs was made",
}

Detail = str | int | bool | None

MOST_DETAILS: Final = 16
MOST_ROWS: Final = 501  # in one page, and one to know whether there are more
_INT64: Final = 2**63

_SQL: Final = Queries("audit")
_CHANGES: Final = frozenset(get_args(Change))


def record(
    principal: Principal,
    action: Change,
    target: str,
    details: Mapping[str, Detail],
    now_ms: int,
    *,
    row_id: str | None = None,
) -> Transaction[None]:
    """A part of the transaction that makes the change: `yield from record(...)`. The detail `via` says by which credential
    of the process's a person did it. A change that is no row of this database names its `row_id` beforehand, and is
    recorded once, however often it is tried."""
    write = _SQL.record if row_id is None else _SQL.record_once
    (row,) = _rows(action, [(principal, target, details)], now_ms)
    yield write(**{**row, "id": row_id or row["id"]})


def record_each(
    action: Change, changes: Sequence[tuple[Principal, str, Mapping[str, Detail]]], now_ms: int
) -> Transaction[None]:
    """As `record`, of several changes of one kind: who made each, its target and its details."""
    yield records_insertion(action, changes, now_ms)


def records_insertion(
    action: Change, changes: Sequence[tuple[Principal, str, Mapping[str, Detail]]], now_ms: int
) -> Statement:
    """The same as a part of the statement that makes the changes."""
    return _SQL.each("record", _rows(action, changes, now_ms))


def _rows(
    action: Change, changes: Sequence[tuple[Principal, str, Mapping[str, Detail]]], now_ms: int
) -> list[dict[str, Value]]:
    if action not in _CHANGES:
        raise InternalError("cannot record a change that audit.py does not list; add it there")
    what = f"the target of {action}"
    rows: list[dict[str, Value]] = []
    actor: Principal | None = None
    shared: dict[str, Value] = {}
    for principal, target, details in changes:
        if principal is not actor:  # mostly one has made all of them
            actor, shared = principal, _of_actor(principal, action, now_ms)
        said = details if principal.via is None else {**details, "via": principal.via}
        rows.append(
            {
                **shared,
                "id": new_id("aud", now_ms=now_ms),
                "target": must_be_plain(target, what),
                "details": _encode(action, said),
            }
        )
    return rows


def _of_actor(principal: Principal, action: Change, now_ms: int) -> dict[str, Value]:
    return {
        "workspace": principal.workspace,
        "at": now_ms,
        "actor_kind": must_be_plain(principal.kind, "an actor's kind in the audit log"),
        "actor": must_be_plain(principal.id, "an actor in the audit log"),
        "action": action,
    }


def page(workspace: str, after: str | None, limit: int) -> Transaction[list[AuditEntry]]:
    """Newest first; `after` is the last id of the page before."""
    limit = max(1, min(limit, MOST_ROWS))
    if after is None:
        rows = yield _SQL.newest(workspace=workspace, limit=limit)
    else:
        rows = yield _SQL.older(workspace=workspace, after=after, limit=limit)
    names = yield from names_of(row["actor"] for row in rows if row["actor_kind"] == "user")
    return [_entry(row, names) for row in rows]


def names_of(users: Iterable[str]) -> Transaction[dict[str, str]]:
    """The names that people have now, by their ids: for whoever reads what they did. A token has its person's, a supervisor's one the
    name that it was made with."""
    ids = sorted(set(users))
    if not ids:
        return {}
    rows = yield _SQL.names_of(users=msgspec.json.encode(ids).decode())
    return {row["id"]: row["name"] for row in rows}


def _entry(row: Row, names: Mapping[str, str]) -> AuditEntry:
    return AuditEntry(
        id=row["id"],
        at=row["at"],
        actor_kind=row["actor_kind"],
        actor=row["actor"],
        action=row["action"],
        target=row["target"],
        details=msgspec.json.decode(row["details"], type=dict[str, Detail]),
        actor_name=names.get(row["actor"]),
    )


def _encode(action: Change, details: Mapping[str, Detail]) -> str:
    if len(details) > MOST_DETAILS:
        raise InternalError(f"cannot record {action} with more than {MOST_DETAILS} details; leave some out")
    checked = {name: _checked(action, name, value) for name, value in details.items()}
    return msgspec.json.encode(checked).decode()


def _checked(action: Change, name: str, value: object) -> Detail:
    must_be_plain(name, f"the name of a detail of {action}")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and -_INT64 <= value < _INT64:
        return value
    what = f"detail {name} of {action}"
    if isinstance(value, str):
        return must_be_plain(value, what)
    del value
    raise InternalError(f"cannot store {what}: it is no text, number, boolean or null; give one of these")
