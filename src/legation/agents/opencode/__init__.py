"""The driver of OpenCode: `opencode serve`, one server for many sessions, spoken to over HTTP and an event stream."""

from legation.agents.opencode.driver import OpenCodeAgent

__all__ = ["OpenCodeAgent"]
