"""The modules that commands and the server load before they do anything: what is not needed then is imported later."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

LIMIT = 60.0  # seconds for one command: its time, on a loaded machine

# Runs `legation` and writes the names and files of what is loaded at its end; a server's end is when it is up.
PROGRAM = """
import json, os, signal, sys

def note():
    found = {name: getattr(module, "__file__", None) for name, module in sys.modules.items()}
    with open(sys.argv[0], "w") as file:
        json.dump(found, file)

_, sys.argv[0], *arguments = sys.argv
if arguments[0] in ("up", "server") and "--help" not in arguments:
    from legation.server import run as server

    serve = server.run

    def up(_):
        note()
        os.kill(os.getpid(), signal.SIGTERM)

    server.run = lambda settings, *, announce, **options: serve(settings, announce=up, **options)

from legation.cli.main import run

try:
    run(arguments)
finally:
    if not os.path.exists(sys.argv[0]):
        note()
"""

# What is costly to load, of the standard library.
HEAVY = {
    "asyncio", "email", "http", "multiprocessing", "smtplib", "socket", "sqlite3", "ssl", "subprocess", "tarfile",
}  # fmt: skip
CLI = {"attr", "attrs", "cyclopts"}
HELP = CLI | {"docstring_parser", "markdown_it", "mdurl", "pygments", "rich"}
CLIENT = CLI | {"msgspec", "typing_extensions"}
SERVER = {
    "ahocorasick_rs", "anyio", "click", "cython_runtime", "httptools", "msgspec", "starlette", "typing_extensions",
    "uvicorn", "uvloop",
}  # fmt: skip
LOOP = "asyncio socket ssl subprocess"
SERVED = f"{LOOP} email http multiprocessing sqlite3 tarfile"


class Loads(NamedTuple):
    """The most that may be loaded: parts of ours, packages of others, heavy ones of Python, and lines of ours; and modules of
    ours that load when they are needed.

    The lines have room for some more; not for a module that was imported late and no longer is."""

    parts: str
    others: set[str]
    heavy: str
    lines: int
    late: str = ""


COMMANDS = {
    "--help": Loads("cli errors", HELP, "", 500),
    "up --help": Loads("cli errors secret setting_values settings", HELP, "", 1800),
    "acp --help": Loads("cli errors secret setting_values settings", HELP, LOOP, 1700),
    "approvals": Loads(
        "cli client clock errors secret setting_values settings wire", CLIENT, "", 7200, "cli.approvals_view"
    ),
    "sessions": Loads("cli client clock errors secret setting_values settings wire", CLIENT, "", 7300),
    "tokens": Loads("cli client clock errors secret setting_values settings wire", CLIENT, "", 7000),
    "trace": Loads(
        "cli client clock errors secret setting_values settings wire",
        CLIENT,
        "",
        7250,
        "cli.approvals cli.approvals_view",
    ),
    "status": Loads("cli client clock errors secret setting_values settings store wire", CLIENT, "", 7400),
    "agents": Loads(
        "agents cli clock errors secret setting_values settings store wire",
        CLIENT,
        "subprocess tarfile",
        6581,
        late="cli.backup agents.catalogue.options agents.catalogue.probe",
    ),
    "doctor": Loads(
        "approvals cli errors proc secret setting_values settings store wire",
        CLIENT,
        f"{LOOP} email sqlite3",
        6534,
        late="approvals.policy.facts approvals.policy.shell.syntax",
    ),
    "policy check x": Loads(
        "approvals cli errors secret setting_values settings wire",
        CLIENT,
        f"{LOOP} email",
        7650,
        late="approvals.policies approvals.policy.shell.syntax",
    ),
    # Neither the host nor the catalogue nor any driver: an agent that is never started costs nothing. Nor the parser of
    # policies, where the owner has written none.
    "server --port 0": Loads(
        "approvals cli clock errors gateway proc redact runs secret server setting_values settings states store tasks wire",
        SERVER,
        SERVED,
        48_000,
        late="approvals.policy.load approvals.policy.parse approvals.trace.export approvals.trace.replay server.fs.upload",
    ),
}
DRIVERS = tuple(
    f"legation.agents.{name}" for name in ("acp", "amp", "claude", "codex", "native", "opencode", "rehearsal")
)


@pytest.mark.parametrize("command", COMMANDS)
def test_no_more_is_loaded_than_is_needed_at_first(command: str, tmp_path: Path) -> None:
    loaded = what_is_loaded(command, tmp_path)
    most = COMMANDS[command]
    ours = {name: file for name, file in loaded.items() if name.startswith("legation.") and file}
    packages = {name.partition(".")[0] for name in loaded if not name.startswith("_")}
    assert {name.split(".")[1] for name in ours} <= set(most.parts.split())
    assert packages - sys.stdlib_module_names - {"legation"} <= most.others
    assert packages & HEAVY <= set(most.heavy.split())
    assert not [name for name in ours if name.startswith(DRIVERS)]
    assert not set(ours) & {f"legation.{name}" for name in most.late.split()}
    assert sum(len(Path(file).read_bytes().splitlines()) for file in ours.values()) <= most.lines


def what_is_loaded(command: str, folder: Path) -> dict[str, str]:
    noted = folder / "loaded.json"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(noted), *command.split()],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "LANG": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert noted.exists(), done.stderr
    found: dict[str, str] = json.loads(noted.read_text())
    return found
