"""Permissions that wait for `respond_permission`: the approver of a host that was given none."""

from __future__ import annotations

import asyncio

from legation.errors import AlreadyAnswered, InvalidParams, NotFound
from legation.wire.acp.permission import Cancelled, PermissionOutcome, Selected
from legation.wire.ask import Ask, Decision

REMEMBERED = 10_000  # answered ids, so that a second answer is told from an unknown id


class Pending:
    def __init__(self) -> None:
        self._waiting: dict[str, tuple[Ask, asyncio.Future[Decision]]] = {}
        self._answered: dict[str, None] = {}

    async def decide(self, ask: Ask) -> Decision:
        answer: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        self._waiting[ask.id] = ask, answer
        try:
            return await answer
        finally:
            self._waiting.pop(ask.id, None)
            self._remember(ask.id)

    def respond(self, request_id: str, outcome: PermissionOutcome, by: str) -> None:
        """INV-8: the first answer counts, a second one is refused."""
        waiting = self._waiting.get(request_id)
        if waiting is None or waiting[1].done():
            if waiting is not None or request_id in self._answered:
                raise AlreadyAnswered(
                    f"cannot answer permission {request_id}: it was answered or withdrawn before"
                )
            raise NotFound(f"cannot find permission {request_id}; check its id")
        ask, answer = waiting
        answer.set_result(_decision(ask, outcome, by))

    def _remember(self, ask_id: str) -> None:
        self._answered[ask_id] = None
        while len(self._answered) > REMEMBERED:
            del self._answered[next(iter(self._answered))]


def _decision(ask: Ask, outcome: PermissionOutcome, by: str) -> Decision:
    match outcome:
        case Cancelled():
            return Decision("cancelled", by, "answered: cancelled")
        case Selected(option_id=chosen):
            kinds = {option.option_id: option.kind for option in ask.options}
            if chosen not in kinds:
                raise InvalidParams(f"cannot choose {chosen!r}: the agent offers {', '.join(kinds)}")
            # "Always" is a grant of Legation's, never the agent's: only this once is said to it.
            word = "approved" if kinds[chosen].startswith("allow") else "denied"
            return Decision(
                "approved" if word == "approved" else "denied", by, f"answered: {kinds[chosen]}", chosen
            )
