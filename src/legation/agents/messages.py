"""The lines of an agent's output, as messages. Strict and fast first; then whatever can be made of it."""

import msgspec

from legation.wire import jsontext
from legation.wire.acp.rpc import ErrorCode, RpcError
from legation.wire.events import Draft, update_type
from legation.wire.members import members

NONE = msgspec.Raw(b"")
NULL = msgspec.Raw(b"null")


class UpdateParams(msgspec.Struct, gc=False):
    sessionId: str  # noqa: N815 - spelt as on the wire: a rename costs time on the hot path
    update: msgspec.Raw


class UpdateLine(msgspec.Struct, tag_field="method", tag="session/update", gc=False):
    """What nearly every line is. With an id it would be a request, and wants an answer."""

    params: UpdateParams
    id: msgspec.UnsetType | None = msgspec.UNSET


class Message(msgspec.Struct, gc=False):
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


_update_lines = msgspec.json.Decoder(UpdateLine)
_decode_message = msgspec.json.Decoder(Message).decode
_decode_error = msgspec.json.Decoder(RpcError).decode


def read_block(block: bytes) -> list[UpdateParams | bytes]:
    """Lines with newlines between them, each as the update that it is, or as it is."""
    try:
        if not block.isascii():
            block.decode()  # msgspec does not look into what it keeps raw
        found = _update_lines.decode_lines(block)
    except (ValueError, RecursionError):
        found = []
    if found and _are_lines(block, len(found)):
        return [each.params for each in found]
    return [_read_line(line) for line in block.split(b"\n")]


def _are_lines(block: bytes, objects: int) -> bool:
    """Each object is in a line of its own: every newline stands between two of them, where no object can have one."""
    at, find = -1, block.find
    for _ in range(objects - 1):
        at = find(b"\n", at + 1)
        if at < 0 or block[at - 1 : at + 2] != b"}\n{":
            return False
    return find(b"\n", at + 1) < 0


def _read_line(line: bytes) -> UpdateParams | bytes:
    try:
        if not line.isascii():
            line.decode()
        return _update_lines.decode(line).params
    except (ValueError, RecursionError):
        return line


def read_message(line: bytes) -> Message | None:
    """None for what is no message at all."""
    try:
        return _decode_message(line)
    except (ValueError, RecursionError):
        return _piece_together(line)


def _piece_together(line: bytes) -> Message | None:
    """From texts that no parser takes: too deep, or with halves of characters."""
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
    return Message(method=method, **raws)


def read_odd_update(params: bytes, native: bytes) -> tuple[str, Draft] | None:
    """An update that the strict reading refuses: its session and its bytes, if it says whose it is."""
    try:
        parts = members(params)
        session, raw = jsontext.read(parts["sessionId"]), parts["update"]
    except (KeyError, *jsontext.READ_ERRORS):
        return None
    return (session, Draft(update_type(raw), raw, native)) if isinstance(session, str) else None


def read_error(raw: bytes) -> RpcError:
    """What the agent said went wrong; something is said even where it is no proper error object."""
    try:
        return _decode_error(raw)
    except (ValueError, RecursionError):
        return RpcError(ErrorCode.INTERNAL_ERROR, "the agent sent an error that cannot be read")


def read_cancelled_id(params: bytes) -> bytes:
    """The id, as it was written, of the request that `$/cancel_request` is about; empty if unreadable."""
    try:
        return members(params).get("requestId", b"")
    except jsontext.READ_ERRORS:
        return b""


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
