"""`legation approvals watch`: at a terminal with keys, in a pipe one line for each change."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from cyclopts import Parameter

from legation.cli.flags import Json, PlaceFlags, connect, connect_async
from legation.cli.output import Terminal, line, say_json, when
from legation.errors import InvalidParams, NotFound

if TYPE_CHECKING:
    from legation.client import Legation
    from legation.client.surface import Change

NO_STREAM_PAUSE: Final = 2.0  # seconds: an agent's time to ask for the first thing


def watch(
    *,
    after: Annotated[
        int | None,
        Parameter(
            help="In a pipe: begin after the change of this number; 0 is the very first. Else with the next."
        ),
    ] = None,
    json: Json = False,
    settings: PlaceFlags | None = None,
) -> int:
    """Answer at the terminal while they come in; in a pipe, one line for each change."""
    if after is not None and after < 0:
        raise InvalidParams(f"cannot begin after {after}; give a number from 0")
    if json or after is not None or not _has_keys():
        with connect(settings) as server:
            _print(server, after, json=json)
        return 0
    from legation.cli.approvals_live import live

    return asyncio.run(live(lambda outages: connect_async(settings, outages)))


def _has_keys() -> bool:
    """Somebody sits there, at a terminal that can be drawn on."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def _print(server: Legation, after: int | None, *, json: bool) -> None:
    """Without `after`: what is pending now, then every change, and none is missed in between."""
    out = Terminal()
    if after is None:
        after = head(server)
        for view in server.approvals.list("pending") if not json else ():
            out.say(
                f"{line(view.id)}  pending  {line(view.tool)} of {line(view.agent_id)}  {line(view.policy_rule)}"
                f"  needs a {view.needs}, {line(view.remaining)} left"
            )
    for change in _changes(server, after):
        if json:
            say_json({"seq": change.seq, "at": change.at, **msgspec.to_builtins(change.approval)})
        else:
            out.say(_words(change))


def _changes(server: Legation, after: int) -> Iterator[Change]:
    """Also of a workspace that has no stream yet, because nobody ever asked for anything in it."""
    while True:
        try:
            with server.approvals.follow(after) as changes:
                yield from changes
            return
        except NotFound:
            time.sleep(NO_STREAM_PAUSE)


def head(server: Legation) -> int:
    from legation.client.surface import STREAM

    return next((each.head for each in server.streams.list(STREAM) if each.name == STREAM), 0)


def _words(change: Change) -> str:
    now = change.approval
    by = f" by {line(now.resolved_by)}" if now.resolved_by else ""
    looked = f" by {line(now.claimed_by)}" if now.happened == "claimed" and now.claimed_by else ""
    mark = "  INJECTION?" if now.injection_risk else ""
    why = f": {line(now.why)}" if now.why else ""
    what = f"{line(now.id)}  {now.status}{by}  {line(now.tool)} of {line(now.agent)}  {line(now.rule)}"
    return f"{when(change.at)}  {what}  ({now.happened}{looked}){why}{mark}"
