"""Users of the installation. They are never deleted: what they did stays attributed to them.

INV-I2  Somebody can always look after the installation: its last admin is neither disabled nor demoted.
"""

from legation.errors import Conflict, Forbidden, NotFound
from legation.store.audit import Change, record
from legation.store.database.transaction import Duplicate, Queries, Row, Transaction, only, page_of
from legation.store.identity import links, members
from legation.wire.api.identity import NewUser, User, UserChange
from legation.wire.api.shape import Page
from legation.wire.principal import SCOPES, Principal

SQL = Queries("users")


def create(principal: Principal, new: NewUser, *, user: str, now_ms: int) -> Transaction[User]:
    """With a role, the user becomes a member of the caller's workspace as well."""
    if new.role is not None and "manage" not in principal.scopes:
        raise Forbidden(
            f'cannot give a role in workspace {principal.workspace} without the scope "manage"; leave the role '
            "out, or ask one of its owners"
        )
    if new.instance_admin:
        _must_have_everything(principal)
    yield from insert(new, user=user, now_ms=now_ms)
    yield from record(principal, "user.created", user, {"admin": new.instance_admin}, now_ms)
    if new.role is not None:
        yield from members.put(principal, user, new.role, now_ms=now_ms)
    return (yield from get(user))


def insert(new: NewUser, *, user: str, now_ms: int) -> Transaction[None]:
    email = new.email.lower() if new.email else None  # else one mailbox could stand for two users
    admin_since = now_ms if new.instance_admin else None
    try:
        yield SQL.add_user(id=user, name=new.name, email=email, admin_since=admin_since, created_at=now_ms)
    except Duplicate:
        raise Conflict(
            f"cannot create the user: {email} belongs to another user; change that one, or give another address"
        ) from None


def get(user: str) -> Transaction[User]:
    return _read((yield from _row(user)))


def page(limit: int, after: str = "") -> Transaction[Page[User]]:
    rows = yield SQL.users_after(after=after, most=limit + 1)
    return page_of(rows, limit, _read, lambda user: user.id)


def change(principal: Principal, user: str, wanted: UserChange, *, now_ms: int) -> Transaction[User]:
    """Disabling or signing out makes every cookie of the user stale and every link of theirs void."""
    before = yield from _row(user)
    if wanted.instance_admin and before["admin_since"] is None:
        _must_have_everything(principal)
    admin_since = _since(before["admin_since"], wanted.instance_admin, now_ms)
    disabled_at = _since(before["disabled_at"], wanted.disabled, now_ms)
    was_in_charge = before["admin_since"] is not None and before["disabled_at"] is None
    if was_in_charge and (admin_since is None or disabled_at is not None):
        yield from _needs_another_admin(user)
    shut_out = wanted.sign_out or (disabled_at is not None and before["disabled_at"] is None)
    after = {
        "name": before["name"] if wanted.name is None else wanted.name,
        "admin_since": admin_since,
        "disabled_at": disabled_at,
        "token_version": before["token_version"] + shut_out,
    }
    yield SQL.put_user(id=user, **after)
    if shut_out:
        yield from links.drop_of(user)
    yield from _tell(principal, before, after, now_ms)
    return (yield from get(user))


def sign_out(principal: Principal, user: str, *, now_ms: int) -> Transaction[None]:
    """End every session of a user, and every link that would start one; for oneself no right is needed."""
    before = yield from _row(user)
    after = {name: before[name] for name in ("name", "admin_since", "disabled_at")}
    after |= {"token_version": before["token_version"] + 1}
    yield SQL.put_user(id=user, **after)
    yield from links.drop_of(user)
    yield from record(principal, "user.signed-out", user, {}, now_ms)


def _must_have_everything(principal: Principal) -> None:
    """An admin can do everything, in a workspace of their own: so a token that cannot makes none."""
    if principal.kind == "token" and not (principal.scopes >= SCOPES and principal.level == 2):
        raise Forbidden(
            "cannot make an admin of the installation with a token that can do less; sign in yourself"
        )


def _since(before: int | None, wanted: bool | None, now_ms: int) -> int | None:
    if wanted is None:
        return before
    return (before or now_ms) if wanted else None


def _needs_another_admin(user: str) -> Transaction[None]:
    if not (yield SQL.another_admin(id=user)):
        raise Conflict(
            f"cannot disable or demote {user}: nobody else could look after the installation; make another user "
            "its admin first"
        )


def _tell(principal: Principal, before: Row, after: Row, now_ms: int) -> Transaction[None]:
    user = before["id"]
    words = {"name": "name", "admin_since": "admin"}
    changed = [word for column, word in words.items() if before[column] != after[column]]
    if changed:
        yield from record(principal, "user.changed", user, {"changed": ",".join(changed)}, now_ms)
    if before["disabled_at"] != after["disabled_at"]:
        done: Change = "user.disabled" if before["disabled_at"] is None else "user.enabled"
        yield from record(principal, done, user, {}, now_ms)
    elif before["token_version"] != after["token_version"]:
        yield from record(principal, "user.signed-out", user, {}, now_ms)


def _row(user: str) -> Transaction[Row]:
    row = only((yield SQL.user_by_id(id=user)))
    if row is None:
        raise NotFound("cannot find the user; check the id among the users")
    return row


def _read(row: Row) -> User:
    return User(
        id=row["id"],
        name=row["name"],
        email=row["email"],
        instance_admin=row["admin_since"] is not None,
        created_at=row["created_at"],
        disabled_at=row["disabled_at"],
    )
