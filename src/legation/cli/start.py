"""`legation up` and `legation server` begun without the parser of commands, which takes a third as long to load as what they
serve with: programs start them, and wait for their first answer.

INV-1  What is read here is read as the parser reads it. Whatever else there is on the line, help and mistakes too, is its own.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from legation.server.instance import Mode
    from legation.server.run import Up
    from legation.settings import Settings

# The flags that programs give, the settings that they are, and what becomes of their values.
_PLAIN: Final[dict[str, tuple[str, type[str | int | Path]]]] = {
    "--host": ("host", str),
    "-H": ("host", str),
    "--port": ("port", int),
    "-p": ("port", int),
    "--token": ("token", str),
    "-t": ("token", str),
    "--mesh-port": ("mesh_port", int),
    "--data-dir": ("data_dir", Path),
    "--policy": ("policy", Path),
    "--tools": ("tools", Path),
    "--log-level": ("log_level", str),
    "--folder": ("folders", Path),
    "--cors-allow-origin": ("cors_origins", str),
    "-O": ("cors_origins", str),
}
_REPEATED: Final = ("folders", "cors_origins")
_MODES: Final[dict[str, Mode]] = {"up": "up", "server": "server"}
# Flags of `server` without a value; of sandbox-agent's telemetry there is none to be switched off.
_WORDS: Final = {
    "--exit-with-parent": "exit_with_parent",
    "--no-token": "no_token",
    "-n": "no_token",
    "--no-telemetry": "no_telemetry",
}


class PlainLine(NamedTuple):
    """A command line that needs no parser. `flags` go by the names of settings."""

    mode: Mode
    flags: dict[str, object]
    exit_with_parent: bool = False
    no_token: bool = False


def read_plain(argv: list[str]) -> PlainLine | None:
    """Read `legation up` or `server` with a value behind each flag; None is for the parser."""
    if not argv or (mode := _MODES.get(argv[0])) is None:
        return None
    rest, flags, words = argv[1:], dict[str, object](), set[str]()
    while rest:
        name, *rest = rest
        if name == "--processes" and "processes" not in flags:
            flags["processes"] = True
            continue
        if (word := _WORDS.get(name)) is not None and mode == "server" and word not in words:
            words.add(word)
            continue
        field, kind = _PLAIN.get(name, ("", str))
        again = field in flags and field not in _REPEATED
        if not field or again or not rest or not rest[0] or rest[0].startswith("-"):
            return None
        value, *rest = rest
        if kind is int and not (value.isascii() and value.isdigit()):
            return None
        if field in _REPEATED:
            given = flags.setdefault(field, [])
            assert isinstance(given, list)
            given.append(kind(value))
        else:
            flags[field] = kind(value)
    return PlainLine(mode, flags, "exit_with_parent" in words, "no_token" in words)


def start_plain(line: PlainLine) -> None:
    from legation.settings import load

    settings = load(line.flags, os.environ)
    if line.mode == "up":
        run_up(settings)
    else:
        run_server(settings, exit_with_parent=line.exit_with_parent, no_token=line.no_token)


def run_server(settings: Settings, *, exit_with_parent: bool, no_token: bool) -> None:
    from legation.server.run import run

    run(
        settings,
        mode="server",
        announce=lambda _: None,
        exit_with_parent=exit_with_parent,
        no_token=no_token,
    )


def run_up(settings: Settings) -> None:
    from legation.server.run import run

    run(settings, mode="up", announce=_announce)
    print("Legation is down.")


def _announce(it: Up) -> None:
    print(f"Legation is up: {it.sign_in_link}", flush=True)
    if it.mesh_url:
        print(f"Whoever is on this machine decides approvals as a supervisor at {it.mesh_url}", flush=True)
