"""What a session of Claude Code has used: the context window, the tokens of a turn, the cost."""

from __future__ import annotations

from legation.agents.claude.messages import AssistantBody, Result, Tokens
from legation.wire.acp.sessions import Usage
from legation.wire.acp.updates import Cost, UsageUpdate

SYNTHETIC = "<synthetic>"  # the model of messages that no model wrote


class Meter:
    """How full the context is: what the last request of the session's own model held, and what it answered."""

    def __init__(self) -> None:
        self._model = ""
        self._held = 0
        self._answered = 0

    def spoke(self, message: AssistantBody) -> None:
        if message.model == SYNTHETIC or message.usage is None:
            return
        self._model = message.model
        self._held = _held(message.usage) or self._held
        self._answered = max(self._answered, message.usage.output_tokens or 0)

    def streams(self, usage: Tokens | None) -> None:
        if usage is None:
            return
        if _held(usage):
            self._held, self._answered = _held(usage), 0
        self._answered = max(self._answered, usage.output_tokens or 0)

    def update(self, result: Result) -> UsageUpdate | None:
        """None where the agent does not say how large the window is."""
        uses = result.modelUsage
        known = uses.get(self._model)
        size = (
            known.contextWindow if known else max((each.contextWindow for each in uses.values()), default=0)
        )
        if size <= 0:
            return None
        cost = None if result.total_cost_usd is None else Cost(amount=result.total_cost_usd, currency="USD")
        return UsageUpdate(used=self._held + self._answered, size=int(size), cost=cost)


def usage_of(result: Result) -> Usage | None:
    """The tokens of one turn."""
    used = result.usage
    if used is None:
        return None
    thought = (used.output_tokens_details or {}).get("thinking_tokens")
    counts = (
        used.input_tokens,
        used.output_tokens,
        used.cache_read_input_tokens,
        used.cache_creation_input_tokens,
    )
    return Usage(
        total_tokens=sum(count or 0 for count in counts),
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        thought_tokens=thought if isinstance(thought, int) else None,
        cached_read_tokens=used.cache_read_input_tokens,
        cached_write_tokens=used.cache_creation_input_tokens,
    )


def _held(usage: Tokens) -> int:
    return (
        (usage.input_tokens or 0)
        + (usage.cache_creation_input_tokens or 0)
        + (usage.cache_read_input_tokens or 0)
    )
