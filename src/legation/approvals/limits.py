"""The limits of policies: how often an agent may call, and how much it may spend.

Every policy that covers an agent counts for itself, by workspace, policy and agent.

INV-L1  All or none: a call that one limit refuses is counted by none. So a refused agent does not use its limits up.
INV-L2  `max_per_minute` holds in any sixty seconds, and `max_total` for ever: neither idling nor a restart forgets it.
INV-L3  A sum never passes its limit: `take` only looks whether an amount fits, `charge` adds it right before the
        effect or refuses, also where two calls waited for approval at once. An amount that cannot be told is refused.
INV-L4  Limits are compared with what was counted so far: one that is lowered or raised counts at once.

Sums are whole billionths in decimal text: exact for anything that looks like money or a token's price, at any size
that a call may name. What is smaller than a billionth counts as one, so that nothing is free.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from datetime import date
from decimal import ROUND_HALF_EVEN, Decimal
from functools import lru_cache
from typing import Final, Literal, Protocol, TypeAlias

import msgspec

from legation.approvals.policy.rules import Loop, PolicyLimits, Spend
from legation.approvals.request import LimitName
from legation.approvals.trace.step import must_be_name
from legation.clock import Clock
from legation.store import counters
from legation.store.counters import Window
from legation.store.database.transaction import Transaction
from legation.wire.action import Action

MINUTE_MS: Final = 60_000
DAY_MS: Final = 86_400_000
KEPT_MS: Final = 7 * DAY_MS  # a day's sum after its day: a clock that ran ahead and is set right finds it
MOST_OF_ONE: Final = 500  # different calls that are remembered of one agent
MOST: Final = 40_000  # calls that are remembered of all agents, equal ones too: some 10 MB
_EPOCH: Final = date(1970, 1, 1).toordinal()
_BILLION: Final = 9  # digits

_RULES: Final[dict[LimitName, str]] = {
    "per-minute": "max-per-minute",
    "total": "max-total",
    "spend": "spend",
    "loop": "loop",
    "pending": "pending",
}

_Calls: TypeAlias = dict[bytes, Window]  # by call and loop, the one used longest ago first
Covering: TypeAlias = Sequence[tuple[str, PolicyLimits]]
"""The limits of every policy that covers an agent, by the policy's name: `PolicySet.limits`."""


class LimitHit(msgspec.Struct, frozen=True):
    """`reason` is for trace and agent and holds no argument. `retry_after`: seconds, None where time will not help."""

    policy: str
    limit: LimitName
    reason: str
    retry_after: float | None

    @property
    def rule(self) -> str:
        return f"{self.policy}:{_RULES[self.limit]}"


def take(
    workspace: str, agent: str, limits: Covering, action: Action, now_ms: int
) -> Transaction[LimitHit | None]:
    """Count this attempt, unless a limit refuses it. Amounts are looked at and not added."""
    if not (wanted := counted_by(limits, action)):
        return None
    looks = yield from _looks(workspace, agent, wanted, now_ms)
    hit = worst([look.hit for look in looks])
    for look in looks:
        value = look.anyway if hit else look.counted
        if value is not None and look.kind != "spend":
            yield from counters.put(workspace, agent, look.policy, look.what, value, look.until, look.former)
    return hit


def charge(
    workspace: str, agent: str, limits: Covering, action: Action, now_ms: int
) -> Transaction[LimitHit | None]:
    """Add what the action spends, all sums or none; right before the effect."""
    if not (wanted := list(_sums(limits, action))):
        return None
    looks = yield from _looks(workspace, agent, wanted, now_ms)
    hit = worst([look.hit for look in looks])
    for look in looks:
        if hit is None and look.counted is not None:
            yield from counters.put(
                workspace, agent, look.policy, look.what, look.counted, look.until, look.former
            )
    return hit


def peek(
    workspace: str, agent: str, limits: Covering, action: Action, now_ms: int
) -> Transaction[LimitHit | None]:
    """Tell what `take` would say; nothing is counted."""
    looks = yield from _looks(workspace, agent, counted_by(limits, action), now_ms)
    return worst([look.hit for look in looks])


def worst(hits: Sequence[LimitHit | None]) -> LimitHit | None:
    """Choose the one that holds longest, so that whoever comes again after its time is not refused by the next."""
    found = [hit for hit in hits if hit is not None]
    return max(found, key=_duration, default=None)


def _duration(hit: LimitHit) -> float:
    return float("inf") if hit.retry_after is None else hit.retry_after


class _Look(msgspec.Struct, frozen=True, kw_only=True):
    """The word of a counter on one more call."""

    kind: LimitName
    policy: str
    what: str
    hit: LimitHit | None = None
    counted: str | None = None  # its value with the call
    former: str | None = None  # its value as it was read: it is written only while that stands
    anyway: str | None = None  # its value without, where that is to be written even so
    until: int | None = None


class _Counter(Protocol):
    def look(self, held: counters.Held, now_ms: int) -> _Look: ...


def _looks(workspace: str, agent: str, wanted: Sequence[_Counter], now_ms: int) -> Transaction[list[_Look]]:
    unclear = [each.look({}, now_ms) for each in wanted if isinstance(each, _Untold)]
    if unclear or not wanted:
        return unclear
    held = yield from counters.held(workspace, must_be_name(agent, "an agent's name"))
    return [each.look(held, now_ms) for each in wanted]


def counted_by(limits: Covering, action: Action) -> list[_Counter]:
    """List all that have a say in this action."""
    found: list[_Counter] = []
    for policy, each in limits:
        if each.max_per_minute is not None:
            found.append(_PerMinute(policy, each.max_per_minute))
        if each.max_total is not None:
            found.append(_Total(policy, each.max_total))
    return [*found, *_sums(limits, action)]


def _sums(limits: Covering, action: Action) -> Iterator[_Counter]:
    """List one for each sum, also where a policy limits the same one twice: then the lower limit counts."""
    for policy, each in limits:
        found: dict[tuple[str, str], _Sum] = {}
        for spend in sorted(each.spend, key=lambda one: one.limit, reverse=True):
            amount = spend.amount(action)
            if amount is None:
                yield _Untold(policy, spend.field)
            elif amount > 0:
                found[spend.per, sum_name(spend)] = _Sum(policy, spend, amount)
        yield from found.values()


class _PerMinute(msgspec.Struct, frozen=True):
    policy: str
    limit: int
    what: Literal["per-minute"] = "per-minute"

    def look(self, held: counters.Held, now_ms: int) -> _Look:
        value = held.get((self.policy, self.what))
        stored = Window(now_ms) if value is None else Window.read(value)
        window = stored.now(now_ms, MINUTE_MS)
        counted = window.counted(self.limit, MINUTE_MS)
        return _Look(
            kind=self.what,
            policy=self.policy,
            what=self.what,
            hit=self._hit(window, now_ms) if window.count >= self.limit else None,
            former=value,
            counted=counted.written(),
            # The clock was set back. It is remembered from when, or the wait would begin again with every refusal.
            anyway=window.written() if window.at < stored.at else None,
            until=counted.until(MINUTE_MS),
        )

    def _hit(self, window: Window, now_ms: int) -> LimitHit:
        wait = window.wait(self.limit, now_ms, MINUTE_MS)
        return LimitHit(
            self.policy, self.what, f"more than {calls(self.limit)} in a minute", wait / 1000 or None
        )


class _Total(msgspec.Struct, frozen=True):
    policy: str
    limit: int
    what: Literal["total"] = "total"

    def look(self, held: counters.Held, now_ms: int) -> _Look:
        del now_ms  # it counts for ever
        former = held.get((self.policy, self.what))
        so_far = int(former or "0")
        hit = LimitHit(self.policy, self.what, f"more than {calls(self.limit)} in all", None)
        return _Look(
            kind=self.what,
            policy=self.policy,
            what=self.what,
            hit=hit if so_far >= self.limit else None,
            former=former,
            counted=str(so_far + 1),
        )


class _Sum(msgspec.Struct, frozen=True):
    policy: str
    spend: Spend
    amount: float

    def look(self, held: counters.Held, now_ms: int) -> _Look:
        daily = self.spend.per == "day"
        day = now_ms // DAY_MS
        # A day has a counter of its own: on whatever day a clock believes to be, that day's sum counts.
        period = date.fromordinal(_EPOCH + day).isoformat() if daily else "total"
        what = f"spend:{period}:{sum_name(self.spend)}"
        former = held.get((self.policy, what))
        total = int(former or "0") + billionths(self.amount)
        return _Look(
            kind="spend",
            policy=self.policy,
            what=what,
            hit=self._hit(now_ms) if total > billionths(self.spend.limit) else None,
            former=former,
            counted=str(total),
            until=(day + 1) * DAY_MS + KEPT_MS if daily else None,
        )

    def _hit(self, now_ms: int) -> LimitHit:
        limit = float(self.spend.limit)
        tomorrow = self.spend.per == "day" and self.amount <= limit
        shown = int(limit) if limit.is_integer() else limit
        reason = (
            f"more than {shown} of {self.spend.field} {'in a day' if self.spend.per == 'day' else 'in all'}"
        )
        return LimitHit(self.policy, "spend", reason, (DAY_MS - now_ms % DAY_MS) / 1000 if tomorrow else None)


class _Untold(msgspec.Struct, frozen=True):
    policy: str
    field: str

    def look(self, held: counters.Held, now_ms: int) -> _Look:
        del held, now_ms
        hit = LimitHit(self.policy, "spend", f"it cannot be told how much {self.field} it is", None)
        return _Look(kind="spend", policy=self.policy, what="spend", hit=hit)


@lru_cache(maxsize=1024)
def sum_name(spend: Spend) -> str:
    """Name a sum; short however long the policy's words are. The limit is no part of it."""
    tools = None if spend.tools is None else sorted(set(spend.tools.globs))
    of = msgspec.json.encode((spend.field.removeprefix("params."), tools))
    return hashlib.sha256(of).hexdigest()[:32]


def billionths(amount: float) -> int:
    # Of the decimal number that was written, not of the binary one that stands for it.
    whole = int(Decimal(repr(amount)).scaleb(_BILLION).to_integral_value(ROUND_HALF_EVEN))
    return whole if whole or amount <= 0 else 1


def calls(count: int) -> str:
    return "1 call" if count == 1 else f"{count} calls"


class Loops:
    """The same call again and again, at one server. `key` says whose call it is: workspace and agent, or session.

    In memory, because a loop is a matter of seconds and a restart ends it anyway.

    INV-O1  The `same`-th equal call `within` the time is a hit, and so is each one after it until the agent pauses:
            calls that were refused are noted like others.
    INV-O2  Memory is bounded whatever agents do. What was used longest ago is dropped, of an agent that makes too many
            different calls its own first: it cannot push out what is known of the others.
    """

    def __init__(self, clock: Clock, *, most: int = MOST, most_of_one: int = MOST_OF_ONE) -> None:
        self._clock = clock
        self._most = most
        self._most_of_one = most_of_one
        self._agents: dict[bytes, _Calls] = {}  # the one that called longest ago first
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def repeated(
        self, key: tuple[str, ...], digest: str, limits: Covering, *, note: bool = True
    ) -> LimitHit | None:
        """Note the call, unless it is only asked what would happen."""
        now = round(self._clock.monotonic() * 1000)
        # Each once, with the first policy that has it: two policies with the same loop must not note a call twice.
        loops: dict[Loop, str] = {}
        for policy, each in limits:
            if each.loop is not None:
                loops.setdefault(each.loop, policy)
        return worst([self._hit(key, digest, policy, loop, now, note=note) for loop, policy in loops.items()])

    def _hit(
        self, key: tuple[str, ...], digest: str, policy: str, loop: Loop, now: int, *, note: bool
    ) -> LimitHit | None:
        agent, call = _name(*key), _name(digest, f"{loop.same} {loop.within}")
        span = max(1, round(loop.within * 1000))
        before = self._agents.get(agent, {}).get(call, Window(now)).now(now, span)
        after = before.counted(loop.same, span).last(loop.same)
        if note:
            self._note(agent, call, after)
        if before.count + 1 < loop.same:
            return None
        wait = after.wait(loop.same - 1, now, span)
        reason = f"the same call {loop.same} times within {loop.within:g} seconds"
        return LimitHit(policy, "loop", reason, wait / 1000 or None)

    def _note(self, agent: bytes, call: bytes, window: Window) -> None:
        found = self._agents.pop(agent, {})
        self._agents[agent] = found
        before = found.pop(call, None)
        found[call] = window
        self._count += len(window.slots) - (len(before.slots) if before else 0)
        if len(found) > self._most_of_one:
            self._drop(agent)
        if self._count > self._most:
            self._drop(next(iter(self._agents)))

    def _drop(self, agent: bytes) -> None:
        found = self._agents[agent]
        self._count -= len(found.pop(next(iter(found))).slots)
        if not found:
            del self._agents[agent]


def _name(*parts: str) -> bytes:
    # Short, however long the names are that agents give themselves.
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).digest()
