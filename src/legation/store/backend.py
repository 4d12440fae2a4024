"""Stores of an event log, as the log sees them: durable batches in, pages of events out.

A backend is used from one writer thread (`commit`) and one reader thread (everything else); the numbers, the
order and the subscribers are the log's business.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, Protocol

from legation.wire.events import Event

State = Literal["open", "closed", "deleted"]


LOCAL: Final = "local"  # the first workspace: its streams are stored under their own names
_APART: Final = "\x1f"  # between a workspace and a name: in no name


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """To a backend `name` is the key that it stores the stream under; to everybody else the name in its workspace."""

    name: str
    workspace: str = "local"
    state: State = "open"
    first_seq: int = 1  # where readers begin: with the newest generation
    head: int = 0  # the last number given; never given again
    meta: bytes = b"{}"
    earlier: tuple[int, ...] = ()  # where the generations before it begin, the oldest first

    def begun_at(self, seq: int) -> tuple[int, ...]:
        """The beginnings of the earlier generations once another begins at `seq`: one that is empty is none."""
        return (*self.earlier, self.first_seq) if self.first_seq < seq else self.earlier


def key_of(name: str, workspace: str) -> str:
    """Each workspace has names of its own: `approvals` of one is not that of another."""
    return name if workspace == LOCAL else f"{workspace}{_APART}{name}"


def is_name(text: str) -> bool:
    return _APART not in text


def named(info: StreamInfo) -> StreamInfo:
    """As it is called in its workspace."""
    return replace(info, name=info.name.rpartition(_APART)[2])


@dataclass(frozen=True, slots=True, eq=False)
class Create:
    stream: str
    workspace: str


@dataclass(frozen=True, slots=True, eq=False)
class Append:
    """`size` is that of the raw events together, counted once: to touch each of them again costs more than the sum."""

    stream: str
    events: Sequence[Event]
    size: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Replace:
    """A new generation: what readers see becomes these events, numbered after all earlier ones, which stay and can be
    read. Reopens the stream; without events that is all it does. `meta` is its metadata from then on."""

    stream: str
    events: Sequence[Event]
    meta: bytes | None = None


@dataclass(frozen=True, slots=True, eq=False)
class SetState:
    stream: str
    state: State


@dataclass(frozen=True, slots=True, eq=False)
class SetMeta:
    stream: str
    meta: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A piece of a text that would hold up others' commits. All of them come before the event that names the `blob`."""

    stream: str
    blob: str
    number: int
    body: bytes


Op = Create | Append | Replace | SetState | SetMeta | Part


@dataclass(frozen=True, slots=True)
class StorageTrouble:
    """Something a store found or could not do, told once; `code` is a diagnostic code of `wire`."""

    code: Literal["storage/write-failed", "storage/recovered", "storage/malformed-line", "clock/jumped"]
    message: str
    stream: str | None = None


Report = Callable[[StorageTrouble], None]


class Backend(Protocol):
    durable: bool  # False: `commit` is immediate and keeps nothing; the log itself is the store
    keeps_parts: bool  # else a long event is stored as it is: nobody else is held up by it

    def open(self, report: Report) -> None:
        """Take sole ownership and mend what a crash left."""

    def commit(self, ops: Sequence[Op]) -> None:
        """Durable when it returns, in the order given. After an error the same or more ops may be given
        again: an event that is already stored is not stored twice."""

    def lookup(self, stream: str) -> StreamInfo | None: ...

    def streams(self) -> list[StreamInfo]:
        """Every stream but the deleted ones."""

    def deleted(self) -> list[StreamInfo]:
        """The tombstones: names that are not used again."""

    def read(self, stream: str, after: int, up_to_bytes: int) -> list[Event]:
        """The next events above `after`, about that many bytes of them; empty only at the end."""

    def close(self) -> None: ...


def merge_appends(ops: Sequence[Op]) -> list[Op]:
    """Batches of one stream that follow each other, with others' in between, become one.

    Only appends move, and only past other streams' ops, so every stream keeps its own order.
    """
    merged: list[Op] = []
    gathered: dict[str, list[Event]] = {}
    for op in ops:
        if not isinstance(op, Append):
            gathered.pop(op.stream, None)
            merged.append(op)
        elif op.stream in gathered:
            gathered[op.stream].extend(op.events)
        else:
            gathered[op.stream] = list(op.events)
            merged.append(Append(op.stream, gathered[op.stream]))
    return merged


class MemoryBackend:
    """Nothing is stored: the log keeps every event of a memory stream itself, for as long as the stream lives."""

    durable = False
    keeps_parts = False

    def open(self, report: Report) -> None:
        del report

    def commit(self, ops: Sequence[Op]) -> None:
        del ops

    def lookup(self, stream: str) -> StreamInfo | None:
        del stream
        return None

    def streams(self) -> list[StreamInfo]:
        return []

    def deleted(self) -> list[StreamInfo]:
        return []

    def read(self, stream: str, after: int, up_to_bytes: int) -> list[Event]:
        del stream, after, up_to_bytes
        return []

    def close(self) -> None: ...
