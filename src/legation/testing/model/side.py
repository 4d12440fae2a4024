"""Which requests are no part of the conversation that a test scripts: agents ask a model for more than they show."""

from __future__ import annotations

from legation.testing.model.request import ModelRequest

# How a request begins that is made with all tools on offer and yet is no turn.
_OPENINGS = ("[SUGGESTION MODE:",)  # Claude Code, after a turn: what the user might type next
_NO_TOOLS = frozenset({"_noop"})  # OpenCode, for endpoints that take no history with calls in it without any


def is_side_request(request: ModelRequest) -> bool:
    """A coding agent at work offers its tools. What it asks on the side (a title, a summary, who speaks next, whether
    the key works) it asks without any, save for the few that are known by their opening words."""
    return _NO_TOOLS.issuperset(request.tools) or request.prompt.lstrip().startswith(_OPENINGS)
