"""`legation trust`: folders whose own agent configuration counts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from legation.cli.command import Json, PlaceFlags, connect, line, say, server_path, show, tell, when
from legation.errors import NotFound
from legation.wire.api.identity import TrustView

app = App(
    name="trust",
    help="""Folders whose agent configuration counts: list, trust, remove.

A repository can bring configuration for agents: hooks, allow rules, MCP servers, plug-ins. It runs programs and turns
asking off, so it counts for nothing unless you trust the folder.

Without a folder it lists those that you trust.""",
    help_epilogue="Look at what it brings first: .claude/, .mcp.json, .codex/, opencode.json, .opencode/, .gemini/, .amp/",
)


@app.default
def trust(
    folder: Annotated[
        Path | None,
        Parameter(help="A repository's root, or a folder above several. One named as a command: ./remove"),
    ] = None,
    /,
    *,
    json: Json = False,
    settings: PlaceFlags | None = None,
) -> None:
    """Trust a folder and all beneath it; without one, list those that are trusted.

    It counts for agents that start from then on. `legation exec --trust` trusts for one run.
    """
    if folder is None:
        _list(json=json, settings=settings)
        return
    with connect(settings) as server:
        given = server.trust.give(server_path(folder))
    what = f"trusted {line(given.folder)}: what it says to agents counts from now on"
    tell(given, f"{what}; end it with: legation trust remove {line(given.folder)}", json=json)


def _list(*, json: bool, settings: PlaceFlags | None) -> None:
    columns = {
        "folder": lambda each: each.folder,
        "state": lambda each: each.state,
        "by": lambda each: each.trusted_by_name or each.trusted_by,
        "since": lambda each: when(each.created_at),
    }
    with connect(settings) as server:
        empty = "no folder is trusted; trust one with: legation trust FOLDER"
        show(server.trust.list(), columns, json=json, if_empty=empty)


@app.command
def remove(
    folder: Annotated[Path, Parameter(help="As listed; it need not be there any more.")],
    /,
    *,
    settings: PlaceFlags | None = None,
) -> None:
    """Trust a folder no more. Agents that run keep what they have read."""
    with connect(settings) as server:
        found = _find(folder, list(server.trust.list()))
        server.trust.withdraw(found.id)
    say(f"no longer trusted: {line(found.folder)}")


def _find(folder: Path, trusted: list[TrustView]) -> TrustView:
    """Find it by its words first: where it is gone, or on another machine, nothing here says where a link led."""
    for path in (server_path(folder), os.path.realpath(folder)):
        for each in trusted:
            if each.folder == path:
                return each
    raise NotFound(
        f"cannot remove {line(str(folder))}: it is not trusted by itself; give a folder as `legation trust` lists it"
    )
