"""Users of the installation, for its admins."""

from __future__ import annotations

from legation.errors import Conflict, NotFound, RateLimited
from legation.ids import new_id
from legation.server.http.access import needs
from legation.server.http.call import Call
from legation.server.http.routes import Routes
from legation.server.identity.rates import USERS, limit_caller
from legation.server.surfaces.paging import PageLimit
from legation.store.identity import users
from legation.wire.api.identity import NewUser, User, UserChange
from legation.wire.api.shape import Page

routes = Routes(tag="users")


@routes.get("/v1/users", access=needs("instance"))
async def list_users(call: Call, limit: PageLimit = 100, after: str = "") -> Page[User]:
    """All users, by age."""
    return await call.services.database.read(users.page, limit, after)


@routes.post("/v1/users", access=needs("instance"), status=201, errors=(Conflict, RateLimited))
async def create_user(call: Call, body: NewUser) -> User:
    """Create a user.

    With a role, they become a member of the caller's workspace; this needs the scope "manage" as well."""
    await limit_caller(call, "users", USERS)
    now = call.services.clock.now_ms()
    return await call.services.database.transact(
        users.create, call.principal, body, user=new_id("usr", now_ms=now), now_ms=now
    )


@routes.get("/v1/users/{user}", access=needs("instance"), errors=(NotFound,))
async def read_user(call: Call, user: str) -> User:
    """One user."""
    return await call.services.database.read(users.get, user)


@routes.patch("/v1/users/{user}", access=needs("instance"), errors=(NotFound, Conflict))
async def change_user(call: Call, user: str, body: UserChange) -> User:
    """Rename, disable, enable, sign out, or make an admin of the installation.

    The last admin can be neither disabled nor demoted."""
    changed = await call.services.database.transact(
        users.change, call.principal, user, body, now_ms=call.services.clock.now_ms()
    )
    await call.services.shut_out()
    return changed
