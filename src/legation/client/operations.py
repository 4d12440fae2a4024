"""Every operation of the HTTP API that the client offers, each written once, for sync and async alike."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from legation.client.eventline import read_page
from legation.client.operation import AsJson, Operation, get, nothing, of_body, query_of, sending
from legation.client.target import segment
from legation.wire.api.identity import (
    AuditEntry,
    Me,
    Member,
    NewRole,
    NewSignInLink,
    NewToken,
    NewUser,
    NewWorkspace,
    SignInLink,
    Token,
    TokenCreated,
    TokenKind,
    User,
    UserChange,
    Workspace,
)
from legation.wire.api.server import Health, KeysRotated, Readiness, ServerInfo
from legation.wire.api.shape import Page
from legation.wire.api.streams import StreamSummary
from legation.wire.events import Event
from legation.wire.principal import Role, Scope


def health() -> Operation[Health]:
    """Whether the server answers at all; needs no right."""
    return get("/v1/health", Health)


def ready() -> Operation[Readiness]:
    """Whether the server can do its work; if not, `Unavailable` with what fails in `data`."""
    return get("/v1/ready", Readiness)


def info() -> Operation[ServerInfo]:
    """What the server is: version, mode, database."""
    return get("/v1/server", ServerInfo)


def stop() -> Operation[Health]:
    """The server answers, then ends."""
    return Operation("POST", "/v1/stop", AsJson(Health))


def rotate_keys() -> Operation[KeysRotated]:
    """Seals with a new vault key from now on, and wraps anew what is sealed."""
    return Operation("POST", "/v1/keys/rotate", AsJson(KeysRotated))


def me() -> Operation[Me]:
    """Who the token says you are."""
    return get("/v1/me", Me)


def list_streams(
    prefix: str | None = None, *, after: str | None = None, limit: int | None = None
) -> Operation[Page[StreamSummary]]:
    """By name; those that start with `prefix`."""
    return get("/v1/streams", Page[StreamSummary], {"prefix": prefix, "after": after, "limit": limit})


def list_events(
    stream: str,
    after: int | str = 0,
    limit: int | None = None,
    *,
    generation: int | Literal["all"] | None = None,
) -> Operation[Page[Event]]:
    """What is recorded above the number `after`; `follow` also gives what comes. What was recorded before an agent told
    a session's history anew is an earlier `generation`, counted from 1."""
    query = query_of({"after": after, "limit": limit, "generation": generation})
    return Operation("GET", f"/v1/streams/{segment(stream)}/events", of_body(read_page), query)


def list_tokens(after: str | None = None, limit: int | None = None) -> Operation[Page[Token]]:
    return get("/v1/tokens", Page[Token], {"after": after, "limit": limit})


def create_token(
    label: str,
    *,
    kind: TokenKind = "user",
    scopes: Iterable[Scope] | None = None,
    expires_in_days: int | None = None,
) -> Operation[TokenCreated]:
    """The answer's `secret` is shown this once."""
    wanted = None if scopes is None else [*scopes]
    body = NewToken(label=label, kind=kind, scopes=wanted, expires_in_days=expires_in_days)
    return sending("POST", "/v1/tokens", body, TokenCreated)


def revoke_token(token: str) -> Operation[None]:
    """By its id; it stops working at once."""
    return Operation("DELETE", f"/v1/tokens/{segment(token)}", nothing)


def list_users(after: str | None = None, limit: int | None = None) -> Operation[Page[User]]:
    return get("/v1/users", Page[User], {"after": after, "limit": limit})


def create_user(
    name: str, *, email: str | None = None, instance_admin: bool = False, role: Role | None = None
) -> Operation[User]:
    body = NewUser(name=name, email=email, instance_admin=instance_admin, role=role)
    return sending("POST", "/v1/users", body, User)


def read_user(user: str) -> Operation[User]:
    return get(f"/v1/users/{segment(user)}", User)


def change_user(
    user: str,
    *,
    name: str | None = None,
    disabled: bool | None = None,
    instance_admin: bool | None = None,
    sign_out: bool = False,
) -> Operation[User]:
    """Only what is given changes."""
    body = UserChange(name=name, disabled=disabled, instance_admin=instance_admin, sign_out=sign_out)
    return sending("PATCH", f"/v1/users/{segment(user)}", body, User)


def list_workspaces(after: str | None = None, limit: int | None = None) -> Operation[Page[Workspace]]:
    return get("/v1/workspaces", Page[Workspace], {"after": after, "limit": limit})


def create_workspace(name: str) -> Operation[Workspace]:
    return sending("POST", "/v1/workspaces", NewWorkspace(name=name), Workspace)


def read_workspace(workspace: str) -> Operation[Workspace]:
    return get(f"/v1/workspaces/{segment(workspace)}", Workspace)


def list_members(
    workspace: str, after: str | None = None, limit: int | None = None
) -> Operation[Page[Member]]:
    return get(f"/v1/workspaces/{segment(workspace)}/members", Page[Member], {"after": after, "limit": limit})


def set_role(workspace: str, user: str, role: Role) -> Operation[Member]:
    """Makes the user a member, or changes the member's role."""
    return sending("PUT", _member(workspace, user), NewRole(role=role), Member)


def remove_member(workspace: str, user: str) -> Operation[None]:
    return Operation("DELETE", _member(workspace, user), nothing)


def sign_in_link(user: str | None = None) -> Operation[SignInLink]:
    """Signs in once, for a short time; for the caller unless a user is named."""
    return sending("POST", "/v1/sign-in-links", NewSignInLink(user=user), SignInLink)


def list_audit(after: str | None = None, limit: int | None = None) -> Operation[Page[AuditEntry]]:
    """Who changed what."""
    return get("/v1/audit", Page[AuditEntry], {"after": after, "limit": limit})


def backup(keys: bool) -> Operation[None]:
    """With the keys whoever has the file can open all of it."""
    return Operation("GET", "/v1/backup", nothing, query_of({"keys": "true" if keys else None}))


def _member(workspace: str, user: str) -> str:
    return f"/v1/workspaces/{segment(workspace)}/members/{segment(user)}"
