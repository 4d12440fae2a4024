"""Limits that outlive a restart and hold across servers: token buckets, and counters of what an agent did so far.

Buckets: one holds `capacity` tokens and refills evenly, `capacity` in `per_seconds`. It needs no row while it is full.

INV-B1  However many callers and servers there are, no more passes than the tokens there were and the refill since.
INV-B2  A clock that is behind, or was set back, refills nothing twice. Set back by more than `SKEW_MS` and a
        refill's time, it counts from there: nobody is locked out until the old time is reached again.
INV-B3  Exact: levels are whole multiples of a thousandth of a second's refill, so nothing is lost by rounding.

Counters: one is of a workspace, an agent, a policy and a thing that is counted; each of them is a column of its own, so
no name can be taken for a part of another. Whoever counts reads all of an agent's counters in one statement and
writes those that grow, each only where it still has the value that was read: so none is lost under read committed
either, and where one has changed the whole transaction is done again. A refusal writes nothing and gets in nobody's way.

INV-C1  A window never lets more than its limit into any span of time, whatever servers and restarts lie within.
INV-C2  It counts at most `FINEST` calls each by its own millisecond, and more of them in slots of a span's sixtieth,
        as if all had come at the slot's end: so it stays small, and errs towards refusing.
INV-C3  Its time never runs back. A clock that is behind by up to `SKEW_MS` is taken to be late. One that is further
        behind was set back: what counted then keeps its age and counts from there. So nothing passes twice, and
        nobody is locked out until the old time is reached again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec

from legation.clock import Clock
from legation.errors import InternalError
from legation.store.database.transaction import (
    Database,
    Overtaken,
    Queries,
    Transaction,
    conditional,
    only,
)
from legation.store.secrets.sealer import must_be_plain
from legation.tasks import Groups

SKEW_MS: Final = 60_000  # by which the clocks of servers may differ
FORGET_BATCH: Final = 1000
TURN_LIMIT: Final = 5.0  # seconds in the line for one bucket: the time of those before, and of Postgres
MOST_AT_ONCE: Final = 256  # callers whose takes are one statement
MOST_KEPT: Final = 1024  # buckets of which a server remembers how it left them
FINEST: Final = 60
_EXACT: Final = 2**53  # up to here a float holds every whole number

_BUCKETS: Final = Queries("buckets")
_COUNTERS: Final = Queries("counters")

Held: TypeAlias = dict[tuple[str, str], str]
"""The values of an agent's counters, by policy and what is counted."""


class Limit(msgspec.Struct, frozen=True):
    capacity: int  # tokens in a full bucket: what may come at once
    per_seconds: int  # in which an empty one fills

    def __post_init__(self) -> None:
        if self.capacity < 1 or self.per_seconds < 1 or self.capacity * self.per_ms >= _EXACT:
            raise InternalError("cannot limit to that: give a capacity and seconds of at least 1, and fewer")

    @property
    def per_ms(self) -> int:
        return self.per_seconds * 1000


class TakeResult(msgspec.Struct, frozen=True):
    allowed: bool
    retry_after: float = 0.0  # seconds, if refused: then there is enough, unless others come first


class _Level(msgspec.Struct, frozen=True):
    """`parts` is tokens times the limit's milliseconds: refill is whole, `capacity` parts a millisecond."""

    parts: int
    at: int


class _Stored(msgspec.Struct, frozen=True):
    """A level as its row has it; `full_at` is for whoever forgets it."""

    tokens: float
    at: int
    full_at: int = 0


class _Taken(msgspec.Struct, frozen=True):
    results: list[TakeResult]
    left: _Stored | None = None  # None: it stays as it is


_ALLOWED: Final = TakeResult(True)


class Buckets:
    """The buckets of one server: of its callers one at a time goes to a bucket, and takes along whatever has come to the line
    meanwhile. So a flood at one bucket keeps one connection busy, and is a few statements."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._groups = Groups("legation-buckets", self._take_each, MOST_AT_ONCE)
        self._left: dict[tuple[str, str, Limit], _Stored] = {}  # as we left them; others may have come since

    async def take(self, workspace: str, name: str, limit: Limit, cost: int = 1) -> TakeResult:
        _must_be_takeable(workspace, name, limit, cost)  # here: others would be refused along with it
        try:
            return await self._groups.add((workspace, name, limit), cost, TURN_LIMIT)
        except TimeoutError:
            return TakeResult(False, TURN_LIMIT)  # a line as long as that is a flood

    async def _take_each(self, bucket: tuple[str, str, Limit], costs: list[int]) -> list[TakeResult]:
        now_ms = self._clock.now_ms()
        # First on trust, without a look: who is right about how it was left saves one, who is not finds out by the write.
        former = self._left.pop(bucket, None)
        if former is not None:
            taken = _take(former, bucket[2], now_ms, costs)
            allowed = all(each.allowed for each in taken.results)
            if allowed and await self._database.transact(_leave, *bucket[:2], former, taken.left):
                return self._keep(bucket, taken)
        return self._keep(bucket, await self._database.transact(_take_each, *bucket, now_ms, costs))

    def _keep(self, bucket: tuple[str, str, Limit], taken: _Taken) -> list[TakeResult]:
        while len(self._left) >= MOST_KEPT:
            del self._left[next(iter(self._left))]
        if taken.left is not None:
            self._left[bucket] = taken.left
        return taken.results


@conditional
def take(workspace: str, name: str, limit: Limit, now_ms: int, cost: int = 1) -> Transaction[TakeResult]:
    """As a part of another transaction; alone, through `Buckets`.

    `name` says what is limited for whom, `sign-in:192.0.2.7`; it is stored as it is, so never a credential.
    """
    _must_be_takeable(workspace, name, limit, cost)
    taken = yield from _take_each(workspace, name, limit, now_ms, [cost])
    return taken.results[0]


# Safe under read committed, this one and the next: the level is set only where it still is what it was read as, or where there still
# is none. Level and time are all that a bucket has, so whoever finds them the same has missed nothing.
@conditional
def _take_each(
    workspace: str, name: str, limit: Limit, now_ms: int, costs: Sequence[int]
) -> Transaction[_Taken]:
    """Take for some callers, in their order: as if each had come by itself at this moment."""
    # Read first: a refusal, which is what a crowded bucket mostly gives, costs no write and gets in nobody's way.
    row = only((yield _BUCKETS.level(workspace=workspace, name=name)))
    former = None if row is None else _Stored(row["tokens"], row["updated_at"])
    taken = _take(former, limit, now_ms, costs)
    if not (yield from _leave(workspace, name, former, taken.left)):
        raise Overtaken(f"cannot take of the bucket {name}: others were faster; try again")
    return taken


@conditional
def _leave(workspace: str, name: str, former: _Stored | None, left: _Stored | None) -> Transaction[bool]:
    """Set a level; whether it still was what it is taken for. One that is gone was full, by the clock of whoever forgot it."""
    if left is None:
        return True
    moved = yield _BUCKETS.set_level(
        workspace=workspace,
        name=name,
        tokens=left.tokens,
        updated_at=left.at,
        full_at=left.full_at,
        former=None if former is None else former.tokens,
        former_at=None if former is None else former.at,
    )
    return bool(moved)


def _take(former: _Stored | None, limit: Limit, now_ms: int, costs: Sequence[int]) -> _Taken:
    full = limit.capacity * limit.per_ms
    stored = None if former is None else _Level(round(former.tokens * limit.per_ms), former.at)
    level = _Level(full, now_ms) if stored is None else _refilled(stored, limit, now_ms)
    parts, results = level.parts, []
    for cost in costs:
        missing = cost * limit.per_ms - parts
        if missing <= 0:
            parts = -missing
            results.append(_ALLOWED)
        else:
            results.append(TakeResult(False, (level.at - now_ms + _refill_ms(missing, limit)) / 1000))
    # Where the clock was set back that is remembered, whether anything is taken or not.
    if parts < level.parts or (stored is not None and level.at < stored.at):
        full_at = level.at + _refill_ms(full - parts, limit)
        return _Taken(results, _Stored(parts / limit.per_ms, level.at, full_at))
    return _Taken(results)


def _must_be_takeable(workspace: str, name: str, limit: Limit, cost: int) -> None:
    if not 1 <= cost <= limit.capacity:
        raise InternalError(f"cannot take {cost} of a bucket of {limit.capacity}: it would never be allowed")
    must_be_plain(workspace, "the workspace of a bucket")
    must_be_plain(name, "the name of a bucket")


def forget_full(now_ms: int) -> Transaction[int]:
    """Forget what is over, at most `FORGET_BATCH` rows; return how many: call again while it is that many."""
    rows = yield _BUCKETS.forget_full(now=now_ms, limit=FORGET_BATCH)
    return len(rows)


def _refilled(stored: _Level, limit: Limit, now_ms: int) -> _Level:
    full = limit.capacity * limit.per_ms
    parts = min(stored.parts, full)  # the limit may have been lowered
    if now_ms >= stored.at:
        return _Level(min(full, parts + (now_ms - stored.at) * limit.capacity), now_ms)
    behind = stored.at - now_ms
    return _Level(parts, stored.at if behind <= max(SKEW_MS, limit.per_ms) else now_ms)


def _refill_ms(parts: int, limit: Limit) -> int:
    return -(-parts // limit.capacity)  # rounded up


def held(workspace: str, agent: str) -> Transaction[Held]:
    rows = yield _COUNTERS.held(workspace=workspace, agent=agent)
    return {(row["policy"], row["what"]): row["value"] for row in rows}


def put(
    workspace: str,
    agent: str,
    policy: str,
    what: str,
    value: str,
    until: int | None,
    former: str | None = None,
) -> Transaction[None]:
    """Keep a value in place of the `former` one, None where there was none. `until` None: it is never forgotten."""
    put = yield _COUNTERS.put(
        workspace=workspace,
        agent=agent,
        policy=policy,
        what=what,
        value=value,
        until=until,
        former=former,
    )
    if not put:
        raise Overtaken(f"cannot count {what} of {policy}: others were faster; try again")


def forget(now_ms: int) -> Transaction[int]:
    """Forget what is over, at most `FORGET_BATCH` rows; return how many: call again while it is that many."""
    rows = yield _COUNTERS.forget(now=now_ms, limit=FORGET_BATCH)
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
        """The time when it is as good as empty, by any server's clock."""
        return (self.slots[-1][0] if self.slots else self.at) + span + SKEW_MS


_DECODER: Final = msgspec.json.Decoder(Window)
_ENCODER: Final = msgspec.json.Encoder()
