"""Permissions that wait for `respond_permission`: the approver of a host that was given none.

A permission can be answered from the moment that anybody may have seen it, so it waits here from `asked` on,
and not only when somebody gets round to call `decide`.
"""

from __future__ import annotations

import asyncio

from legation.errors import AlreadyAnswered, InvalidParams, NotFound
from legation.wire.acp.permission import Cancelled, PermissionOption, PermissionOutcome, Selected
from legation.wire.ask import Ask, Decision
from legation.wire.lifecycle import PermissionAsked

REMEMBERED = 10_000  # answered ids, so that a second answer is told from an unknown id

Options = tuple[PermissionOption, ...]


class Pending:
    def __init__(self) -> None:
        self._waiting: dict[str, tuple[Options, asyncio.Future[Decision]]] = {}
        self._answered: dict[str, None] = {}

    def asked(self, ask: PermissionAsked | Ask) -> asyncio.Future[Decision]:
        if ask.id not in self._waiting:
            answer: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
            self._waiting[ask.id] = ask.options, answer
        return self._waiting[ask.id][1]

    async def decide(self, ask: Ask) -> Decision:
        try:
            return await self.asked(ask)
        finally:
            self.answered(ask.id)

    def answered(self, ask_id: str) -> None:
        """By whomever: it waits no longer."""
        waiting = self._waiting.pop(ask_id, None)
        if waiting is None:
            return
        waiting[1].cancel()
        self._answered[ask_id] = None
        while len(self._answered) > REMEMBERED:
            del self._answered[next(iter(self._answered))]

    def respond(self, request_id: str, outcome: PermissionOutcome, by: str) -> None:
        """INV-8: the first answer counts, a second one is refused."""
        waiting = self._waiting.get(request_id)
        if waiting is None or waiting[1].done():
            if waiting is not None or request_id in self._answered:
                raise AlreadyAnswered(
                    f"cannot answer permission {request_id}: it was answered or withdrawn before"
                )
            raise NotFound(f"cannot find permission {request_id}; check its id")
        options, answer = waiting
        answer.set_result(_decision(options, outcome, by))


def _decision(options: Options, outcome: PermissionOutcome, by: str) -> Decision:
    match outcome:
        case Cancelled():
            return Decision("cancelled", by, "answered: cancelled")
        case Selected(option_id=chosen):
            kinds = {option.option_id: option.kind for option in options}
            if chosen not in kinds:
                raise InvalidParams(f"cannot choose {chosen!r}: the agent offers {', '.join(kinds)}")
            # "Always" is a grant of Legation's, never the agent's: only this once is said to it.
            allowed = kinds[chosen].startswith("allow")
            return Decision("approved" if allowed else "denied", by, f"answered: {kinds[chosen]}", chosen)
