"""The start of a turn's process: with all that this Amp can take, or with what is left of it.

INV-L1  Neither the prompt nor a secret is in the arguments.
INV-S1  Only its owner can read the settings file of a turn, which takes the place of the user's and may hold keys.
INV-S2  Every call of a tool is delegated to us, and nothing is updated, shared or opened to others behind our back.

Amp runs the plugins and heeds the rules that it finds in `.amp` of the working folder, or of the root of its git
repository, and has no option against that. So where they are and the folder is not trusted, Amp is not started.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeAlias

from legation.agents.amp import options as option
from legation.agents.amp.options import Flags, read_flags
from legation.agents.amp.permissions import VARIABLE
from legation.agents.native import DriverContext, pairs
from legation.agents.rpc import all_said
from legation.errors import AgentExited, Forbidden, TimedOut
from legation.proc import Command
from legation.store.trust import repository_of
from legation.wire import jsontext
from legation.wire.acp.methods import McpServer

PLUGIN_SECONDS: Final = "30"  # Amp's own time to get its plugins ready before it begins
_ENVIRONMENT: Final[Mapping[str, str]] = {
    "AMP_REMOTE_CONTROL_TERMINAL": "0",  # nobody else's way in
    "NO_COLOR": "1",
    "TERM": "dumb",
}


@dataclass(frozen=True, slots=True)
class AmpLaunch:
    """`thread` is the one to go on with; `mode` one of Amp's own, None for its default."""

    cwd: str
    thread: str | None
    mode: str | None
    settings: Path
    door: Path


def command_for(base: Command, launch: AmpLaunch, flags: Flags) -> Command:
    going_on = ("threads", "continue", launch.thread) if launch.thread else ()
    argv = (*base.argv, *going_on, *_options(launch, flags), "-x")
    env = {**base.env, **_ENVIRONMENT, VARIABLE: str(launch.door)}
    return replace(base, argv=argv, cwd=Path(launch.cwd), env=env)


def takes_json(flags: Flags) -> bool:
    return flags.has(option.STREAM) and flags.has(option.INPUT)


def _options(launch: AmpLaunch, flags: Flags) -> tuple[str, ...]:
    wanted: list[tuple[str, ...]] = [
        (option.SETTINGS, str(launch.settings)),
        (option.EXECUTOR, "local"),
        *((each,) for each in option.QUIET),
    ]
    if flags.has_plugins:
        wanted.append((option.PLUGIN_WAIT, PLUGIN_SECONDS))
    if launch.mode is not None:
        wanted.append((option.MODE, launch.mode))
    if flags.has(option.STREAM):
        wanted += [(option.STREAM,), (option.THINKING,), (option.INPUT,)]
    return tuple(word for words in wanted if flags.has(words[0]) for word in words)


# Tools by which the model would change what gates it.
_DISABLED: Final = ("load_plugin", "reload_plugins", "update_setting")


def write_settings(folder: Path, delegate: Path, servers: tuple[McpServer, ...]) -> Path:
    settings = {
        "amp.permissions": [{"tool": "*", "action": "delegate", "to": str(delegate)}],
        "amp.dangerouslyAllowAll": False,
        "amp.mcpServers": {server.name: _described_server(server) for server in servers},
        "amp.tools.disable": [f"builtin:{name}" for name in _DISABLED],
        "amp.updates.mode": "disabled",
        "amp.notifications.enabled": False,
        "amp.remoteThreadCreation.enabled": False,
    }
    path = folder / "settings.json"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(jsontext.write(settings))
    return path


def _described_server(server: McpServer) -> Mapping[str, object]:
    if server.type != "stdio":
        return {"url": server.url, "headers": pairs(server.headers)}
    return {"command": server.command, "args": list(server.args or ()), "env": pairs(server.env)}


_CONFIGURATION: Final = ("settings.json", "settings.jsonc", "plugins")


def refuse_untrusted(cwd: Path) -> None:
    found = next(iter(configuration_of(cwd)), None)
    if found is not None:
        raise Forbidden(
            f"cannot start Amp in {cwd}: {found} would decide what it runs and allows, and the folder is not trusted;"
            " look through it and run `legation trust`, or remove it"
        )


def configuration_of(cwd: Path) -> list[Path]:
    places = (folder / ".amp" / name for folder in _folders(cwd.resolve()) for name in _CONFIGURATION)
    return [place for place in places if place.exists() or place.is_symlink()]


def _folders(cwd: Path) -> tuple[Path, ...]:
    """From the working folder to the root of its repository, where it is in one."""
    above = (cwd, *cwd.parents)
    return above[: above.index(repository_of(cwd) or cwd) + 1]


# The program's own help and version, asked once for each build of it.


# How it is started, and the time and the size of each file of that.
_Build: TypeAlias = tuple[tuple[str, ...], tuple[tuple[int, int], ...]]


@dataclass(frozen=True, slots=True)
class AmpBuild:
    """A build of Amp."""

    version: str
    flags: Flags


_known: dict[_Build, AmpBuild] = {}


async def probe(context: DriverContext, timeout: float) -> AmpBuild:
    """The time is the program's, for both answers."""
    build = await asyncio.to_thread(_build, context)
    if build is not None and build in _known:
        return _known[build]
    try:
        async with asyncio.timeout(timeout):
            version = await _answer_of(context, "--version")
            flags = read_flags(await _answer_of(context, "--help"))
    except TimeoutError:
        raise TimedOut(
            f"cannot start {context.command.name!r}: it did not tell what it can do within {timeout} s;"
            " give it more time or run it by hand"
        ) from None
    found = AmpBuild(version.split()[0] if version.split() else "", flags)
    if build is not None:
        _known[build] = found
    return found


async def _answer_of(context: DriverContext, option: str) -> str:
    base = context.command
    command = replace(base, argv=(*base.argv, option), env={**base.env, "NO_COLOR": "1", "TERM": "dumb"})
    async with await context.launcher.spawn(command, context.pipes) as child:
        child.close_stdin()
        said = await all_said(child)
        found = await child.wait()
        complaint = child.stderr_tail().strip()
    if found.code != 0:
        raise AgentExited(
            f"cannot start {base.name!r}: it ended with {found} when asked for {option}, having said:\n{complaint}\n",
            {"exitCode": found.code, "signal": found.signal},
        )
    return said.decode(errors="replace")


def _build(context: DriverContext) -> _Build | None:
    """Tell one build from another; None where the program cannot be seen from here: then it is asked each time."""
    argv, env = context.command.argv, context.command.env
    program = shutil.which(argv[0], path=env.get("PATH", "")) if argv else None
    if program is None:
        return None
    files = (
        Path(program),
        *(path for word in argv[1:] if (path := Path(word)).is_absolute() and path.is_file()),
    )
    try:
        return argv, tuple((found.st_mtime_ns, found.st_size) for found in (path.stat() for path in files))
    except OSError:
        return None
