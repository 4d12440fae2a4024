"""Items of a session: messages, and tool calls with what came of them.

The chunks of a message become one item, with a delta each and the whole of it at its end.

A tool call is an item, and what came of it another. The call's item is completed when the call stands: it runs, is
asked about or ends. What it shows before it runs is no output: Claude puts a description there. Output that grows is
told by deltas of the result's item. Output that is replaced by another ends that item and begins a new one, for a delta
can only add.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final, TypeAlias, cast
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import UNSET

from legation.wire import jsontext
from legation.wire.acp.updates import (
    AgentMessageChunk,
    AgentThoughtChunk,
    CompactionSummaryChunk,
    Content,
    ContentBlock,
    Diff,
    ResourceLink,
    Terminal,
    Text,
    ToolCall,
    ToolCallPatch,
    ToolCallUpdate,
    Unread,
    UserMessageChunk,
    decode_update,
    merged,
)
from legation.wire.acp.updates import Image as ImageBlock
from legation.wire.action import tool_of
from legation.wire.events import WHOLE, Event, Span
from legation.wire.universal import shapes
from legation.wire.universal.output import (
    DELTA_FRAME,
    Outbox,
    ProjectedRow,
    embedded,
    json_bytes,
    json_text,
    json_value,
    time_text,
)

# What stands around the text of a message's chunks: mostly the same from one chunk to the next, so that only the text
# has to be read.
#
# INV-U7  Nobody can tell: what a template reads is what a whole reading gives. A text is a JSON string in a place where, as
#         was tried, one string is as good as another.

Chunk = AgentMessageChunk | AgentThoughtChunk | UserMessageChunk | CompactionSummaryChunk

_TEXT: Final = re.compile(rb'"text" *: *"((?:[^"\\]++|\\.)*+)"')
_LONGEST: Final = 256 * 1024  # bytes: to look for the text of a longer one takes longer than to read it whole
_SAMPLE: Final = "another text"

_skim = msgspec.json.Decoder(msgspec.Raw).decode  # holds the text to the grammar, makes nothing of it

read_text = msgspec.json.Decoder(str).decode


class ChunkTemplate(msgspec.Struct, frozen=True):
    """The text around the text, in events of that type and span: `before` ends with the quote before it, `after`
    begins with the one behind it."""

    type: str
    span: Span
    before: bytes
    after: bytes

    def literal(self, raw: bytes) -> bytes:
        """The JSON string that may be the text: `read_text` says whether it is. Empty if it cannot be."""
        if raw.startswith(self.before) and raw.endswith(self.after):
            return raw[len(self.before) - 1 : len(raw) - len(self.after) + 1]
        return b""


def template_of(event: Event, chunk: Chunk) -> ChunkTemplate | None:
    """None where the text is not in a place of its own, or not in the first that looks like one, or very long."""
    raw, (start, behind) = event.raw, event.span
    found = _TEXT.search(raw, start) if len(raw) <= _LONGEST else None
    if found is None or type(chunk.content) is not Text:
        return None
    before, after = raw[: found.start(1)], raw[found.end(1) :]
    tried = decode_update(before[start:] + _SAMPLE.encode() + after[: len(after) - behind])
    expected = msgspec.structs.replace(chunk, content=msgspec.structs.replace(chunk.content, text=_SAMPLE))
    try:
        is_the_text = read_text(b'"%b"' % found[1]) == chunk.content.text
    except jsontext.READ_ERRORS:
        return None
    return ChunkTemplate(event.type, event.span, before, after) if is_the_text and tried == expected else None


def _whole_text(event: Event, chunk: Chunk) -> memoryview:
    """The JSON string of a text that is cut in the digest, as it stands in the event, of which no copy is made; empty if
    it cannot be told."""
    template = template_of(msgspec.structs.replace(event, raw=event.digest, span=WHOLE), chunk)
    before, behind = event.span
    end = len(event.raw) - behind
    if template is None or not (
        event.raw.startswith(template.before, before) and event.raw.endswith(template.after, 0, end)
    ):
        return memoryview(b"")
    literal = memoryview(event.raw)[before + len(template.before) - 1 : end - len(template.after) + 1]
    try:
        _skim(literal)
    except jsontext.READ_ERRORS:
        return memoryview(b"")
    return literal


# Content blocks of ACP as parts of an item. What 0.1.11 has no part for is a `json` part, whole.


def part_of(block: ContentBlock) -> shapes.Part:
    match block:
        case Text(text=text):
            return shapes.ItemText(text)
        case ImageBlock():
            return shapes.ItemImage(
                block.uri or f"data:{block.mime_type};base64,{block.data}", block.mime_type
            )
        case ResourceLink(uri=uri) if (path := _path_of(uri)) is not None:
            return shapes.FileRef(path, "read")
        case Unread(value=value):
            return shapes.ItemJson(json_value(value))
    return shapes.ItemJson(json_value(block))


def _path_of(uri: str) -> str | None:
    """The path of a file: address."""
    if not uri.startswith("file:"):
        return None
    try:
        return unquote(urlsplit(uri).path) or None
    except ValueError:
        return None


class Speaker(msgspec.Struct, frozen=True):
    kind: shapes.ItemKind
    role: shapes.Role
    thinks: bool = False


_SPEAKERS: Final[dict[type[Chunk], Speaker]] = {
    UserMessageChunk: Speaker("message", "user"),
    AgentMessageChunk: Speaker("message", "assistant"),
    AgentThoughtChunk: Speaker("message", "assistant", thinks=True),
    CompactionSummaryChunk: Speaker("system", "system"),
}


Piece: TypeAlias = str | bytes | memoryview | shapes.Part
"""A text may be kept as the JSON string that it came as, a long one as a part of its event."""


_SHORT: Final = 4096  # bytes
TOGETHER: Final = (
    1000  # pieces that are joined while others come: at the end of a message there are few to join
)
PART_BYTES: Final = 1024  # that a part which is no text counts for, at least

MOST_TEXT: Final = 8 * 1024 * 1024
"""Bytes of an item's text. A message that is longer goes on in another item: at its end each repeats its text, in one
piece, and that must hold up nobody."""


class TextItems:
    """`_pieces` may be shared with copies, and be longer than ours: only the first `_length` of them count. Of these the
    first `_joined` are joined already."""

    __slots__ = (
        "_head",
        "_item_id",
        "_joined",
        "_length",
        "_native_id",
        "_pieces",
        "_size",
        "_speaker",
        "_template",
    )

    def __init__(self) -> None:
        self._speaker: Speaker | None = None  # nobody speaks
        self._native_id: str | None = None
        self._item_id = ""
        self._pieces: list[Piece] = []
        self._length = self._joined = self._size = 0
        self._template: ChunkTemplate | None = None
        self._head = b""

    def copy(self) -> TextItems:
        other = TextItems()
        other._speaker, other._native_id = self._speaker, self._native_id
        other._item_id, other._template, other._head = self._item_id, self._template, self._head
        other._pieces, other._length, other._size = self._pieces, self._length, self._size
        other._joined = self._joined
        return other

    def goes_on(self, out: Outbox, event: Event) -> bool:
        """The next chunk of what is being said, if it differs from its first one in the text alone."""
        template = self._template
        if template is None or event.type != template.type or event.span != template.span or event.digest:
            return False
        if self._size > MOST_TEXT:
            return False
        literal = template.literal(event.raw)
        try:
            text = read_text(literal)
        except jsontext.READ_ERRORS:
            return False
        self._add(literal)
        out.delta(self._item_id, self._native_id, text, head=self._head, literal=literal)
        return True

    def go_on(self, out: Outbox, events: Sequence[Event], start: int) -> list[ProjectedRow]:
        """As `goes_on`, for as many events as do so: a frame each, as `Outbox.delta` would have it."""
        rows: list[ProjectedRow] = []
        template = self._template
        if template is None or self._size > MOST_TEXT:
            return rows
        if len(self._pieces) != self._length:
            self._own_pieces()
        keep, literal_of, show = self._pieces.append, template.literal, rows.append
        type_, span, head, sequence = template.type, template.span, self._head, out.sequence
        size = self._size
        for at in range(start, len(events)):
            event = events[at]
            if event.type != type_ or event.span != span or event.digest:
                break
            literal = literal_of(event.raw)
            try:
                read_text(literal)
            except jsontext.READ_ERRORS:
                break
            keep(literal)
            size += len(literal)
            sequence += 1
            start_of = DELTA_FRAME % (sequence, sequence, sequence, time_text(event.at), head)
            show(ProjectedRow(sequence, event.at, "item.delta", start_of, literal, cause=event.seq))
            if size > MOST_TEXT:
                break
        self._length, self._size, out.sequence = len(self._pieces), size, sequence
        if self._length - self._joined >= TOGETHER:
            self._join_some()
        return rows

    def say(self, out: Outbox, chunk: Chunk) -> None:
        speaker = _SPEAKERS[type(chunk)]
        native_id = chunk.compaction_id if isinstance(chunk, CompactionSummaryChunk) else chunk.message_id
        if self._speaker is not speaker or self._native_id != native_id or self._size > MOST_TEXT:
            self.end(out)
            self._begin(out, speaker, native_id)
            self._template = None if out.cause.digest else template_of(out.cause, chunk)
            self._head = out.delta_head(self._item_id, native_id) if self._template else b""
        block = chunk.content
        whole = _whole_text(out.cause, chunk) if out.cause.digest else b""
        if whole:
            self._add(whole)
            head = out.delta_head(self._item_id, native_id)
            out.delta(self._item_id, native_id, _as_json(whole), head=head, literal=cast(bytes, whole))
        elif type(block) is Text and len(block.text) > _SHORT:
            # Written once, and now: at the end of the message all of them would be written at once.
            literal = json_bytes(block.text)
            self._add(literal)
            head = out.delta_head(self._item_id, native_id)
            out.delta(self._item_id, native_id, block.text, head=head, literal=literal)
        elif type(block) is Text:
            self._add(block.text)
            out.delta(self._item_id, native_id, block.text)
        else:
            self._add(part_of(block), max(PART_BYTES, len(out.cause.raw)))
            out.delta(self._item_id, native_id, "")

    def end(self, out: Outbox) -> None:
        speaker = self._speaker
        if speaker is None:
            return
        content = tuple(_parts(self._pieces[: self._length], thinks=speaker.thinks))
        out.emit("item.completed", self._item(speaker, content, "completed"), synthetic=True)
        self._speaker = self._template = None
        self._pieces, self._length, self._joined, self._size = [], 0, 0, 0

    def _add(self, piece: Piece, size: int | None = None) -> None:
        if len(self._pieces) != self._length:
            self._own_pieces()
        self._pieces.append(piece)
        self._length += 1
        self._size += len(cast(bytes, piece)) if size is None else size
        if self._length - self._joined >= TOGETHER:
            self._join_some()

    def _join_some(self) -> None:
        """Join the pieces that are not joined yet. What is shared with copies stays as it is."""
        fresh = _joined(self._pieces[self._joined : self._length])
        self._pieces = [*self._pieces[: self._joined], *fresh]
        self._length = self._joined = len(self._pieces)

    def _own_pieces(self) -> None:
        self._pieces = self._pieces[: self._length]

    def _begin(self, out: Outbox, speaker: Speaker, native_id: str | None) -> None:
        self._speaker, self._native_id, self._item_id = speaker, native_id, out.new_item()
        # Whoever shows a text as it comes must know at once whether it is a thought.
        content = (shapes.Reasoning(""),) if speaker.thinks else ()
        out.emit("item.started", self._item(speaker, content, "in_progress"), synthetic=True)

    def _item(
        self, speaker: Speaker, content: tuple[shapes.Part, ...], status: shapes.ItemStatus
    ) -> shapes.ItemEvent:
        item = shapes.Item(self._item_id, self._native_id, None, speaker.kind, speaker.role, content, status)
        return shapes.ItemEvent(item)


def _is_text(piece: Piece) -> bool:
    return isinstance(piece, str | bytes | memoryview)


def _joined(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """Texts that follow each other are one."""
    if {*map(type, pieces)} == {bytes}:  # as nearly always
        yield _one_literal(cast(Sequence[bytes], pieces))
        return
    for is_text, run in groupby(pieces, key=_is_text):
        if is_text:
            texts = cast(Iterator[str | bytes | memoryview], run)
            yield _one_literal([json_bytes(text) if isinstance(text, str) else text for text in texts])
        else:
            yield from run


def _parts(pieces: Sequence[Piece], *, thinks: bool) -> Iterator[shapes.Part]:
    for piece in _joined(pieces):
        if isinstance(piece, bytes | memoryview):
            text = _as_json(piece)
            yield shapes.Reasoning(text) if thinks else shapes.ItemText(text)
        else:
            yield cast(shapes.Part, piece)


def _as_json(literal: bytes | memoryview) -> str:
    """As JSON already, which is how it goes out: a long one would hold up everybody while it is read and written."""
    return cast(str, msgspec.Raw(literal))


def _one_literal(literals: Sequence[bytes | memoryview]) -> bytes | memoryview:
    if len(literals) == 1:
        return literals[0]
    bare: list[bytes | memoryview] = [b'"', b'"']
    # One copy of what is long; of what is short a copy costs less than a view.
    bare[1:1] = [
        literal[1:-1] if len(literal) < _SHORT else memoryview(literal)[1:-1] for literal in literals
    ]
    return b"".join(bare)


# A change of a file as one hunk of a unified diff, in time linear in its size.
#
# Not the smallest diff there is: finding that is quadratic, and agents send what they like.

CONTEXT: Final = 3


def unified(path: str, old: str | None, new: str) -> str:
    before, after = _lines(old or ""), _lines(new)
    same_start = _common(before, after)
    same_end = _common(before[same_start:][::-1], after[same_start:][::-1])
    start = max(0, same_start - CONTEXT)
    tail = min(same_end, CONTEXT)
    gone = before[same_start : len(before) - same_end]
    come = after[same_start : len(after) - same_end]
    lead = before[start:same_start]
    rest = before[len(before) - same_end : len(before) - same_end + tail]
    if not gone and not come:
        return ""
    lines = [
        f"--- {'/dev/null' if old is None else path}\n",
        f"+++ {path}\n",
        f"@@ -{_span(start, len(lead + gone + rest))} +{_span(start, len(lead + come + rest))} @@\n",
        *(_line(" ", line) for line in lead),
        *(_line("-", line) for line in gone),
        *(_line("+", line) for line in come),
        *(_line(" ", line) for line in rest),
    ]
    return "".join(lines)


def _lines(text: str) -> list[str]:
    """Ended by line feeds alone: `splitlines` knows other ends, which no diff has."""
    *whole, last = text.split("\n")
    return [*(f"{line}\n" for line in whole), *([last] if last else [])]


def _common(left: list[str], right: list[str]) -> int:
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        count += 1
    return count


def _span(start: int, length: int) -> str:
    """Lines are counted from 1; an empty span names the line before it."""
    return f"{start + 1 if length else start},{length}"


def _line(mark: str, line: str) -> str:
    return f"{mark}{line}" if line.endswith("\n") else f"{mark}{line}\n\\ No newline at end of file\n"


_WRITING: Final = frozenset(("edit", "delete", "move"))


def _call_parts(call: ToolCallPatch) -> tuple[shapes.Part, ...]:
    given = {} if call.raw_input is UNSET or call.raw_input is None else call.raw_input
    part = shapes.ItemToolCall(tool_of(call), json_text(given), call.tool_call_id)
    return (part, shapes.ItemLabel(call.title, call.kind)) if call.title else (part,)


def _output_of(call: ToolCallPatch) -> str:
    """Its text; where it shows none, what the tool gave back."""
    texts = [
        each.content.text
        for each in call.content or ()
        if isinstance(each, Content) and isinstance(each.content, Text)
    ]
    if texts:
        return "\n".join(texts)
    if call.raw_output is UNSET or call.raw_output is None:
        return ""
    return call.raw_output if isinstance(call.raw_output, str) else json_text(call.raw_output)


def _result_parts(call: ToolCallPatch, output: str) -> tuple[shapes.Part, ...]:
    return (shapes.ItemToolResult(call.tool_call_id, output), *_shown(call), *_located(call))


def _shown(call: ToolCallPatch) -> Iterator[shapes.Part]:
    """All of its content that is no text."""
    for each in call.content or ():
        match each:
            case Diff():
                action: shapes.FileAction = "write" if each.old_text is None else "patch"
                yield shapes.FileRef(each.path, action, unified(each.path, each.old_text, each.new_text))
            case Content(content=Text()):
                continue
            case Content(content=block):
                yield part_of(block)
            case Terminal():
                yield shapes.ItemJson(json_value(each))
            case unread:
                yield shapes.ItemJson(json_value(unread.value))


def _located(call: ToolCallPatch) -> Iterator[shapes.FileRef]:
    changed = {each.path for each in call.content or () if isinstance(each, Diff)}
    action: shapes.FileAction = "write" if call.kind in _WRITING else "read"
    for path in dict.fromkeys(location.path for location in call.locations or ()):
        if path not in changed:
            yield shapes.FileRef(path, action)


KEPT: Final = 500  # calls of a turn that are open, or may be heard of again
KEPT_BYTES: Final = (
    1024 * 1024
)  # of what those that are open said: as objects, it may be thirty times as much

_ENDED: Final[dict[str, shapes.ItemStatus]] = {"completed": "completed", "failed": "failed"}
_STARTED: Final = frozenset(("in_progress", *_ENDED))


class _ToolItem(msgspec.Struct, frozen=True):
    """`known` is what all updates together say. `result_id` is empty while there is no result."""

    item_id: str
    known: ToolCallPatch
    stands: bool = False
    ended: bool = False
    result_id: str = ""
    shown: str = ""
    size: int = 0  # of the longest word of it; 0 where none is kept


class ToolItems:
    __slots__ = ("_calls", "_held")

    def __init__(self) -> None:
        self._calls: dict[str, _ToolItem] = {}
        self._held = 0  # the sizes of all

    @property
    def held(self) -> int:
        """Bytes of what those that are open said."""
        return self._held

    def copy(self) -> ToolItems:
        other = ToolItems()
        other._calls, other._held = dict(self._calls), self._held
        return other

    def take(self, out: Outbox, update: ToolCall | ToolCallUpdate) -> None:
        """An update of a call that was never announced announces it."""
        before = self._calls.get(update.tool_call_id)
        if before is None:
            self._forget_oldest(out)
            known = _patch(update)
            call = _ToolItem(out.new_item(), known)
            silent = known.status not in _STARTED
            out.emit("item.started", _call_item(call, "in_progress"), synthetic=not silent, raw=silent)
        elif before.ended:
            _tell(out, before, update)
            return
        else:
            call = msgspec.structs.replace(before, known=merged(before.known, update))
            silent = False
        call = call if silent else _advanced(out, call, before, update)
        self._keep(out, update.tool_call_id, call)

    def _keep(self, out: Outbox, name: str, call: _ToolItem) -> None:
        """With the size that it has now; the oldest ones go where all of them say too much."""
        before = self._calls.get(name)
        size = 0 if call.ended else max(call.size, len(out.cause.brief))
        self._calls[name] = msgspec.structs.replace(call, size=size)
        self._held += size - (before.size if before else 0)
        if self._held > KEPT_BYTES:
            for other in [each for each, known in self._calls.items() if each != name and known.size]:
                self._forget(out, other)
                if self._held <= KEPT_BYTES:
                    return

    def stand(self, out: Outbox, call_id: str | None) -> None:
        """Somebody is asked about it, so it is as it will be done."""
        call = self._calls.get(call_id or "")
        if call is not None and call_id is not None and not call.stands:
            self._calls[call_id] = _standing(out, call)

    def end(self, out: Outbox) -> None:
        """The turn is over; what still ran has no end that anybody will tell."""
        for call in self._calls.values():
            _abandon(out, call)
        self._calls, self._held = {}, 0

    def _forget_oldest(self, out: Outbox) -> None:
        """All that are open end with their turn, at once: so many that nobody is held up by it."""
        if len(self._calls) >= KEPT:
            self._forget(out, next(iter(self._calls)))

    def _forget(self, out: Outbox, name: str) -> None:
        call = self._calls.pop(name)
        self._held -= call.size
        _abandon(out, call)


def _abandon(out: Outbox, call: _ToolItem) -> None:
    if call.ended:
        return
    if not call.stands:
        out.emit("item.completed", _call_item(call, "failed"), synthetic=True)
    else:
        result = _showing(out, call, call.shown)
        out.emit("item.completed", _result_item(result, "failed"), synthetic=True)


def _advanced(
    out: Outbox, call: _ToolItem, before: _ToolItem | None, update: ToolCall | ToolCallUpdate
) -> _ToolItem:
    """Exactly one of the events emitted here carries the update itself."""
    status = call.known.status or ""
    output = _output_of(call.known) if status in _STARTED else call.shown
    if status in _ENDED:
        return _ended(out, call, output, _ENDED[status])
    if output != call.shown:
        return _showing(out, call if call.stands else _standing(out, call), output, raw=True)
    if status in _STARTED and not call.stands:
        return _standing(out, call, raw=True)
    _tell(out, before or call, update)
    return call


def _standing(out: Outbox, call: _ToolItem, *, raw: bool = False) -> _ToolItem:
    out.emit("item.completed", _call_item(call, "completed"), synthetic=not raw, raw=raw)
    return msgspec.structs.replace(call, stands=True)


def _showing(out: Outbox, call: _ToolItem, output: str, *, raw: bool = False) -> _ToolItem:
    if call.result_id and not output.startswith(call.shown):
        out.emit("item.completed", _result_item(call, "completed"), synthetic=True)
        call = msgspec.structs.replace(call, result_id="", shown="")
    if not call.result_id:
        call = msgspec.structs.replace(call, result_id=out.new_item())
        out.emit("item.started", _result_item(call, "in_progress"), synthetic=True)
    added = output[len(call.shown) :]
    if added or raw:
        out.delta(call.result_id, call.known.tool_call_id, added, raw=raw)
    return msgspec.structs.replace(call, shown=output)


def _ended(out: Outbox, call: _ToolItem, output: str, status: shapes.ItemStatus) -> _ToolItem:
    call = call if call.stands else _standing(out, call)
    call = _showing(out, call, output)
    out.emit("item.completed", _result_item(call, status, whole=True), raw=True)
    # It may be heard of again, but what it said need not be kept.
    kept = ToolCallPatch(
        tool_call_id=call.known.tool_call_id, title=call.known.title, status=call.known.status
    )
    return msgspec.structs.replace(call, known=kept, ended=True, shown="")


def _tell(out: Outbox, call: _ToolItem, update: ToolCall | ToolCallUpdate) -> None:
    """Something else about the call: as it came."""
    label = update.title or call.known.title or "tool call"
    content = (
        shapes.ItemLabel(label, update.status or call.known.status),
        shapes.ItemJson(embedded(out.cause.brief)),
    )
    out.whole_item("status", "tool", content, native_id=update.tool_call_id, parent_id=call.item_id)


def _patch(update: ToolCall | ToolCallUpdate) -> ToolCallPatch:
    return merged(ToolCallPatch(tool_call_id=update.tool_call_id), update)


def _call_item(call: _ToolItem, status: shapes.ItemStatus) -> shapes.ItemEvent:
    native = call.known.tool_call_id
    item = shapes.Item(call.item_id, native, None, "tool_call", "assistant", _call_parts(call.known), status)
    return shapes.ItemEvent(item)


def _result_item(call: _ToolItem, status: shapes.ItemStatus, *, whole: bool = False) -> shapes.ItemEvent:
    """Files and pictures are of the whole result only."""
    native = call.known.tool_call_id
    content: tuple[shapes.Part, ...] = (shapes.ItemToolResult(native, call.shown),)
    if whole:
        content = _result_parts(call.known, call.shown)
    item = shapes.Item(call.result_id, native, call.item_id, "tool_result", "tool", content, status)
    return shapes.ItemEvent(item)
