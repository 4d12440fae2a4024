"""The rows of every log: numbered events, and drafts that have no number yet.

INV-W1  `raw` is the JSON text as the agent sent it (or as a driver made it), and is never re-encoded.
INV-W2  The type follows from the text alone: reading it never raises, on any bytes.
INV-W3  What is not understood is kept, as `unrecognized-update`, never dropped.
"""

import msgspec

from legation.wire import jsontext

VERSION = 3
"""Of the public contract: the event types and their fields. See docs/reference/events.md."""

UNRECOGNIZED = "unrecognized-update"

UPDATE_TYPES: dict[str, str] = {
    tag: tag.replace("_", "-")
    for tag in (
        "user_message_chunk",
        "agent_message_chunk",
        "agent_thought_chunk",
        "tool_call",
        "tool_call_update",
        "plan",
        "available_commands_update",
        "current_mode_update",
        "config_option_update",
        "session_info_update",
        "usage_update",
        "notice",
        "compaction_update",
        "compaction_summary_chunk",
    )
}
"""The tags of the stable ACP v1 session updates, and the event type of each."""


class Draft(msgspec.Struct, frozen=True, gc=False):
    """An event that its log has not numbered yet."""

    type: str
    raw: bytes
    native: bytes = b""


class Event(msgspec.Struct, frozen=True, gc=False):
    """One row of a log. `at` is epoch milliseconds, `native` the agent's own line where a driver translated it."""

    seq: int
    at: int
    type: str
    raw: bytes
    native: bytes = b""


class _Tagged(msgspec.Struct, gc=False):
    sessionUpdate: str  # noqa: N815 - spelt as on the wire: a rename costs time on the hot path


_decode_tag = msgspec.json.Decoder(_Tagged).decode
_type_of_tag = UPDATE_TYPES.get
_START = b'{"sessionUpdate":"'  # as nearly all agents write it
_type_of_start = {_START + tag.encode(): name for tag, name in UPDATE_TYPES.items()}.get


def update_type(raw: bytes) -> str:
    """The event type of one ACP session update, from its tag alone."""
    try:
        return _type_of_tag(_decode_tag(raw).sessionUpdate, UNRECOGNIZED)
    except (ValueError, RecursionError):
        return _update_type_leniently(raw)


def update_type_of_json(raw: bytes) -> str:
    """The same, of bytes that are known to be JSON: mostly their start says it. Called once for every event."""
    return _type_of_start(raw[: raw.find(b'"', len(_START))]) or update_type(raw)


def _update_type_leniently(raw: bytes) -> str:
    try:
        value = jsontext.read_leniently(raw)
    except jsontext.READ_ERRORS:
        return UNRECOGNIZED
    tag = value.get("sessionUpdate") if isinstance(value, dict) else None
    return _type_of_tag(tag, UNRECOGNIZED) if isinstance(tag, str) else UNRECOGNIZED
