"""Loops: the same call again and again.

In memory, because a loop is a matter of seconds and a restart ends it anyway.

INV-O1  The `same`-th equal call `within` the time is a hit, and so is each one after it until the agent pauses:
        calls that were refused are noted like others.
INV-O2  Memory is bounded whatever agents do. What was used longest ago is dropped, of an agent that makes too many
        different calls its own first: it cannot push out what is known of the others.
"""

from __future__ import annotations

import hashlib
from typing import Final

from legation.approvals.limits import Covering, LimitHit, worst
from legation.approvals.policy.verdict import Loop
from legation.clock import Clock
from legation.store.counters import Window

MOST_OF_ONE: Final = 500  # different calls that are remembered of one agent
MOST: Final = 40_000  # calls that are remembered of all agents, equal ones too: some 10 MB

_Calls = dict[bytes, Window]  # by call and loop, the one used longest ago first


class Loops:
    """The loops of one server. `key` says whose call it is: workspace and agent, or session."""

    def __init__(self, clock: Clock, *, most: int = MOST, most_of_one: int = MOST_OF_ONE) -> None:
        self._clock = clock
        self._most = most
        self._most_of_one = most_of_one
        self._agents: dict[bytes, _Calls] = {}  # the one that called longest ago first
        self._count = 0

    def __len__(self) -> int:
        """How many calls are remembered."""
        return self._count

    def repeated(
        self, key: tuple[str, ...], digest: str, limits: Covering, *, note: bool = True
    ) -> LimitHit | None:
        """Notes the call, unless it is only asked what would happen."""
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
    """Short, however long the names are that agents give themselves."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).digest()
