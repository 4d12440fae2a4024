"""JSON-RPC 2.0 as ACP uses it: the envelope, the error codes, the method names; and what every shape of ACP has in common.

Shapes are read with unknown fields ignored (the log keeps the bytes) and written with absent optional fields left out.
Words that agents may extend (kinds, statuses, reasons) are plain strings, and the ones the protocol names are listed
beside them.
"""

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from typing import TypeAlias, dataclass_transform

import msgspec
from msgspec import UNSET, UnsetType

Json = object
"""Any JSON value, passed through without a look inside."""

Meta = Mapping[str, object]

PROTOCOL_VERSION = 1


# Type checkers do not let options of a Struct pass to its children, as msgspec does.
@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Shape(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of all ACP shapes: camelCase on the wire, `_meta` everywhere."""

    meta: Meta | None = msgspec.field(default=None, name="_meta")


RequestId: TypeAlias = int | str | None


class ErrorCode(IntEnum):
    """The codes that the protocol names; agents use others too, so an error's code is a plain integer."""

    PARSE_ERROR = -32700
    INVALID_REQUEST = -32600
    METHOD_NOT_FOUND = -32601
    INVALID_PARAMS = -32602
    INTERNAL_ERROR = -32603
    REQUEST_CANCELLED = -32800
    AUTH_REQUIRED = -32000
    RESOURCE_NOT_FOUND = -32002


class RpcError(msgspec.Struct, frozen=True, omit_defaults=True):
    code: int
    message: str
    data: Json | UnsetType = UNSET


class Envelope(msgspec.Struct, frozen=True):
    """Any message, with its parts left as bytes: a request has `method` and `id`, a notification only
    `method`, a response `id` and either `result` or `error`."""

    id: RequestId | UnsetType = UNSET
    method: str | None = None
    params: msgspec.Raw | UnsetType = UNSET
    result: msgspec.Raw | UnsetType = UNSET
    error: msgspec.Raw | UnsetType = UNSET


class CancelRequestNotification(Shape):
    request_id: RequestId


class AgentMethod(StrEnum):
    """Methods that a client calls."""

    INITIALIZE = "initialize"
    AUTHENTICATE = "authenticate"
    LOGOUT = "logout"
    SESSION_NEW = "session/new"
    SESSION_LOAD = "session/load"
    SESSION_RESUME = "session/resume"
    SESSION_LIST = "session/list"
    SESSION_DELETE = "session/delete"
    SESSION_CLOSE = "session/close"
    SESSION_PROMPT = "session/prompt"
    SESSION_CANCEL = "session/cancel"
    SESSION_SET_MODE = "session/set_mode"
    SESSION_SET_CONFIG_OPTION = "session/set_config_option"


class ClientMethod(StrEnum):
    """Methods that an agent calls."""

    SESSION_UPDATE = "session/update"
    REQUEST_PERMISSION = "session/request_permission"
    READ_TEXT_FILE = "fs/read_text_file"
    WRITE_TEXT_FILE = "fs/write_text_file"
    TERMINAL_CREATE = "terminal/create"
    TERMINAL_OUTPUT = "terminal/output"
    TERMINAL_WAIT_FOR_EXIT = "terminal/wait_for_exit"
    TERMINAL_KILL = "terminal/kill"
    TERMINAL_RELEASE = "terminal/release"
    ELICITATION_CREATE = "elicitation/create"
    ELICITATION_COMPLETE = "elicitation/complete"


CANCEL_REQUEST = "$/cancel_request"
"""Both sides may send it."""
