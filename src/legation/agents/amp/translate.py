"""Lines of Amp's stream as ACP session updates: Claude Code's lines, with Amp's own tools and few of the ids. Prompts, and
ends of turns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final, cast

import msgspec

from legation.agents.amp import tools
from legation.agents.claude import messages as native
from legation.agents.claude.translate import ClaudeTranslator, TranslatedLine
from legation.agents.driver import PromptBlocks
from legation.agents.messages import READ_ERRORS, fit
from legation.agents.native import block_text
from legation.agents.rpc import STDERR_SHOWN, AgentRefused, exited
from legation.clock import new_id
from legation.errors import InvalidParams, LegationError
from legation.proc import Exit
from legation.wire import jsontext
from legation.wire.acp.rpc import AgentMethod, ErrorCode, RpcError
from legation.wire.acp.updates import (
    AgentMessageChunk,
    AgentThoughtChunk,
    ContentBlock,
    Diff,
    SessionUpdate,
    ToolCall,
    ToolCallUpdate,
)


class AmpTranslator:
    """Translate the lines of one turn. `take` never raises. `calls` are the name and the arguments of each, by its id."""

    def __init__(self) -> None:
        self._claude = ClaudeTranslator()
        self._diffs: dict[str, tuple[Diff, ...]] = {}
        self.calls: dict[str, tuple[str, object]] = {}

    def take(self, line: bytes) -> TranslatedLine:
        heard = self._claude.take(line)
        message = heard.message
        if isinstance(message, native.Result) and message.is_error:
            message = _with_error(message, line)
        return replace(heard, message=message, updates=tuple(self._updates(heard)))

    def _updates(self, heard: TranslatedLine) -> Iterator[SessionUpdate]:
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


class _Failed(native.ClaudeShape):
    error: str = ""


def _with_error(result: native.Result, line: bytes) -> native.Result:
    """Add what went wrong, which stands in `error`: Claude Code's results have no such member."""
    try:
        found = fit(jsontext.read(line), _Failed)
    except READ_ERRORS:
        return result
    return msgspec.structs.replace(result, result=result.result or found.error)


# How a turn ended that Amp itself did not tell the end of: what its process left behind.


NO_KEY: Final = "No API key found"  # said on its output; then it waits for a browser that nobody has
_SIGN_IN: Final = re.compile(r"api key|access token|unauthorized|not logged in|\b401\b", re.IGNORECASE)
_REMEDY: Final = "; give it AMP_API_KEY, or run `legation agents login amp`"


def exit_error(name: str, found: Exit, complaint: str) -> LegationError:
    """Amp tells of an error by its exit code and a line or two; anything else is a crash."""
    said = complaint.strip()[-STDERR_SHOWN:]
    if found.code and said:
        return refusal(said)
    tail = f", having said:\n{said}\n" if said else ""
    return exited(f"complete {AgentMethod.SESSION_PROMPT}", name, found, tail)


def refusal(message: str) -> AgentRefused:
    signed_out = _SIGN_IN.search(message) is not None
    code = ErrorCode.AUTH_REQUIRED if signed_out else ErrorCode.INTERNAL_ERROR
    told = f"{message}{_REMEDY}" if signed_out else message
    error = RpcError(code, told, {"errorKind": "authentication" if signed_out else "amp"})
    return AgentRefused(AgentMethod.SESSION_PROMPT, error)


def not_gated(what: str) -> AgentRefused:
    told = f"{what}; it was stopped: update Amp"
    return AgentRefused(
        AgentMethod.SESSION_PROMPT, RpcError(ErrorCode.INTERNAL_ERROR, told, {"errorKind": "ungated"})
    )


# A prompt as Amp takes it: text, on its input and never in its arguments.


def text_of(prompt: PromptBlocks) -> str:
    return "\n\n".join(map(_text, prompt))


def line_of(text: str) -> bytes:
    message = {"role": "user", "content": [{"type": "text", "text": text}]}
    return jsontext.write({"type": "user", "message": message}) + b"\n"


def _text(block: ContentBlock) -> str:
    text = block_text(block)
    if text is None:
        kind = type(block).__name__.lower()
        raise InvalidParams(
            f"cannot send a block of type {kind} to Amp: it takes text and links; leave it out"
        )
    return text
