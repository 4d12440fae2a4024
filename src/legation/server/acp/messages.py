"""One JSON-RPC message of a client, its parts left as bytes, and the lines that are said to it."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from legation.agents.messages import Message, id_key, read_message
from legation.errors import InvalidParams
from legation.wire import jsontext
from legation.wire.acp.rpc import RpcError

Kind = Literal["request", "notification", "response"]

_SHAPE: Final = "send one JSON-RPC message: an object with `method`, or with `id` and `result` or `error`"


def read_body(body: bytes) -> Message:
    """Raises `InvalidParams` for whatever is no message of JSON-RPC 2.0."""
    try:
        if not body.isascii():
            body.decode()  # msgspec does not look into what it keeps raw
    except UnicodeDecodeError:
        raise InvalidParams("cannot read the message: it is no UTF-8; send JSON in UTF-8") from None
    message = read_message(body)
    if message is None or not (message.method or message.id):
        raise InvalidParams(f"cannot read the message: it is none of JSON-RPC; {_SHAPE}")
    if message.id and bytes(message.id)[:1] not in b'"-0123456789':
        raise InvalidParams("cannot answer to that id: use a text or a number")
    if not message.method and not message.result and not message.error:
        raise InvalidParams(f"cannot take an answer without `result` or `error`; {_SHAPE}")
    return message


def kind_of(message: Message) -> Kind:
    if not message.method:
        return "response"
    return "request" if message.id else "notification"


def key_of(message: Message) -> bytes:
    """The id in one spelling, to find it again."""
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


class Updates:
    """Turns the updates of one session into lines: the bytes of the log, with the session's name before them."""

    def __init__(self, session_id: str) -> None:
        name = jsontext.write(session_id)
        self._head = b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":%b,"update":' % name

    def line(self, raw: bytes) -> bytes:
        return b"%b%b}}" % (self._head, raw)


def one_line(text: bytes) -> bytes:
    """An agent may have put its answer into several lines; between tokens a space does as well."""
    return text.replace(b"\n", b" ") if b"\n" in text else text
