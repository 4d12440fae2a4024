"""The rows of every log: numbered events, and drafts that have no number yet.

INV-W1  `raw` is the JSON text as the agent sent it (or as a driver made it), and is never re-encoded. Of a session
        update it is the whole `params`: the session's name, the update, and whatever stands beside them.
INV-W2  The type follows from the text alone: reading it never raises, on any bytes.
INV-W3  What is not understood is kept, as `unrecognized-update`, never dropped.
INV-W4  Where the update stands in `raw` is written beside it, by us: nothing that an agent sends can feign it. Both parts
        of a `span` are above 0 for params, for these have brackets, and both are 0 where all of `raw` is the payload:
        in events of our own, in native lines, and in every row of an update from before version 4.
INV-W5  An update that is too much to be decoded here comes with a `digest`: JSON of some kilobytes that says the same in
        the small and is decoded in its place; `null` where the update is no JSON that can be read. With a digest, `raw`
        is UTF-8, and unless that is `null` it is JSON that nests no deeper than anybody reads. It is never cut; where
        it was stored ahead of its row, `blob` is the name under which the store finds it again. Which members of the
        update do not say all in a digest, stands in it under `CUT`. Of an update that a driver made of such a line,
        `native` may be what is too much; of it the same is true.
"""

import re
from typing import Final, TypeAlias, dataclass_transform

import msgspec

from legation.wire import jsontext

VERSION = 6
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
        "plan_update",
        "plan_removed",
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
"""The tags of the session updates that are modelled, and the event type of each: those of stable ACP v1, and those of plans
that have names, which are not stable yet."""


Span: TypeAlias = tuple[int, int]
"""How many bytes of `raw` stand before the update, and how many behind it (INV-W4)."""

WHOLE: Final[Span] = (0, 0)
CUT: Final = "_cut"
UNREADABLE: Final = b"null"  # the digest of what is no JSON that can be read


_WORD_START = re.compile(r"(?<!^)(?=[A-Z])")


class LongNative(bytes):
    """A native line that is written in base64, with that, if somebody has taken the time to make it."""

    base64: bytes = b""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Payload(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of Legation's own events: camelCase on the wire; absent optional fields are left out."""

    @classmethod
    def event_type(cls) -> str:
        return _WORD_START.sub("-", cls.__name__).lower()  # `TurnState` is `turn-state`


class _Row:
    """The payload of a row, numbered or not."""

    __slots__ = ()
    raw: bytes
    span: Span
    digest: bytes

    @property
    def payload(self) -> bytes:
        """The update alone; of another event all there is."""
        before, behind = self.span
        return self.raw[before : len(self.raw) - behind]

    @property
    def brief(self) -> bytes:
        """The text that is decoded: the payload, or its digest where it has one."""
        return self.digest or self.payload


class Draft(_Row, msgspec.Struct, frozen=True, gc=False):
    """An event that its log has not numbered yet."""

    type: str
    raw: bytes
    native: bytes = b""
    span: Span = WHOLE
    digest: bytes = b""
    blob: str = ""


class Event(_Row, msgspec.Struct, frozen=True, gc=False):
    """One row of a log. `at` is epoch milliseconds, `native` the agent's own line where a driver translated it."""

    seq: int
    at: int
    type: str
    raw: bytes
    native: bytes = b""
    span: Span = WHOLE
    digest: bytes = b""
    blob: str = ""


class _TaggedUpdate(msgspec.Struct, gc=False):
    sessionUpdate: str  # noqa: N815 - spelt as on the wire: a rename costs time on the hot path


# Called once for every event, and straight: that it is JSON, of one object with a tag, is found out here too, by ValueError
# or RecursionError.
decode_tag = msgspec.json.Decoder(_TaggedUpdate).decode
type_of_tag = UPDATE_TYPES.get


def update_type(raw: bytes) -> str:
    """The event type of one ACP session update, from its tag alone."""
    try:
        return type_of_tag(decode_tag(raw).sessionUpdate, UNRECOGNIZED)
    except (ValueError, RecursionError):
        return _update_type_leniently(raw)


def params_draft(session_id: str, update: bytes, native: bytes = b"", type_: str | None = None) -> Draft:
    """The row of an update that a driver made: of params as an agent of ACP would have sent them."""
    head = b'{"sessionId":%b,"update":' % jsontext.write(session_id)
    return Draft(type_ or update_type(update), b"%b%b}" % (head, update), native, (len(head), 1))


def span_of(params: bytes, update: bytes) -> Span:
    """The place of an update in its params. What is found has its very bytes, even if it be said twice there."""
    last = len(params) - len(update) - 1  # where it begins if it is the last member, as agents write it
    before = last if params.startswith(update, last) else params.find(update)
    return before, len(params) - before - len(update)


def _update_type_leniently(raw: bytes) -> str:
    try:
        value = jsontext.read_leniently(raw)
    except jsontext.READ_ERRORS:
        return UNRECOGNIZED
    tag = value.get("sessionUpdate") if isinstance(value, dict) else None
    return type_of_tag(tag, UNRECOGNIZED) if isinstance(tag, str) else UNRECOGNIZED
