"""`legation grants`: what agents may do for a while without asking."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from legation.cli.command import Json, PlaceFlags, connect, explained, line, say, server_path, show, tell
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
) -> None:
    """List the grants that are in force."""
    columns = {
        "id": lambda grant: grant.id,
        "agent": lambda grant: grant.agent,
        "tools": lambda grant: grant.tools,
        "kinds": lambda grant: " ".join(grant.kinds or ()),
        "session": lambda grant: grant.session_id,
        "folder": lambda grant: grant.folder,
        "left": _left,
        "by": lambda grant: grant.granted_by,
        "reason": lambda grant: grant.reason,
    }
    with connect(settings) as server:
        rows = (grant for grant in server.grants.list() if all or grant.active)
        empty = "no grants in force; give one with: legation grants give AGENT TOOLS --for 1h"
        show(rows, columns, json=json, if_empty=empty)


def _left(grant: GrantView) -> str:
    if grant.revoked_at:
        return f"revoked {grant.revoked_at} by {grant.revoked_by}"
    return grant.remaining if grant.active else f"ended {grant.expires_at}"


@app.command
def give(
    agent: Annotated[str, Parameter(help="A name, or a pattern such as 'claude-*'. Put it in quotes.")],
    tools: Annotated[str, Parameter(help="A name, or a pattern such as 'github.read_*'. Put it in quotes.")],
    /,
    *,
    duration: Annotated[str, Parameter(name="--for", help="How long: 30m, 1h, 2h30m. It is bounded.")],
    kind: Annotated[
        tuple[str, ...], Parameter(negative="", help="Only calls of this kind: read, edit, execute, ...")
    ] = (),
    reason: Annotated[str | None, Parameter(help="Why; kept in the trace.")] = None,
    session: Annotated[str | None, Parameter(help="Only in this session; it ends with it.")] = None,
    folder: Annotated[
        Path | None,
        Parameter(name="--in", help="Only what lies in this folder, and commands that run in it."),
    ] = None,
    json: Json = False,
    settings: PlaceFlags | None = None,
) -> None:
    """Let agents use tools without asking, for a while. It never lifts a `deny`, and only a person gives one."""
    with connect(settings) as server:
        given = server.grants.give(
            agent,
            tools,
            duration,
            kinds=list(kind) or None,
            reason=reason,
            session=session,
            folder=None if folder is None else server_path(folder),
        )
    where = f" in {line(given.folder)}" if given.folder else ""
    whose = f" of session {line(given.session_id)}" if given.session_id else ""
    what = f"{line(given.id)}: {line(given.agent)}{whose} may use {line(given.tools)}{where} for {line(given.remaining)}"
    tell(given, f"{what}; end it with: legation grants revoke {line(given.id)}", json=json)


@app.command
def revoke(
    grant: Annotated[str, Parameter(help="Its whole id, as listed: grt_...")],
    /,
    *,
    settings: PlaceFlags | None = None,
) -> None:
    """End a grant, at once: what it covered is asked about again."""
    with connect(settings) as server, explained("revoke", "grant", grant, "grants"):
        server.grants.revoke(grant)
    say(f"revoked {line(grant)}")
