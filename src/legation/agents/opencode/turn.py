"""One turn: what of all that a session says belongs to it, when it is over, and how it ended.

INV-O8  Only what answers the turn's own message counts for it; what an earlier turn still says does not.
INV-O9  `session.idle` ends a turn only with a message that has ended before it. It is sent twice after an error, and
        once more by a turn that was aborted; an idle in doubt is looked into.
INV-O10 A turn that spends money to no end is cut: answers without an end, which OpenCode asks for again at once, and
        errors that it tries again without limit.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final, Literal

from legation.agents.native import Reply
from legation.agents.opencode import refusals
from legation.agents.opencode.messages import (
    AssistantMessage,
    Message,
    NativeError,
    StepFinishPart,
    Tokens,
    UserMessage,
)
from legation.agents.opencode.states import Retry
from legation.agents.rpc import AgentRefused
from legation.wire.acp.sessions import PromptResponse, StopReason, Usage

UNFINISHED_LIMIT: Final = 3  # answers in a row without an end: our patience, and the owner's money
RETRY_LIMIT: Final = (
    6  # requests to the model that failed in a row, about a minute with its pauses: our patience
)
RETRY_WAIT_LIMIT: Final = 300.0  # seconds until it would ask again: our patience
# After these OpenCode asks again, the tools' results in hand, though there may have been no tool.
_GOING_ON: Final = ("unknown", "tool-calls")
_STOPS: Final[dict[str | None, StopReason]] = {"length": "max_tokens", "content-filter": "refusal"}

Verdict = Literal["over", "doubtful", "none"]


@dataclass(slots=True)
class Turn:
    reply: Reply[PromptResponse]
    old: frozenset[str]  # user messages of earlier turns
    users: set[str] = field(
        default_factory=set
    )  # the turn's own: the prompt, and what OpenCode adds on its way
    last: AssistantMessage | None = None
    error: NativeError | None = None
    cancelled: bool = False
    cut: AgentRefused | None = None  # why we stopped it
    busy: bool = False
    _unfinished: dict[str, int] = field(default_factory=dict)
    _steps: dict[str, Tokens] = field(default_factory=dict)  # by the part that told it

    @property
    def ending(self) -> bool:
        """Nothing of it is waited for but its end."""
        return self.cancelled or self.cut is not None

    def user(self, message: UserMessage) -> bool:
        """Whether it is the turn's, and new."""
        if message.id in self.old or message.id in self.users:
            return False
        self.users.add(message.id)
        return True

    def owns(self, message: Message) -> bool:
        """Whether it is of this turn, as far as one can tell from a history."""
        if isinstance(message, UserMessage):
            return message.id not in self.old
        return message.parent_id in self.users

    def assistant(self, message: AssistantMessage) -> None:
        if message.parent_id not in self.users:
            return
        if self.last is None or self.last.id != message.id:
            self.error = None  # it got over the one before: a conversation that was too long, say
        self.last = message
        if message.error is not None:
            self.error = message.error

    def failed(self, error: NativeError) -> None:
        if self.users and error.name != refusals.ABORTED:
            self.error = error

    def finished_step(self, part: StepFinishPart, *, called: bool) -> None:
        """`called`: the model called a tool in it."""
        if part.id in self._steps:
            return
        self._steps[part.id] = part.tokens
        if called or part.reason not in _GOING_ON:
            self._unfinished.pop(part.session_id, None)
            return
        count = self._unfinished[part.session_id] = self._unfinished.get(part.session_id, 0) + 1
        if count >= UNFINISHED_LIMIT:
            self.cut = self.cut or refusals.unfinished(count)

    def retried(self, status: Retry) -> None:
        wait = status.next / 1000 - time.time()
        if wait > RETRY_WAIT_LIMIT:
            self.cut = self.cut or refusals.too_far(wait, status.message)
        elif status.attempt >= RETRY_LIMIT:
            self.cut = self.cut or refusals.tried_enough(status.attempt, status.message)

    def idle(self) -> Verdict:
        if not self.users:
            return "none"
        return "over" if self.last is not None and self.last.time.completed is not None else "doubtful"

    def outcome(self) -> PromptResponse | AgentRefused:
        if self.cancelled:
            return self._ended("cancelled")
        if self.cut is not None:
            return self.cut
        if self.error is None:
            finish = self.last.finish if self.last else None
            return self._ended(_STOPS.get(finish, "end_turn")) if self.last else refusals.silent()
        match self.error.name:
            case refusals.ABORTED:  # by somebody who may: another client of the same server
                return self._ended("cancelled")
            case refusals.TOO_LONG:
                return self._ended("max_tokens")
            case refusals.FILTERED:
                return self._ended("refusal")
        return refusals.refusal(self.error)

    def _ended(self, reason: StopReason) -> PromptResponse:
        return PromptResponse(stop_reason=reason, usage=self._usage())

    def _usage(self) -> Usage | None:
        steps = self._steps.values()
        if not steps:
            return None
        return Usage(
            input_tokens=int(sum(each.input for each in steps)),
            output_tokens=int(sum(each.output for each in steps)),
            thought_tokens=int(sum(each.reasoning for each in steps)),
            cached_read_tokens=int(sum(each.cache.read for each in steps)),
            cached_write_tokens=int(sum(each.cache.write for each in steps)),
            total_tokens=sum(each.context for each in steps),
        )
