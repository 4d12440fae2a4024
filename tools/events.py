"""The reference page and the contract of all events, generated from their types; `tools/pages.py` writes them."""

import inspect
import types
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Literal, Union, get_args, get_origin

import msgspec
from msgspec.structs import FieldInfo

from legation.wire.acp.updates import ConfigOption, ContentBlock, PlanContent, ToolCallContent
from legation.wire.event_types import (
    APPROVAL_STREAM,
    DIAGNOSTIC_MEANINGS,
    EVENT_TYPES,
    HOST_STREAM,
    INBOX_STREAM,
    SERVER_STREAM,
    SESSION_STREAM,
    UPDATES,
    Known,
    event_type,
)
from legation.wire.events import UNRECOGNIZED, VERSION

Struct = type[msgspec.Struct]

_EVENTS: frozenset[type[Known]] = frozenset((*UPDATES, *EVENT_TYPES))
_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", object: "any", type(None): "null"}
_NAMED_UNIONS = {
    "ContentBlock": get_args(ContentBlock),
    "ToolCallContent": get_args(ToolCallContent),
    "ConfigOption": get_args(ConfigOption),
    "PlanContent": get_args(PlanContent),
}

_INTRODUCTION = f"""\
# Events

<!-- Made by `python -m tools.pages` from the types of wire/; edit those. -->

Version {VERSION} of the contract. Every event has a number (`seq`: dense, per stream, never used twice), a
time (`at`, epoch milliseconds), a type and a payload. The payload is JSON, stored and delivered as the bytes
that came in. Optional fields that have no value are absent. Readers must ignore fields, and keep events, that
they do not know.

ACP shapes may also carry `_meta`, an object that Legation passes on untouched. Words that agents may extend
(kinds, statuses, stop reasons) are given as `string`.
"""
_UPDATES_INTRODUCTION = """\
The session updates of ACP v1 (the stable ones, and those of named plans), as the agent sent them or as its driver made them. On the wire each also
has `sessionUpdate`, the type with `_` for `-`. The log keeps the whole `params` that held it, since version 4: see
docs/streams.md, `raw` and `update`.
A part of an unknown form inside a known update is read as `Unread`, which holds it; the stored bytes are as sent.
"""
_UNRECOGNIZED_SECTION = f"""\
### {UNRECOGNIZED}

An update with any other tag, or one that cannot be read, kept verbatim: the payload is the whole of it.
"""


def page() -> str:
    sections = (
        _INTRODUCTION,
        *_events("Session stream: agent updates", _UPDATES_INTRODUCTION, UPDATES),
        _UNRECOGNIZED_SECTION,
        *_events("Session stream: Legation's own", "", SESSION_STREAM),
        *_events("Host stream", "", HOST_STREAM),
        *_events("Server stream", "", SERVER_STREAM),
        *_events("Approvals stream", "", APPROVAL_STREAM),
        *_events("Inbox stream", "", INBOX_STREAM),
        "## Diagnostic codes\n\n| code | meaning |\n|---|---|\n"
        + "".join(f"| `{code}` | {meaning} |\n" for code, meaning in DIAGNOSTIC_MEANINGS.items()),
        "## Unions\n\n" + "".join(f"- **{name}**: {_members(name)}\n" for name in _NAMED_UNIONS),
        "## Shapes\n",
        *(_section(shape.__name__, shape) for shape in _shapes()),
    )
    return "\n".join(sections)


def contract() -> dict[str, object]:
    """What a reader may rely on: a change to it is a new VERSION."""
    return {
        "version": VERSION,
        "updates": {event_type(cls): _contract_fields(cls) for cls in UPDATES} | {UNRECOGNIZED: {}},
        "session": {event_type(cls): _contract_fields(cls) for cls in SESSION_STREAM},
        "host": {event_type(cls): _contract_fields(cls) for cls in HOST_STREAM},
        "server": {event_type(cls): _contract_fields(cls) for cls in SERVER_STREAM},
        "approvals": {event_type(cls): _contract_fields(cls) for cls in APPROVAL_STREAM},
        "inbox": {event_type(cls): _contract_fields(cls) for cls in INBOX_STREAM},
        "diagnostics": [str(code) for code in DIAGNOSTIC_MEANINGS],
        "shapes": {shape.__name__: _contract_fields(shape) for shape in _shapes()},
    }


def _events(title: str, introduction: str, classes: Iterable[type[Known]]) -> Iterator[str]:
    yield f"## {title}\n" + (f"\n{introduction}" if introduction else "")
    for cls in classes:
        yield _section(event_type(cls), cls)


def _section(title: str, cls: Struct) -> str:
    meaning = inspect.cleandoc(cls.__dict__.get("__doc__") or "").split("\n\n")[0].replace("\n", " ")
    rows = [_row(field) for field in _fields(cls)]
    table = ["| field | type | |", "|---|---|---|", *rows] if rows else ["No fields."]
    return "\n".join([f"### {title}", "", *([meaning, ""] if meaning else []), *table, ""])


def _row(field: FieldInfo) -> str:
    written = _type_text(field.type).replace("|", "\\|")
    return f"| `{field.encode_name}` | {written} | {'required' if field.required else 'optional'} |"


def _contract_fields(cls: Struct) -> Mapping[str, str]:
    return {
        field.encode_name: _type_text(field.type) + ("" if field.required else " (optional)")
        for field in _fields(cls)
    }


def _fields(cls: Struct) -> list[FieldInfo]:
    return [field for field in msgspec.structs.fields(cls) if field.encode_name != "_meta"]


def _type_text(kind: object) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and kind in _PLAIN:
        return _PLAIN[kind]
    if origin is Literal:
        return " | ".join(f"`{word}`" for word in arguments)
    if origin in (Union, types.UnionType):
        return _union_text(arguments)
    if origin is tuple:
        return f"list of {_type_text(arguments[0])}"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "one of the codes below"
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return f"payload of `{event_type(kind)}`" if kind in _EVENTS else kind.__name__
    return "object"


def _union_text(members: tuple[object, ...]) -> str:
    # None as a default means absent; where null itself counts, the field is typed with UnsetType.
    counts_null = msgspec.UnsetType in members
    left_out = {msgspec.UnsetType} if counts_null else {type(None)}
    kept = [member for member in members if member not in left_out]
    named = [name for name, union in _NAMED_UNIONS.items() if set(union) == set(kept)]
    return named[0] if named else " | ".join(_type_text(member) for member in kept)


def _members(union: str) -> str:
    return ", ".join(f"{kind.__name__} (`{kind.__struct_config__.tag}`)" for kind in _NAMED_UNIONS[union])


def _shapes() -> list[Struct]:
    """Every struct that an event reaches and that is no event itself, by name."""
    found: dict[str, Struct] = {}
    waiting: list[object] = list(_EVENTS)
    while waiting:
        kind = waiting.pop()
        if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
            waiting.extend(get_args(kind))
        elif kind.__name__ not in found:
            found[kind.__name__] = kind
            waiting.extend(field.type for field in _fields(kind))
    return [found[name] for name in sorted(found) if found[name] not in _EVENTS]
