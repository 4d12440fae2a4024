"""The `legation` command. Every noun is imported only when it is asked for."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from cyclopts import App

USAGE_ERROR = 2  # as errors.STATUS has it for bad parameters
STORAGE_FAILED = 9  # and for what could not be read or written

COMMANDS = {
    "exec": ("legation.cli.exec:exec_", "Run one prompt with an agent, here and now."),
    "events": ("legation.cli.events:events", "List, replay and follow recorded sessions."),
    "doctor": ("legation.cli.doctor:doctor", "Say what works here and what to do next."),
    "demo": ("legation.cli.demo:demo", "Watch the first minute: a bug fix, with you in charge."),
}


def main() -> NoReturn:
    if sys.argv[1:] in (["--version"], ["-V"]):
        import legation

        print(f"legation {legation.__version__}")
        sys.exit(0)
    from legation.cli.streams import end_output, make_streams_usable

    make_streams_usable()
    code = run(sys.argv[1:])
    sys.exit(end_output(code))


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
        return 0
    except OSError as error:
        what = f": {os.fsdecode(error.filename)}" if error.filename else ""
        print(
            f"legation: cannot go on: {error.strerror}{what}; `legation doctor` may know why", file=sys.stderr
        )
        return STORAGE_FAILED


def _call(argv: list[str]) -> int:
    from cyclopts import CycloptsError

    try:
        argv = [os.fsencode(argument).decode() for argument in argv]
    except UnicodeDecodeError:
        print("legation: cannot read the arguments: one is not UTF-8 text; give it as such", file=sys.stderr)
        return USAGE_ERROR
    try:
        result = make_app()(argv, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        why = str(error).rstrip(".")
        print(f"legation: cannot read the command line: {why}; try `{_help(argv)}`", file=sys.stderr)
        return USAGE_ERROR
    return result if isinstance(result, int) else 0


def _help(argv: list[str]) -> str:
    return f"legation {argv[0]} --help" if argv and argv[0] in COMMANDS else "legation --help"


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
    for name, (place, what) in COMMANDS.items():
        app.command(place, name=name, help=what)
    return app
