"""Which Claude Code it is. That it tells shows that the program is there and runs, before a session needs it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from legation.agents.native import Equipment
from legation.agents.process import all_said
from legation.errors import AgentError, AgentExited, TimedOut
from legation.proc import Child, Exit

_WORD: Final = "(Claude Code)"


async def ask_version(equipment: Equipment, timeout: float) -> tuple[str, str]:
    """The version, and what it said on its standard error. The time is the program's to start."""
    base, name = equipment.command, equipment.command.name
    command = replace(base, argv=(*base.argv, "--version"))
    async with await equipment.launcher.spawn(command, equipment.pipes) as child:
        child.close_stdin()
        try:
            async with asyncio.timeout(timeout):
                text, found = await _said(child)
        except TimeoutError:
            raise TimedOut(
                f"cannot start {name!r}: it did not tell its version within {timeout} s; run it by hand"
            ) from None
        complained = child.stderr_tail()
    if found.code != 0:
        raise AgentExited(
            f"cannot start {name!r}: it ended with {found} when asked for its version; run it by hand",
            {"exitCode": found.code, "signal": found.signal},
        )
    if _WORD not in text:
        raise AgentError(
            f"cannot use {name!r} as Claude Code: it calls itself something else; check what it is"
        )
    return text.split()[0], complained


async def _said(child: Child) -> tuple[str, Exit]:
    return (await all_said(child)).decode(errors="replace"), await child.wait()
