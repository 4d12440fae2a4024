"""Durable counters: what an agent did so far, for limits that outlive a restart and hold across servers.

A counter is of a workspace, an agent, a policy and a thing that is counted; each of them is a column of its own, so
no name can be taken for a part of another. Whoever counts reads all of an agent's counters in one statement and
writes those that grow, in one serialisable transaction. A refusal writes nothing and gets in nobody's way.

INV-C1  A window never lets more than its limit into any span of time, whatever servers and restarts lie within.
INV-C2  It counts at most `FINEST` calls each by its own millisecond, and more of them in slots of a span's sixtieth,
        as if all had come at the slot's end: so it stays small, and errs towards refusing.
INV-C3  Its time never runs back. A clock that is behind by up to `SKEW_MS` is taken to be late. One that is further
        behind was set back: what counted then keeps its age and counts from there. So nothing passes twice, and
        nobody is locked out until the old time is reached again.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from legation.store.buckets import SKEW_MS
from legation.store.database.queries import Queries
from legation.store.database.transaction import Transaction

FINEST: Final = 60
FORGET_BATCH: Final = 1000

Held: TypeAlias = dict[tuple[str, str], str]
"""The values of an agent's counters, by policy and what is counted."""

_SQL: Final = Queries("counters")


def held(workspace: str, agent: str) -> Transaction[Held]:
    rows = yield _SQL.held(workspace=workspace, agent=agent)
    return {(row["policy"], row["what"]): row["value"] for row in rows}


def put(
    workspace: str, agent: str, policy: str, what: str, value: str, until: int | None
) -> Transaction[None]:
    """`until` None: it is never forgotten."""
    yield _SQL.put(workspace=workspace, agent=agent, policy=policy, what=what, value=value, until=until)


def forget(now_ms: int) -> Transaction[int]:
    """How many it forgot: at most `FORGET_BATCH`, so call again while it is that many."""
    rows = yield _SQL.forget(now=now_ms, limit=FORGET_BATCH)
    return len(rows)


class Window(msgspec.Struct, frozen=True, array_like=True):
    """Calls in the last `span` milliseconds. A slot is when its calls came at the latest, and how many they were."""

    at: int  # the window's own time: the latest that any clock has shown it
    slots: tuple[tuple[int, int], ...] = ()  # the oldest first

    @classmethod
    def read(cls, text: str) -> Window:
        return _DECODER.decode(text)

    def written(self) -> str:
        return _ENCODER.encode(self).decode()

    @property
    def count(self) -> int:
        return sum(calls for _, calls in self.slots)

    def now(self, now_ms: int, span: int) -> Window:
        """The window as it is now, without what has gone out of it."""
        back = self.at - now_ms
        if back > SKEW_MS:
            moved = tuple((latest - back, calls) for latest, calls in self.slots)
            return Window(now_ms, moved).now(now_ms, span)
        at = max(self.at, now_ms)
        return Window(at, tuple(slot for slot in self.slots if at - slot[0] < span))

    def wait(self, limit: int, now_ms: int, span: int) -> int:
        """Milliseconds until one more fits under the limit, if nothing else comes; 0: it fits now."""
        excess = self.count - limit + 1
        for latest, calls in self.slots:
            if excess <= 0:
                break
            excess -= calls
            if excess <= 0:
                return latest + span - now_ms
        return 0

    def counted(self, limit: int, span: int) -> Window:
        """With one more, at its own time."""
        width = 1 if limit <= FINEST else max(1, span // FINEST)
        latest = self.at - self.at % width + width - 1
        if self.slots and self.slots[-1][0] >= latest:
            (last, calls), before = self.slots[-1], self.slots[:-1]
            return Window(self.at, (*before, (last, calls + 1)))
        return Window(self.at, (*self.slots, (latest, 1)))

    def last(self, calls: int) -> Window:
        """Without the oldest slots that are not needed to know of so many calls."""
        spare, slots = self.count - calls, self.slots
        while slots and spare >= slots[0][1]:
            spare -= slots[0][1]
            slots = slots[1:]
        return Window(self.at, slots)

    def until(self, span: int) -> int:
        """When it is as good as empty, by any server's clock."""
        return (self.slots[-1][0] if self.slots else self.at) + span + SKEW_MS


_DECODER: Final = msgspec.json.Decoder(Window)
_ENCODER: Final = msgspec.json.Encoder()
