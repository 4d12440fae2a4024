"""The tokens of a turn, from counts of the whole thread."""

from __future__ import annotations

from legation.agents.codex.messages import TokenCount, TokenUsage
from legation.wire.acp.sessions import Usage
from legation.wire.acp.updates import UsageUpdate


class Tokens:
    """A thread's. What was used before the turn is known from the first count in it."""

    def __init__(self) -> None:
        self._before: TokenCount | None = None
        self._now: TokenCount | None = None

    def begin_turn(self) -> None:
        self._before = self._now

    def count(self, usage: TokenUsage) -> UsageUpdate:
        if self._before is None:
            self._before = _less(usage.total, usage.last)
        self._now = usage.total
        used = usage.last.total_tokens
        return UsageUpdate(used=used, size=usage.model_context_window or used)

    def of_turn(self) -> Usage | None:
        """None where the model never answered."""
        if self._now is None or self._before is None or self._now == self._before:
            return None
        used = _less(self._now, self._before)
        cached = used.cached_input_tokens + used.cache_write_input_tokens  # with Codex part of the input
        return Usage(
            total_tokens=used.total_tokens,
            input_tokens=used.input_tokens - cached,
            output_tokens=used.output_tokens,
            thought_tokens=used.reasoning_output_tokens,
            cached_read_tokens=used.cached_input_tokens,
            cached_write_tokens=used.cache_write_input_tokens,
        )


def _less(all_: TokenCount, part: TokenCount) -> TokenCount:
    return TokenCount(
        total_tokens=all_.total_tokens - part.total_tokens,
        input_tokens=all_.input_tokens - part.input_tokens,
        cached_input_tokens=all_.cached_input_tokens - part.cached_input_tokens,
        output_tokens=all_.output_tokens - part.output_tokens,
        reasoning_output_tokens=all_.reasoning_output_tokens - part.reasoning_output_tokens,
        cache_write_input_tokens=all_.cache_write_input_tokens - part.cache_write_input_tokens,
    )
