"""Messages of a session as session updates: each thing once, whether it comes in deltas, whole, or again.

INV-O6  No text is said twice: of a part that grows only what is new is said. After a gap in the events a part's deltas
        are not heeded any more, for nobody knows where they belong; the whole part, which comes at its end, tells the rest.
INV-O7  Of a sub-agent's session only tool calls are shown, marked as its own; its words are not the session's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from legation.agents.driver import PromptBlocks
from legation.agents.native import META, block_text
from legation.agents.opencode.messages import (
    AgentPart,
    AssistantMessage,
    CompactionPart,
    FilePart,
    Message,
    Part,
    PatchPart,
    ReasoningPart,
    RetryPart,
    SnapshotPart,
    StepFinishPart,
    StepStartPart,
    SubtaskPart,
    TextPart,
    TodoItem,
    ToolPart,
    UserMessage,
)
from legation.agents.opencode.tools import Names, call_of, update_of
from legation.wire.acp.updates import (
    PLAN_STATUSES,
    AgentMessageChunk,
    AgentThoughtChunk,
    Audio,
    CompactionSummaryChunk,
    CompactionUpdate,
    ContentBlock,
    EmbeddedResource,
    Image,
    Plan,
    PlanEntry,
    ResourceLink,
    SessionUpdate,
    Text,
    ToolCall,
    UserMessageChunk,
)

# Parts that say nothing to a reader, and why.
SILENT: Final[dict[type, str]] = {
    StepStartPart: "a request to the model begins: what it brings is told by other parts",
    StepFinishPart: "its usage is told by the turn",
    SnapshotPart: "its own undo: a hash",
    PatchPart: "its own undo: a hash",
    AgentPart: "the user named an agent in the prompt",
    SubtaskPart: "a command's task: the tool call that follows tells it",
    RetryPart: "told by the session's status",
}


class OpenCodeTranslator:
    """Translate one session and the sub-agents that work for it. `names` tells the tools of MCP servers."""

    def __init__(self, session_id: str, names: Names) -> None:
        self.names = names
        self._session_id = session_id
        self._messages: dict[str, Message] = {}
        self._said: dict[str, int] = {}  # of a part that grows: how many characters
        self._adrift: set[str] = set()  # parts whose deltas are not heeded any more
        self._thoughts: set[str] = set()  # parts whose deltas are reasoning
        self._calls: dict[str, ToolPart] = {}  # by the id of the call
        self._compaction: str | None = None

    def begin(self) -> None:
        """A turn: what came before it does not come again."""
        self._messages.clear()
        self._said.clear()
        self._adrift.clear()
        self._thoughts.clear()
        self._calls.clear()

    def call(self, call_id: str) -> ToolPart | None:
        return self._calls.get(call_id)

    def called(self, message_id: str) -> bool:
        """Tell whether the model called a tool in that message."""
        return any(call.message_id == message_id for call in self._calls.values())

    def message(self, message: Message) -> None:
        self._messages[message.id] = message

    def lose_track(self) -> None:
        """Events were missed."""
        self._adrift.update(self._said)

    def delta(self, session_id: str, message_id: str, part_id: str, text: str) -> Iterator[SessionUpdate]:
        if part_id not in self._adrift and not self._is_users(message_id):
            self._said[part_id] = self._said.get(part_id, 0) + len(text)
            yield from self._spoken(session_id, message_id, part_id, text)

    def part(self, part: Part) -> Iterator[SessionUpdate]:
        """Translate a part as it is now. Nothing of one that stands in a message of the user's."""
        match part:
            case CompactionPart():
                self._compaction = part.id
                yield CompactionUpdate(compaction_id=part.id, status="in_progress")
            case ToolPart():
                yield from self._tool(part)
            case TextPart() | ReasoningPart() if not self._is_users(part.message_id):
                yield from self._grown(part)
            case FilePart() if self._shows(part.session_id) and not self._is_users(part.message_id):
                if self._once(part.id):
                    yield AgentMessageChunk(content=_link(part), message_id=part.message_id)

    def compacted(self) -> Iterator[SessionUpdate]:
        if self._compaction is not None:
            yield CompactionUpdate(compaction_id=self._compaction, status="completed")
            self._compaction = None

    def history(self, message: Message, parts: tuple[Part, ...]) -> Iterator[SessionUpdate]:
        """A message that was said before, the user's own words included."""
        self.message(message)
        for part in parts:
            if not isinstance(message, UserMessage):
                yield from self.part(part)
            elif isinstance(part, TextPart) and part.text and not (part.synthetic or part.ignored):
                yield UserMessageChunk(content=Text(text=part.text), message_id=message.id)
            elif isinstance(part, FilePart) and not part.url.startswith("data:"):
                yield UserMessageChunk(content=_link(part), message_id=message.id)

    def _grown(self, part: TextPart | ReasoningPart) -> Iterator[SessionUpdate]:
        if isinstance(part, TextPart) and part.ignored:
            return
        if isinstance(part, ReasoningPart):
            self._thoughts.add(part.id)
        said = self._said.setdefault(part.id, 0)
        if len(part.text) > said:  # it may be shorter: spaces at its end are cut off
            self._said[part.id] = len(part.text)
            yield from self._spoken(part.session_id, part.message_id, part.id, part.text[said:])

    def _spoken(self, session_id: str, message_id: str, part_id: str, text: str) -> Iterator[SessionUpdate]:
        if not self._shows(session_id) or not text:
            return
        content, message = Text(text=text), self._messages.get(message_id)
        if part_id in self._thoughts:
            yield AgentThoughtChunk(content=content, message_id=message_id)
        elif isinstance(message, AssistantMessage) and message.summary and self._compaction is not None:
            yield CompactionSummaryChunk(compaction_id=self._compaction, content=content)
        else:
            yield AgentMessageChunk(content=content, message_id=message_id)

    def _tool(self, part: ToolPart) -> Iterator[SessionUpdate]:
        known = self._calls.get(part.call_id)
        if known == part:
            return
        self._calls[part.call_id] = part
        if known is not None:
            yield update_of(part)
            return
        call: ToolCall = call_of(part, self.names, self._mark(part.session_id))
        yield call
        if call.status in ("completed", "failed"):
            yield update_of(part)

    def _mark(self, session_id: str) -> dict[str, object] | None:
        return None if self._shows(session_id) else {META: {"subagentSession": session_id}}

    def _shows(self, session_id: str) -> bool:
        return session_id == self._session_id

    def _is_users(self, message_id: str) -> bool:
        return isinstance(self._messages.get(message_id), UserMessage)

    def _once(self, part_id: str) -> bool:
        new = part_id not in self._said
        self._said[part_id] = 0
        return new


def plan(todos: tuple[TodoItem, ...]) -> Plan:
    """The plan, without what was given up."""
    return Plan(
        entries=tuple(
            PlanEntry(content=each.content, priority=each.priority, status=each.status)
            for each in todos
            if each.status in PLAN_STATUSES
        )
    )


def _link(part: FilePart) -> ResourceLink:
    uri = part.url if not part.url.startswith("data:") else f"attachment:{part.id}"
    return ResourceLink(name=part.filename or part.mime, uri=uri, mime_type=part.mime)


# A prompt's content blocks as the parts that OpenCode takes.


_PLAIN: Final = "text/plain"


def prompt_parts(prompt: PromptBlocks) -> list[dict[str, object]]:
    return [part for block in prompt for part in _block_parts(block)]


def _block_parts(block: ContentBlock) -> Iterator[dict[str, object]]:
    match block:
        case Image(data=data, mime_type=mime, uri=uri):
            yield _data_part(mime, data, uri)
        case Audio(data=data, mime_type=mime):
            yield _data_part(mime, data, None)
        case ResourceLink(uri=uri, name=name, mime_type=mime) if uri.startswith("file://"):
            yield {"type": "file", "mime": mime or _PLAIN, "url": uri, "filename": name}
        case EmbeddedResource(resource=found) if found.text is None and found.blob is not None:
            yield _data_part(found.mime_type or "application/octet-stream", found.blob, found.uri)
        case _ if (text := block_text(block)) is not None:
            yield {"type": "text", "text": text}


def _data_part(mime: str, data: str, uri: str | None) -> dict[str, object]:
    name = uri.rpartition("/")[2] if uri else ""
    return {
        "type": "file",
        "mime": mime,
        "url": f"data:{mime};base64,{data}",
        **({"filename": name} if name else {}),
    }
