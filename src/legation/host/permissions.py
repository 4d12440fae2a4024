"""The permissions that one session's agent waits for; INV-8 of `inquiries` holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import get_args

from msgspec.structs import replace

from legation.clock import Clock
from legation.host.inquiries import Inquiries
from legation.store.stream import Receipt
from legation.wire.acp.permission import RequestPermissionResponse, Selected
from legation.wire.acp.shape import Meta
from legation.wire.ask import (
    Approver,
    Ask,
    Decision,
    Outcome,
    Timekeeper,
    choose_option,
    permission_outcome,
)
from legation.wire.lifecycle import PermissionAnswered, PermissionAsked
from legation.wire.payload import Payload

META = "legation"  # whose member of `_meta` it is

PREPARE_LIMIT = 15.0  # seconds to find out what rule an action meets: the disk's time and the shell parser's

_OUTCOMES = frozenset(get_args(Outcome))


class Permissions(Inquiries[Ask, Decision, RequestPermissionResponse]):
    withdrawn = Decision("superseded", "agent", "the agent no longer waits for the answer")
    turn_over = Decision("cancelled", "client", "the turn was cancelled or is over")

    def __init__(
        self,
        *,
        approver: Approver,
        record: Callable[[Payload], Receipt | None],
        reserve: Callable[[PermissionAsked], Callable[[PermissionAsked], None]],
        clock: Clock,
        limit: float,
        changed: Callable[[], None],
        decided: Callable[[Ask, Decision], None],
    ) -> None:
        super().__init__(record=record, clock=clock, limit=limit, changed=changed)
        self._approver = approver
        self._reserve = reserve
        self._untold: dict[str, Callable[[PermissionAsked], None]] = {}  # whose end is being found out
        self._tell_decided = decided

    def ask(self, ask: Ask) -> asyncio.Future[RequestPermissionResponse]:
        if not isinstance(self._approver, Timekeeper):
            ask = self._timed(ask, None)
            self._record(PermissionAsked.from_ask(ask))
            return self._begin(ask.id, ask, self._decide(ask))
        self._untold[ask.id] = self._reserve(PermissionAsked.from_ask(ask))
        return self._begin(ask.id, ask, self._decide_in_time(self._approver, ask))

    def _timed(self, ask: Ask, told: int | None) -> Ask:
        """With the end that it really has: that of whoever decides, unless the host's own time is over before."""
        own = ask.asked_at + int(self._limit * 1000)
        return replace(ask, expires_at=own if told is None else min(own, told))

    async def _decide(self, ask: Ask) -> object:
        return await self._approver.decide(ask)

    async def _decide_in_time(self, timekeeper: Timekeeper, ask: Ask) -> object:
        """What finds out when it ends also decides it, by the same facts: nothing else would be sure to be true."""
        preparing = asyncio.ensure_future(timekeeper.prepare(ask))
        try:
            await asyncio.wait({preparing}, timeout=PREPARE_LIMIT)
            if not preparing.done():
                # What stands behind it has waited enough; to say no time is better than a false one.
                self._tell_asked(ask)
            prepared = await preparing
        finally:
            preparing.cancel()
        if ask.id in self._untold:
            ask = self._timed(ask, prepared.expires_at)
            self._tell_asked(ask)
        return await prepared.decide(ask)

    def _tell_asked(self, ask: Ask) -> None:
        if (tell := self._untold.pop(ask.id, None)) is not None:
            tell(PermissionAsked.from_ask(ask))

    def _expired(self) -> Decision:
        return Decision("expired", "timeout", f"nobody answered within {self._limit:g} s")

    def _cut_off(self, why: str) -> Decision:
        return Decision("superseded", "legation", why)

    def _failed(self, how: str) -> Decision:
        return Decision("denied", "legation", f"the approver {how}")

    def _verdict(self, _asked: Ask, decided: object) -> Decision:
        if isinstance(decided, Decision) and decided.outcome in _OUTCOMES:
            return decided
        return self._failed("gave no decision")

    def _told(
        self, inquiry_id: str, asked: Ask, verdict: Decision
    ) -> tuple[Payload, RequestPermissionResponse]:
        self._tell_asked(asked)  # it ended before anybody knew when it would
        decision = _possible(asked, verdict)
        self._tell_decided(asked, decision)
        outcome = permission_outcome(asked.options, decision)
        told = outcome.option_id if isinstance(outcome, Selected) else None
        recorded = PermissionAnswered.from_decision(inquiry_id, decision, told)
        return recorded, RequestPermissionResponse(outcome=outcome, meta=_words(decision))


def _words(decision: Decision) -> Meta | None:
    """ACP has no member for what an agent is told besides the option, so it goes where extensions go."""
    words = {"message": decision.message, "params": decision.params}
    said = {name: value for name, value in words.items() if value is not None}
    return {META: said} if said else None


def _possible(ask: Ask, decision: Decision) -> Decision:
    granted = decision.grant is not None
    if decision.outcome == "approved" and choose_option(ask.options, "approved", granted=granted) is None:
        reason = f"{decision.by} approved it, but the agent offers no way to allow it once"
        if ask.only_always:
            reason += ": only always, which takes a grant for the tool; see `legation grants`"
        return Decision("denied", "legation", reason)
    if decision.params is not None and not ask.editable:
        reason = f"{decision.by} approved other arguments, and the agent acts on its own"
        return Decision("denied", "legation", reason)
    return decision
