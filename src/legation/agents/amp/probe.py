"""Asking the program itself: its help and its version, once for each build of it."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from legation.agents.amp.options import Flags, read_flags
from legation.agents.native import Equipment
from legation.agents.process import all_said
from legation.errors import AgentExited, TimedOut

# How it is started, and the time and the size of each file of that.
_Build: TypeAlias = tuple[tuple[str, ...], tuple[tuple[int, int], ...]]


@dataclass(frozen=True, slots=True)
class Program:
    version: str
    flags: Flags


_known: dict[_Build, Program] = {}


async def probe(equipment: Equipment, timeout: float) -> Program:
    """The time is the program's, for both answers."""
    build = await asyncio.to_thread(_build, equipment)
    if build is not None and build in _known:
        return _known[build]
    try:
        async with asyncio.timeout(timeout):
            version = await _said(equipment, "--version")
            flags = read_flags(await _said(equipment, "--help"))
    except TimeoutError:
        raise TimedOut(
            f"cannot start {equipment.command.name!r}: it did not tell what it can do within {timeout} s;"
            " give it more time or run it by hand"
        ) from None
    found = Program(version.split()[0] if version.split() else "", flags)
    if build is not None:
        _known[build] = found
    return found


async def _said(equipment: Equipment, option: str) -> str:
    base = equipment.command
    command = replace(base, argv=(*base.argv, option), env={**base.env, "NO_COLOR": "1", "TERM": "dumb"})
    async with await equipment.launcher.spawn(command, equipment.pipes) as child:
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


def _build(equipment: Equipment) -> _Build | None:
    """None where the program cannot be seen from here: then it is asked each time."""
    argv, env = equipment.command.argv, equipment.command.env
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
