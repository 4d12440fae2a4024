"""`legation workspaces`: what belongs together, and who may do what in it."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from legation.cli.command import Json, PlaceFlags, connect, line, say, show, tell, when
from legation.wire.principal import Role

app = App(name="workspaces", help="Workspaces and their members: list, make, give roles.")
LOCAL = "local"

UserId = Annotated[str, Parameter(help="Whom, by id.")]


@app.default
@app.command(name="list")
def list_(*, json: Json = False, settings: PlaceFlags | None = None) -> None:
    """List your workspaces."""
    with connect(settings) as server:
        columns = {
            "id": lambda workspace: workspace.id,
            "name": lambda workspace: workspace.name,
            "your role": lambda workspace: workspace.role,
            "since": lambda workspace: when(workspace.created_at),
        }
        show(server.workspaces.list(), columns, json=json, if_empty="no workspaces")


@app.command
def new(
    name: Annotated[str, Parameter(help="How it is shown.")],
    /,
    *,
    json: Json = False,
    settings: PlaceFlags | None = None,
) -> None:
    """Make a workspace; you become its owner."""
    with connect(settings) as server:
        made = server.workspaces.create(name)
    tell(made, f"made {made.id} ({line(made.name)})", json=json)


@app.command
def members(*, json: Json = False, settings: PlaceFlags | None = None) -> None:
    """List who is in a workspace, and as what."""
    workspace = _chosen(settings)
    with connect(settings) as server:
        columns = {
            "user": lambda member: member.user,
            "name": lambda member: member.name,
            "role": lambda member: member.role,
            "since": lambda member: when(member.since),
        }
        show(server.workspaces.members(workspace), columns, json=json, if_empty="no members")


@app.command
def set_role(
    user: UserId,
    role: Annotated[
        Role,
        Parameter(help="owner: everything; operator: run agents; approver: decide approvals; viewer: see."),
    ],
    /,
    *,
    settings: PlaceFlags | None = None,
) -> None:
    """Put a user into a workspace, or change what they may do there."""
    workspace = _chosen(settings)
    with connect(settings) as server:
        member = server.workspaces.set_role(workspace, user, role)
    say(f"{member.user} ({line(member.name)}) is {member.role} of {line(workspace)}")


@app.command
def remove(user: UserId, /, *, settings: PlaceFlags | None = None) -> None:
    """Take a user out of a workspace; their tokens for it end with that."""
    workspace = _chosen(settings)
    with connect(settings) as server:
        server.workspaces.remove(workspace, user)
    say(f"removed {line(user)} from {line(workspace)}")


def _chosen(settings: PlaceFlags | None) -> str:
    return (settings and settings.workspace) or LOCAL
