"""Rows of the log from typed payloads, and typed payloads from rows; session updates in a normalised shape."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import TypeAlias, cast, get_args

import msgspec

from legation.wire import jsontext
from legation.wire.acp.updates import SessionUpdate, Unrecognized, decode_leniently, decode_update
from legation.wire.event_types import EVENT_TYPES
from legation.wire.events import UNRECOGNIZED, UPDATE_TYPES, Draft, Event, Payload, params_draft

UPDATES: tuple[type[SessionUpdate], ...] = get_args(SessionUpdate)

Known: TypeAlias = Payload | SessionUpdate

_TAG = "sessionUpdate"
_META = "_meta"
_NULL_SAYS_SOMETHING = {
    "session_info_update": frozenset({"title", "updatedAt"}),
    "tool_call": frozenset({"rawInput", "rawOutput"}),
    "tool_call_update": frozenset({"rawInput", "rawOutput"}),
}

_ACP_TYPES = frozenset((*UPDATE_TYPES.values(), UNRECOGNIZED))
_decoders = {cls.event_type(): msgspec.json.Decoder(cls) for cls in EVENT_TYPES}


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
        payload: Payload | Unrecognized = decode_leniently(event.raw, decoder.type)
        return payload


def _value(raw: bytes) -> object:
    try:
        return jsontext.read(raw)
    except jsontext.READ_ERRORS:
        return None


class Normalized(msgspec.Struct, frozen=True):
    """`payload` is an object, save for unrecognized updates that are none."""

    type: str
    payload: object
    extensions: Mapping[str, object] = {}


class _Keys(msgspec.Struct, frozen=True):
    known: frozenset[str]
    omitted_when_null: frozenset[str]


def normalize_session_update(update: bytes | Mapping[str, object]) -> Normalized:
    """A session update as its type, its payload and its extensions: a projection of the stored bytes, made when read.

    1. The tag decides the type, and leaves the payload.
    2. A top-level key that the update defines goes to the payload. If its value is null and the key is optional
       it is left out, except where null says something: `title` and `updatedAt` of session_info_update (clear
       it), `rawInput` and `rawOutput` of tool_call and tool_call_update (any value is passed through). A required
       key that is null is malformed, and kept.
    3. A top-level `_meta`, and every other unknown top-level key, goes to the extensions as it is, null or not.
    4. Only the top level is looked at. Nested values are passed through, nulls included: in `oldText: null` null
       says that a file is new.
    5. An update with an unknown tag is `unrecognized-update`: its payload is the whole of it, tag and `_meta`
       included. Text that cannot be read as JSON without loss is the same, its payload the text as a string."""
    value = _read(update) if isinstance(update, bytes) else update
    tag = value.get(_TAG) if isinstance(value, Mapping) else None
    if not isinstance(value, Mapping) or not isinstance(tag, str) or tag not in UPDATE_TYPES:
        return Normalized(UNRECOGNIZED, value)
    keys = _KEYS[tag]
    payload: dict[str, object] = {}
    extensions: dict[str, object] = {}
    for key, item in value.items():
        if key not in keys.known:
            extensions[key] = item
        elif item is not None or key not in keys.omitted_when_null:
            payload[key] = item
    extensions.pop(_TAG)
    return Normalized(UPDATE_TYPES[tag], payload, extensions)


def _read(raw: bytes) -> object:
    try:
        return jsontext.read(raw)
    except jsontext.READ_ERRORS:
        return raw.decode("utf-8", "replace")


def _keys(update: type[msgspec.Struct], tag: str) -> _Keys:
    fields = [field for field in msgspec.structs.fields(update) if field.encode_name != _META]
    optional = frozenset(field.encode_name for field in fields if not field.required)
    return _Keys(
        known=frozenset(field.encode_name for field in fields),
        omitted_when_null=optional - _NULL_SAYS_SOMETHING.get(tag, frozenset()),
    )


_KEYS = {tag: _keys(update, tag) for update in UPDATES for tag in (cast(str, update.__struct_config__.tag),)}
