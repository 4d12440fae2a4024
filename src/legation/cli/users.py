"""`legation users`: people, and the links by which they sign in."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from legation.cli.flags import Json, PlaceFlags, connect
from legation.cli.output import Terminal, line, say_json, show, when
from legation.wire.api.identity import User
from legation.wire.principal import Role

app = App(name="users", help="People: list, add, sign in, disable.")


@app.default
@app.command(name="list")
def list_(*, json: Json = False, settings: PlaceFlags | None = None) -> int:
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
    return 0


def _state(user: User) -> str:
    return "active" if user.disabled_at is None else f"disabled {when(user.disabled_at)}"


@app.command
def new(
    name: str,
    /,
    *,
    email: Annotated[str | None, Parameter(help="Their address; nobody else may have it.")] = None,
    role: Annotated[Role, Parameter(help="In the workspace that you are in.")] = "viewer",
    admin: Annotated[bool, Parameter(negative="", help="May manage the whole installation.")] = False,
    json: Json = False,
    settings: PlaceFlags | None = None,
) -> int:
    """Add a user. `legation users link` then makes a link by which they sign in.

    Parameters
    ----------
    name
        How they are shown to others.
    """
    with connect(settings) as server:
        user = server.users.create(name, email=email, role=role, instance_admin=admin)
    if json:
        say_json(user)
    else:
        Terminal().say(f"added {user.id} ({line(user.name)}); next: legation users link {user.id}")
    return 0


@app.command
def link(user: str | None = None, /, *, json: Json = False, settings: PlaceFlags | None = None) -> int:
    """Make a link that signs a user in, once, within ten minutes.

    Parameters
    ----------
    user
        Whose, by id. Without it, your own.
    """
    with connect(settings) as server:
        made = server.sign_in_link(user)
    if json:
        say_json(made)
    else:
        Terminal().say(made.url)
    return 0


@app.command
def disable(user: str, /, *, settings: PlaceFlags | None = None) -> int:
    """Shut a user out: every session and token of theirs ends at once. What they did stays.

    Parameters
    ----------
    user
        Whom, by id.
    """
    return _change(user, settings, disabled=True)


@app.command
def enable(user: str, /, *, settings: PlaceFlags | None = None) -> int:
    """Let a disabled user in again.

    Parameters
    ----------
    user
        Whom, by id.
    """
    return _change(user, settings, disabled=False)


def _change(user: str, settings: PlaceFlags | None, *, disabled: bool) -> int:
    with connect(settings) as server:
        changed = server.users.change(user, disabled=disabled)
    Terminal().say(f"{changed.id} ({line(changed.name)}) is {_state(changed)}")
    return 0
