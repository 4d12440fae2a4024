"""`legation users`: people, and the links by which they sign in."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from legation.cli.command import Json, PlaceFlags, connect, line, say, show, tell, when
from legation.wire.api.identity import User
from legation.wire.principal import Role

app = App(name="users", help="People: list, add, sign in, disable.")

UserId = Annotated[str, Parameter(help="Whom, by id.")]


@app.default
@app.command(name="list")
def list_(*, json: Json = False, settings: PlaceFlags | None = None) -> None:
    """List the users of the installation."""
    with connect(settings) as server:
        columns = {
            "id": lambda user: user.id,
            "name": lambda user: user.name,
            "e-mail": lambda user: user.email,
            "admin": lambda user: "yes" if user.instance_admin else "no",
            "state": _state,
        }
        show(server.users.list(), columns, json=json, if_empty="no users")


def _state(user: User) -> str:
    return "active" if user.disabled_at is None else f"disabled {when(user.disabled_at)}"


@app.command
def new(
    name: Annotated[str, Parameter(help="How they are shown to others.")],
    /,
    *,
    email: Annotated[str | None, Parameter(help="Their address; nobody else may have it.")] = None,
    role: Annotated[Role, Parameter(help="In the workspace that you are in.")] = "viewer",
    admin: Annotated[bool, Parameter(negative="", help="May manage the whole installation.")] = False,
    json: Json = False,
    settings: PlaceFlags | None = None,
) -> None:
    """Add a user. `legation users link` then makes a link by which they sign in."""
    with connect(settings) as server:
        user = server.users.create(name, email=email, role=role, instance_admin=admin)
    tell(user, f"added {user.id} ({line(user.name)}); next: legation users link {user.id}", json=json)


@app.command
def link(
    user: Annotated[str | None, Parameter(help="Whose, by id. Without it, your own.")] = None,
    /,
    *,
    json: Json = False,
    settings: PlaceFlags | None = None,
) -> None:
    """Make a link that signs a user in, once, within ten minutes."""
    with connect(settings) as server:
        made = server.sign_in_link(user)
    tell(made, made.url, json=json)


@app.command
def disable(user: UserId, /, *, settings: PlaceFlags | None = None) -> None:
    """Shut a user out: every session and token of theirs ends at once. What they did stays."""
    _change(user, settings, disabled=True)


@app.command
def enable(user: UserId, /, *, settings: PlaceFlags | None = None) -> None:
    """Let a disabled user in again."""
    _change(user, settings, disabled=False)


def _change(user: str, settings: PlaceFlags | None, *, disabled: bool) -> None:
    with connect(settings) as server:
        changed = server.users.change(user, disabled=disabled)
    say(f"{changed.id} ({line(changed.name)}) is {_state(changed)}")
