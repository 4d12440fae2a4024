"""`legation grants`: what agents may do for a while without asking."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from legation.cli.flags import Json, PlaceFlags, connect
from legation.cli.output import Terminal, line, say_json, show
from legation.errors import NotFound
from legation.wire.api.approvals import GrantView

app = App(
    name="grants",
    help="""What agents may do unasked, for a while: list, give, revoke.

Without a command it lists the grants that are in force.""",
)


@app.default
@app.command(name="list")
def list_(
    *,
    all: Annotated[bool, Parameter(negative="", help="Also those that ended.")] = False,  # noqa: A002
    json: Json = False,
    settings: PlaceFlags | None = None,
) -> int:
    """List the grants that are in force."""
    columns = {
        "id": lambda grant: grant.id,
        "agent": lambda grant: grant.agent,
        "tools": lambda grant: grant.tools,
        "kinds": lambda grant: " ".join(grant.kinds or ()),
        "session": lambda grant: grant.session_id,
        "left": _left,
        "by": lambda grant: grant.granted_by,
        "reason": lambda grant: grant.reason,
    }
    with connect(settings) as server:
        show(
            (grant for grant in server.grants.list() if all or grant.active),
            columns,
            json=json,
            if_empty="no grants in force; give one with: legation grants give AGENT TOOLS --for 1h",
        )
    return 0


def _left(grant: GrantView) -> str:
    if grant.revoked_at:
        return f"revoked {grant.revoked_at} by {grant.revoked_by}"
    return grant.remaining if grant.active else f"ended {grant.expires_at}"


@app.command
def give(
    agent: str,
    tools: str,
    /,
    *,
    duration: Annotated[str, Parameter(name="--for", help="How long: 30m, 1h, 2h30m. It is bounded.")],
    kind: Annotated[
        tuple[str, ...], Parameter(negative="", help="Only calls of this kind: read, edit, execute, ...")
    ] = (),
    reason: Annotated[str | None, Parameter(help="Why; kept in the trace.")] = None,
    json: Json = False,
    settings: PlaceFlags | None = None,
) -> int:
    """Let agents use tools without asking, for a while. It never lifts a `deny`, and only a person gives one.

    Parameters
    ----------
    agent
        A name, or a pattern such as 'claude-*'. Put it in quotes.
    tools
        A name, or a pattern such as 'github.read_*'. Put it in quotes.
    """
    with connect(settings) as server:
        given = server.grants.give(agent, tools, duration, kinds=list(kind) or None, reason=reason)
    if json:
        say_json(given)
        return 0
    Terminal().say(
        f"{line(given.id)}: {line(given.agent)} may use {line(given.tools)} for {line(given.remaining)}; "
        f"end it with: legation grants revoke {line(given.id)}"
    )
    return 0


@app.command
def revoke(grant: str, /, *, settings: PlaceFlags | None = None) -> int:
    """End a grant, at once: what it covered is asked about again.

    Parameters
    ----------
    grant
        Its whole id, as listed: grt_...
    """
    with connect(settings) as server:
        try:
            server.grants.revoke(grant)
        except NotFound:
            raise NotFound(
                f"cannot revoke {line(grant)}: there is no such grant here; "
                "give the whole id, as `legation grants` lists it"
            ) from None
    Terminal().say(f"revoked {line(grant)}")
    return 0
