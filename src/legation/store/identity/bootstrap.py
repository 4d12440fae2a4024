"""The first start: a workspace and its owner, made once however many servers start at the same moment."""

from dataclasses import dataclass
from typing import Final

from legation.errors import StorageFailed
from legation.store.audit import record
from legation.store.database.queries import Queries
from legation.store.database.transaction import Transaction
from legation.store.identity import members, users
from legation.wire.api.identity import NewUser
from legation.wire.principal import SCOPES, Principal

LOCAL: Final = "local"
OWNER_NAME: Final = "owner"
SQL = Queries("workspaces")


@dataclass(frozen=True, slots=True)
class Installed:
    """`user` owns `workspace`; in their name the server's own credentials act."""

    workspace: str
    user: str
    created: bool  # by this call


def bootstrap(user: str, *, now_ms: int) -> Transaction[Installed]:
    """`user` is the id that the owner gets if there is none yet."""
    if not (yield SQL.claim_workspace(id=LOCAL, name="Local", created_at=now_ms)):
        owner = yield from members.first_owner(LOCAL)
        if owner is None:
            raise StorageFailed(
                f"cannot start: workspace {LOCAL} has no owner; restore a backup of the database"
            )
        return Installed(LOCAL, owner, created=False)
    yield from users.insert(NewUser(name=OWNER_NAME, instance_admin=True), user=user, now_ms=now_ms)
    yield from members.insert(LOCAL, user, "owner", now_ms)
    actor = Principal(kind="process", id="server", workspace=LOCAL, scopes=SCOPES, level=2, user=user)
    yield from record(actor, "workspace.created", LOCAL, {"owner": user}, now_ms)
    yield from record(actor, "user.created", user, {"admin": True}, now_ms)
    return Installed(LOCAL, user, created=True)
