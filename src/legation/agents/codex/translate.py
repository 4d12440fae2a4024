"""Messages about one session's threads as session updates, and prompts as what the server takes.

INV-1  No text is said twice: what came in pieces is not said again as a whole.
INV-2  What a sub-agent does is told in its parent's session; what it says is the result of the call that began it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from legation.agents.codex.messages import (
    AgentMessage,
    CodexNotification,
    CollabAgentToolCall,
    ContextCompaction,
    DeltaNews,
    ErrorNews,
    FileChangeItem,
    HookPrompt,
    ItemNews,
    LimitsNews,
    McpServerNews,
    NameNews,
    PatchNews,
    PlanNews,
    ProgressNews,
    ProposedPlan,
    ReasoningItem,
    RemarkNews,
    ReroutedNews,
    SubAgentActivity,
    SummaryPartNews,
    ThreadItem,
    TokenCount,
    TokenUsage,
    TurnError,
    UserInput,
    UserMessageItem,
    WarningNews,
)
from legation.agents.codex.tools import change_diffs, change_title, changed_locations, tool_call, tool_end
from legation.agents.driver import PromptBlocks
from legation.agents.native import META
from legation.agents.rpc import AgentRefused
from legation.wire.acp.methods import Usage
from legation.wire.acp.rpc import AgentMethod, ErrorCode, RpcError
from legation.wire.acp.updates import (
    AgentMessageChunk,
    AgentThoughtChunk,
    Audio,
    CompactionUpdate,
    Content,
    ContentBlock,
    EmbeddedResource,
    Image,
    Notice,
    Plan,
    PlanEntry,
    ResourceLink,
    SessionInfoUpdate,
    SessionUpdate,
    Text,
    ToolCall,
    ToolCallUpdate,
    Unread,
    UsageUpdate,
    UserMessageChunk,
)

# What is said beside the items of a thread.


Updates = tuple[SessionUpdate, ...]

_PLAN_STATUSES: Final[Mapping[str, str]] = {"inProgress": "in_progress"}


def _plan(news: PlanNews, of_root: bool) -> Updates:
    if not of_root:
        return ()
    entries = (
        PlanEntry(content=each.step, priority="medium", status=_PLAN_STATUSES.get(each.status, each.status))
        for each in news.plan
    )
    return (Plan(entries=tuple(entries)),)


def _retry_or_failure(news: ErrorNews, of_root: bool) -> Updates:
    """One that ends the turn is told by the turn's end."""
    if not news.will_retry and of_root:
        return ()
    title = "The model did not answer; it is asked again" if news.will_retry else "A sub-agent failed"
    said = ": ".join(filter(None, (news.error.message, news.error.additional_details)))
    return (Notice(severity="warning", title=title, description=said),)


def _warning(news: WarningNews, _: bool) -> Updates:
    return (Notice(severity="warning", title=news.message),)


def _mcp_server(news: McpServerNews, _: bool) -> Updates:
    if news.status != "failed":
        return ()
    what = f"MCP server {news.name} did not start"
    return (Notice(severity="warning", title=what, description=news.error),)


def _renamed(news: NameNews, of_root: bool) -> Updates:
    return (SessionInfoUpdate(title=news.thread_name),) if of_root else ()


def _rerouted(news: ReroutedNews, _: bool) -> Updates:
    title = f"{news.to_model} answers instead of {news.from_model}"
    return (Notice(severity="warning", title=title),)


def _old_or_odd(news: RemarkNews, _: bool) -> Updates:
    return (Notice(severity="info", title=news.summary, description=news.details),)


def _limits(news: LimitsNews, _: bool) -> Updates:
    """Tell a limit that is reached; limits are said after each answer of the model."""
    limits = news.rate_limits
    if limits.rate_limit_reached_type is None:
        return ()
    title = f"A limit of the account is reached: {limits.limit_name or limits.rate_limit_reached_type}"
    return (Notice(severity="warning", title=title),)


_NoticeReader = tuple[type[Any], Callable[[Any, bool], Updates]]
# By method: its shape, and what is told of it; the latter is given whether it is of the session's own thread.
NOTICES: Final[Mapping[str, _NoticeReader]] = {
    "turn/plan/updated": (PlanNews, _plan),
    "thread/name/updated": (NameNews, _renamed),
    "mcpServer/startupStatus/updated": (McpServerNews, _mcp_server),
    "account/rateLimits/updated": (LimitsNews, _limits),
    "error": (ErrorNews, _retry_or_failure),
    "warning": (WarningNews, _warning),
    "guardianWarning": (WarningNews, _warning),
    "configWarning": (RemarkNews, _old_or_odd),
    "deprecationNotice": (RemarkNews, _old_or_odd),
    "model/rerouted": (ReroutedNews, _rerouted),
}


_N = TypeVar("_N")

# Known, and nothing to tell: of each, why.
SILENT: Final[Mapping[str, str]] = {
    "thread/started": "whoever began the thread knows",
    "thread/status/changed": "idle or active: turns and requests say as much",
    "thread/readState/changed": "what a user of Codex's own programs has read",
    "thread/settings/updated": "our own settings, said back",
    "thread/goal/cleared": "goals are off",
    "thread/archived": "about the list of threads, not the conversation",
    "thread/unarchived": "about the list of threads, not the conversation",
    "thread/closed": "we left it",
    "thread/deleted": "we deleted it",
    "thread/compacted": "the item of the compaction says it",
    "turn/started": "the prompt was recorded when it was sent",
    "turn/diff/updated": "the sum of the file changes, each of which was told",
    "item/fileChange/outputDelta": "an older form of the item's own end",
    "account/updated": "the account is set by us",
    "app/list/updated": "apps are off",
    "skills/changed": "read by Codex when it needs them",
    "remoteControl/status/changed": "remote control is not used",
}
_OUTPUT_KEPT: Final = 64 * 1024  # characters of the output of a command that runs: the newest
_GROWTH: Final = 1.25  # output is shown again when it has grown so much: all of it is told at the end anyway


class CodexTranslator:
    """Translate what is said of a session's thread and of those of its sub-agents."""

    def __init__(self, thread_id: str) -> None:
        self._root = thread_id
        # By thread: ids are the model's, and may be the same.
        self._open: dict[tuple[str, str], ThreadItem] = {}
        self._in_pieces: set[str] = set()
        # Of a running command: the last of it, how long it is, and how much of that was shown.
        self._output: dict[str, tuple[str, int, int]] = {}
        self._begun_by: dict[str, str] = {}  # a sub-agent's thread -> the tool call that began it
        self._reports: dict[str, list[str]] = {}  # what a sub-agent said, by that tool call

    def item(self, thread_id: str, item_id: str) -> ThreadItem | None:
        """One that has begun and not ended."""
        return self._open.get((thread_id, item_id))

    def open_items(self, thread_id: str) -> tuple[ThreadItem, ...]:
        return tuple(item for (whose, _), item in self._open.items() if whose == thread_id)

    def sub_agents(self) -> tuple[str, ...]:
        return tuple(self._begun_by)

    def broken_off(self) -> Updates:
        """A turn was ended before its time: of what it had begun no end will be told."""
        calls = [item for item in self._open.values() if tool_call(item)]
        self._open.clear()
        self._output.clear()
        return tuple(ToolCallUpdate(tool_call_id=item.id, status="failed") for item in calls)

    def updates(self, thread_id: str, heard: CodexNotification) -> Updates | None:
        """Translate a message; None for one that is not understood."""
        if heard.method in SILENT:
            return ()
        reader = READERS.get(heard.method)
        if reader is None:
            return None
        shape, tell = reader
        try:
            news = msgspec.json.decode(heard.params, type=shape)
        except (ValueError, RecursionError):
            return None
        return tell(self, thread_id, news)

    def replay(self, item: ThreadItem) -> Updates:
        """An item of the past."""
        if isinstance(item, UserMessageItem):
            texts = [str(each["text"]) for each in item.content if each.get("type") == "text"]
            return (UserMessageChunk(content=Text(text="\n".join(texts)), message_id=item.id),)
        return (*self._began(self._root, item), *self._ended(self._root, item))

    # Items.

    def _item_began(self, thread_id: str, news: ItemNews) -> Updates:
        return self._began(thread_id, news.item)

    def _item_ended(self, thread_id: str, news: ItemNews) -> Updates:
        return self._ended(thread_id, news.item)

    def _began(self, thread_id: str, item: ThreadItem) -> Updates:
        self._open[thread_id, item.id] = item
        self._note_sub_agents(item)
        if isinstance(item, ContextCompaction):
            return (CompactionUpdate(compaction_id=item.id, status="in_progress"),)
        call = tool_call(item)
        return (self._marked(thread_id, call),) if call else ()

    def _ended(self, thread_id: str, item: ThreadItem) -> Updates:
        known = self._open.pop((thread_id, item.id), None)
        self._output.pop(item.id, None)
        self._note_sub_agents(item)
        match item:
            case AgentMessage(text=text) | ProposedPlan(text=text):
                return self._said(thread_id, item.id, text)
            case ReasoningItem():
                return self._thought(thread_id, item)
            case ContextCompaction():
                return (CompactionUpdate(compaction_id=item.id, status="completed"),)
            case HookPrompt():
                return (Notice(severity="info", title="A hook added to the prompt"),)
        end = tool_end(item)
        if end is None:
            return ()
        began = tool_call(item) if known is None else None
        return (*((self._marked(thread_id, began),) if began else ()), end)

    def _said(self, thread_id: str, item_id: str, text: str) -> Updates:
        if thread_id != self._root:
            return self._reported(thread_id, text)
        if self._came_in_pieces(item_id) or not text:
            return ()
        return (AgentMessageChunk(content=Text(text=text), message_id=item_id),)

    def _thought(self, thread_id: str, item: ReasoningItem) -> Updates:
        text = "\n\n".join(item.summary or item.content)
        if thread_id != self._root or self._came_in_pieces(item.id) or not text:
            return ()
        return (AgentThoughtChunk(content=Text(text=text), message_id=item.id),)

    def _came_in_pieces(self, item_id: str) -> bool:
        """Tell whether it came in pieces. Asked once, at its end (INV-1)."""
        if item_id not in self._in_pieces:
            return False
        self._in_pieces.remove(item_id)
        return True

    # Pieces.

    def _text_piece(self, thread_id: str, news: DeltaNews) -> Updates:
        """Tell a piece of text; of a sub-agent the whole is told when it is there."""
        if thread_id != self._root:
            return ()
        self._in_pieces.add(news.item_id)
        return (AgentMessageChunk(content=Text(text=news.delta), message_id=news.item_id),)

    def _thought_piece(self, thread_id: str, news: DeltaNews) -> Updates:
        if thread_id != self._root:
            return ()
        self._in_pieces.add(news.item_id)
        return (AgentThoughtChunk(content=Text(text=news.delta), message_id=news.item_id),)

    def _thought_part(self, thread_id: str, news: SummaryPartNews) -> Updates:
        if thread_id != self._root or not news.summary_index:
            return ()
        return (AgentThoughtChunk(content=Text(text="\n\n"), message_id=news.item_id),)

    def _output_piece(self, _: str, news: DeltaNews) -> Updates:
        text, length, shown = self._output.get(news.item_id, ("", 0, 0))
        text, length = (text + news.delta)[-_OUTPUT_KEPT:], length + len(news.delta)
        if length < shown * _GROWTH:
            self._output[news.item_id] = text, length, shown
            return ()
        self._output[news.item_id] = text, length, length
        return (_content(news.item_id, text),)

    def _patch(self, thread_id: str, news: PatchNews) -> Updates:
        """Tell what it is about to change now, which is what will be asked about."""
        item = FileChangeItem(id=news.item_id, changes=news.changes, status="inProgress")
        if (thread_id, news.item_id) not in self._open:
            return self._began(thread_id, item)
        self._open[thread_id, item.id] = item
        return (
            ToolCallUpdate(
                tool_call_id=item.id,
                title=change_title(item.changes),
                content=change_diffs(item.changes),
                locations=changed_locations(item.changes),
                raw_input={"changes": msgspec.to_builtins(item.changes)},
            ),
        )

    def _progress(self, _: str, news: ProgressNews) -> Updates:
        return (_content(news.item_id, news.message),)

    # Sub-agents.

    def _note_sub_agents(self, item: ThreadItem) -> None:
        match item:
            case CollabAgentToolCall(receiver_thread_ids=threads, tool="spawnAgent"):
                for thread_id in threads:
                    self._begun_by.setdefault(thread_id, item.id)
            case SubAgentActivity(agent_thread_id=thread_id, kind="started"):
                self._begun_by.setdefault(thread_id, item.id)

    def _reported(self, thread_id: str, text: str) -> Updates:
        call = self._begun_by.get(thread_id)
        if call is None:
            return (AgentMessageChunk(content=Text(text=text), meta=_of(thread_id)),)
        reports = self._reports.setdefault(call, [])
        reports.append(text)
        return (_content(call, "\n\n".join(reports)),)

    def _marked(self, thread_id: str, call: ToolCall) -> ToolCall:
        return call if thread_id == self._root else msgspec.structs.replace(call, meta=_of(thread_id))


def _content(tool_call_id: str, text: str) -> ToolCallUpdate:
    return ToolCallUpdate(tool_call_id=tool_call_id, content=(Content(content=Text(text=text)),))


def _of(thread_id: str) -> dict[str, object]:
    return {META: {"subAgent": thread_id}}


def _noticed(tell: Callable[[Any, bool], Updates]) -> Callable[[CodexTranslator, str, Any], Updates]:
    return lambda self, thread_id, news: tell(news, thread_id == self._root)


_Reader = tuple[type[Any], Callable[[CodexTranslator, str, Any], Updates]]
READERS: Final[Mapping[str, _Reader]] = {
    "item/started": (ItemNews, CodexTranslator._item_began),
    "item/completed": (ItemNews, CodexTranslator._item_ended),
    "item/agentMessage/delta": (DeltaNews, CodexTranslator._text_piece),
    "item/plan/delta": (DeltaNews, CodexTranslator._text_piece),
    "item/reasoning/summaryTextDelta": (DeltaNews, CodexTranslator._thought_piece),
    "item/reasoning/textDelta": (DeltaNews, CodexTranslator._thought_piece),
    "item/reasoning/summaryPartAdded": (SummaryPartNews, CodexTranslator._thought_part),
    "item/commandExecution/outputDelta": (DeltaNews, CodexTranslator._output_piece),
    "item/fileChange/patchUpdated": (PatchNews, CodexTranslator._patch),
    "item/mcpToolCall/progress": (ProgressNews, CodexTranslator._progress),
    **{method: (shape, _noticed(tell)) for method, (shape, tell) in NOTICES.items()},
}


class TokenMeter:
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
        """Tokens of the turn; None where the model never answered."""
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


# A turn that failed, as the error of its prompt.


_NO_WORDS: Final = "the turn failed, and Codex did not say why"
_SIGN_IN: Final = "unauthorized"
_UNAUTHORIZED: Final = 401  # which it calls a connection that failed, once it has tried often enough
_REMEDY: Final = "give it OPENAI_API_KEY, or run `legation agents login codex`"


def failure(error: TurnError | None) -> AgentRefused:
    """The error of a turn that failed. Its kind stands in `data`: `rateLimitExceeded`, `contextWindowExceeded`, with the HTTP status where there
    was one."""
    if error is None:
        return AgentRefused(AgentMethod.SESSION_PROMPT, RpcError(ErrorCode.INTERNAL_ERROR, _NO_WORDS))
    kind, status = _error_kind(error.codex_error_info)
    signed_out = kind == _SIGN_IN or status == _UNAUTHORIZED
    code = ErrorCode.AUTH_REQUIRED if signed_out else ErrorCode.INTERNAL_ERROR
    words = ": ".join(filter(None, (error.message, error.additional_details)))
    words = f"{words}; {_REMEDY}" if signed_out else words
    data = {key: value for key, value in (("kind", kind), ("httpStatus", status)) if value is not None}
    return AgentRefused(AgentMethod.SESSION_PROMPT, RpcError(code, words, data))


def _error_kind(info: str | Mapping[str, object] | None) -> tuple[str | None, object]:
    """A word, or an object with one member that is called so."""
    if not isinstance(info, Mapping):
        return info, None
    for kind, about in info.items():
        return kind, about.get("httpStatusCode") if isinstance(about, Mapping) else None
    return None, None


# A prompt as Codex takes it: text, and pictures as data.


def user_input(prompt: PromptBlocks) -> tuple[UserInput, ...]:
    return tuple(_input(block) for block in prompt)


def _input(block: ContentBlock) -> UserInput:
    match block:
        case Text(text=text):
            return _text_input(text)
        case Image(data=data, mime_type=mime):
            return {"type": "image", "url": f"data:{mime};base64,{data}"}
        case Audio(data=data, mime_type=mime):
            return {"type": "audio", "url": f"data:{mime};base64,{data}"}
        case ResourceLink(name=name, uri=uri):
            return _text_input(f"[{name}]({uri})")
        case EmbeddedResource(resource=resource):
            return _text_input(f"{resource.uri}\n\n{resource.text or ''}")
        case Unread():
            return _text_input("")


def _text_input(text: str) -> UserInput:
    return {"type": "text", "text": text, "text_elements": []}
