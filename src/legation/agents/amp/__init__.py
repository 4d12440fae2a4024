"""The driver of Amp; see docs/agents/amp.md."""

from legation.agents.amp.driver import AmpAgent

__all__ = ["AmpAgent"]
