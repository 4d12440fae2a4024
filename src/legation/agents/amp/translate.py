"""Lines of Amp's stream as ACP session updates: Claude Code's lines, with Amp's own tools and few of the ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import msgspec

from legation.agents.amp import tools
from legation.agents.answers import READ_ERRORS, fit
from legation.agents.claude import messages as native
from legation.agents.claude.translate import ClaudeTranslator, Heard
from legation.ids import new_id
from legation.wire import jsontext
from legation.wire.acp.toolcall import Diff, ToolCall, ToolCallUpdate
from legation.wire.acp.updates import AgentMessageChunk, AgentThoughtChunk, SessionUpdate


@dataclass(frozen=True, slots=True)
class Taken:
    """`message` is None for text that is no line of the stream."""

    message: native.Native | None
    updates: tuple[SessionUpdate, ...]
    known: bool
    failure: str | None


class AmpTranslator:
    """One turn's. `take` never raises. `calls` are the name and the arguments of each, by its id."""

    def __init__(self) -> None:
        self._claude = ClaudeTranslator()
        self._diffs: dict[str, tuple[Diff, ...]] = {}
        self.calls: dict[str, tuple[str, object]] = {}

    def take(self, line: bytes) -> Taken:
        heard = self._claude.take(line)
        message = heard.message
        if isinstance(message, native.Result) and message.is_error:
            message = _with_error(message, line)
        return Taken(message, tuple(self._updates(heard)), heard.known, heard.failure)

    def _updates(self, heard: Heard) -> Iterator[SessionUpdate]:
        message_id = new_id("msg")  # it names none: a line is a message
        for update in heard.updates:
            match update:
                case ToolCall():
                    yield self._announced(update)
                case ToolCallUpdate(status="completed") if diffs := self._diffs.pop(update.tool_call_id, ()):
                    yield msgspec.structs.replace(update, content=(*diffs, *(update.content or ())))
                case AgentMessageChunk(message_id=None) | AgentThoughtChunk(message_id=None):
                    yield msgspec.structs.replace(update, message_id=message_id)
                case _:
                    yield cast(SessionUpdate, update)  # the translator makes no other shapes

    def _announced(self, call: ToolCall) -> ToolCall:
        made = tools.announced(call)
        self.calls[call.tool_call_id] = (call.name or "", call.raw_input)
        self._diffs[call.tool_call_id] = tuple(each for each in made.content or () if isinstance(each, Diff))
        return made


class _Failed(native.Native):
    error: str = ""


def _with_error(result: native.Result, line: bytes) -> native.Result:
    """What went wrong stands in `error`, which Claude Code's results do not have."""
    try:
        found = fit(jsontext.read(line), _Failed)
    except READ_ERRORS:
        return result
    return msgspec.structs.replace(result, result=result.result or found.error)
