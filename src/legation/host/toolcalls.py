"""The tool calls of a turn that are not over, told whole: an agent repeats only what changed."""

from __future__ import annotations

from legation.wire import codec
from legation.wire.acp.toolcall import AnyToolCall, ToolCall, ToolCallUpdate, merged
from legation.wire.events import Draft

KEPT = 1000  # of a turn
TYPES = frozenset(("tool-call", "tool-call-update"))

_OVER = frozenset(("completed", "failed"))


class ToolCalls:
    def __init__(self) -> None:
        self._open: dict[str, AnyToolCall] = {}

    def take(self, draft: Draft) -> None:
        call = codec.decode(draft)
        if not isinstance(call, ToolCall | ToolCallUpdate):
            return
        if call.status in _OVER:
            self._open.pop(call.tool_call_id, None)
        elif call.tool_call_id in self._open or len(self._open) < KEPT:
            self._open[call.tool_call_id] = self.whole(call)

    def whole(self, call: AnyToolCall) -> AnyToolCall:
        """What is known of it, with what is new."""
        known = self._open.get(call.tool_call_id)
        return merged(known, call) if known else call

    def at_work(self) -> bool:
        return any(call.status == "in_progress" for call in self._open.values())

    def clear(self) -> None:
        self._open.clear()
