"""Messages of an agent, read: strictly and fast first, then whatever can be made of them.

INV-M1  Nobody can tell a line that was read by its beginning from one that was read whole. A JSON text has one reading
        from left to right: where a line begins with what another had before its update, an update is what comes next;
        one JSON object up to the last two brackets is that update, and the brackets end the params and the message.
INV-A1  An optional member that does not fit counts as absent, an item of a list that does not fit is left
        out, unknown members are ignored. Only what is required must be right.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final, TypeAlias, TypeVar, Union, cast, get_args, get_origin

import msgspec

from legation.wire import jsontext
from legation.wire.acp.rpc import ErrorCode, RpcError
from legation.wire.acp.updates import salvaged
from legation.wire.events import UNRECOGNIZED, Draft, Span, decode_tag, span_of, type_of_tag, update_type
from legation.wire.jsontext import members

NONE = msgspec.Raw(b"")
NULL = msgspec.Raw(b"null")

RUN_LINES: Final = 128  # updates that are one list
BEGINNINGS: Final = 8  # that are known at a time: of as many sessions
LONGEST_BEGINNING: Final = 4096  # bytes: more is content, and never comes again
_LONG: Final = 16 * 1024  # bytes of a line of which no copy is made to look at it
_SHORT: Final = 1024
_ENDS: Final = b"}}"

Found: TypeAlias = tuple[str, list[Draft]] | bytes
"""Updates of one session that follow each other, some of them, or a line that is no update."""


class _Params(msgspec.Struct, gc=False):
    sessionId: str  # noqa: N815 - spelt as on the wire
    update: msgspec.Raw


class _UpdateLine(msgspec.Struct, tag_field="method", tag="session/update", gc=False):
    """An update, as nearly every line is. With an id it would be a request, and wants an answer."""

    params: msgspec.Raw
    id: msgspec.UnsetType | None = msgspec.UNSET


class _Beginning(msgspec.Struct, frozen=True, gc=False):
    """The text of a session's lines before their updates; the params begin at `params`."""

    text: bytes
    session: str
    params: int
    span: Span


class RpcMessage(msgspec.Struct, gc=False):
    """Any message, its parts left as bytes; a part that is not there, or null, is empty."""

    method: str = ""
    id: msgspec.Raw = NONE
    params: msgspec.Raw = NONE
    result: msgspec.Raw = NONE
    error: msgspec.Raw = NONE

    def __post_init__(self) -> None:
        """Some agents write every member that there could be."""
        if self.id == NULL:
            self.id = NONE
        if self.error == NULL:
            self.error = NONE


class _Cancel(msgspec.Struct, gc=False):
    requestId: msgspec.Raw = NONE  # noqa: N815


class _AskedCall(msgspec.Struct, gc=False):
    toolCallId: str | None = None  # noqa: N815


class _Asked(msgspec.Struct, gc=False):
    toolCall: _AskedCall | None = None  # noqa: N815
    itemId: str | None = None  # noqa: N815


_decode_update_line = msgspec.json.Decoder(_UpdateLine).decode
_decode_params = msgspec.json.Decoder(_Params).decode
_decode_message = msgspec.json.Decoder(RpcMessage).decode
_decode_cancel = msgspec.json.Decoder(_Cancel).decode
_decode_asked = msgspec.json.Decoder(_Asked).decode
_decode_error = msgspec.json.Decoder(RpcError).decode


def pieces(blocks: Sequence[bytes], size: int) -> Iterator[bytes]:
    """The lines of some blocks, in blocks of about that size; one that is larger is one line."""
    for block in blocks:
        start = 0
        while len(block) - start > size:
            end = block.rfind(b"\n", start, start + size)
            if end < 0:
                end = block.find(b"\n", start + size)
            if end < 0:
                break
            yield block[start:end]
            start = end + 1
        yield block[start:] if start else block


class UpdateReader:
    """Read the updates of one agent. Whose a line is, and where it stands, is seen at its beginning where that is known."""

    def __init__(self) -> None:
        self._known: list[_Beginning] = []  # the one that was used last is the first

    def read(self, block: bytes) -> Iterator[Found]:
        """Lines with newlines between them, read as they are taken; those that say nothing are left out."""
        lines = [line for line in _lines(block) if line and not line.isspace()]
        if not block.isascii() and not _is_utf8(block):  # msgspec does not look into what it skips
            if len(lines) == 1:
                yield lines[0]
            else:
                for line in lines:
                    yield from self.read(line)
            return
        at = 0
        while at < len(lines):
            drafts = self._run(lines, at)
            if drafts:
                yield self._known[0].session, drafts
                at += len(drafts)
            else:
                yield self._read_whole(lines[at])
                at += 1

    def _run(self, lines: list[bytes], at: int) -> list[Draft]:
        """The hot path: as many lines as begin as the first of them does, if that is known."""
        drafts: list[Draft] = []
        if not self._begins(lines[at]):
            return drafts
        known = self._known[0]
        text, size, start, span = known.text, len(known.text), known.params, known.span
        try:
            for line in lines[at : at + RUN_LINES]:
                if line[:size] != text or line[-2:] != _ENDS:
                    break
                update = line[size:-2] if len(line) < _LONG else memoryview(line)[size:-2]
                type_ = type_of_tag(decode_tag(update).sessionUpdate, UNRECOGNIZED)
                drafts.append(Draft(type_, line[start:-1], b"", span))
        except (ValueError, RecursionError):
            pass  # no JSON, or no tag
        return drafts

    def _begins(self, line: bytes) -> bool:
        """Tell whether it begins as one that is known, which is the first of them from now on."""
        for index, known in enumerate(self._known):
            if line.startswith(known.text):
                if index:
                    self._known.insert(0, self._known.pop(index))
                return True
        return False

    def _read_whole(self, line: bytes) -> Found:
        try:
            params = bytes(_decode_update_line(line).params)
            read = _decode_params(params)
        except (ValueError, RecursionError):
            return line
        update = bytes(read.update)
        draft = Draft(update_type(update), params, b"", span_of(params, update))
        self._learn(line, read.sessionId, draft, update)
        return read.sessionId, [draft]

    def _learn(self, line: bytes, session: str, draft: Draft, update: bytes) -> None:
        """Remember its beginning, where update and params are objects and the last members: then both end with the line (INV-M1)."""
        params, (before, behind) = draft.raw, draft.span
        start = len(line) - 1 - len(params)
        is_last = behind == 1 and update[:1] == b"{" and line[-2:] == _ENDS and line.startswith(params, start)
        if is_last and start + before <= LONGEST_BEGINNING:
            text = line[: start + before]
            others = [known for known in self._known if known.text != text]
            self._known = [_Beginning(text, session, start, draft.span), *others[: BEGINNINGS - 1]]


def _lines(block: bytes) -> list[bytes]:
    """`split` looks at each byte by itself: where lines are long, to `find` their ends is far quicker."""
    start, end = 0, block.find(b"\n")
    if 0 <= end < _SHORT:
        return block.split(b"\n")
    lines: list[bytes] = []
    while end >= 0:
        lines.append(block[start:end])
        start = end + 1
        end = block.find(b"\n", start)
    return [*lines, block[start:]]


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def is_odd(line: bytes) -> bool:
    """Tell whether it is to be walked through, token by token: no parser takes it, or it is an update that is none at once."""
    try:
        message = _decode_message(line)
    except (ValueError, RecursionError):
        return True
    return message.method == "session/update" and not message.id


def read_message(line: bytes) -> RpcMessage | None:
    """Read a message; None for what is none at all."""
    try:
        return _decode_message(line)
    except (ValueError, RecursionError):
        return _piece_together(line)


def _piece_together(line: bytes) -> RpcMessage | None:
    """Read a text that no parser takes: too deep, or with halves of characters."""
    try:
        parts = members(line)
        method = jsontext.read(parts.pop("method", b"null"))
    except jsontext.READ_ERRORS:
        return None
    if method is None:
        method = ""
    if not isinstance(method, str):
        return None
    raws = {key: msgspec.Raw(parts[key]) for key in ("id", "params", "result", "error") if key in parts}
    return RpcMessage(method=method, **raws)


def read_odd_update(params: bytes, native: bytes) -> tuple[str, Draft] | None:
    """An update that the strict reading refuses: its session and its bytes, if it says whose it is."""
    try:
        parts = members(params)
        session, update = jsontext.read(parts["sessionId"]), parts["update"]
    except (KeyError, *jsontext.READ_ERRORS):
        return None
    draft = Draft(update_type(update), params, native, span_of(params, update))
    return (session, draft) if isinstance(session, str) else None


def read_error(raw: bytes) -> RpcError:
    """Read what the agent said went wrong; something is said even where it is no proper error object."""
    try:
        return _decode_error(raw)
    except (ValueError, RecursionError):
        return RpcError(ErrorCode.INTERNAL_ERROR, "the agent sent an error that cannot be read")


def read_cancelled_id(params: bytes) -> bytes:
    """The id, as it was written, of the request that `$/cancel_request` is about; empty if unreadable."""
    with suppress(ValueError, RecursionError):
        return bytes(_decode_cancel(params).requestId)
    if len(params) > LONGEST_BEGINNING:  # what no parser takes is walked through, token by token
        return b""
    try:
        return members(params).get("requestId", b"")
    except jsontext.READ_ERRORS:
        return b""


def read_call_id(params: bytes) -> str | None:
    """The id of the call that an ask is about: a permission of ACP, or of Codex."""
    try:
        asked = _decode_asked(params)
    except (ValueError, RecursionError):
        return None
    return asked.toolCall.toolCallId if asked.toolCall else asked.itemId


def id_key(raw: bytes) -> bytes:
    """One spelling for each id: a text can be escaped in many ways, and some programs write 1 as 1.0."""
    if raw.isdigit():
        return raw
    try:
        value = jsontext.read(raw)
    except jsontext.READ_ERRORS:
        return raw
    if isinstance(value, str):
        return jsontext.write(value)
    return b"%d" % int(value) if isinstance(value, float) and value.is_integer() else raw


# Answers, read as the protocol wants them read (INV-A1).

READ_ERRORS = jsontext.READ_ERRORS

_T = TypeVar("_T")


def read_answer(raw: bytes, shape: type[_T]) -> _T:
    """Read an answer as `fit` does; null is an empty object, as some agents have it."""
    value = jsontext.read(raw)
    return fit({} if value is None else value, shape)


def fit(value: object, shape: type[_T]) -> _T:
    """Convert a value (INV-A1). Raises one of READ_ERRORS where something required is missing or wrong."""
    try:
        return msgspec.convert(value, shape)
    except READ_ERRORS:
        return msgspec.convert(_fitted(salvaged(value), shape), shape)


def _fitted(value: object, kind: object) -> object:
    for part in get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,):
        if isinstance(value, dict) and isinstance(part, type) and issubclass(part, msgspec.Struct):
            return _with_fitting_members(value, part)
        if isinstance(value, list) and get_origin(part) is tuple:
            return _fitting_items(value, get_args(part)[0])
    return value


def _with_fitting_members(value: dict[str, object], shape: type[msgspec.Struct]) -> dict[str, object]:
    kept = dict(value)
    for field in msgspec.structs.fields(shape):
        name = field.encode_name
        if name in kept and not _reads_as(kept[name], field.type):
            kept[name] = _fitted(kept[name], field.type)
            if not field.required and not _reads_as(kept[name], field.type):
                del kept[name]
    return kept


def _fitting_items(items: list[object], kind: object) -> list[object]:
    fitted = (item if _reads_as(item, kind) else _fitted(item, kind) for item in items)
    return [item for item in fitted if _reads_as(item, kind)]


def _reads_as(value: object, kind: object) -> bool:
    try:
        msgspec.convert(value, cast(type[object], kind))
    except READ_ERRORS:
        return False
    return True
