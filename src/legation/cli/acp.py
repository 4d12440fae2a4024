"""`legation acp`: Legation as an ACP agent on stdin and stdout, for editors and any other client."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from legation.cli.command import PlaceFlags, server_path, settings_of
from legation.errors import InvalidParams


def acp(
    *,
    agent: Annotated[
        str | None, Parameter(help="Which agent, by name. Without it, one that is ready here.")
    ] = None,
    cwd: Annotated[
        Path | None, Parameter(help="The folder of sessions for which the client names none.")
    ] = None,
    place: PlaceFlags | None = None,
) -> int:
    """Speak ACP on stdin and stdout: one JSON message a line, nothing else.

    A bridge to the Legation of this machine, which is started if none runs, and ends with this then. Rules, approvals
    and the record are the server's. When stdin closes the agent is stopped; its sessions stay, to be loaded later.
    """
    from legation.cli.acp_bridge import Bridge, Reach

    settings = settings_of(place)
    folder = None if cwd is None else _folder(cwd)
    with _stdout_alone() as out, Reach(settings, place.workspace if place else None) as reach:
        name = agent or _ready_agent(settings.data_dir, remote=settings.url is not None)
        return asyncio.run(Bridge(reach, name, folder, out).run())


def _folder(cwd: Path) -> str:
    if not cwd.is_dir():
        raise InvalidParams(f"cannot work in {cwd.absolute()}: it is no folder; choose one with --cwd")
    return server_path(cwd)


def _ready_agent(data_dir: Path, *, remote: bool) -> str:
    if remote:
        raise InvalidParams("cannot tell which agent to use there; give --agent NAME")
    from legation.agents.catalogue import Catalogue

    ready = [each.name for each in Catalogue(data_dir).agents() if each.ready and each.how != "built in"]
    return ready[0] if ready else "rehearsal"


@contextmanager
def _stdout_alone() -> Iterator[int]:
    """Give the protocol standard output to itself: what anybody else prints goes to standard error."""
    sys.stdout.flush()
    out = os.dup(1)
    os.dup2(2, 1)
    try:
        yield out
    finally:
        os.close(out)
