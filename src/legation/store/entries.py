"""Lists of streams: which, in which order, from where on. A list reads what it shows, however many streams there are.

What a list or a start must know of a session is its `Entry`, which is read from the stream's metadata by `entry_of` and by
nothing else. A store may keep it beside the metadata, in the same commit, and then finds streams by it.

INV-E1  An entry is what `entry_of` makes of the metadata that it is stored with: whoever writes the one has written the other.
INV-E2  A session that a server's end may have left half done is `due`, from the commit on that began it: what is not due
        needs no look at the next start.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Final, NamedTuple, Self, TypeAlias

import msgspec

from legation.store.codec import State, StreamInfo, named

# What is said of a session, as bits.
DUE_OPEN: Final = 1  # what was begun in it is to be ended, if it is open
DUE_CLOSED: Final = 2  # if it is closed: what was entrusted to it goes with it
FAILED: Final = 4  # its agent ended by itself
REOPENS: Final = 8  # whoever closed it may load it again
SEVERAL: Final = 16  # it works in more folders than one

# Permission modes that are a grant: in another a session has none, but for one that is being given or withdrawn.
GRANTED_MODES: Final = frozenset(("acceptEdits", "bypass"))

Place: TypeAlias = tuple[int, str]
"""Where a stream stands in a list: numbers first, then its name."""
PlacedStream: TypeAlias = tuple[Place, StreamInfo]

_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_MARK: Final = b'"agentSessionId"'  # in the metadata of sessions, and of no other stream
_MOST: Final = 1 << 62  # a store has integers of 64 bits, and a session's time is its writer's word
_NULL: Final = msgspec.Raw(b"null")
_NOTHING: Final = (b"null", b"[]")


class Entry(NamedTuple):
    """`began` is None of one that is being deleted: it is in no list."""

    agent: str
    cwd: str
    began: int | None
    used: int
    flags: int


class _Details(msgspec.Struct, rename="camel"):
    """Details of a server, as far as lists need them."""

    agent: str
    created_at: int
    updated_at: int
    permission_mode: str = "default"
    sealed: msgspec.Raw = _NULL
    grant: msgspec.Raw = _NULL
    exit: msgspec.Raw = _NULL
    queue: msgspec.Raw = _NULL
    begun: msgspec.Raw = _NULL
    prompted: msgspec.Raw = _NULL
    deletion: msgspec.Raw = _NULL


class _Meta(msgspec.Struct, rename="camel"):
    """Metadata of a session, whoever's host wrote it."""

    agent_session_id: str
    cwd: str
    additional_directories: tuple[str, ...] = ()
    agent_definition_id: str | None = None
    updated_at: str | None = None
    reopens: bool = False
    details: msgspec.Raw = _NULL


_decode_meta = msgspec.json.Decoder(_Meta).decode
_decode_details = msgspec.json.Decoder(_Details).decode


def is_session(meta: bytes) -> bool:
    """Tell whether it looks like the metadata of one: of other streams no more is read."""
    return _MARK in meta


def entry_of(meta: bytes) -> Entry | None:
    """Return None for a stream that is no session."""
    if not is_session(meta):
        return None
    try:
        found = _decode_meta(meta)
    except msgspec.MsgspecError:
        return None
    try:
        details = _decode_details(found.details)
    except msgspec.MsgspecError:  # of no server's
        details = _Details(found.agent_definition_id or "", 0, 0)
    deleted = _is_there(details.deletion)
    return Entry(
        details.agent,
        found.cwd,
        None if deleted else _bounded(details.created_at),
        _bounded(max(details.updated_at, told_ms(found.updated_at))),
        _flags(found, details, deleted=deleted),
    )


def _flags(meta: _Meta, details: _Details, *, deleted: bool) -> int:
    waits = deleted or _is_there(details.queue) or _is_there(details.begun)
    grant = _is_there(details.grant)
    half_given = grant and details.permission_mode not in GRANTED_MODES
    # A turn without its end is found in one that is open; one that was closed has none.
    due_open = waits or half_given or _is_there(details.prompted)
    due_closed = waits or grant or _is_there(details.sealed)
    return (
        DUE_OPEN * due_open
        | DUE_CLOSED * due_closed
        | FAILED * _is_there(details.exit)
        | REOPENS * meta.reopens
        | SEVERAL * bool(meta.additional_directories)
    )


def _is_there(member: msgspec.Raw) -> bool:
    return member is not _NULL and bytes(member) not in _NOTHING


def _bounded(number: int) -> int:
    return max(-_MOST, min(_MOST, number))


def told_ms(updated_at: str | None) -> int:
    """The time in ms that an agent has told; 0 for what is none."""
    try:
        told = datetime.fromisoformat(updated_at or "")
        told = told.astimezone(UTC) if told.tzinfo else told.replace(tzinfo=UTC)
        # Exact: rounded up, the end of 9999 would be no time.
        return (told - _EPOCH) // timedelta(milliseconds=1)
    except (ValueError, OverflowError):  # an agent may say anything
        return 0


class StreamQuery(msgspec.Struct, frozen=True):
    """Streams of a workspace that have a place in a list, behind the one of `after`."""

    backwards: ClassVar[bool] = False  # the last place is the first of the list
    workspace: str
    after: Place | None = None

    def place(self, info: StreamInfo, entry: Entry | None) -> Place | None:
        """None where it is not in the list."""
        raise NotImplementedError

    def behind(self, place: Place) -> Self:
        return msgspec.structs.replace(self, after=place)

    def found(self, streams: Iterable[tuple[StreamInfo, Entry | None]]) -> list[PlacedStream]:
        """Those of them that are in it, in order."""
        places = (
            (self.place(info, entry), info) for info, entry in streams if self.workspace == info.workspace
        )
        there = self.only_behind([(place, info) for place, info in places if place is not None])
        return sorted(there, key=lambda each: each[0], reverse=self.backwards)

    def only_behind(self, found: Sequence[PlacedStream]) -> list[PlacedStream]:
        after = self.after
        if after is None:
            return list(found)
        return [each for each in found if (each[0] < after if self.backwards else after < each[0])]


class ByName(StreamQuery, frozen=True):
    """Every stream whose name begins so, that is in one of these states."""

    prefix: str = ""
    states: tuple[State, ...] = ("open", "closed")

    def place(self, info: StreamInfo, entry: Entry | None) -> Place | None:  # noqa: ARG002
        name = named(info).name
        return (0, name) if info.state in self.states and name.startswith(self.prefix) else None


class Newest(StreamQuery, frozen=True):
    """Sessions, the newest first (so the time in ms below zero), then by id. Neither changes: the last of a page says where
    the next begins."""

    def place(self, info: StreamInfo, entry: Entry | None) -> Place | None:
        if entry is None or entry.began is None or info.state == "deleted":
            return None
        return -entry.began, named(info).name


class LastUsed(StreamQuery, frozen=True):
    """Sessions of an agent that can be loaded, the last used first; in one folder, if that is given."""

    backwards: ClassVar[bool] = True
    agent: str = ""
    cwd: str | None = None

    def place(self, info: StreamInfo, entry: Entry | None) -> Place | None:
        if entry is None or entry.began is None or entry.agent != self.agent:
            return None
        loads = info.state == "open" or (info.state == "closed" and entry.flags & REOPENS)
        return (entry.used, named(info).name) if loads and self.cwd in (None, entry.cwd) else None


class LastFailed(StreamQuery, frozen=True):
    """Open sessions of an agent whose process ended by itself, in the order of `Newest`."""

    agent: str = ""

    def place(self, info: StreamInfo, entry: Entry | None) -> Place | None:
        if entry is None or entry.began is None or info.state != "open":
            return None
        return (
            (-entry.began, named(info).name) if entry.flags & FAILED and entry.agent == self.agent else None
        )


class WorkingIn(StreamQuery, frozen=True):
    """Sessions that work in that folder, or below it; with them those with several folders, of which one may be there. By
    name."""

    folder: str = ""

    def place(self, info: StreamInfo, entry: Entry | None) -> Place | None:
        if entry is None or entry.began is None or info.state == "deleted":
            return None
        there = entry.cwd == self.folder or entry.cwd.startswith(f"{self.folder}/")
        return (0, named(info).name) if there or entry.flags & SEVERAL else None


class Due(StreamQuery, frozen=True):
    """Sessions that a server's end may have left half done, by name."""

    def place(self, info: StreamInfo, entry: Entry | None) -> Place | None:
        wanted = {"open": DUE_OPEN, "closed": DUE_CLOSED, "deleted": 0}[info.state]
        return (0, named(info).name) if entry is not None and entry.flags & wanted else None
