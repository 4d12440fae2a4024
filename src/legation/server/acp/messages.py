"""One JSON-RPC message of a client, its parts left as bytes, and the lines that are said to it: errors of ours too."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from legation.errors import AgentExited as AgentHasExited
from legation.errors import (
    Cancelled,
    CapabilityUnsupported,
    Forbidden,
    InvalidParams,
    LegationError,
    NotFound,
    PromptInFlight,
    SessionClosed,
)
from legation.wire import jsontext
from legation.wire.acp.rpc import ErrorCode, RpcError
from legation.wire.event_types import AgentExited, ExtensionMessage
from legation.wire.events import WHOLE, Draft, Event
from legation.wire.jsontext import one_line, read_members, renamed

if TYPE_CHECKING:  # a server that no client has come to does without
    from legation.agents.messages import RpcMessage

logger = logging.getLogger("legation.acp")

EXTENSION: Final = ExtensionMessage.event_type()

_KEPT: Final = (
    1024  # ways in which updates are surrounded that are known at a time: of a session there is mostly one
)
_KEPT_BYTES: Final = 4096  # of each
LONG: Final = 64 * 1024  # bytes of an update of which one copy more is too much

_NULL: Final = b"null"
_SHAPE: Final = "send one JSON-RPC message: an object with `method`, or with `id` and `result` or `error`"


def read_body(body: bytes) -> RpcMessage:
    """Raises `InvalidParams` for whatever is no message of JSON-RPC 2.0."""
    from legation.agents.messages import read_message

    try:
        if not body.isascii():
            body.decode()  # msgspec does not look into what it keeps raw
    except UnicodeDecodeError:
        raise InvalidParams("cannot read the message: it is no UTF-8; send JSON in UTF-8") from None
    message = read_message(body)
    if message is not None and not message.id and _NULL in body and read_members(body).get("id") == _NULL:
        message.id = msgspec.Raw(_NULL)  # a request all the same, and so it is answered
    if message is None or not (message.method or message.id):
        raise InvalidParams(f"cannot read the message: it is none of JSON-RPC; {_SHAPE}")
    if message.id and bytes(message.id) != _NULL and bytes(message.id)[:1] not in b'"-0123456789':
        raise InvalidParams("cannot answer to that id: use a text or a number")
    if not message.method and not message.result and not message.error:
        raise InvalidParams(f"cannot take an answer without `result` or `error`; {_SHAPE}")
    return message


def kind_of(message: RpcMessage) -> Literal["request", "notification", "response"]:
    if not message.method:
        return "response"
    return "request" if message.id else "notification"


def key_of(message: RpcMessage) -> bytes:
    """The id in one spelling, to find it again."""
    from legation.agents.messages import id_key

    return id_key(bytes(message.id))


def result_line(raw_id: bytes, result: object) -> bytes:
    text = bytes(result) if isinstance(result, msgspec.Raw) else jsontext.write(result)
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (raw_id, one_line(text))


def error_line(raw_id: bytes, error: RpcError) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (raw_id, jsontext.write(error))


def request_line(request_id: str, method: str, params: object) -> bytes:
    parts = (jsontext.write(request_id), jsontext.write(method), jsontext.write(params))
    return b'{"jsonrpc":"2.0","id":%b,"method":%b,"params":%b}' % parts


def notification_line(method: str, params: object) -> bytes:
    return b'{"jsonrpc":"2.0","method":%b,"params":%b}' % (jsontext.write(method), jsontext.write(params))


class _Extension(msgspec.Struct):
    """`ExtensionMessage`, with its params as bytes."""

    method: str
    params: msgspec.Raw
    request: bool = False


_decode_extension = msgspec.json.Decoder(_Extension).decode


class Updates:
    """Lines of one session's updates: the bytes of the log, with our name of the session for the agent's. What stands
    around them is mostly the same, and is looked at once; a name that an agent says twice is told once."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self._head = b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":%b' % jsontext.write(
            session_id
        )

    def line(self, update: Event | Draft) -> bytes:
        raw, span = update.raw, update.span
        if span == WHOLE:
            return b"".join((self._head, b',"update":', raw, b"}}"))
        before, end = span[0], len(raw) - span[1]
        look = _beside if sum(span) <= _KEPT_BYTES else _beside.__wrapped__
        if (beside := look(raw[:before], raw[end:])) is None:  # the same bytes stand there twice
            beside = _others(read_members(raw))
        if len(raw) > LONG:  # one copy, and not two
            return b"".join((self._head, beside, b',"update":', memoryview(raw)[before:end], b"}}"))
        return b'%b%b,"update":%b}}' % (self._head, beside, raw[before:end])

    def notification(self, event: Event) -> bytes | None:
        """The line of an `ExtensionMessage` that is one: a request is put to its clients by whoever answers the agent."""
        try:
            sent = _decode_extension(event.payload)
        except (ValueError, RecursionError):
            return None  # a text that no client could read either
        if sent.request:
            return None
        return notification_line(sent.method, msgspec.Raw(renamed(bytes(sent.params), self.session_id)))


@lru_cache(_KEPT)
def _beside(before: bytes, behind: bytes) -> bytes | None:
    """Return the other members of the params; None where what stands between those bytes is not the update that counts."""
    found = read_members(before + _NULL + behind)
    return _others(found) if found.get("update") == _NULL else None


def _others(found: Mapping[str, bytes]) -> bytes:
    """Return each once, as bytes, in the reading that counts in the log: of a name that is said twice the last."""
    others = [(name, value) for name, value in found.items() if name not in ("sessionId", "update")]
    return b"".join([b",%b:%b" % (jsontext.write(name), value) for name, value in others])


STDERR: Final = "agentStderr"
STDERR_LINES: Final = 16  # the last ones, as sandbox-agent has them

_CODES: Final[tuple[tuple[type[LegationError], int], ...]] = (
    (CapabilityUnsupported, ErrorCode.METHOD_NOT_FOUND),
    (PromptInFlight, ErrorCode.INVALID_REQUEST),
    (SessionClosed, ErrorCode.INVALID_REQUEST),
    (InvalidParams, ErrorCode.INVALID_PARAMS),
    (Forbidden, ErrorCode.INVALID_REQUEST),
    (NotFound, ErrorCode.RESOURCE_NOT_FOUND),
    (Cancelled, ErrorCode.REQUEST_CANCELLED),
)


def rpc_error(error: Exception, ended: AgentExited | None = None, stderr: str = "") -> RpcError:
    """`ended` is how the agent's process went, where that is why; `stderr` what one that lives has said."""
    from legation.agents.rpc import AgentRefused, RpcFault

    if isinstance(error, RpcFault):
        return error.error
    if isinstance(error, AgentRefused):
        return _with_stderr(error.error, stderr)
    if not isinstance(error, LegationError):
        logger.error("cannot answer a request", exc_info=error)
        return RpcError(ErrorCode.INTERNAL_ERROR, "cannot answer: a defect of Legation; see the server's log")
    code = next((code for kind, code in _CODES if isinstance(error, kind)), ErrorCode.INTERNAL_ERROR)
    data: dict[str, object] = {"code": error.code.value, **(error.data or {}), **_exit(ended)}
    return RpcError(code, error.message, data)


def exit_of(error: Exception) -> AgentExited | None:
    """Return it as the error itself knows it: of an agent that ended before it had a session."""
    if not isinstance(error, AgentHasExited) or error.data is None or "exitCode" not in error.data:
        return None
    code, signal = error.data["exitCode"], error.data.get("signal")
    return AgentExited(
        code=code if isinstance(code, int) else None,
        signal=signal if isinstance(signal, int) else None,
        stderr_tail=error.stderr or None,
    )


def _with_stderr(error: RpcError, stderr: str) -> RpcError:
    """Add what the agent wrote beside its answer. What it put into `data` itself stays."""
    lines, data = stderr.splitlines()[-STDERR_LINES:], error.data
    if not lines or not (data is msgspec.UNSET or data is None or isinstance(data, dict)):
        return error
    return msgspec.structs.replace(error, data={STDERR: lines, **(data or {})})


def _exit(ended: AgentExited | None) -> Mapping[str, object]:
    if ended is None:
        return {}
    lines = (ended.stderr_tail or "").splitlines()[-STDERR_LINES:]
    reason = "killed" if ended.signal is not None else "ended" if ended.code == 0 else "crashed"
    return {"reason": reason, "exitCode": ended.code, "signal": ended.signal, STDERR: lines}
