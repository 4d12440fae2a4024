"""Snapshot of a session: what its updates add up to, as JSON of a bounded size.

INV-S1  It is made of the events alone, one after the other: where a fold began, when it was written and when it was kept
        changes no byte.
INV-S2  An update costs what it is long, not what was said before: nothing is put together before somebody asks for it.
INV-S3  It is never longer than `MOST_BYTES`. What is left out, or cut, is named under `truncated`; every other member is
        what a plain fold over all updates gives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Literal, TypeAlias
from zlib import crc32

import msgspec
from msgspec import Raw

from legation.wire import jsontext
from legation.wire.events import CUT, Event

MOST_BYTES: Final = 256 * 1024
# Shares of that, so that no part can crowd out another.
MESSAGES: Final = 128 * 1024
CALLS: Final = 80 * 1024
PROMPTS: Final = 12 * 1024
PLANS: Final = 8 * 1024
VALUES: Final = {
    "plan": 8 * 1024,
    "configOptions": 8 * 1024,
    "availableCommands": 6 * 1024,
    "mode": 512,
    "usage": 1024,
    "title": 1024,
    "updatedAt": 256,
}
SEGMENT: Final = 4096  # bytes of a text that are cut off at a time, when there is no room for the beginning
LONG_TEXT: Final = 16 * 1024  # bytes of one chunk, which is then read to be divided
LONGEST_BLOCK: Final = 32 * 1024  # of what is no text, such as an image
LONGEST_MEMBER: Final = 16 * 1024  # of a tool call
LONGEST_NAME: Final = 1024  # of an id
# Bytes around a message, a call, and a piece of content; a little more than they are.
_FRAME, _PIECE = 128, 32
_NAME_ROOM: Final = 6  # bytes of a character of a name, as JSON
FORMAT: Final = 2  # of the state; raise it when what is folded changes

Role: TypeAlias = Literal["user", "agent", "thought"]
_ROLES: Final[dict[str, Role]] = {
    "user-message-chunk": "user",
    "agent-message-chunk": "agent",
    "agent-thought-chunk": "thought",
}
_OVER: Final = frozenset((b'"completed"', b'"failed"'))
# Null is a value there; elsewhere it leaves what is known.
_NULL_COUNTS: Final = frozenset(("rawInput", "rawOutput"))
_NOTHING: Final = frozenset((b"", b"null"))  # as absent as can be


_ABSENT: Final = Raw(b"")  # known by identity: most chunks have neither of these


class _Content(msgspec.Struct, gc=False):
    type: str = ""
    text: Raw = _ABSENT
    annotations: Raw = _ABSENT
    meta: Raw = msgspec.field(name="_meta", default=_ABSENT)


class _ChunkText(msgspec.Struct, gc=False):
    content: _Content
    messageId: Raw = _ABSENT  # noqa: N815 - as on the wire: a rename costs time for every chunk
    cut: list[str] | None = msgspec.field(name=CUT, default=None)


class _Message(msgspec.Struct):
    """A message. Its content is pieces, of a text (True) or whole blocks; the last of the text comes in bits."""

    role: Role
    id: bytes
    seq: int
    pieces: list[tuple[bool, bytes]]
    bits: list[bytes]
    bits_size: int = 0
    is_cut: bool = False
    is_over: bool = False  # another one has begun
    written: bytes = b""

    def parts(self) -> list[bytes]:
        """Return it as JSON with a comma behind it: in few parts where it is over, else in those that it has."""
        if self.written:
            return [self.written]
        name = b',"messageId":%b' % self.id if self.id else b""
        head = b'{"role":"%b","seq":%d%b,"content":[' % (self.role.encode(), self.seq, name)
        parts = [head, *self._blocks(), b'],"truncated":true},' if self.is_cut else b"]},"]
        if self.is_over:
            self.written = b"".join(parts)
            return [self.written]
        return parts

    def _blocks(self) -> list[bytes]:
        found: list[bytes] = []
        in_text = False
        for is_text, piece in self.pieces:
            if not (is_text and in_text):
                found.append(_BETWEEN[in_text, bool(found)])
                if is_text:
                    found.append(_TEXT_START)
            found.append(piece)
            in_text = is_text
        if self.bits:
            if not in_text:
                found += (_BETWEEN[False, bool(found)], _TEXT_START)
            found += self.bits
            in_text = True
        if in_text:
            found.append(_TEXT_END)
        return found

    def settle_bits(self) -> None:
        self.pieces.append((True, b"".join(self.bits)))
        self.bits, self.bits_size = [], 0


_TEXT_START, _TEXT_END = b'{"type":"text","text":"', b'"}'
# What ends the piece before, by whether that was a text, and whether there was one.
_BETWEEN: Final = {(True, True): b'"},', (False, True): b",", (False, False): b""}


class _Call(msgspec.Struct):
    id: bytes
    seq: int
    members: dict[str, bytes]
    cut: list[str]
    size: int = 0
    written: bytes = b""

    def write(self) -> bytes:
        if not self.written:
            pairs = [b'"seq":%d' % self.seq]
            pairs += [b"%b:%b" % (jsontext.write(name), value) for name, value in self.members.items()]
            if self.cut:
                pairs.append(b'"truncated":%b' % msgspec.json.encode(sorted(self.cut)))
            self.written = b"{%b}" % b",".join(pairs)
        return self.written


class _SnapshotState(msgspec.Struct, array_like=True):
    """A fold between two events."""

    seq: int
    messages: list[_Message]
    calls: list[_Call]
    values: dict[str, bytes]
    plans: dict[bytes, bytes]
    prompts: list[bytes]
    cut: list[str]
    open: int | None  # its place among the messages


_decode_chunk = msgspec.json.Decoder(_ChunkText).decode
_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode


class SnapshotFold:
    """`take` every event of a session's log in order; `write` gives the snapshot after the last one."""

    def __init__(self) -> None:
        self.seq = 0
        self._begin()

    def _begin(self) -> None:
        self._messages: deque[_Message] = deque()
        self._by_id: dict[tuple[Role, bytes], _Message] = {}
        self._messages_size = 0
        self._open: _Message | None = None  # what a chunk without an id is added to
        self._calls: dict[bytes, _Call] = {}
        self._calls_size = 0
        self._values: dict[str, bytes] = {}
        self._plans: dict[bytes, bytes] = {}
        self._prompts: deque[bytes] = deque()
        self._cut: set[str] = set()
        self._written: bytes | None = None

    def take(self, event: Event) -> None:
        """Fold one event. One that cannot be read, or says nothing of the state, only moves the number."""
        self.seq = event.seq
        take = _TAKES.get(event.type)
        if take is None:
            return
        self._written = None
        before, behind = event.span
        text = event.digest or event.raw[before : len(event.raw) - behind]  # its brief
        if not text.isascii():
            text = _as_utf8(text)
        try:
            take(self, event, text)
        except jsontext.READ_ERRORS:
            return

    def write(self) -> bytes:
        """Return the snapshot as JSON."""
        if self._written is None:
            self._written = b"".join(self.parts())
        return self._written

    def parts(self) -> list[bytes]:
        """Return it in parts, to be joined with what stands around it: each copy of a quarter of a megabyte counts."""
        parts = [b'{"messages":[']
        for each in self._messages:
            parts += each.parts()
        parts[-1:] = (parts[-1].removesuffix(b","), b'],"toolCalls":[')
        parts.append(b",".join([each.write() for each in self._calls.values()]))
        # Whoever follows from here needs it: nothing else tells to which of two messages a chunk without an id belongs.
        parts.append(b"]" if self._open is None else b'],"open":%d' % self._open.seq)
        parts += [b',"%b":%b' % (name.encode(), value) for name, value in self._values.items()]
        if self._plans:
            parts.append(b',"plans":[%b]' % b",".join(self._plans.values()))
        if self._prompts:
            parts.append(b',"prompts":[%b]' % b",".join(self._prompts))
        if self._cut:
            parts.append(b',"truncated":%b' % msgspec.json.encode(sorted(self._cut)))
        parts.append(b"}")
        return parts

    # The state, to go on from.

    def state(self) -> bytes | None:
        """Return it with a checksum; None where it cannot be written."""
        state = _SnapshotState(
            self.seq,
            [msgspec.structs.replace(each, written=b"") for each in self._messages],
            [msgspec.structs.replace(each, written=b"") for each in self._calls.values()],
            self._values,
            self._plans,
            list(self._prompts),
            sorted(self._cut),
            next((at for at, each in enumerate(self._messages) if each is self._open), None),
        )
        try:
            text = msgspec.msgpack.encode(state)
        except (UnicodeEncodeError, OverflowError):  # half a character in the name of a member
            return None
        return crc32(text).to_bytes(4) + text

    @classmethod
    def restored(cls, encoded: bytes) -> SnapshotFold | None:
        """None where it is damaged."""
        text = encoded[4:]
        if crc32(text).to_bytes(4) != encoded[:4]:
            return None
        try:
            state = msgspec.msgpack.decode(text, type=_SnapshotState)
        except msgspec.MsgspecError:
            return None
        fold = cls()
        fold.seq = state.seq
        fold._messages = deque(state.messages)
        fold._by_id = {(each.role, each.id): each for each in state.messages if each.id}
        fold._messages_size = sum(map(_size_of, state.messages))
        fold._open = None if state.open is None else state.messages[state.open]
        fold._calls = {each.id: each for each in state.calls}
        fold._calls_size = sum(each.size for each in state.calls)
        fold._values, fold._plans = state.values, state.plans
        fold._prompts, fold._cut = deque(state.prompts), set(state.cut)
        return fold

    # Messages.

    def _take_chunk(self, event: Event, text: bytes) -> None:
        role = _ROLES[event.type]
        name, literal, is_cut = b"", b"", False
        try:
            chunk = _decode_chunk(text)
            literal = _plain_text(chunk.content)
            if chunk.messageId is not _ABSENT:
                name = _name(chunk.messageId)
            is_cut = chunk.cut is not None and "content" in chunk.cut
        except jsontext.READ_ERRORS:  # half a character in it, or something else than is expected
            literal = b""
        block = b""
        if not literal:
            found = _members(text)
            if "content" not in found:
                return
            name, block = _name(found.get("messageId", b"")), found["content"]
            literal = _plain_text_in(block)
        message = self._message(role, name, event.seq)
        if literal:
            self._add_text(message, literal[1:-1])
        else:
            self._add_block(message, block)
        if is_cut:
            self._mark(message)
        if self._messages_size > MESSAGES:
            self._trim()

    def _message(self, role: Role, name: bytes, seq: int) -> _Message:
        """The one of that id; without one, the last of the same role if nothing came between."""
        found = self._by_id.get((role, name)) if name else self._open
        if found is None or found.role != role:
            found = _Message(role, name, seq, [], [])
            if self._messages:
                self._messages[-1].is_over = True
            self._messages.append(found)
            self._messages_size += _FRAME + len(name)
            if name:
                self._by_id[role, name] = found
        found.written = b""
        self._open = found
        return found

    def _add_text(self, message: _Message, text: bytes) -> None:
        if len(text) > LONG_TEXT:
            self._add_long_text(message, text)
            return
        if not text and (message.bits or (message.pieces and message.pieces[-1][0])):
            return  # adds nothing to the text there is: kept, any number of them would be as long as nothing
        if not message.bits:
            self._messages_size += _PIECE
        message.bits.append(text)
        message.bits_size += len(text)
        self._messages_size += len(text)
        if message.bits_size >= SEGMENT:
            message.settle_bits()

    def _add_long_text(self, message: _Message, text: bytes) -> None:
        """Divide it between characters; only its end can have room."""
        whole = jsontext.read(b'"%b"' % text)
        assert isinstance(whole, str)
        kept = whole[-MESSAGES:]
        if message.bits:
            message.settle_bits()
        for start in range(0, len(kept), SEGMENT):
            piece = jsontext.write(kept[start : start + SEGMENT])[1:-1]
            message.pieces.append((True, piece))
            self._messages_size += len(piece) + _PIECE
        if len(kept) < len(whole):
            self._mark(message)

    def _add_block(self, message: _Message, block: bytes) -> None:
        if message.bits:
            message.settle_bits()
        if len(block) > LONGEST_BLOCK:
            kind = _members(block).get("type", b'"unknown"')
            block = b'{"type":%b,"truncated":true}' % (kind if len(kind) <= LONGEST_NAME else b'"unknown"')
            self._mark(message)
        message.pieces.append((False, block))
        self._messages_size += len(block) + _PIECE

    def _mark(self, message: _Message) -> None:
        message.is_cut = True
        self._cut.add("messages")

    def _trim(self) -> None:
        """Let go of the oldest of what was said, down to what there is room for."""
        while self._messages_size > MESSAGES:
            first = self._messages[0]
            if first.bits and not first.pieces:
                first.settle_bits()
            if first.pieces:
                _, piece = first.pieces.pop(0)
                self._messages_size -= len(piece) + _PIECE
                first.written = b""
                self._mark(first)
            if not first.pieces and not first.bits:
                self._messages.popleft()
                self._messages_size -= _FRAME + len(first.id)
                self._by_id.pop((first.role, first.id), None)
                self._open = None if self._open is first else self._open
                self._cut.add("messages")

    # Tool calls.

    def _take_call(self, event: Event, text: bytes) -> None:
        found = _members(text)
        name = _name(found.get("toolCallId", b""))
        if not name:
            return
        call = self._calls.get(name)
        if call is None or event.type == "tool-call":
            if call is not None:  # a new call under an old id
                self._forget_call(call)
            call = self._calls[name] = _Call(name, event.seq, {}, [], _FRAME)
            self._calls_size += _FRAME
        if event.type == "tool-call":
            # Text behind it is another message. Not so behind an update: that may be of a call that had to give way.
            self._open = None
        cuts, members, size = set(_cuts(found)), call.members, 0  # by how much it grows
        for member, value in found.items():
            if value == b"null" and member not in _NULL_COUNTS:
                continue
            before = members.get(member)
            if before is not None:
                size -= len(before)
            if len(value) > LONGEST_MEMBER:
                if members.pop(member, None) is not None:
                    size -= _NAME_ROOM * len(member)
                cuts.add(member)
            else:
                size += len(value) + (_NAME_ROOM * len(member) if before is None else 0)
                members[member] = value
            if call.cut and member in call.cut:
                call.cut.remove(member)
                size -= _NAME_ROOM * len(member)
        if cuts:
            size += _NAME_ROOM * sum([len(each) for each in cuts if each not in call.cut])
            call.cut = sorted({*call.cut, *cuts})
        if call.cut:
            self._cut.add("toolCalls")
        call.written = b""
        call.size += size
        self._calls_size += size
        while self._calls_size > CALLS:
            over = (each for each in self._calls.values() if each.members.get("status") in _OVER)
            self._forget_call(next(over, None) or next(iter(self._calls.values())))
            self._cut.add("toolCalls")

    def _forget_call(self, call: _Call) -> None:
        del self._calls[call.id]
        self._calls_size -= call.size

    # What has one value.

    def _set(self, name: str, value: bytes) -> None:
        if len(value) <= VALUES[name]:
            self._values[name] = value
            self._cut.discard(name)
        else:
            self._values.pop(name, None)
            self._cut.add(name)

    def _take_plan(self, _: Event, text: bytes) -> None:
        found = _members(text)
        if "entries" in found:
            self._set_uncut("plan", "entries", found)

    def _take_options(self, _: Event, text: bytes) -> None:
        found = _members(text)
        if "configOptions" in found:
            self._set_uncut("configOptions", "configOptions", found)

    def _take_commands(self, _: Event, text: bytes) -> None:
        found = _members(text)
        if "availableCommands" in found:
            self._set_uncut("availableCommands", "availableCommands", found)

    def _set_uncut(self, name: str, member: str, found: dict[str, bytes]) -> None:
        """A value of which a digest tells only a part is no value."""
        is_cut = member in _cuts(found)
        self._set(name, b" " * (VALUES[name] + 1) if is_cut else found[member])

    def _take_mode(self, _: Event, text: bytes) -> None:
        found = _members(text)
        if "currentModeId" in found:
            self._set("mode", found["currentModeId"])

    def _take_usage(self, _: Event, text: bytes) -> None:
        found = _members(text)
        _cuts(found)
        pairs = [b"%b:%b" % (jsontext.write(name), value) for name, value in found.items()]
        self._set("usage", b"{%b}" % b",".join(pairs))

    def _take_info(self, _: Event, text: bytes) -> None:
        found = _members(text)
        for name in ("title", "updatedAt"):
            if name in found:
                self._set(name, found[name])

    def _take_named_plan(self, _: Event, text: bytes) -> None:
        found = _members(text)
        plan = found.get("plan", b"")
        name = _name(_members(plan).get("planId", b""))
        if not name:
            return
        self._plans.pop(name, None)
        if "plan" in _cuts(found):
            self._cut.add("plans")
            return
        self._plans[name] = plan
        while sum([len(each) + 1 for each in self._plans.values()]) > PLANS:
            del self._plans[next(iter(self._plans))]
            self._cut.add("plans")

    def _take_plan_removed(self, _: Event, text: bytes) -> None:
        self._plans.pop(_name(_members(text).get("planId", b"")), None)

    # Events of Legation's own.

    def _take_facts(self, _: Event, text: bytes) -> None:
        found = _members(text)
        modes = _members(found.get("modes", b"{}"))
        if "currentModeId" in modes:
            self._set("mode", modes["currentModeId"])
        if "configOptions" in found:
            self._set("configOptions", found["configOptions"])

    def _take_prompt(self, event: Event, text: bytes) -> None:
        self._open = None
        found = _members(text)
        if not found.keys() >= {"turn", "prompt"}:
            return
        self._prompts.append(
            b'{"seq":%d,"turn":%b,"prompt":%b}' % (event.seq, found["turn"], found["prompt"])
        )
        while sum([len(each) + 1 for each in self._prompts]) > PROMPTS:
            self._prompts.popleft()
            self._cut.add("prompts")

    def _take_reset(self, _: Event, __: bytes) -> None:
        self._begin()


Take: TypeAlias = Callable[[SnapshotFold, Event, bytes], None]
_fold = SnapshotFold
_TAKES: Final[dict[str, Take]] = {
    **dict.fromkeys(_ROLES, _fold._take_chunk),
    "tool-call": _fold._take_call,
    "tool-call-update": _fold._take_call,
    "plan": _fold._take_plan,
    "plan-update": _fold._take_named_plan,
    "plan-removed": _fold._take_plan_removed,
    "available-commands-update": _fold._take_commands,
    "current-mode-update": _fold._take_mode,
    "config-option-update": _fold._take_options,
    "session-info-update": _fold._take_info,
    "usage-update": _fold._take_usage,
    "setup-facts": _fold._take_facts,
    "prompt-started": _fold._take_prompt,
    "session-reset": _fold._take_reset,
}


def _size_of(message: _Message) -> int:
    pieces = sum([len(piece) + _PIECE for _, piece in message.pieces])
    bits = message.bits_size + _PIECE if message.bits else 0
    return _FRAME + len(message.id) + pieces + bits


def _members(text: bytes) -> dict[str, bytes]:
    """Members of an update but for its tag."""
    try:
        found = {name: bytes(value) for name, value in _decode_members(text).items()}
    except jsontext.READ_ERRORS:  # half a character
        found = {name: jsontext.write(value) for name, value in jsontext.read_object(text).items()}
    found.pop("sessionUpdate", None)
    return found


def _plain_text(content: _Content) -> bytes:
    """The literal of a text that nothing is said about; empty for any other block."""
    if content.type != "text":
        return b""
    for about in (content.annotations, content.meta):
        if about is not _ABSENT and bytes(about) not in _NOTHING:
            return b""
    text = bytes(content.text)
    return text if text[:1] == b'"' else b""


def _plain_text_in(block: bytes) -> bytes:
    found = _members(block)
    if found.get("type") != b'"text"' or found.get("text", b"")[:1] != b'"':
        return b""
    plain = found.get("annotations", b"") in _NOTHING and found.get("_meta", b"") in _NOTHING
    return found["text"] if plain else b""


def _cuts(found: dict[str, bytes]) -> list[str]:
    """Take out which members a digest does not tell whole."""
    if CUT not in found:
        return []
    return msgspec.json.decode(found.pop(CUT), type=list[str])


def _name(raw: bytes | Raw) -> bytes:
    """An id as it is written in one way only; empty where there is none."""
    name = bytes(raw)
    if name[:1] != b'"' or len(name) > LONGEST_NAME or name == b'""':
        return b""
    return jsontext.write(jsontext.read(name)) if b"\\" in name else name


def _as_utf8(text: bytes) -> bytes:
    try:
        text.decode()
    except UnicodeDecodeError:
        return text.decode("utf-8", "replace").encode()
    return text
