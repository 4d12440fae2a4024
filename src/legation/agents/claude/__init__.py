"""Claude Code, driven by its own protocol. docs/agents/claude.md says how, and what is gated by asking."""

from legation.agents.claude.driver import ClaudeAgent

__all__ = ["ClaudeAgent"]
