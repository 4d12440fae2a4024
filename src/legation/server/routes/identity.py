"""Routes about identity: who the caller is, users, workspaces and their members, tokens, the audit log."""

from __future__ import annotations

import msgspec

from legation.clock import new_id
from legation.errors import Conflict, NotFound, RateLimited
from legation.server.auth import RENEW_AFTER_MS, Cookies, new_session, presented_session
from legation.server.http.routes import PEOPLE, Call, RouteReply, Routes, needs
from legation.server.routes.page import PageLimit
from legation.server.routes.rates import TOKENS, USERS, WORKSPACES, limit_caller
from legation.store import audit
from legation.store.identity import members, tokens, users, workspaces
from legation.store.identity.tokens import CredentialHash, Hashed, hint_of, new_token, person_behind
from legation.wire.api.identity import (
    AuditEntry,
    Me,
    Member,
    NewRole,
    NewToken,
    NewUser,
    NewWorkspace,
    Token,
    TokenCreated,
    User,
    UserChange,
    Workspace,
)
from legation.wire.api.shape import Page

routes = Routes(tag="identity")


@routes.get("/v1/me", access=needs("read"))
async def me(call: Call) -> RouteReply[Me]:
    """Who the credential says you are. A token is itself, and does not say whose it is.

    A browser's session that is older than a day gets a new cookie with the answer."""
    principal = call.principal
    kind, id_ = principal.asker  # the credential; `user` is the person
    answer = Me(
        kind=kind,
        id=id_,
        workspace=principal.workspace,
        scopes=sorted(principal.scopes),
        level=principal.level,
        user=principal.user if principal.kind in PEOPLE else None,
    )
    return RouteReply(answer, headers=_renewal(call))


def _renewal(call: Call) -> dict[str, str]:
    text = presented_session(call.request)
    if call.principal.kind != "user" or text is None:
        return {}
    now = call.services.clock.now_ms()
    cookies = Cookies.of(call.services.keys.cookie, call.services.public_url)
    session = cookies.read(text, now)
    if session is None or now - session.issued_ms < RENEW_AFTER_MS:
        return {}
    return cookies.header(new_session(session.user, session.workspace, session.token_version, now), now)


users_routes = Routes(tag="users")


@users_routes.get("/v1/users", access=needs("instance"))
async def list_users(call: Call, limit: PageLimit = 100, after: str = "") -> Page[User]:
    """All users, by age."""
    return await call.services.database.read(users.page, limit, after)


@users_routes.post("/v1/users", access=needs("instance"), status=201, errors=(Conflict, RateLimited))
async def create_user(call: Call, body: NewUser) -> User:
    """Create a user.

    With a role, they become a member of the caller's workspace; this needs the scope "manage" as well."""
    await limit_caller(call, "users", USERS)
    now = call.services.clock.now_ms()
    return await call.services.database.transact(
        users.create, call.principal, body, user=new_id("usr", now_ms=now), now_ms=now
    )


@users_routes.get("/v1/users/{user}", access=needs("instance"), errors=(NotFound,))
async def read_user(call: Call, user: str) -> User:
    """One user."""
    return await call.services.database.read(users.get, user)


@users_routes.patch("/v1/users/{user}", access=needs("instance"), errors=(NotFound, Conflict))
async def change_user(call: Call, user: str, body: UserChange) -> User:
    """Rename, disable, enable, sign out, or make an admin of the installation.

    The last admin can be neither disabled nor demoted."""
    changed = await call.services.database.transact(
        users.change, call.principal, user, body, now_ms=call.services.clock.now_ms()
    )
    await call.services.end_revoked()
    return changed


workspaces_routes = Routes(tag="workspaces")


@workspaces_routes.get("/v1/workspaces", access=needs("read"))
async def list_workspaces(call: Call, limit: PageLimit = 100, after: str = "") -> Page[Workspace]:
    """Those that the caller is a member of; with a token, the token's own."""
    user, database = person_behind(call.principal), call.services.database
    if call.principal.kind in PEOPLE:
        return await database.read(workspaces.page, user, limit, after)
    own = await _own(call)
    return Page(items=[own] if own.id > after else [])


@workspaces_routes.post("/v1/workspaces", access=needs("instance"), status=201, errors=(RateLimited,))
async def create_workspace(call: Call, body: NewWorkspace) -> Workspace:
    """Create a workspace; the caller becomes its owner."""
    await limit_caller(call, "workspaces", WORKSPACES)
    now = call.services.clock.now_ms()
    created = await call.services.database.transact(
        workspaces.create,
        call.principal,
        person_behind(call.principal),
        body,
        workspace=new_id("wsp", now_ms=now),
        now_ms=now,
    )
    await call.services.changes.open(created.id)
    return created


@workspaces_routes.get("/v1/workspaces/{workspace}", access=needs("read"), errors=(NotFound,))
async def read_workspace(call: Call, workspace: str) -> Workspace:
    """One workspace that the caller is a member of; `role` is null for a token, which has scopes instead."""
    _must_be_own(call, workspace)
    return await _own(call)


@workspaces_routes.get("/v1/workspaces/{workspace}/members", access=needs("read"), errors=(NotFound,))
async def list_members(call: Call, workspace: str, limit: PageLimit = 100, after: str = "") -> Page[Member]:
    """The members of a workspace."""
    _must_be_own(call, workspace)
    return await call.services.database.read(members.page, workspace, limit, after)


@workspaces_routes.put(
    "/v1/workspaces/{workspace}/members/{user}", access=needs("manage"), errors=(NotFound, Conflict)
)
async def set_member(call: Call, workspace: str, user: str, body: NewRole) -> Member:
    """Make a user a member, or give a member another role.

    The last owner cannot be demoted."""
    _must_be_own(call, workspace)
    member = await call.services.database.transact(
        members.put, call.principal, user, body.role, now_ms=call.services.clock.now_ms()
    )
    await call.services.end_revoked()
    return member


@workspaces_routes.delete(
    "/v1/workspaces/{workspace}/members/{user}", access=needs("manage"), errors=(NotFound, Conflict)
)
async def remove_member(call: Call, workspace: str, user: str) -> None:
    """Remove a member, and revoke the tokens that they made in the workspace.

    The last owner cannot be removed."""
    _must_be_own(call, workspace)
    await call.services.database.transact(
        members.remove, call.principal, user, now_ms=call.services.clock.now_ms()
    )
    await call.services.end_revoked()


async def _own(call: Call) -> Workspace:
    found = await call.services.database.read(
        workspaces.get, call.principal.workspace, person_behind(call.principal)
    )
    if call.principal.kind in PEOPLE:
        return found
    return msgspec.structs.replace(found, role=None)  # the one that is read is its maker's


def _must_be_own(call: Call, workspace: str) -> None:
    if workspace != call.principal.workspace:
        raise NotFound("cannot find the workspace; check the id among yours")


tokens_routes = Routes(tag="tokens")


@tokens_routes.get("/v1/tokens", access=needs("manage"))
async def list_tokens(call: Call, limit: PageLimit = 100, after: str = "") -> Page[Token]:
    """All tokens of the workspace, by age, the revoked and expired ones too."""
    return await call.services.database.read(tokens.page, call.principal.workspace, limit, after)


@tokens_routes.post("/v1/tokens", access=needs("manage"), status=201, errors=(RateLimited,))
async def create_token(call: Call, body: NewToken) -> TokenCreated:
    """Create a token that acts in the caller's name.

    It has at most the caller's scopes, and at any time at most those of the caller's role. The secret is shown
    this once."""
    await limit_caller(call, "tokens", TOKENS)
    secret, now = new_token(), call.services.clock.now_ms()
    kept = Hashed(CredentialHash(call.services.keys.pepper).token(secret.reveal()), hint_of(secret))
    token = await call.services.database.transact(
        tokens.create,
        call.principal,
        person_behind(call.principal),
        body,
        kept,
        token=new_id("tok", now_ms=now),
        now_ms=now,
    )
    return TokenCreated(token=token, secret=secret.reveal())


@tokens_routes.delete("/v1/tokens/{token}", access=needs("manage"), errors=(NotFound,))
async def revoke_token(call: Call, token: str) -> None:
    """Revoke a token: it stops working at once."""
    await call.services.database.transact(
        tokens.revoke, call.principal, token, now_ms=call.services.clock.now_ms()
    )
    await call.services.end_revoked()


audit_routes = Routes(tag="audit")


@audit_routes.get("/v1/audit", access=needs("manage"))
async def list_audit(call: Call, limit: PageLimit = 100, after: str | None = None) -> Page[AuditEntry]:
    """Who changed what in the workspace, the newest first."""
    found = await call.services.database.read(audit.page, call.principal.workspace, after, limit + 1)
    more = len(found) > limit
    return Page(items=found[:limit], next=found[limit - 1].id if more else None)
