"""`legation tokens`: credentials for programs."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import App, Parameter

from legation.cli.command import Console, Json, PlaceFlags, connect, line, say, show, tell, when
from legation.wire.api.identity import Token, TokenKind
from legation.wire.principal import SCOPE_MEANINGS, Scope

app = App(name="tokens", help="Credentials for programs: list, make, revoke.")
_SCOPES = "; ".join(f"{scope}: {meaning}" for scope, meaning in SCOPE_MEANINGS.items())


@app.default
@app.command(name="list")
def list_(*, json: Json = False, settings: PlaceFlags | None = None) -> None:
    """List the tokens of the workspace. The tokens themselves are kept nowhere."""
    with connect(settings) as server:
        columns = {
            "id": lambda token: token.id,
            "label": lambda token: token.label,
            "kind": lambda token: token.kind,
            "scopes": lambda token: " ".join(token.scopes),
            "ends in": lambda token: token.hint,
            "last used": lambda token: when(token.last_used_at),
            "state": _state,
        }
        empty = "no tokens; make one with: legation tokens new LABEL"
        show(server.tokens.list(), columns, json=json, if_empty=empty)


def _state(token: Token) -> str:
    if token.revoked_at is not None:
        return f"revoked {when(token.revoked_at)}"
    return f"expires {when(token.expires_at)}" if token.expires_at is not None else "valid"


@app.command
def new(
    label: Annotated[str, Parameter(help="What it is for, to tell it from others.")],
    /,
    *,
    kind: Annotated[
        TokenKind,
        Parameter(help="Decides approvals as: user (a person), supervisor (level 1), agent (never)."),
    ] = "user",
    scope: Annotated[tuple[Scope, ...], Parameter(negative="", help=_SCOPES)] = (),
    days: Annotated[int | None, Parameter(help="Expires after so many days. Without it, never.")] = None,
    json: Json = False,
    settings: PlaceFlags | None = None,
) -> None:
    """Make a token and print it, this once."""
    with connect(settings) as server:
        made = server.tokens.create(label, kind=kind, scopes=list(scope) or None, expires_in_days=days)
    tell(made, made.secret, json=json)
    if not json:
        what = f"{made.token.id} ({line(made.token.label)}): {' '.join(made.token.scopes)}"
        Console(sys.stderr).say(f"{what}. It is shown this once; keep it.", "dim")


@app.command
def revoke(
    token: Annotated[str, Parameter(help="Its id, as listed: tok_...")],
    /,
    *,
    settings: PlaceFlags | None = None,
) -> None:
    """End a token, at once and for good."""
    with connect(settings) as server:
        server.tokens.revoke(token)
    say(f"revoked {line(token)}")
