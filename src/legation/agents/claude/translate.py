"""Lines of Claude Code's stream as ACP session updates, prompts as what the model takes. No control protocol is needed: other
agents print such lines too.

INV-1  No text is said twice: a block that was streamed is not repeated by the whole message that follows.
INV-2  A sub-agent's words stand under the call that started it, never in the session's own message.
INV-3  A line that is not understood is told as such (`TranslatedLine.known`), and text that is no line too (`TranslatedLine.message`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from legation.agents.claude import messages as native
from legation.agents.claude import tools
from legation.agents.claude.messages import AssistantBody, ClaudeTokens, Result, read_line
from legation.agents.claude.tools import TaskBoard, todo_plan
from legation.agents.driver import PromptBlocks
from legation.agents.native import block_text
from legation.agents.rpc import AgentRefused
from legation.errors import InvalidParams
from legation.wire.acp.methods import STOP_REASONS, PromptResponse, Usage
from legation.wire.acp.rpc import AgentMethod, ErrorCode, RpcError
from legation.wire.acp.updates import (
    AgentMessageChunk,
    AgentThoughtChunk,
    AvailableCommand,
    AvailableCommandsUpdate,
    CommandInput,
    CompactionSummaryChunk,
    CompactionUpdate,
    Content,
    ContentBlock,
    Cost,
    CurrentModeUpdate,
    Diff,
    EmbeddedResource,
    Image,
    Notice,
    ResourceContents,
    SessionUpdate,
    Text,
    ToolCallContent,
    ToolCallUpdate,
    UsageUpdate,
)

KEPT: Final = 256  # streamed messages, and calls that are not over: what comes of them follows soon
_COMMAND_OUTPUT: Final = ("<local-command-stdout>", "</local-command-stdout>")
# Said to the model when a turn is cancelled, which the end of the turn tells everybody else.
_INTERRUPTED: Final = "[Request interrupted by user"
# Parts of blocks that come again, whole, and bookkeeping of the endpoint's.
_SILENT_DELTAS: Final = frozenset(("input_json_delta", "signature_delta", "citations_delta"))
_SILENT_EVENTS: Final = frozenset(("content_block_start", "content_block_stop", "message_stop", "ping"))
# Encrypted, and meant for the model alone.
_SILENT_BLOCKS: Final = frozenset(("redacted_thinking", "fallback"))

_K = TypeVar("_K")
_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class TranslatedLine:
    """`message` is None for text that is no line of the stream. `failure` is the kind of error that a result ends with."""

    message: native.ClaudeShape | None
    updates: tuple[SessionUpdate, ...] = ()
    known: bool = True
    failure: str | None = None


class _NotKnown(Exception):
    """Part of a line that is not understood: the line is kept as it came."""


class ClaudeTranslator:
    """Translate the lines of one session. `take` never raises."""

    def __init__(self) -> None:
        self.meter = Meter()
        self._streamed: dict[tuple[str, str], None] = {}  # message and type of block
        self._streaming = ""  # the message that is being streamed
        self._diffs: dict[str, tuple[Diff, ...]] = {}  # what calls that are not over want to change
        self._background: set[str] = set()  # calls that go on after their result
        self._board = TaskBoard()
        self._compaction = ""
        self._failure: str | None = None

    def take(self, line: bytes) -> TranslatedLine:
        message = read_line(line)
        if message is None:
            return TranslatedLine(None)
        updates: list[SessionUpdate] = []
        known = not isinstance(message, native.UnknownLine)
        try:
            updates.extend(self._updates(message))
        except _NotKnown:
            known = False
        failure = self._failure if isinstance(message, native.Result) else None
        if isinstance(message, native.Result):
            self._failure = None
        return TranslatedLine(message, tuple(updates), known, failure)

    def _updates(self, line: native.ClaudeShape) -> Iterator[SessionUpdate]:
        match line:
            case native.StreamEvent():
                return self._stream(line)
            case native.Assistant():
                return self._assistant(line)
            case native.UserLine():
                return self._user(line)
            case native.ToolProgress():
                return self._at_work(line)
            case native.TaskStarted():
                return self._task_started(line)
            case native.TaskNotification():
                return self._task_ended(line)
        return self._about_session(line)

    # The model speaks.

    def _assistant(self, line: native.Assistant) -> Iterator[SessionUpdate]:
        if line.error is not None:
            self._failure = line.error
        if line.parent_tool_use_id is None:
            self.meter.spoke(line.message)
        unknown = False
        for block in line.message.content:
            if block.type in ("tool_use", "server_tool_use", "mcp_tool_use"):
                yield from self._called(block, line.parent_tool_use_id)
            elif block.type in ("text", "thinking"):
                yield from self._said(block, line)
            elif block.type.endswith("_tool_result"):
                yield from self._returned(block, None)
            elif block.type not in _SILENT_BLOCKS:
                unknown = True
        if unknown:
            raise _NotKnown

    def _said(self, block: native.Block, line: native.Assistant) -> Iterator[SessionUpdate]:
        text = block.text or block.thinking
        if not text:
            return
        if line.error is not None:  # the program's words, not the model's
            yield Notice(severity="error", title=text)
        elif line.parent_tool_use_id is not None:
            yield _under(line.parent_tool_use_id, text)
        elif (line.message.id, block.type) not in self._streamed:
            yield _chunk(block.type, text, line.message.id)

    def _stream(self, line: native.StreamEvent) -> Iterator[SessionUpdate]:
        event = line.event
        if line.parent_tool_use_id is not None or event.type in _SILENT_EVENTS:
            return  # a sub-agent's whole messages follow
        if event.type == "message_start" and event.message is not None:
            self._streaming = event.message.id
            self.meter.streams(event.message.usage)
        elif event.type == "message_delta":
            self.meter.streams(event.usage)
        elif event.type == "content_block_delta" and event.delta is not None:
            yield from self._piece(event.delta)
        else:
            raise _NotKnown

    def _piece(self, delta: native.Delta) -> Iterator[SessionUpdate]:
        if delta.type in _SILENT_DELTAS:
            return
        if delta.type not in ("text_delta", "thinking_delta"):
            raise _NotKnown
        block, text = delta.type.removesuffix("_delta"), delta.text or delta.thinking
        if text:
            self._streamed[self._streaming, block] = None
            _drop_oldest(self._streamed)
            yield _chunk(block, text, self._streaming)

    # Tools.

    def _called(self, block: native.Block, parent: str | None) -> Iterator[SessionUpdate]:
        call = tools.announced(block.id, block.name, block.input, parent)
        self._diffs[block.id] = tuple(each for each in call.content or () if isinstance(each, Diff))
        _drop_oldest(self._diffs)
        yield call
        if parent is None:
            yield from todo_plan(block.name, block.input)
            self._board.called(block.id, block.name, block.input)

    def _user(self, line: native.UserLine) -> Iterator[SessionUpdate]:
        content = line.message.content
        if isinstance(content, str):
            yield from self._told(content, line)
            return
        unknown = False
        for block in content:
            if block.type == "tool_result":
                yield from self._returned(block, line.tool_use_result)
            elif block.type == "text":
                yield from self._told(block.text, line)
            else:  # pictures of a prompt come again with it
                unknown = unknown or not line.isReplay
        if unknown:
            raise _NotKnown

    def _returned(self, block: native.Block, details: object) -> Iterator[SessionUpdate]:
        call, failed = block.tool_use_id, bool(block.is_error)
        diffs = self._diffs.pop(call, ())
        whole = tools.written(details)
        changed: tuple[ToolCallContent, ...] = () if failed else ((whole,) if whole else diffs)
        status = "failed" if failed else "in_progress" if call in self._background else "completed"
        yield ToolCallUpdate(
            tool_call_id=call, status=status, content=(*changed, *tools.output(block.content)) or None
        )
        yield from self._board.returned(call, details, failed=failed)

    def _told(self, text: str, line: native.UserLine) -> Iterator[SessionUpdate]:
        """To the model. Our own prompts are on record, and a sub-agent's prompt is the argument of its call."""
        start, end = _COMMAND_OUTPUT
        if text.startswith(start):
            said = text.removeprefix(start).removesuffix(end).strip()
            if said:
                yield _chunk("text", said, line.uuid)
        elif self._compaction and line.isSynthetic:
            yield CompactionSummaryChunk(compaction_id=self._compaction, content=Text(text=text))
            self._compaction = ""
        elif not (line.isReplay or line.parent_tool_use_id is not None or text.startswith(_INTERRUPTED)):
            yield Notice(severity="info", title="Claude Code told the model", description=text)

    def _task_started(self, line: native.TaskStarted) -> Iterator[SessionUpdate]:
        if line.is_backgrounded and line.tool_use_id is not None:
            self._background.add(line.tool_use_id)
        yield from ()

    def _task_ended(self, line: native.TaskNotification) -> Iterator[SessionUpdate]:
        call = line.tool_use_id
        if call is None:
            yield Notice(
                severity="info", title=f"A background task has {line.status}", description=line.summary
            )
        elif call in self._background:
            self._background.discard(call)
            status = "completed" if line.status == "completed" else "failed"
            yield ToolCallUpdate(tool_call_id=call, status=status, content=tools.output(line.summary) or None)

    def _at_work(self, line: native.ToolProgress) -> Iterator[SessionUpdate]:
        yield ToolCallUpdate(tool_call_id=line.tool_use_id, status="in_progress")

    # The session.

    def _about_session(self, line: native.ClaudeShape) -> Iterator[SessionUpdate]:
        match line:
            case native.Result():
                return self._result(line)
            case native.StatusLine():
                return self._status(line)
            case native.CompactBoundary():
                return self._compacted(line)
            case native.CommandOutput():
                return self._command_output(line)
            case native.CommandsChanged():
                return self._commands(line)
        return notice_of(line)

    def _result(self, line: native.Result) -> Iterator[SessionUpdate]:
        update = self.meter.update(line)
        if update is not None:
            yield update

    def _status(self, line: native.StatusLine) -> Iterator[SessionUpdate]:
        if line.permissionMode is not None:
            yield CurrentModeUpdate(current_mode_id=line.permissionMode)
        if line.status == "compacting":
            self._compaction = line.uuid
            yield CompactionUpdate(compaction_id=line.uuid, status="in_progress")
        elif line.compact_result == "failed":
            yield CompactionUpdate(compaction_id=self._compaction, status="failed", error=line.compact_error)
            self._compaction = ""

    def _compacted(self, line: native.CompactBoundary) -> Iterator[SessionUpdate]:
        self._compaction = self._compaction or line.uuid
        yield CompactionUpdate(compaction_id=self._compaction, status="completed")

    def _command_output(self, line: native.CommandOutput) -> Iterator[SessionUpdate]:
        if line.content:
            yield _chunk("text", line.content, line.uuid)

    def _commands(self, line: native.CommandsChanged) -> Iterator[SessionUpdate]:
        yield available(line.commands)


def available(commands: tuple[native.SlashCommand, ...]) -> AvailableCommandsUpdate:
    return AvailableCommandsUpdate(
        available_commands=tuple(
            AvailableCommand(
                name=each.name,
                description=each.description,
                input=CommandInput(hint=each.argumentHint) if each.argumentHint else None,
            )
            for each in commands
        )
    )


def _drop_oldest(kept: dict[_K, _V]) -> None:
    while len(kept) > KEPT:
        del kept[next(iter(kept))]


def _chunk(block: str, text: str, message_id: str) -> SessionUpdate:
    kind = AgentThoughtChunk if block == "thinking" else AgentMessageChunk
    return kind(content=Text(text=text), message_id=message_id or None)


def _under(call: str, text: str) -> ToolCallUpdate:
    """Show what a sub-agent says now in the place of what it said before."""
    return ToolCallUpdate(
        tool_call_id=call, status="in_progress", content=(Content(content=Text(text=text)),)
    )


# What a session has used: the context window, the tokens of a turn, the cost.


SYNTHETIC = "<synthetic>"  # the model of messages that no model wrote


class Meter:
    """A gauge of the context window: what the last request of the session's own model held, and what it answered."""

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

    def streams(self, usage: ClaudeTokens | None) -> None:
        if usage is None:
            return
        if _held(usage):
            self._held, self._answered = _held(usage), 0
        self._answered = max(self._answered, usage.output_tokens or 0)

    def update(self, result: Result) -> UsageUpdate | None:
        """Tell the use of the window; None where the agent does not say how large it is."""
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


def _held(usage: ClaudeTokens) -> int:
    return (
        (usage.input_tokens or 0)
        + (usage.cache_creation_input_tokens or 0)
        + (usage.cache_read_input_tokens or 0)
    )


# Remarks that stand outside the conversation: retries, limits, refusals, hooks that failed.


_LEVELS: Final = {"warning": "warning"}


def notice_of(line: native.ClaudeShape) -> Iterator[SessionUpdate]:
    """Remark on a line, where there is something to remark."""
    match line:
        case native.ApiRetry():
            yield _retry(line)
        case native.Informational(content=content, level=level):
            yield Notice(severity=_LEVELS.get(level, "info"), title=content)
        case native.Notification(text=text):
            yield Notice(severity="info", title=text)
        case native.PermissionDenied(tool_name=tool, message=message):
            yield Notice(
                severity="warning",
                title=f"Claude Code refused {tool} by a rule of its own",
                description=message,
            )
        case native.Refusal(original_model=model):
            said = line.content or line.api_refusal_explanation
            yield Notice(severity="warning", title=f"{model} refused to answer", description=said or None)
        case native.HookResponse(outcome="error"):
            title = f"The {line.hook_event} hook {line.hook_name!r} failed"
            yield Notice(severity="warning", title=title, description=line.output or None)
        case native.RateLimitEvent(rate_limit_info=limit) if limit.status != "allowed":
            yield _limited(limit)


def _retry(line: native.ApiRetry) -> Notice:
    status = f" ({line.error_status:.0f})" if line.error_status is not None else ""
    return Notice(
        severity="warning",
        title=f"The model's endpoint failed: {line.error}{status}",
        description=f"attempt {line.attempt:.0f} of {line.max_retries:.0f} follows in {line.retry_delay_ms / 1000:.1f} s",
    )


def _limited(limit: native.RateLimit) -> Notice:
    rejected = limit.status == "rejected"
    which = f" ({limit.rateLimitType})" if limit.rateLimitType else ""
    return Notice(
        severity="error" if rejected else "warning",
        title=f"The account's rate limit{which} is {'reached' if rejected else 'near'}",
    )


# The end of a turn, as the answer to its prompt.


UNAUTHENTICATED: Final = 401
_SIGN_IN: Final = frozenset(("authentication_failed", "oauth_org_not_allowed"))
_NOT_SIGNED_IN: Final = "/login"  # what it advises where it has no key at all: it names no kind of error then
_REMEDY: Final = "; give it ANTHROPIC_API_KEY, or run `legation agents login claude`"
_ABORTED: Final = "aborted_"
_TURNS: Final = "error_max_turns"


def outcome(result: Result, failure: str | None, *, cancelled: bool) -> PromptResponse | AgentRefused:
    """`failure` is the kind of error that the program named before. `cancelled`: we asked it to stop."""
    if (result.terminal_reason or "").startswith(_ABORTED) or (cancelled and result.is_error):
        return PromptResponse(stop_reason="cancelled", usage=usage_of(result))
    if result.stop_reason == "refusal":
        return PromptResponse(stop_reason="refusal", usage=usage_of(result))
    if result.subtype == _TURNS:
        return PromptResponse(stop_reason="max_turn_requests", usage=usage_of(result))
    if result.is_error:
        return AgentRefused(AgentMethod.SESSION_PROMPT, error_of(result, failure))
    known = result.stop_reason if result.stop_reason in STOP_REASONS else "end_turn"
    return PromptResponse(stop_reason=known or "end_turn", usage=usage_of(result))


def error_of(result: Result, failure: str | None) -> RpcError:
    message = result.result or "; ".join(result.errors) or f"the turn ended with {result.subtype}"
    status = result.api_error_status
    data: dict[str, object] = {"errorKind": failure or result.subtype}
    if status is not None:
        data["status"] = int(status)
    signed_out = status == UNAUTHENTICATED or failure in _SIGN_IN or _NOT_SIGNED_IN in message
    code = ErrorCode.AUTH_REQUIRED if signed_out else ErrorCode.INTERNAL_ERROR
    return RpcError(code, f"{message}{_REMEDY}" if signed_out else message, data)


# Prompts.


_PDF: Final = "application/pdf"


def blocks_of(prompt: PromptBlocks) -> list[Mapping[str, object]]:
    return [_block(each) for each in prompt]


def _block(block: ContentBlock) -> Mapping[str, object]:
    text = block_text(block)
    if text is not None:
        return {"type": "text", "text": text}
    match block:
        case Image(data=data, mime_type=kind):
            return _data_block("image", kind, data)
        case EmbeddedResource(resource=resource):
            return _blob(resource)
    raise InvalidParams(
        f"cannot send a block of type {type(block).__name__.lower()} to Claude Code: it takes text, images, links and"
        " resources; leave it out"
    )


def _blob(resource: ResourceContents) -> Mapping[str, object]:
    kind, blob = resource.mime_type or "", resource.blob
    if blob is not None and kind.startswith("image/"):
        return _data_block("image", kind, blob)
    if blob is not None and kind == _PDF:
        return _data_block("document", kind, blob)
    raise InvalidParams(
        f"cannot send a resource of type {kind or 'unknown'} to Claude Code: it takes text, images and PDF; send a link"
    )


def _data_block(block: str, kind: str, data: str) -> Mapping[str, object]:
    return {"type": block, "source": {"type": "base64", "media_type": kind, "data": data}}
