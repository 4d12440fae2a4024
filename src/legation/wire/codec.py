"""From typed payloads to rows of the log, and back."""

from collections.abc import Callable
from functools import cache
from typing import TypeAlias, cast, get_args

import msgspec

from legation.wire import jsontext
from legation.wire.acp.salvage import salvaged
from legation.wire.acp.updates import SessionUpdate, Unrecognized, decode_update
from legation.wire.approvalstream import ApprovalChanged
from legation.wire.diagnostic import Diagnostic
from legation.wire.events import UNRECOGNIZED, UPDATE_TYPES, Draft, Event, params_draft
from legation.wire.hoststream import AgentRemoved, AgentUpdated, PermissionUpdated, SessionUpdated
from legation.wire.lifecycle import (
    AgentExited,
    ExtensionAnswered,
    ExtensionMessage,
    PermissionAnswered,
    PermissionAsked,
    PromptFinished,
    PromptStarted,
    QuestionAnswered,
    QuestionAsked,
    SessionReset,
    SessionStatus,
    SetupFacts,
    TurnState,
    UnaskedEffect,
    UnaskingMode,
)
from legation.wire.payload import Payload
from legation.wire.serverstream import ServerStarted, ServerStopped

SESSION_STREAM: tuple[type[Payload], ...] = (
    SessionStatus,
    SessionReset,
    SetupFacts,
    TurnState,
    PromptStarted,
    PromptFinished,
    PermissionAsked,
    PermissionAnswered,
    UnaskedEffect,
    UnaskingMode,
    QuestionAsked,
    QuestionAnswered,
    ExtensionMessage,
    ExtensionAnswered,
    AgentExited,
    Diagnostic,
)
HOST_STREAM: tuple[type[Payload], ...] = (
    AgentUpdated,
    AgentRemoved,
    SessionUpdated,
    PermissionUpdated,
    Diagnostic,
)
SERVER_STREAM: tuple[type[Payload], ...] = (ServerStarted, ServerStopped, Diagnostic)
APPROVAL_STREAM: tuple[type[Payload], ...] = (ApprovalChanged,)
UPDATES: tuple[type[SessionUpdate], ...] = get_args(SessionUpdate)

Known: TypeAlias = Payload | SessionUpdate

_ACP_TYPES = frozenset((*UPDATE_TYPES.values(), UNRECOGNIZED))
_decoders = {
    cls.event_type(): msgspec.json.Decoder(cls)
    for cls in (*SESSION_STREAM, *HOST_STREAM, *SERVER_STREAM, *APPROVAL_STREAM)
}


@cache
def event_type(payload: type[Known]) -> str:
    if issubclass(payload, Payload):
        return payload.event_type()
    return UPDATE_TYPES[cast(str, payload.__struct_config__.tag)]


def draft(payload: Known, native: bytes = b"") -> Draft:
    """The row of a payload; `native` is the agent's own line, where a driver translated it."""
    return Draft(event_type(type(payload)), jsontext.write(payload), native)


def update_draft(
    session_id: str,
    update: SessionUpdate,
    native: bytes = b"",
    *,
    whole: Callable[[bytes], bytes] | None = None,
) -> Draft:
    """The row of an update that a driver made of the agent's own line, `native`. If it made it of a digest, `whole` says
    what it would have made of the line (INV-W5)."""
    text = jsontext.write(update)
    if whole is None:
        return params_draft(session_id, text, native, event_type(type(update)))
    made = params_draft(session_id, whole(text), native, event_type(type(update)))
    return msgspec.structs.replace(made, digest=text)


def decode(event: Event | Draft) -> Known | Unrecognized:
    """The typed payload of a row. What this version cannot type is Unrecognized; nothing raises."""
    if event.type in _ACP_TYPES:
        return decode_update(event.brief)
    decoder = _decoders.get(event.type)
    if decoder is None:
        return Unrecognized(event.raw, _value(event.raw))
    try:
        return decoder.decode(event.raw)
    except jsontext.READ_ERRORS:
        return _salvaged(decoder, event.raw)


def _salvaged(decoder: msgspec.json.Decoder[Payload], raw: bytes) -> Payload | Unrecognized:
    value = _value(raw)
    for candidate in (value, salvaged(value)):
        try:
            return msgspec.convert(candidate, decoder.type)
        except jsontext.READ_ERRORS:
            continue
    return Unrecognized(raw, value)


def _value(raw: bytes) -> object:
    try:
        return jsontext.read(raw)
    except jsontext.READ_ERRORS:
        return None
