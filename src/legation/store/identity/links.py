"""One-time sign-in links.

INV-I5  A link signs in once, within its time, as one user in one workspace; whoever comes second, late or with
        another code gets one and the same answer.
INV-I6  Nobody gets more by a link than they have: it takes a person's own credential that can do all that the
        session can, or an admin of the installation.
INV-I7  A token makes no link that is stronger than itself: not for who can do more, is in another workspace as well,
        or would outlast it. An admin can do everything, by a workspace of their own.
"""

from typing import Final

import msgspec

from legation.errors import Conflict, Forbidden, NotFound
from legation.store.audit import record
from legation.store.database.transaction import Queries, Transaction, only
from legation.store.identity import tokens
from legation.store.identity.tokens import Standing, person_behind, standing
from legation.wire.principal import SCOPES, Principal

LINK_MS: Final = 10 * 60_000  # the person's time to open it
_KEPT_MS: Final = 24 * 3_600_000  # how long a link that is over stays in the table
SQL = Queries("links")


class SignedIn(msgspec.Struct, frozen=True):
    workspace: str
    standing: Standing


def issue(principal: Principal, user: str | None, hash: bytes, *, now_ms: int) -> Transaction[int]:  # noqa: A002
    """For the caller, or with the scope `instance` for anybody; when it expires."""
    target, workspace = yield from check(principal, user)
    return (yield from create(principal, target, workspace, hash, now_ms=now_ms))


def check(principal: Principal, user: str | None) -> Transaction[tuple[str, str]]:
    """Whether the caller may have such a link: for whom it is, and in which workspace."""
    target = _asked_for(principal, user)  # before anything is looked up: who may not ask learns nothing
    workspace = yield from _home_of(target, principal.workspace)
    found = None if workspace is None else (yield from standing(target, workspace))
    if found is not None and target == principal.user and not found.scopes <= principal.scopes:
        raise Forbidden(
            "cannot make a link that can do more than your credential; use one that has all your scopes"
        )
    if found is not None and principal.kind == "token":
        yield from _must_not_exceed(principal, found)
    if workspace is None or found is None:
        raise Conflict(
            f"cannot make a link for {target}, who is in no workspace; make them a member of one first"
        )
    if found.disabled:
        raise Conflict(f"cannot make a link for {target}, who is disabled; enable them first")
    return target, workspace


def create(principal: Principal, user: str, workspace: str, hash: bytes, *, now_ms: int) -> Transaction[int]:  # noqa: A002
    expires_at = now_ms + LINK_MS
    yield SQL.drop_old_links(before=now_ms - _KEPT_MS)
    yield SQL.add_link(hash=hash, user=user, workspace=workspace, created_at=now_ms, expires_at=expires_at)
    yield from record(principal, "link.created", user, {"workspace": workspace}, now_ms)
    return expires_at


def use(hash: bytes, *, now_ms: int) -> Transaction[SignedIn | None]:  # noqa: A002
    """Used up by whoever shows it, even if its user is not let in."""
    row = only((yield SQL.use_link(hash=hash, now=now_ms)))
    if row is None:
        return None
    user, workspace = row["user_id"], row["workspace_id"]
    found = yield from standing(user, workspace)
    if found is None or not found.welcome:
        return None
    actor = Principal(kind="user", id=user, workspace=workspace, scopes=frozenset(), level=0, user=user)
    yield from record(actor, "user.signed-in", user, {}, now_ms)
    return SignedIn(workspace, found)


def for_mail(email: str) -> Transaction[tuple[str, str] | None]:
    """Find who has that address and may sign in, and their workspace; None of everybody else."""
    row = only((yield SQL.user_of_mail(email=email.lower())))
    if row is None:
        return None
    workspace = yield from _home_of(row["id"], "")
    found = None if workspace is None else (yield from standing(row["id"], workspace))
    return None if found is None or workspace is None or not found.welcome else (row["id"], workspace)


def drop_of(user: str) -> Transaction[None]:
    """Those that were not opened yet."""
    yield SQL.drop_links_of(user=user)


def _home_of(user: str, preferred: str) -> Transaction[str | None]:
    """The workspace to sign in to: the preferred one, else the oldest membership, if there is any."""
    row = only((yield SQL.home_of_user(user=user, preferred=preferred)))
    if row is None:
        raise NotFound("cannot find the user; check the id among the users")
    home: str | None = row["workspace_id"]
    return home


def _must_not_exceed(principal: Principal, target: Standing) -> Transaction[None]:
    wanted = SCOPES if target.admin else target.scopes
    elsewhere = yield SQL.elsewhere(user=target.user, workspace=principal.workspace)
    if elsewhere or not wanted <= principal.scopes:
        raise Forbidden(
            "cannot make a link that can do more than this token, or in other workspaces; sign in and make it there, or "
            "use `legation users link` on the server's machine"
        )
    if (yield from tokens.expiry_of(principal)) is not None:
        raise Forbidden(
            "cannot make a link with a token that expires, because the session would outlast it; sign in yourself"
        )


def _asked_for(principal: Principal, user: str | None) -> str:
    """Whether the caller may ask for such a link at all. For whom it is."""
    target = user or person_behind(principal)
    if principal.level < 2 and principal.kind != "user":
        raise Forbidden(
            "cannot make a sign-in link with a credential that is not a person's; sign in yourself"
        )
    if principal.kind == "token" and "instance" not in principal.scopes:
        # A session reaches every workspace of the user, and outlives the token.
        raise Forbidden(
            'cannot make a link with a token of one workspace; sign in, or use the scope "instance"'
        )
    if target != principal.user and "instance" not in principal.scopes:
        raise Forbidden('cannot make a link for another user without the scope "instance"; ask an admin')
    return target
