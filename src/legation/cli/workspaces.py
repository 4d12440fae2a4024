"""`legation workspaces`: what belongs together, and who may do what in it."""

from __future__ import annotations

from cyclopts import App

from legation.cli.flags import Json, PlaceFlags, connect
from legation.cli.output import Terminal, line, say_json, show, when
from legation.wire.principal import Role

app = App(name="workspaces", help="Workspaces and their members: list, make, give roles.")
LOCAL = "local"


@app.default
@app.command(name="list")
def list_(*, json: Json = False, settings: PlaceFlags | None = None) -> int:
    """List your workspaces."""
    with connect(settings) as server:
        columns = {
            "id": lambda workspace: workspace.id,
            "name": lambda workspace: workspace.name,
            "your role": lambda workspace: workspace.role,
            "since": lambda workspace: when(workspace.created_at),
        }
        show(server.workspaces.list(), columns, json=json, if_empty="no workspaces")
    return 0


@app.command
def new(name: str, /, *, json: Json = False, settings: PlaceFlags | None = None) -> int:
    """Make a workspace; you become its owner.

    Parameters
    ----------
    name
        How it is shown.
    """
    with connect(settings) as server:
        made = server.workspaces.create(name)
    if json:
        say_json(made)
    else:
        Terminal().say(f"made {made.id} ({line(made.name)})")
    return 0


@app.command
def members(*, json: Json = False, settings: PlaceFlags | None = None) -> int:
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
    return 0


@app.command
def set_role(
    user: str,
    role: Role,
    /,
    *,
    settings: PlaceFlags | None = None,
) -> int:
    """Put a user into a workspace, or change what they may do there.

    Parameters
    ----------
    user
        Whom, by id.
    role
        owner: everything; operator: run agents; approver: decide approvals; viewer: see.
    """
    workspace = _chosen(settings)
    with connect(settings) as server:
        member = server.workspaces.set_role(workspace, user, role)
    Terminal().say(f"{member.user} ({line(member.name)}) is {member.role} of {line(workspace)}")
    return 0


@app.command
def remove(
    user: str,
    /,
    *,
    settings: PlaceFlags | None = None,
) -> int:
    """Take a user out of a workspace; their tokens for it end with that.

    Parameters
    ----------
    user
        Whom, by id.
    """
    workspace = _chosen(settings)
    with connect(settings) as server:
        server.workspaces.remove(workspace, user)
    Terminal().say(f"removed {line(user)} from {line(workspace)}")
    return 0


def _chosen(settings: PlaceFlags | None) -> str:
    return (settings and settings.workspace) or LOCAL
