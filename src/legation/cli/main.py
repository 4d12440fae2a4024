"""The `legation` command. Every noun is imported only when it is asked for."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from cyclopts import App, CycloptsError


USAGE_ERROR = 2  # as errors.STATUS has it for bad parameters
STORAGE_FAILED = 9  # and for what could not be read or written

COMMANDS = {
    "up": ("legation.cli.up:up", "Start Legation on this machine and stay."),
    "status": ("legation.cli.status:status", "Say whether Legation is up here, and how it is."),
    "ps": ("legation.cli.ps:ps", "Show what waits for you, works, went wrong or is done."),
    "stop": ("legation.cli.status:stop", "Stop the Legation of this machine."),
    "exec": ("legation.cli.exec:exec_", "Run one prompt with an agent, here and now."),
    "run": ("legation.cli.run:run", "Submit a run that survives restarts, and follow it to its end."),
    "runs": ("legation.cli.runs:app", "Durable runs: list, show, tail, wait, cancel, resume."),
    "sessions": (
        "legation.cli.sessions:app",
        "Agents at work on the server: list, begin, send, follow, stop.",
    ),
    "acp": ("legation.cli.acp:acp", "Be an ACP agent on stdin and stdout, for editors."),
    "agents": ("legation.cli.agents:app", "Agents: list, install, verify, sign in, ask what they offer."),
    "events": ("legation.cli.events:events", "List, replay and follow recorded sessions."),
    "approvals": ("legation.cli.approvals:app", "What agents ask for: list, show, approve, deny, watch."),
    "grants": ("legation.cli.grants:app", "What agents may do unasked, for a while: list, give, revoke."),
    "trace": ("legation.cli.trace:app", "What agents did and who allowed it: list, show, verify, export."),
    "policy": ("legation.cli.policy:app", "Rules for agents: check, explain, replay, begin with a good one."),
    "trust": ("legation.cli.trust:app", "Folders whose agent configuration counts: list, trust, remove."),
    "tokens": ("legation.cli.tokens:app", "Credentials for programs: list, make, revoke."),
    "users": ("legation.cli.users:app", "People: list, add, sign in, disable."),
    "workspaces": ("legation.cli.workspaces:app", "Workspaces and their members: list, make, give roles."),
    "keys": ("legation.cli.keys:app", "Keys: make one, or put a new one to use."),
    "backup": ("legation.cli.backup:backup", "Copy everything into one file, while Legation goes on."),
    "restore": ("legation.cli.backup:restore", "Make the data folder from a backup."),
    "prune": ("legation.cli.prune:prune", "Delete what is old, while Legation goes on."),
    "migrate": ("legation.cli.migrate:migrate", "Bring the database's schema up to this release."),
    "server": ("legation.cli.up:server", "Serve the HTTP API, and nothing else."),
    "worker": ("legation.cli.up:worker", "Work on runs beside other servers; needs Postgres."),
    "leaks": (
        "legation.cli.leaks:leaks",
        "Show what is alive here, and why; fail if something should not be.",
    ),
    "runner": ("legation.cli.runner:runner", "Run one prompt in a sandbox, and report it home."),
    "receiver": ("legation.cli.receiver:receiver", "Take reports of runners, to watch one by hand."),
    "doctor": ("legation.cli.doctor:doctor", "Say what works here and what to do next."),
    "demo": ("legation.cli.demo:demo", "Watch the first minute: a bug fix, with you in charge."),
}

# What other programs call it, and what it is called here.
ELSEWHERE = {
    "attach": "sessions tail", "config": "doctor --all", "down": "stop", "install": "agents install", "kill": "stop",
    "list": "ps", "log": "events", "login": "agents login", "logs": "events", "ls": "ps", "new": "sessions new",
    "start": "up", "version": "--version",
}  # fmt: skip
PLAIN = ("up", "server")  # those that can begin before the parser is loaded


def main() -> NoReturn:
    if sys.argv[1:] in (["--version"], ["-V"]):
        import legation

        print(f"legation {legation.__version__}")
        sys.exit(0)

    make_streams_usable()
    code = run(sys.argv[1:] or plain_command())
    sys.exit(end_output(code))


def plain_command() -> list[str]:
    """Return what plain `legation` means: what goes on where a server is up, else help."""
    from legation.errors import LegationError
    from legation.settings import load
    from legation.store.files import owner_alive
    from legation.wire.api.server import OWNER_LOCK

    try:
        settings = load({}, os.environ)
    except LegationError:
        return []
    return ["ps"] if settings.url or owner_alive(settings.data_dir / OWNER_LOCK) else []


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
    try:
        argv = [os.fsencode(argument).decode() for argument in argv]
    except UnicodeDecodeError:
        print("legation: cannot read the arguments: one is not UTF-8 text; give it as such", file=sys.stderr)
        return USAGE_ERROR
    if argv[:1] == ["help"]:
        argv = [*argv[1:], "--help"]
    if argv and argv[0] in PLAIN and "--help" not in argv:
        from legation.cli.start import read_plain, start_plain

        if (line := read_plain(argv)) is not None:
            start_plain(line)
            return 0

    from cyclopts import CycloptsError

    try:
        result = make_app(argv[0] if argv else None)(
            argv, exit_on_error=False, print_error=False, result_action="return_value"
        )
    except CycloptsError as error:
        help_ = " ".join(("legation", *(error.command_chain or ()), "--help"))
        why = _why(error)
        if not error.command_chain and argv and argv[0] in ELSEWHERE:
            why = f'there is no "{argv[0]}" here, but `legation {ELSEWHERE[argv[0]]}`'
        print(f"legation: cannot read the command line: {why}; try `{help_}`", file=sys.stderr)
        return USAGE_ERROR
    return result if isinstance(result, int) else 0


def _why(error: CycloptsError) -> str:
    from cyclopts import UnusedCliTokensError

    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        return f'there is no "{error.unused_tokens[0]}" here'
    return str(error).partition(" Available commands:")[0].rstrip(". ")


def make_app(chosen: str | None = None) -> App:
    """`chosen` is imported anyway and speaks for itself; of the others the one line here will do."""
    from cyclopts import App

    import legation

    hint = "Start with `legation demo`, or `legation exec --agent rehearsal` in a folder of yours."
    app = App(
        name="legation",
        help="A home and a rulebook for coding agents.",
        version=legation.__version__,
        version_flags=["--version", "-V"],
        help_epilogue="" if chosen in COMMANDS else hint,
    )
    for name, (place, what) in COMMANDS.items():
        app.command(place, name=name, help=None if name == chosen else what)
    return app


# Standard input, output and error, made usable however the command was started.


def make_streams_usable() -> None:
    """None may be closed: the next file opened would take its number, and our output would go into that file.
    A terminal that cannot show a character shows another in its place."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - they live as long as the process
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def end_output(code: int) -> int:
    """The exit code, once everything has been written; a reader that went away is no error."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            # Else Python would try once more at its end, and complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            if not isinstance(error, BrokenPipeError):
                code = code or STORAGE_FAILED
    return code
