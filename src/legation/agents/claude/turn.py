"""The turns of one session: prompts that are not answered yet.

INV-1  A result ends the prompts that it names, and no other: the end of a turn that nobody asked for (a background task
       came home, a timer went off) ends none.
INV-2  A prompt that was folded into a running turn ends with that turn.
INV-3  What was said to a running turn belongs to it: where the program answers it on its own, the turn ends with that.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from legation.agents.claude.messages import Result
from legation.agents.claude.translate import outcome
from legation.agents.native import PendingReply
from legation.errors import AgentError, LegationError
from legation.wire.acp.methods import PromptResponse

_HUMAN: Final = "human"
_CANCELLED: Final = "cancelled"
_TAKEN_BACK: Final = PromptResponse(stop_reason=_CANCELLED)


@dataclass(slots=True)
class _OpenTurn:
    """`waits` are the messages that no result has named yet; `taken` tells which of them the program has."""

    reply: PendingReply[PromptResponse]
    waits: dict[str, asyncio.Future[None]] = field(default_factory=dict)
    cancelled: bool = False
    answer: PromptResponse | AgentError = _TAKEN_BACK


class ClaudeTurns:
    """Prompts by the ids under which the program was sent them."""

    def __init__(self) -> None:
        self.ends = 0  # how many have ended
        self.stopping = False  # they are being cancelled
        self._open: list[_OpenTurn] = []

    @property
    def running(self) -> bool:
        return bool(self._open)

    def begin(self, uuid: str, reply: PendingReply[PromptResponse]) -> None:
        self.stopping = False
        self._open.append(_OpenTurn(reply))
        self.add(uuid)

    def add(self, uuid: str) -> asyncio.Future[None]:
        """Add a message to the newest turn; the future is done when the program has it."""
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open[-1].waits[uuid] = taken
        return taken

    def cancel(self) -> None:
        self.stopping = True
        for turn in self._open:
            turn.cancelled = True

    def moved(self, uuid: str, state: str) -> None:
        """A message that is cancelled before it began has no result."""
        turn = self._of(uuid)
        if turn is None:
            return
        if not turn.waits[uuid].done():
            turn.waits[uuid].set_result(None)
        if state == _CANCELLED:
            self._named(turn, uuid)

    def ended(self, result: Result, failure: str | None) -> bool:
        """Answer the prompts that a result ends; False where it ends none."""
        named = [(turn, uuid) for uuid in self._answered(result) if (turn := self._of(uuid))]
        for turn, uuid in named:
            turn.answer = outcome(result, failure, cancelled=turn.cancelled)
            self._named(turn, uuid)
        return bool(named)

    def fail(self, error: LegationError) -> None:
        for turn in self._open:
            turn.reply.fail(error)
            for taken in turn.waits.values():
                if not taken.done():
                    taken.set_exception(error)
                    taken.exception()  # nobody need wait for it
        self._open.clear()

    def _of(self, uuid: str) -> _OpenTurn | None:
        return next((turn for turn in self._open if uuid in turn.waits), None)

    def _named(self, turn: _OpenTurn, uuid: str) -> None:
        del turn.waits[uuid]
        if not turn.waits:
            self._open.remove(turn)
            self.ends += 1
            turn.reply.give(turn.answer)

    def _answered(self, result: Result) -> tuple[str, ...]:
        if result.answered:
            return result.answered
        if result.origin is None or result.origin.kind == _HUMAN:
            return tuple(
                uuid for turn in self._open[:1] for uuid in turn.waits
            )  # an older program names none
        return ()
