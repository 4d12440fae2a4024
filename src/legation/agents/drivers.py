"""Which driver speaks to which kind of agent. Each is loaded by whoever first needs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from legation.agents.acp import AcpAgent
from legation.agents.driver import Driver, DriverName

if TYPE_CHECKING:
    from legation.agents.native import DriverContext, NativeAgent


async def open_driver(kind: DriverName, context: DriverContext) -> Driver:
    """Not yet greeted: `initialize` does that. Whoever opened it stops it."""
    if kind == "acp":
        child = await context.launcher.spawn(context.command, context.pipes)
        return AcpAgent(child, context.inbox, context.beginning)
    return _NATIVE[kind]()(context)


def _claude() -> type[NativeAgent]:
    from legation.agents.claude import ClaudeAgent

    return ClaudeAgent


def _codex() -> type[NativeAgent]:
    from legation.agents.codex import CodexAgent

    return CodexAgent


def _opencode() -> type[NativeAgent]:
    from legation.agents.opencode import OpenCodeAgent

    return OpenCodeAgent


def _amp() -> type[NativeAgent]:
    from legation.agents.amp import AmpAgent

    return AmpAgent


_NATIVE: dict[DriverName, Callable[[], type[NativeAgent]]] = {
    "claude": _claude,
    "codex": _codex,
    "opencode": _opencode,
    "amp": _amp,
}
