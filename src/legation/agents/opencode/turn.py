"""The turns of one session, one at a time: how each is sent, what belongs to it, when it is over, and how it ended.

INV-O8  Only what answers the turn's own message counts for it; what an earlier turn still says does not.
INV-O9  `session.idle` ends a turn only with a message that has ended before it. It is sent twice after an error, and
        once more by a turn that was aborted; an idle in doubt is looked into.
INV-O10 A turn that spends money to no end is cut: answers without an end, which OpenCode asks for again at once, and
        errors that it tries again without limit.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from legation.agents.driver import OnAnswer
from legation.agents.native import PendingReply
from legation.agents.opencode.messages import (
    AssistantMessage,
    Message,
    NativeError,
    OpenCodeTokens,
    Retry,
    StepFinishPart,
    UserMessage,
)
from legation.agents.opencode.server import PROMPT_LIMIT, RemoteSession
from legation.agents.rpc import AgentRefused
from legation.errors import AgentError, LegationError
from legation.tasks import TaskSet
from legation.wire.acp.methods import PromptResponse, StopReason, Usage
from legation.wire.acp.rpc import AgentMethod, ErrorCode, RpcError

BUSY_LIMIT: Final = 5.0  # seconds from a prompt that was taken to its beginning: the server's time
ABORT_TRIES: Final = 3  # an abort that comes before the turn has begun is lost
ABORT_PAUSE: Final = (
    2.0  # seconds from an abort to the turn's end, before it is tried again: the server's time
)
DOUBT_PAUSE: Final = 0.3  # seconds for the second idle, which is the one that counts: the server's time
USERS_KEPT: Final = 64  # ids of the user's messages, by which late news of them are told from a new turn


class TurnObserver(Protocol):
    """The session, which is told how its turn goes."""

    def begins(self) -> None:
        """Called before anything of it is sent."""

    def is_cancelled(self) -> None:
        """Called when the host has cancelled it, which then answers what is asked in it."""

    def ends(self) -> None:
        """Called when it is over, or we end it: nobody need answer any more."""


class OpenCodeTurns:
    """`now` is the turn that runs."""

    def __init__(self, remote: RemoteSession, name: str, observer: TurnObserver) -> None:
        self.now: OpenCodeTurn | None = None
        self._remote = remote
        self._observer = observer
        self._users: deque[str] = deque(maxlen=USERS_KEPT)
        self._gone: LegationError | None = None
        self._prompt: dict[str, object] = {}
        self._revived = False
        self._taken = asyncio.Event()  # the server has the prompt
        self._busy = asyncio.Event()
        self._over = asyncio.Event()
        self._tasks = TaskSet(name)

    @property
    def ending(self) -> bool:
        """Tell whether nothing of the turn that runs is waited for but its end."""
        return self.now is not None and self.now.ending

    async def run(
        self,
        prompt: dict[str, object],
        on_answer: OnAnswer[PromptResponse],
    ) -> PromptResponse:
        """Run a turn. It begins in the first step, so that a cancel after it finds one."""
        if self._gone is not None:
            raise self._gone
        reply: PendingReply[PromptResponse] = PendingReply(on_answer)
        self._begin(OpenCodeTurn(reply, frozenset(self._users)))
        self._prompt = prompt
        self._revived = False
        self._tasks.start(self._post())
        return await reply.value()

    def cancel(self) -> None:
        if self.now is not None and not self.now.cancelled:
            self.now.cancelled = True
            self._observer.is_cancelled()
            self._tasks.start(self._end_turn(self.now))

    def cut(self, why: AgentRefused) -> None:
        if self.now is not None and not self.now.ending:
            self.now.cut = why
            self._abort()

    def cut_if_due(self) -> None:
        turn = self.now
        if turn is not None and turn.cut is not None and not turn.cancelled:
            self._abort()

    async def cancel_and_wait(self, timeout: float) -> None:
        if self.now is not None:
            self.cancel()
            await self.until_over(timeout)

    def lost(self, error: LegationError) -> None:
        """The server is gone."""
        self._gone = error
        turn, self.now = self.now, None
        self._observer.ends()
        if turn is not None:
            turn.reply.fail(error)
        self._over.set()

    async def close(self) -> None:
        await self._tasks.close()

    def remember(self, user_message: str) -> None:
        """One of a turn that is over."""
        self._users.append(user_message)

    async def until_over(self, seconds: float) -> bool:
        return await self._within(self._over, seconds)

    # What OpenCode says of it.

    def busy(self) -> None:
        self._busy.set()

    def idle(self) -> None:
        if self.now is None:
            return
        match self.now.idle():
            case "over":
                self._finish()
            case "doubtful":
                self._tasks.start(self._doubt(self.now))

    def failed(self, error: NativeError) -> None:
        if self.now is not None:
            self.now.failed(error)

    async def look(self) -> None:
        """Events were missed: it may be over."""
        if self.now is not None and self.now.users and not await self._remote.is_busy():
            self._finish()

    # Its course.

    def _begin(self, turn: OpenCodeTurn) -> None:
        self.now = turn
        self._observer.begins()
        for each in (self._taken, self._busy, self._over):
            each.clear()

    async def _post(self) -> None:
        turn = self.now
        try:
            await self._remote.prompt(self._prompt)
            self._taken.set()
        except LegationError as error:
            if turn is not None and self.now is turn:
                self.now = None
                turn.reply.give(error) if isinstance(error, AgentError) else turn.reply.fail(error)
                self._over.set()

    def _finish(self) -> None:
        turn = self.now
        if turn is None:
            return
        error = turn.error.data.message if turn.error else None
        if error and POISONED in error and not turn.ending and not self._revived:
            self._revived = True
            self._tasks.start(self._begin_again(turn))
            return
        self.now = None
        self._users.extend(turn.users)
        self._observer.ends()
        turn.reply.give(turn.outcome())
        self._over.set()

    async def _begin_again(self, turn: OpenCodeTurn) -> None:
        """An abort has hit the start of what OpenCode holds for the folder: it is made to hold it anew."""
        with suppress(LegationError):
            await self._remote.forget_folder()
        if self.now is turn and not turn.ending:
            self._users.extend(turn.users)
            self._begin(OpenCodeTurn(turn.reply, frozenset(self._users)))
            await self._post()

    async def _doubt(self, turn: OpenCodeTurn) -> None:
        """Look into an idle in doubt (INV-O9)."""
        await self.until_over(DOUBT_PAUSE)
        if self.now is turn and not await self._remote.is_busy() and self.now is turn:
            self._finish()

    def _abort(self) -> None:
        self._observer.ends()
        if self.now is not None:
            self._tasks.start(self._end_turn(self.now))

    async def _end_turn(self, turn: OpenCodeTurn) -> None:
        await self._within(self._taken, PROMPT_LIMIT)
        await self._within(self._busy, BUSY_LIMIT)
        for _ in range(ABORT_TRIES):
            if self.now is not turn:
                return
            with suppress(LegationError):
                await self._remote.abort()
            if await self.until_over(ABORT_PAUSE):
                return
        if self.now is turn and turn.cut is not None:
            self._finish()  # nobody else waits for it to obey

    async def _within(self, event: asyncio.Event, seconds: float) -> bool:
        """Wait for the event, or for the turn to be over."""
        waits = [asyncio.ensure_future(each.wait()) for each in (event, self._over)]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
        return event.is_set()


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
class OpenCodeTurn:
    """One prompt, and all that answers it."""

    reply: PendingReply[PromptResponse]
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
    _steps: dict[str, OpenCodeTokens] = field(default_factory=dict)  # by the part that told it

    @property
    def ending(self) -> bool:
        """Tell whether nothing of it is waited for but its end."""
        return self.cancelled or self.cut is not None

    def user(self, message: UserMessage) -> bool:
        """Tell whether it is the turn's, and new."""
        if message.id in self.old or message.id in self.users:
            return False
        self.users.add(message.id)
        return True

    def owns(self, message: Message) -> bool:
        """Tell whether it is of this turn, as far as one can from a history."""
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
        if self.users and error.name != ABORTED:
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
            self.cut = self.cut or unfinished(count)

    def retried(self, status: Retry) -> None:
        wait = status.next / 1000 - time.time()
        if wait > RETRY_WAIT_LIMIT:
            self.cut = self.cut or too_far(wait, status.message)
        elif status.attempt >= RETRY_LIMIT:
            self.cut = self.cut or tried_enough(status.attempt, status.message)

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
            return self._ended(_STOPS.get(finish, "end_turn")) if self.last else silent()
        stop = _STOPPING_ERRORS.get(self.error.name)
        return refusal(self.error) if stop is None else self._ended(stop)

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


# Why a turn failed, as the caller of a prompt is told: the kind of error in `data.errorKind`, never what was asked.


ABORTED: Final = "MessageAbortedError"
_STOPPING_ERRORS: Final[dict[str, StopReason]] = {
    ABORTED: "cancelled",  # by somebody who may: another client of the same server
    "MessageOutputLengthError": "max_tokens",
    "ContentFilterError": "refusal",
}
POISONED: Final = (
    "All fibers interrupted without error"  # an abort hit its start; nothing works until it begins anew
)
_AUTH: Final = "ProviderAuthError"
_OVERFLOW: Final = "ContextOverflowError"
SIGN_IN: Final = "sign in with `legation agents login opencode`, or give the provider's key"
_UNAUTHORIZED: Final = (401, 403)
_RATE_LIMITED: Final = 429
_SERVER_ERROR: Final = 500
MESSAGE_LENGTH: Final = 2000  # characters of what it said


def refusal(error: NativeError) -> AgentRefused:
    said = (error.data.message or error.name)[:MESSAGE_LENGTH]
    status = error.data.status_code
    if error.name == _AUTH or status in _UNAUTHORIZED:
        return refused(f"{said}; {SIGN_IN}", "authentication", status, code=ErrorCode.AUTH_REQUIRED)
    return refused(said, _error_kind(error), status)


def refused(
    message: str, kind: str, status: int | None = None, *, code: int = ErrorCode.INTERNAL_ERROR
) -> AgentRefused:
    data: Mapping[str, object] = {"errorKind": kind, **({} if status is None else {"status": status})}
    return AgentRefused(AgentMethod.SESSION_PROMPT, RpcError(code, message, data), data=data)


def unfinished(steps: int) -> AgentRefused:
    return refused(
        f"the model's answer ended {steps} times without its end, and OpenCode asked again at once each time; it was"
        " stopped, for every time costs: look at the model's endpoint",
        "unfinished_stream",
    )


def tried_enough(attempts: int, message: str) -> AgentRefused:
    return refused(
        f"{message[:MESSAGE_LENGTH]} (OpenCode asked {attempts} times, and was stopped)", "retries_exhausted"
    )


def too_far(seconds: float, message: str) -> AgentRefused:
    return refused(
        f"{message[:MESSAGE_LENGTH]} (OpenCode would ask again in {seconds:.0f} s, and was stopped)",
        "rate_limit",
    )


def foreign_answer() -> AgentRefused:
    return refused(
        "a permission was answered by somebody else than Legation, maybe by a command of the agent's own; the turn was"
        " stopped: look at what it ran",
        "foreign_answer",
        code=ErrorCode.INVALID_REQUEST,
    )


def silent() -> AgentRefused:
    return refused("OpenCode ended the turn without an answer; prompt it again", "no_answer")


def _error_kind(error: NativeError) -> str:
    status = error.data.status_code
    if error.name == _OVERFLOW:
        return "context_overflow"
    if status == _RATE_LIMITED:
        return "rate_limit"
    if status is not None and status >= _SERVER_ERROR:
        return "server_error"
    return "invalid_request" if status is not None else "unknown"
