"""Stored events, and the stores of an event log as the log sees them: `Backend`. An event is one line of JSON in each.

    {"seq":7,"at":1794774823123,"type":"agent-message-chunk","raw":{...}}

`raw` is always last and its bytes are never looked at: what an agent sent comes back byte for byte, whatever
depth, numbers or escapes it holds. `,"raw":` cannot occur earlier, because inside a JSON string its quotes
would be escaped. The native line of an agent that does not speak ACP stands before it, as text, or in base64 where it is
no UTF-8 or is long: to make a text of that, and a line of it again, would hold up everybody.

    {"seq":8,"at":1794774823124,"type":"agent-message-chunk","update":[33,1],"raw":{"sessionId":"ses-7","update":{...}}}

`update` says that `raw` is the params of `session/update`, and how many bytes of it stand before and behind the update
(INV-W4). A row without it is of another kind, or of a Legation that kept the update alone. `digest` stands before `raw`
too, as text, where `raw` is too much to be decoded (INV-W5), and then `raw` may be stored elsewhere, as a `blob`.

    {"seq":9,"at":1794774823125,"type":"acp-ref","run":3,"raw":["ses_1",17]}

A reference stands for an event of another stream, by its number there. `run` says that the line is so many of them: here
9, 10 and 11, which stand for 17, 18 and 19. Only a page of a database has such lines.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from legation.errors import InvalidParams
from legation.wire.events import WHOLE, Draft, Event, LongNative, Span

if TYPE_CHECKING:
    from legation.store.entries import StreamQuery

_RAW = b',"raw":'
_RAW_SIZE, _BRACE = len(_RAW), ord("}")
_START = b'{"seq":%d,"at":%d%b%b%b' + _RAW
_END = b"}\n"
_LINE = _START + b"%b" + _END
_LONG = 512  # bytes of raw
LONG_NATIVE = 1024 * 1024  # bytes, above which a native line is written in base64
_AT_ONCE = 768 * 1024  # bytes of it: other threads have their turn in between; a multiple of 3
_SPANS_KEPT = 4096
ELSEWHERE = b"null"  # where `raw` is in parts of its own, under the name that `blob` is
REFERENCE: Final = "acp-ref"
_LONGEST_RUN: Final = 32 * 1024  # references in one line: more than a page has
# Without a way back: what does not fit is found out at once, however long it is.
_REFERENCES = re.compile(rb'(?:\["[^"\\]*+(?:\\.[^"\\]*+)*+",(?:0|[1-9][0-9]{0,18}+)\])*+')
_TYPE = re.compile(r"[a-z0-9][a-z0-9._/-]*")


class _StoredHead(msgspec.Struct, gc=False):
    seq: int
    at: int
    type: str
    native: str = ""
    native64: str = ""
    update: Span = WHOLE
    digest: str = ""
    blob: str = ""
    run: int = 1


_decode_head = msgspec.json.Decoder(_StoredHead).decode


class _TypeMembers(dict[str, bytes]):
    """Event type -> its encoded member: there are a few dozen types and millions of events."""

    def __missing__(self, type_: str) -> bytes:
        if not _TYPE.fullmatch(type_):
            raise InvalidParams(f"cannot store an event of type {type_!r}: use lower-case kebab words")
        member = self[type_] = b',"type":"%b"' % type_.encode()
        return member


class _SpanMembers(dict[Span, bytes]):
    """Span -> its encoded member: an agent's updates have few, unless it writes what differs before each."""

    def __missing__(self, span: Span) -> bytes:
        member = b',"update":[%d,%d]' % span
        if len(self) < _SPANS_KEPT:
            self[span] = member
        return member


_type_members = _TypeMembers()
_span_members = _SpanMembers({WHOLE: b""})


def check(drafts: Sequence[Draft]) -> None:
    """Refuse what would not come back as it went in. One look at the whole batch, for speed."""
    raws = [draft.raw for draft in drafts]
    if b"" in raws or b"\n" in b"".join(raws):
        culprit = next(draft for draft in drafts if not draft.raw or b"\n" in draft.raw)
        raise InvalidParams(f"cannot store a {culprit.type!r} event: its raw JSON must be one non-empty line")
    for type_ in {draft.type for draft in drafts}:
        _type_members[type_]
        if type_ == REFERENCE and not _REFERENCES.fullmatch(
            b"".join([draft.raw for draft in drafts if draft.type == REFERENCE])
        ):
            raise InvalidParams("cannot store a reference: name a stream and the number of an event in it")


def encode(events: Sequence[Event]) -> bytes:
    types, spans = _type_members, _span_members
    if sum([len(event.raw) for event in events]) < _LONG * len(events):
        return b"".join(
            [
                _LINE
                % (
                    event.seq,
                    event.at,
                    types[event.type],
                    _besides(event) if event.native or event.digest else b"",
                    spans[event.span],
                    ELSEWHERE if event.blob else event.raw,
                )
                for event in events
            ]
        )
    parts = [_END] * (3 * len(events))
    parts[::3] = [
        _START
        % (
            event.seq,
            event.at,
            types[event.type],
            _besides(event) if event.native or event.digest else b"",
            spans[event.span],
        )
        for event in events
    ]
    parts[1::3] = [ELSEWHERE if event.blob else event.raw for event in events]
    return b"".join(parts)  # the only copy of what is long


def encode_page(events: Sequence[Event]) -> bytes:
    """As `encode`; references of one moment that follow each other, to events that do so, are one line."""
    if len(events) == 1 or REFERENCE not in {event.type for event in events}:
        return encode(events)
    parts: list[bytes] = []
    start = 0
    while start < len(events):
        first, length = events[start], 1
        if first.type == REFERENCE:
            length = _length_of_run(events, start)
        if length > 1:
            run = b',"run":%d' % length
            parts.append(_LINE % (first.seq, first.at, _type_members[REFERENCE], run, b"", first.raw))
        else:
            parts.append(encode([first]))
        start += length
    return b"".join(parts)


def _length_of_run(events: Sequence[Event], start: int) -> int:
    first, end = events[start], start + 1
    stream, number = split_reference(first.raw)
    most = min(len(events), start + _LONGEST_RUN)
    while end < most:
        event = events[end]
        # What has these bytes is what is made of them when they are read, whoever wrote it.
        if event.raw != b"%b,%d]" % (stream, number + end - start) or event.at != first.at:
            break
        if event.type != REFERENCE:
            break
        end += 1
    return end - start


def reference(stream: str) -> bytes:
    """The beginning of every reference to that stream: a comma, the number there and a bracket follow."""
    return b"[%b" % msgspec.json.encode(stream)


def split_reference(raw: bytes) -> tuple[bytes, int]:
    """The beginning of a reference, and the number."""
    begin, _, number = raw.rpartition(b",")
    return begin, int(number[:-1])


def referred_stream(begin: bytes) -> str:
    return msgspec.json.decode(begin[1:], type=str)


def _besides(event: Event) -> bytes:
    digest = b',"digest":%b' % msgspec.json.encode(event.digest.decode()) if event.digest else b""
    blob = b',"blob":%b' % msgspec.json.encode(event.blob) if event.blob else b""
    return (_native(event.native) if event.native else b"") + digest + blob


def _native(line: bytes) -> bytes:
    if len(line) > LONG_NATIVE:
        return b',"native64":"%b"' % native64(line)
    try:
        return b',"native":%b' % msgspec.json.encode(line.decode())
    except UnicodeDecodeError:
        return b',"native64":"%b"' % b64encode(line)


def native64(line: bytes) -> bytes:
    if isinstance(line, LongNative) and line.base64:
        return line.base64
    return b"".join([b64encode(line[at : at + _AT_ONCE]) for at in range(0, len(line), _AT_ONCE)])


def _from_native64(text: str) -> bytes:
    size = _AT_ONCE // 3 * 4
    line = b"".join([b64decode(text[at : at + size]) for at in range(0, len(text), size)])
    if len(line) <= LONG_NATIVE:
        return line
    long = LongNative(line)
    long.base64 = text.encode()
    return long


def long_parts(event: Event) -> list[bytes]:
    """As `encode`, of one event that is to be copied once: its line in parts, without the newline."""
    raw = ELSEWHERE if event.blob else event.raw
    if len(event.native) <= LONG_NATIVE:
        head = _START % (
            event.seq,
            event.at,
            _type_members[event.type],
            _besides(event),
            _span_members[event.span],
        )
        return [head, raw, b"}"]
    members = _besides(replace(event, native=b""))
    return [
        b'{"seq":%d,"at":%d%b,"native64":"' % (event.seq, event.at, _type_members[event.type]),
        native64(event.native),
        b'"%b%b%b' % (members, _span_members[event.span], _RAW),
        raw,
        b"}",
    ]


def decode_line(line: bytes) -> Event:
    """One stored line, without its newline. Raises ValueError on anything else."""
    # A replay is little else than this, a million times: what is looked up and called here is a tenth of it.
    end_of_head = line.find(_RAW)
    if end_of_head < 0 or line[-1] != _BRACE:
        raise ValueError("not an event line")
    head = _decode_head(line[:end_of_head] + b"}")
    raw = line[end_of_head + _RAW_SIZE : -1]
    span = head.update
    if span != WHOLE:
        before, behind = span
        if not (before > 0 < behind < len(raw) - before or head.blob):
            raise ValueError("not an event line: its update is not in it")
    if head.native or head.native64 or head.digest:
        native = head.native.encode() if head.native else _from_native64(head.native64)
        return Event(head.seq, head.at, head.type, raw, native, span, head.digest.encode(), head.blob)
    return Event(head.seq, head.at, head.type, raw, b"", span)


def decode(block: bytes, after: int, on_malformed: Callable[[bytes], None]) -> list[Event]:
    """The events of whole lines with a number above `after`; malformed lines are reported and skipped."""
    events: list[Event] = []
    keep, decoded = events.append, decode_line
    for line in block.split(b"\n"):
        if line:
            try:
                event = decoded(line)
                if event.type == REFERENCE:
                    events += _run(event, line, after)
                elif event.seq > after:
                    keep(event)
            except ValueError:
                on_malformed(line)
    return events


def _run(first: Event, line: bytes, after: int) -> list[Event]:
    """The references above that number that one line is."""
    length = _decode_head(line[: line.find(_RAW)] + b"}").run
    if not 0 < length <= _LONGEST_RUN:
        raise ValueError("not an event line: no run is that long")
    stream, number = split_reference(first.raw)
    skipped = max(0, after + 1 - first.seq)
    return [
        Event(first.seq + each, first.at, REFERENCE, b"%b,%d]" % (stream, number + each))
        for each in range(skipped, length)
    ]


def pages(events: Sequence[Event], limit: int) -> Iterable[Sequence[Event]]:
    """Cut a batch so that no page holds much more than `limit` bytes of raw."""
    start = size = 0
    for index, event in enumerate(events):
        size += len(event.raw)
        if size >= limit:
            yield events[start : index + 1]
            start, size = index + 1, 0
    if start < len(events):
        yield events[start:] if start else events


State = Literal["open", "closed", "deleted"]


LOCAL: Final = "local"  # the first workspace: its streams are stored under their own names
_APART: Final = "\x1f"  # between a workspace and a name: in no name


class StreamInfo(msgspec.Struct, frozen=True):
    """To a backend `name` is the key that it stores the stream under; to everybody else the name in its workspace."""

    name: str
    workspace: str = "local"
    state: State = "open"
    first_seq: int = 1  # where readers begin: with the newest generation
    head: int = 0  # the last number given; never given again
    meta: bytes = b"{}"
    earlier: tuple[int, ...] = ()  # where the generations before it begin, the oldest first

    def begun_at(self, seq: int) -> tuple[int, ...]:
        """The beginnings of the earlier generations once another begins at `seq`: one that is empty is none."""
        return (*self.earlier, self.first_seq) if self.first_seq < seq else self.earlier


def key_of(name: str, workspace: str) -> str:
    """Each workspace has names of its own: `approvals` of one is not that of another."""
    return name if workspace == LOCAL else f"{workspace}{_APART}{name}"


def is_name(text: str) -> bool:
    return _APART not in text


def named(info: StreamInfo) -> StreamInfo:
    """As it is called in its workspace."""
    return replace(info, name=info.name.rpartition(_APART)[2]) if _APART in info.name else info


class Create(msgspec.Struct, frozen=True, eq=False):
    stream: str
    workspace: str


class Append(msgspec.Struct, frozen=True, eq=False):
    """`size` is that of the raw events together, counted once: to touch each of them again costs more than the sum."""

    stream: str
    events: Sequence[Event]
    size: int = 0


class Replace(msgspec.Struct, frozen=True, eq=False):
    """A new generation: what readers see becomes these events, numbered after all earlier ones, which stay and can be
    read. Reopens the stream; without events that is all it does. `meta` is its metadata from then on."""

    stream: str
    events: Sequence[Event]
    meta: bytes | None = None


class SetState(msgspec.Struct, frozen=True, eq=False):
    stream: str
    state: State


class SetMeta(msgspec.Struct, frozen=True, eq=False):
    stream: str
    meta: bytes


class Part(msgspec.Struct, frozen=True, eq=False):
    """A piece of a text that would hold up others' commits. All of them come before the event that names the `blob`."""

    stream: str
    blob: str
    number: int
    body: bytes


class KeepCheckpoint(msgspec.Struct, frozen=True, eq=False):
    """The state of a reading of the stream, from `first_seq` on, after the event `seq`, so that another need not begin
    at the beginning. It is made of the events alone: to lose it costs a reading, and nothing else.

    `sequence` and `messages` are the numbers that the reading had reached; `only`: earlier ones of its kind are not
    wanted any more."""

    stream: str
    kind: str
    format: int
    first_seq: int
    seq: int
    body: bytes
    sequence: int = 0
    messages: int = 0
    only: bool = False


class WantedCheckpoint(NamedTuple):
    """The last one of its kind and format of a reading from `first_seq` on, up to the event `upto`: the last whose number, which
    is `messages` or the `sequence`, is not above `number`."""

    kind: str
    format: int
    first_seq: int
    upto: int
    number: int = 2**62
    messages: bool = False

    def fits(self, found: KeepCheckpoint) -> bool:
        number = found.messages if self.messages else found.sequence
        place = (found.kind, found.format, found.first_seq) == self[:3]
        return place and found.seq <= self.upto and number <= self.number


class Sweep(msgspec.Struct, frozen=True, eq=False):
    """Delete some of what is left of a deleted stream, and give some free space back to the disk."""

    stream: str


Op = Create | Append | Replace | SetState | SetMeta | Part | KeepCheckpoint | Sweep


class StorageTrouble(msgspec.Struct, frozen=True):
    """Something a store found or could not do, told once; `code` is a diagnostic code of `wire`."""

    code: Literal[
        "storage/write-failed",
        "storage/recovered",
        "storage/malformed-line",
        "clock/jumped",
        "session/held-elsewhere",
    ]
    message: str
    stream: str | None = None


Report = Callable[[StorageTrouble], None]


class StoreSize(NamedTuple):
    used: int = 0
    free: int = 0


class Backend(Protocol):
    """A store of an event log: durable batches in, pages of events out. It is used from one writer thread (`commit`) and
    one reader thread (everything else); the numbers, the order and the subscribers are the log's business."""

    durable: bool  # False: `commit` is immediate and keeps nothing; the log itself is the store
    keeps_parts: bool  # else a long event is stored as it is: nobody else is held up by it
    names_files: bool  # after its streams: a name must then be shorter

    def open(self, report: Report) -> None:
        """Take sole ownership and mend what a crash left."""

    def commit(self, ops: Sequence[Op]) -> None:
        """Durable when it returns, in the order given. After an error the same or more ops may be given
        again: an event that is already stored is not stored twice."""

    def lookup(self, stream: str) -> StreamInfo | None: ...

    def streams(self) -> list[StreamInfo]:
        """Every stream but the deleted ones."""

    def page(self, query: "StreamQuery", limit: int) -> list[StreamInfo]:
        """The first of a list that it has, as many; fewer only at its end."""

    def deleted(self) -> list[StreamInfo]:
        """The tombstones: names that are not used again."""

    def read(self, stream: str, after: int, up_to_bytes: int) -> list[Event]:
        """The next events above `after`, about that many bytes of them; empty only at the end."""

    def checkpoint(self, stream: str, wanted: WantedCheckpoint) -> KeepCheckpoint | None:
        """One that was kept, if it was."""

    def unswept(self) -> list[StreamInfo]:
        """Streams that were deleted, and of which something is left for `Sweep`."""

    def size(self, stream: str | None = None) -> StoreSize:
        """The bytes of one stream, or of all; what is free can be given back by `Sweep`."""

    def close(self) -> None: ...


def merge_appends(ops: Sequence[Op]) -> list[Op]:
    """Batches of one stream that follow each other, with others' in between, become one.

    Only appends move, and only past other streams' ops, so every stream keeps its own order.
    """
    merged: list[Op] = []
    gathered: dict[str, list[Event]] = {}
    for op in ops:
        if isinstance(op, KeepCheckpoint):
            merged.append(op)  # of what is stored by then, whatever more there is
        elif not isinstance(op, Append):
            gathered.pop(op.stream, None)
            merged.append(op)
        elif op.stream in gathered:
            gathered[op.stream].extend(op.events)
        else:
            gathered[op.stream] = list(op.events)
            merged.append(Append(op.stream, gathered[op.stream]))
    return merged


class MemoryBackend:
    """Nothing is stored: the log keeps every event of a memory stream itself, for as long as the stream lives."""

    durable = False
    keeps_parts = False
    names_files = False

    def open(self, report: Report) -> None:
        del report

    def commit(self, ops: Sequence[Op]) -> None:
        del ops

    def lookup(self, stream: str) -> StreamInfo | None:
        del stream
        return None

    def streams(self) -> list[StreamInfo]:
        return []

    def page(self, query: "StreamQuery", limit: int) -> list[StreamInfo]:
        del query, limit
        return []

    def deleted(self) -> list[StreamInfo]:
        return []

    def read(self, stream: str, after: int, up_to_bytes: int) -> list[Event]:
        del stream, after, up_to_bytes
        return []

    def checkpoint(self, stream: str, wanted: WantedCheckpoint) -> KeepCheckpoint | None:
        del stream, wanted
        return None

    def unswept(self) -> list[StreamInfo]:
        return []

    def size(self, stream: str | None = None) -> StoreSize:
        del stream
        return StoreSize()

    def close(self) -> None: ...
