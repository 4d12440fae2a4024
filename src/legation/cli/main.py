"""The `legation` command. Every noun is imported only when it is asked for."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from cyclopts import App

USAGE_ERROR = 2  # as errors.STATUS has it for bad parameters


def main() -> NoReturn:
    if sys.argv[1:] in (["--version"], ["-V"]):
        import legation

        print(f"legation {legation.__version__}")
        sys.exit(0)
    sys.exit(run(sys.argv[1:]))


def run(argv: list[str]) -> int:
    """The exit code. What goes wrong is one message on stderr, never a traceback for what we foresaw."""
    from legation.errors import LegationError

    try:
        return _call(argv)
    except LegationError as error:
        print(f"legation: {error.message}", file=sys.stderr)
        return error.status.exit
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `legation events ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _call(argv: list[str]) -> int:
    from cyclopts import CycloptsError

    try:
        result = make_app()(argv, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        print(f"legation: {error}\nTry `legation {_command(argv)}--help`.", file=sys.stderr)
        return USAGE_ERROR
    return result if isinstance(result, int) else 0


def _command(argv: list[str]) -> str:
    return f"{argv[0]} " if argv and not argv[0].startswith("-") else ""


def make_app() -> App:
    from cyclopts import App

    import legation

    app = App(
        name="legation",
        help="A home and a rulebook for coding agents.",
        version=legation.__version__,
        version_flags=["--version", "-V"],
        help_epilogue="Start with `legation demo`, or `legation exec --agent rehearsal` in a folder of yours.",
    )
    app.command("legation.cli.exec:exec_", name="exec", help="Run one prompt with an agent, here and now.")
    app.command(
        "legation.cli.events:events", name="events", help="List, replay and follow recorded sessions."
    )
    app.command("legation.cli.doctor:doctor", name="doctor", help="Say what works here and what to do next.")
    app.command(
        "legation.cli.demo:demo", name="demo", help="Watch the first minute: a bug fix, with you in charge."
    )
    return app
