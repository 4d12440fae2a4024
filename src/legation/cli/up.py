"""`legation up`, `legation server` and `legation worker`: the programs that stay."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from legation.cli.command import LocalFlags, ServerFlags, settings_of


def up(*, settings: ServerFlags | None = None) -> None:
    """Start Legation on this machine and stay: one process, one data folder, on loopback.

    The first start makes everything it needs: a workspace, its owner, keys, a database. It prints one line with a link
    that signs you in, once, within ten minutes; `legation users link` makes another. Other commands find it by
    themselves. Ctrl-C or `legation stop` ends it.
    """
    from legation.cli.start import run_up

    run_up(settings_of(settings))


def server(
    *,
    exit_with_parent: Annotated[
        bool, Parameter(negative="", help="Stop when standard input closes: for programs that start it.")
    ] = False,
    no_token: Annotated[
        bool,
        Parameter(
            name=("--no-token", "-n"),
            negative="",
            help="Take callers without a credential, who may then do nearly all that a token may: for a sandbox that only "
            "they can reach. A warning says what that means.",
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
    from legation.cli.start import run_server

    run_server(settings_of(settings), exit_with_parent=exit_with_parent, no_token=no_token)


def worker(*, settings: LocalFlags | None = None) -> None:
    """Work on runs beside other servers and workers. Needs Postgres (LEGATION_DATABASE_URL).

    Told to stop it claims nothing more, ends the steps that it is at, and leaves runners to whoever comes next.
    """
    from legation.server.worker import run

    run(settings_of(settings))
