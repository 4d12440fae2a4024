"""The driver of Codex: its app server, shared by the agents of a host; see docs/agents/codex.md."""

from legation.agents.codex.driver import CodexAgent

__all__ = ["CodexAgent"]
