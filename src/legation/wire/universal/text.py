"""Messages of a session: the chunks of one become an item, with a delta each and the whole of it at its end.

INV-U8  The text of a message need not be at hand until it ends. A fold that goes on in the middle of one has its name and
        size, and where in the log it began: `missing` says what is to be read again before it can end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple, TypeAlias, cast
from urllib.parse import unquote, urlsplit

import msgspec

from legation.wire import event_types, jsontext
from legation.wire.acp.updates import (
    AgentMessageChunk,
    AgentThoughtChunk,
    CompactionSummaryChunk,
    ContentBlock,
    ResourceLink,
    Text,
    Unread,
    UserMessageChunk,
    decode_update,
)
from legation.wire.acp.updates import Image as ImageBlock
from legation.wire.events import UPDATE_TYPES, WHOLE, Event, Span
from legation.wire.universal import shapes
from legation.wire.universal.output import (
    DELTA,
    DELTA_END_BARE,
    DELTA_FRAME,
    LONG_TEXT,
    Outbox,
    ProjectedRow,
    json_bytes,
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


_UPDATES: Final = frozenset(UPDATE_TYPES.values())
_SPEAKING: Final = tuple(_SPEAKERS.values())  # a checkpoint has a number of these: append only


def _native_id(chunk: Chunk) -> str | None:
    return chunk.compaction_id if isinstance(chunk, CompactionSummaryChunk) else chunk.message_id


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


class TextState(msgspec.Struct, frozen=True, array_like=True):
    """A message that is being said, but for its text: that is in the log, from the event `began` on."""

    speaker: int
    native_id: str | None
    item_id: str
    began: int
    size: int
    template: ChunkTemplate | None


class MissingText(NamedTuple):
    """Text that is to be read again: of the events above `after`, up to the last of them."""

    after: int
    last: int


class TextItems:
    """`_pieces` may be shared with copies, and be longer than ours: only the first `_length` of them count. Of these the
    first `_joined` are joined already. The text up to the event `_absent` is not among them, unless that is 0."""

    __slots__ = (
        "_absent",
        "_began",
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
        self._began = self._absent = 0
        self._template: ChunkTemplate | None = None
        self._head = b""

    def copy(self) -> TextItems:
        other = TextItems()
        other._speaker, other._native_id = self._speaker, self._native_id
        other._item_id, other._template, other._head = self._item_id, self._template, self._head
        other._pieces, other._length, other._size = self._pieces, self._length, self._size
        other._joined, other._began, other._absent = self._joined, self._began, self._absent
        return other

    # A checkpoint has no text.

    def state(self) -> TextState | None:
        if self._speaker is None:
            return None
        speaker = _SPEAKING.index(self._speaker)
        return TextState(speaker, self._native_id, self._item_id, self._began, self._size, self._template)

    @classmethod
    def restored(cls, out: Outbox, state: TextState | None, log_seq: int) -> TextItems:
        text = cls()
        if state is not None:
            text._speaker, text._native_id = _SPEAKING[state.speaker], state.native_id
            text._item_id, text._template = state.item_id, state.template
            text._head = out.delta_head(state.item_id, state.native_id) if state.template else b""
            text._began, text._absent, text._size = state.began, log_seq, state.size
        return text

    @property
    def missing(self) -> MissingText | None:
        """The text that must be there before the message can end."""
        return MissingText(self._began - 1, self._absent) if self._absent else None

    def drop(self, log_seq: int) -> None:
        """Let go of the text: `log_seq` is the last event that was fed."""
        if self._speaker is not None:
            self._pieces, self._length, self._joined, self._absent = [], 0, 0, log_seq

    def fill(self, recalled: RecalledText) -> None:
        before = recalled.pieces
        self._pieces = [*before, *self._pieces[: self._length]]
        self._length, self._joined, self._absent = len(self._pieces), len(before), 0

    def is_said_by(self, chunk: Chunk) -> bool:
        """Whether that goes on with the message."""
        return (
            self._speaker is _SPEAKERS[type(chunk)]
            and self._native_id == _native_id(chunk)
            and self._size <= MOST_TEXT
        )

    def pass_over(self, out: Outbox, events: Sequence[Event], start: int) -> int:
        """As `go_on`, for who wants neither frames nor text: how many events do nothing else."""
        template = self._template
        if template is None or self._size > MOST_TEXT:
            return 0
        literal_of, type_, span, size = template.literal, template.type, template.span, self._size
        at = start
        for at in range(start, len(events)):
            event = events[at]
            if event.type != type_ or event.span != span or event.digest or size > MOST_TEXT:
                break
            literal = literal_of(event.raw)
            try:
                read_text(literal)
            except jsontext.READ_ERRORS:
                break
            size += len(literal)
        else:
            at = len(events)
        if at > start:
            self._size = size
            out.sequence += at - start
            self.drop(events[at - 1].seq)
        return at - start

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

    def go_on(
        self, out: Outbox, events: Sequence[Event], start: int, *, framed: bool = True
    ) -> list[ProjectedRow]:
        """As `goes_on`, for as many events as do so: a row each, as `Outbox.delta` would have it, and framed or not."""
        rows: list[ProjectedRow] = []
        template = self._template
        if template is None or self._size > MOST_TEXT:
            return rows
        if len(self._pieces) != self._length:
            self._own_pieces()
        # As `template.literal`, but for the calls: this is most of what a reader costs.
        before, after = template.before, template.after
        first, behind = len(before) - 1, len(after) - 1
        keep, show = self._pieces.append, rows.append
        type_, span, head, sequence = template.type, template.span, self._head, out.sequence
        size, moment, moment_text = self._size, -1, b""
        for event in events[start:] if start else events:
            raw = event.raw
            if event.type != type_ or event.span != span or event.digest:
                break
            if not (raw.startswith(before) and raw.endswith(after)):
                break
            literal = raw[first : len(raw) - behind]
            try:
                read_text(literal)
            except jsontext.READ_ERRORS:
                break
            if not framed and len(literal) > LONG_TEXT:
                break
            keep(literal)
            size += len(literal)
            sequence += 1
            if event.at != moment:
                moment, moment_text = event.at, time_text(event.at)
            if framed:
                text = DELTA_FRAME % (sequence, sequence, sequence, moment_text, head)
                show(ProjectedRow(sequence, moment, "item.delta", text, literal, cause=event.seq))
            else:
                text = DELTA % (sequence, sequence, moment_text, head) + literal + DELTA_END_BARE
                show(ProjectedRow(sequence, moment, "item.delta", text, cause=event.seq))
            if size > MOST_TEXT:
                break
        self._length, self._size, out.sequence = len(self._pieces), size, sequence
        if self._length - self._joined >= TOGETHER:
            self._join_some()
        return rows

    def say(self, out: Outbox, chunk: Chunk) -> None:
        speaker = _SPEAKERS[type(chunk)]
        native_id = _native_id(chunk)
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
        self._pieces, self._length, self._joined, self._size, self._absent = [], 0, 0, 0, 0

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
        self._began = out.cause.seq
        # Whoever shows a text as it comes must know at once whether it is a thought.
        content = (shapes.Reasoning(""),) if speaker.thinks else ()
        out.emit("item.started", self._item(speaker, content, "in_progress"), synthetic=True)

    def _item(
        self, speaker: Speaker, content: tuple[shapes.Part, ...], status: shapes.ItemStatus
    ) -> shapes.ItemEvent:
        item = shapes.Item(self._item_id, self._native_id, None, speaker.kind, speaker.role, content, status)
        return shapes.ItemEvent(item)


class RecalledText:
    """The text of a message, out of the events of the log in which it was said. Others may stand between them."""

    def __init__(self) -> None:
        self._text = TextItems()
        self._out = Outbox(shapes.NOBODY)

    @property
    def pieces(self) -> list[Piece]:
        return self._text._pieces[: self._text._length]

    def take(self, events: Sequence[Event]) -> None:
        for event in events:
            self._out.begin(event)
            if event.type not in _UPDATES or self._text.goes_on(self._out, event):
                continue
            payload = event_types.decode(event)
            if type(payload) in _SPEAKERS:
                self._text.say(self._out, cast(Chunk, payload))


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
