"""`legation trust`: folders whose own agent configuration counts."""

from __future__ import annotations

import os
from pathlib import Path

from cyclopts import App

from legation.cli.flags import Json, PlaceFlags, connect, server_path
from legation.cli.output import Terminal, line, say_json, show, when
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
def trust(folder: Path | None = None, /, *, json: Json = False, settings: PlaceFlags | None = None) -> int:
    """Trust a folder and all beneath it; without one, list those that are trusted.

    It counts for agents that start from then on. `legation exec --trust` trusts for one run.

    Parameters
    ----------
    folder
        A repository's root, or a folder above several. One named as a command: ./remove
    """
    if folder is None:
        return _list(json=json, settings=settings)
    with connect(settings) as server:
        given = server.trust.give(server_path(folder))
    if json:
        say_json(given)
        return 0
    Terminal().say(
        f"trusted {line(given.folder)}: what it says to agents counts from now on; "
        f"end it with: legation trust remove {line(given.folder)}"
    )
    return 0


def _list(*, json: bool, settings: PlaceFlags | None) -> int:
    columns = {
        "folder": lambda each: each.folder,
        "state": lambda each: each.state,
        "by": lambda each: each.trusted_by_name or each.trusted_by,
        "since": lambda each: when(each.created_at),
    }
    with connect(settings) as server:
        show(
            server.trust.list(),
            columns,
            json=json,
            if_empty="no folder is trusted; trust one with: legation trust FOLDER",
        )
    return 0


@app.command
def remove(folder: Path, /, *, settings: PlaceFlags | None = None) -> int:
    """Trust a folder no more. Agents that run keep what they have read.

    Parameters
    ----------
    folder
        As listed; it need not be there any more.
    """
    with connect(settings) as server:
        found = _find(folder, list(server.trust.list()))
        server.trust.withdraw(found.id)
    Terminal().say(f"no longer trusted: {line(found.folder)}")
    return 0


def _find(folder: Path, trusted: list[TrustView]) -> TrustView:
    """By its words first: where it is gone, or on another machine, nothing here says where a link led."""
    for path in (server_path(folder), os.path.realpath(folder)):
        for each in trusted:
            if each.folder == path:
                return each
    raise NotFound(
        f"cannot remove {line(str(folder))}: it is not trusted by itself; give a folder as `legation trust` lists it"
    )
