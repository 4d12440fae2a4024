"""Drivers by the kind of agent that they speak to. Each is loaded by whoever first needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from legation.agents.driver import Driver
    from legation.agents.native import DriverContext

DriverName = Literal["acp", "claude", "codex", "opencode", "amp"]


async def open_driver(kind: DriverName, context: DriverContext) -> Driver:
    """Make the driver of an agent, not yet greeted: `initialize` does that. Whoever opened it stops it."""
    match kind:
        case "acp":
            from legation.agents.acp import AcpAgent

            child = await context.launcher.spawn(context.command, context.pipes)
            return AcpAgent(child, context.listener, context.beginning)
        case "claude":
            from legation.agents.claude import ClaudeAgent

            return ClaudeAgent(context)
        case "codex":
            from legation.agents.codex import CodexAgent

            return CodexAgent(context)
        case "opencode":
            from legation.agents.opencode import OpenCodeAgent

            return OpenCodeAgent(context)
        case "amp":
            from legation.agents.amp import AmpAgent

            return AmpAgent(context)
