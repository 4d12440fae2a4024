"""The changes of a workspace's approvals, followed: the stream `approvals`, read as what it holds."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from legation.client.follow import Follow
from legation.client.operation import Query
from legation.client.repeat import PATIENCE, Reconnects
from legation.client.source import OneStream
from legation.client.sse import Frame
from legation.wire.approvalstream import ApprovalChanged
from legation.wire.events import Event

STREAM: Final = "approvals"

_decode: Final = msgspec.json.Decoder(ApprovalChanged).decode


class Change(NamedTuple):
    """What an approval is after something happened to it. Keep `seq` to go on from there."""

    seq: int
    at: int  # epoch milliseconds, by the server's clock
    approval: ApprovalChanged


class Changes:
    """A source of changes. What this version cannot read is passed over: a newer server may say more."""

    body: bytes | None = None
    over = False

    def __init__(self, after: int) -> None:
        self._stream = OneStream(STREAM, after)
        self.path = self._stream.path

    def connect(self) -> tuple[Query, dict[str, str]]:
        return self._stream.connect()

    def read(self, frame: Frame) -> tuple[Change, ...]:
        return tuple(change for event in self._stream.read(frame) if (change := _change(event)) is not None)

    def ends(self, frame: Frame) -> bool:
        return self._stream.ends(frame)


def follow_approvals(after: int = 0, *, patience: float = PATIENCE) -> Follow[Change]:
    """Every change above the number `after`, then all to come, over as many connections as it takes.

    For what is pending and what then changes, without a gap: take the head of the stream `approvals`, list what is
    pending, and follow from that head."""
    return Follow(Changes(after), Reconnects(patience))


def _change(event: Event) -> Change | None:
    if event.type != ApprovalChanged.event_type():
        return None
    try:
        return Change(event.seq, event.at, _decode(event.raw))
    except ValueError:
        return None
