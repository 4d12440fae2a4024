"""Members of a workspace: always of the caller's own.

INV-I3  Somebody can always look after a workspace: its last owner is neither removed nor demoted.
"""

from legation.errors import Conflict, Forbidden, NotFound
from legation.store.audit import record
from legation.store.database.transaction import Dangling, Queries, Row, Transaction, only, page_of
from legation.store.identity import tokens
from legation.wire.api.identity import Member
from legation.wire.api.shape import Page
from legation.wire.principal import ROLE_SCOPES, Principal, Role

SQL = Queries("members")


def insert(workspace: str, user: str, role: Role, now_ms: int) -> Transaction[None]:
    try:
        yield SQL.put_member(workspace=workspace, user=user, role=role, created_at=now_ms)
    except Dangling:
        raise NotFound("cannot find the user; check the id among the users") from None


def put(principal: Principal, user: str, role: Role, *, now_ms: int) -> Transaction[Member]:
    """A new member, or another role for one there is."""
    workspace = principal.workspace
    before = only((yield SQL.member(workspace=workspace, user=user)))
    if before is None or before["role"] != role:
        _must_have_as_much(principal, role)
        if before is not None and before["role"] == "owner":
            yield from _needs_another_owner(workspace, user)
        yield from insert(workspace, user, role, now_ms)
        details = {"role": role, "before": before["role"] if before else None}
        yield from record(principal, "member.set", user, details, now_ms)
    row = only((yield SQL.member(workspace=workspace, user=user)))
    assert row is not None  # we have just written it
    return _read(row)


def _must_have_as_much(principal: Principal, role: Role) -> None:
    """As for tokens: nobody gives more than they have, and who decides less than a person makes nobody an approver."""
    scopes = ROLE_SCOPES[role]
    if not scopes <= principal.scopes or ("approve" in scopes and principal.level < 2):
        raise Forbidden(f"cannot make somebody {role} with a credential that can do less; sign in yourself")


def remove(principal: Principal, user: str, *, now_ms: int) -> Transaction[None]:
    """And revoke the tokens that the member made here."""
    workspace = principal.workspace
    before = only((yield SQL.member(workspace=workspace, user=user)))
    if before is None:
        raise NotFound("cannot find the member; check the id among those of the workspace")
    if before["role"] == "owner":
        yield from _needs_another_owner(workspace, user)
    yield SQL.remove_member(workspace=workspace, user=user)
    revoked = yield from tokens.revoke_of(workspace, user, now_ms)
    details = {"role": before["role"], "tokensRevoked": revoked}
    yield from record(principal, "member.removed", user, details, now_ms)


def page(workspace: str, limit: int, after: str = "") -> Transaction[Page[Member]]:
    rows = yield SQL.members_after(workspace=workspace, after=after, most=limit + 1)
    return page_of(rows, limit, _read, lambda member: member.user)


def first_owner(workspace: str) -> Transaction[str | None]:
    row = only((yield SQL.first_owner(workspace=workspace)))
    return row["user_id"] if row else None


def _needs_another_owner(workspace: str, user: str) -> Transaction[None]:
    if not (yield SQL.another_owner(workspace=workspace, user=user)):
        raise Conflict(
            f"cannot remove or demote {user}: nobody else could look after workspace {workspace}; make another "
            "member its owner first"
        )


def _read(row: Row) -> Member:
    return Member(user=row["id"], name=row["name"], role=row["role"], since=row["created_at"])
