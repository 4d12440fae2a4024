"""`legation up`, `legation server` and `legation worker`: the programs that stay."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from legation.cli.command import LocalFlags, ServerFlags, settings_of

if TYPE_CHECKING:
    from legation.server.run import Up

logger = logging.getLogger("legation.server")


def up(*, settings: ServerFlags | None = None) -> None:
    """Start Legation on this machine and stay: one process, one data folder, on loopback.

    The first start makes everything it needs: a workspace, its owner, keys, a database. It prints one line with a link
    that signs you in, once, within ten minutes; `legation users link` makes another. Other commands find it by
    themselves. Ctrl-C or `legation stop` ends it.
    """
    from legation.server.run import run

    run(settings_of(settings), mode="up", announce=_announce)
    print("Legation is down.")


def _announce(it: Up) -> None:
    print(f"Legation is up: {it.sign_in_link}", flush=True)
    if it.mesh_url:
        print(f"Whoever is on this machine decides approvals as a supervisor at {it.mesh_url}", flush=True)


def server(
    *,
    exit_with_parent: Annotated[
        bool, Parameter(negative="", help="Stop when standard input closes: for programs that start it.")
    ] = False,
    no_token: Annotated[
        bool,
        Parameter(
            negative="", help="As sandbox-agent has it, for what starts that. There is always a token here."
        ),
    ] = False,
    no_telemetry: Annotated[  # noqa: ARG001 - there is none to be switched off
        bool, Parameter(negative="", help="As sandbox-agent has it. There is no telemetry here.")
    ] = False,
    settings: ServerFlags | None = None,
) -> None:
    """Serve the HTTP API, and nothing else: for containers, service managers and programs that start it.

    The same as `legation up` without the link; the log goes to standard error as JSON. Alone on its data folder with
    SQLite; several at once need Postgres (LEGATION_DATABASE_URL) and the same keys.
    """
    from legation.server.run import run

    def announce(_: Up) -> None:
        if no_token:
            logger.warning("--no-token is not obeyed: callers need a token; `legation tokens` makes them")

    run(settings_of(settings), mode="server", announce=announce, exit_with_parent=exit_with_parent)


def worker(*, settings: LocalFlags | None = None) -> None:
    """Work on runs beside other servers and workers. Needs Postgres (LEGATION_DATABASE_URL).

    There are no runs yet: it connects, checks that it could work, and waits to be stopped.
    """
    from legation.server.worker import run

    run(settings_of(settings))
