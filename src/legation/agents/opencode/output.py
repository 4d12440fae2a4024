"""What the process of a server writes: where it listens, and nothing else that counts but its last words."""

from __future__ import annotations

import re
from typing import Final

from legation.agents.output import Stray
from legation.errors import AgentExited
from legation.proc import Child

STDERR_SHOWN: Final = 2000  # characters of it in an error
_LISTENING: Final = re.compile(rb"listening on (http://[\w.:\[\]]+)")


async def address(child: Child, stray: Stray) -> str:
    async for lines in child.lines():
        found = _LISTENING.search(b"\n".join(lines))
        if found:
            return found[1].decode()
        for line in lines:
            stray.add(line)
    found_exit = await child.wait()
    raise AgentExited(
        f"cannot start OpenCode's server: {child.name!r} ended with {found_exit}{said(child, stray)}",
        {"exitCode": found_exit.code, "signal": found_exit.signal},
    )


async def drain(child: Child) -> None:
    """Its output has nothing to say; it must not fill up."""
    async for _ in child.lines():
        pass


def said(child: Child, stray: Stray | None = None) -> str:
    """What it wrote to its standard error last, and first to its output, for the end of a message."""
    tail = child.stderr_tail().strip()[-STDERR_SHOWN:]
    found = f", having said:\n{tail}\n" if tail else ""
    return found if stray is None else f"{found}{stray.said(child.unfinished())}"
