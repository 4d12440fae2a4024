"""One line of an agent's output, as a message. Strict and fast first; then whatever can be made of it."""

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


decode_update_line = msgspec.json.Decoder(UpdateLine).decode
_decode_message = msgspec.json.Decoder(Message).decode
_decode_error = msgspec.json.Decoder(RpcError).decode


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
