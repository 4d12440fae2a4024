"""One session of OpenCode's: what it says goes to the host, and what the host wants goes to it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Protocol

from legation.agents.native import Reply
from legation.agents.opencode import asks, refusals
from legation.agents.opencode import events as seen
from legation.agents.opencode.offers import Offers
from legation.agents.opencode.prompts import parts
from legation.agents.opencode.server import OpenCodeServer
from legation.agents.opencode.shapes import (
    Busy,
    Idle,
    Message,
    Part,
    PermissionRequest,
    QuestionRequest,
    Retry,
    SessionInfo,
    Status,
    StepFinishPart,
    Todo,
    Told,
    ToolPart,
    ToolPending,
    UserMessage,
)
from legation.agents.opencode.tools import Names, asked
from legation.agents.opencode.transcript import Transcript
from legation.agents.opencode.turn import Turn
from legation.errors import AgentError, LegationError
from legation.wire import jsontext
from legation.wire.acp.content import ContentBlock
from legation.wire.acp.mcp import McpServer
from legation.wire.acp.sessions import PromptResponse
from legation.wire.acp.updates import (
    PLAN_STATUSES,
    Cost,
    CurrentModeUpdate,
    Notice,
    Plan,
    PlanEntry,
    SessionInfoUpdate,
    SessionUpdate,
    UsageUpdate,
)
from legation.wire.diagnostic import DiagnosticCode

PROMPT_LIMIT: Final = 60.0  # seconds to take a prompt, the folder's start included: the server's time
BUSY_LIMIT: Final = 5.0  # seconds from a prompt that was taken to its beginning: the server's time
ABORT_LIMIT: Final = 5.0  # seconds for one abort: the server's time
ABORT_TRIES: Final = 3  # an abort that comes before the turn has begun is lost
ABORT_PAUSE: Final = (
    2.0  # seconds from an abort to the turn's end, before it is tried again: the server's time
)
EARLY_LIMIT: Final = 2.0  # seconds from a permission to the arguments of its call: the server's time
DOUBT_PAUSE: Final = 0.3  # seconds for the second idle, which is the one that counts: the server's time
USERS_KEPT: Final = 64  # ids of the user's messages, by which late news of them are told from a new turn
_UNNAMED: Final = "New session - "  # how a title begins that nobody has given


class Host(asks.Host, Protocol):
    """The driver, as its sessions see it."""

    def say(self, session_id: str, *updates: SessionUpdate, native: bytes = b"") -> None: ...
    def say_unknown(self, session_id: str, line: bytes) -> None: ...
    def trouble(self, code: DiagnosticCode, message: str) -> None: ...


class OpenCodeSession:
    def __init__(
        self,
        host: Host,
        server: OpenCodeServer,
        info: SessionInfo,
        offers: Offers,
        mcp: tuple[McpServer, ...] = (),
    ) -> None:
        self.id = info.id
        self.directory = info.directory
        self.offers = offers
        self.server = server
        self.mcp = mcp
        self._host = host
        self._title = info.title
        self._cost = info.cost or 0.0
        self._transcript = Transcript(info.id, Names(tuple(each.name for each in mcp)))
        self._asks = asks.Asks(info.id, host, self._answer)
        self._family: set[str] = {info.id}  # the session and those of its sub-agents
        self._users: deque[str] = deque(maxlen=USERS_KEPT)
        self._gone: LegationError | None = None
        self._turn: Turn | None = None
        self._prompt: dict[str, object] = {}
        self._early: dict[str, PermissionRequest] = {}  # asked before the call's arguments were told
        self._revived = False
        self._taken = asyncio.Event()  # the server has the prompt
        self._busy = asyncio.Event()
        self._over = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def running(self) -> bool:
        return self._turn is not None

    # A turn.

    async def prompt(
        self,
        prompt: tuple[ContentBlock, ...],
        on_answer: Callable[[PromptResponse | AgentError], None] | None,
    ) -> PromptResponse:
        """In its first step the turn begins, so that a cancel after it finds one."""
        if self._gone is not None:
            raise self._gone
        reply: Reply[PromptResponse] = Reply(on_answer)
        self._begin(Turn(reply, frozenset(self._users)))
        self._prompt = {**self.offers.body(), "parts": parts(prompt)}
        self._revived = False
        self._start(self._post())
        return await reply.value()

    async def cancel(self) -> None:
        if self._turn is not None and not self._turn.cancelled:
            self._turn.cancelled = True
            self._abort()

    def has(self, session_id: str | None) -> bool:
        """Whether it is this one, or that of a sub-agent that works for it."""
        return session_id in self._family

    async def end(self, timeout: float) -> None:
        """The turn, if there is one."""
        if self._turn is not None:
            await self.cancel()
            await self._within(self._over, timeout)

    def lost(self, error: LegationError) -> None:
        """The server is gone."""
        self._gone = error
        turn, self._turn = self._turn, None
        self._asks.withdraw()
        if turn is not None:
            turn.reply.lose(error)
        self._over.set()

    async def close(self) -> None:
        await self._asks.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _begin(self, turn: Turn) -> None:
        self._turn = turn
        self._transcript.begin()
        for each in (self._taken, self._busy, self._over):
            each.clear()

    async def _post(self) -> None:
        turn = self._turn
        try:
            await self._do("prompt_async", self._prompt, PROMPT_LIMIT)
            self._taken.set()
        except LegationError as error:
            if turn is not None and self._turn is turn:
                self._turn = None
                turn.reply.give(error) if isinstance(error, AgentError) else turn.reply.lose(error)
                self._over.set()

    def _finish(self) -> None:
        turn = self._turn
        if turn is None:
            return
        error = turn.error.data.message if turn.error else None
        if error and refusals.POISONED in error and not turn.ending and not self._revived:
            self._revived = True
            self._start(self._begin_again(turn))
            return
        self._turn = None
        self._users.extend(turn.users)
        self._asks.withdraw()
        turn.reply.give(turn.outcome())
        self._over.set()

    async def _begin_again(self, turn: Turn) -> None:
        """An abort has hit the start of what OpenCode holds for the folder: it is made to hold it anew."""
        with suppress(LegationError):
            await self.server.api.do(
                "POST", "/instance/dispose", {}, directory=self.directory, timeout=PROMPT_LIMIT
            )
        if self._turn is turn and not turn.ending:
            self._users.extend(turn.users)
            self._begin(Turn(turn.reply, frozenset(self._users)))
            await self._post()

    def _abort(self) -> None:
        self._early.clear()
        self._asks.withdraw()
        if self._turn is not None:
            self._start(self._end_turn(self._turn))

    async def _end_turn(self, turn: Turn) -> None:
        await self._within(self._taken, PROMPT_LIMIT)
        await self._within(self._busy, BUSY_LIMIT)
        for _ in range(ABORT_TRIES):
            if self._turn is not turn:
                return
            with suppress(LegationError):
                await self._do("abort", {}, ABORT_LIMIT)
            if await self._within(self._over, ABORT_PAUSE):
                return
        if self._turn is turn and turn.cut is not None:
            self._finish()  # nobody else waits for it to obey

    async def _within(self, event: asyncio.Event, seconds: float) -> bool:
        """Or the turn is over."""
        waits = [asyncio.ensure_future(each.wait()) for each in (event, self._over)]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
        return event.is_set()

    async def _doubt(self, turn: Turn) -> None:
        """INV-O9."""
        await self._within(self._over, DOUBT_PAUSE)
        if self._turn is turn and not await self._is_busy() and self._turn is turn:
            self._finish()

    async def _is_busy(self) -> bool:
        try:
            found = await self.server.api.get("/session/status", dict[str, Status], directory=self.directory)
        except LegationError:
            return True  # the next sign of life will tell
        return not isinstance(found.get(self.id, Idle()), Idle)

    # What OpenCode says.

    def take(self, event: seen.Event) -> None:
        body = event.body
        match body:
            case seen.MessageUpdated():
                self._message(body.info, event.line)
            case seen.PartUpdated():
                self._part(body.part, event.line)
            case seen.PartDelta():
                self._say(event, *self._delta(body))
            case seen.SessionUpdated():
                self._info(body.info, event)
            case seen.StatusChanged():
                self._status(body, event)
            case seen.SessionIdle() if body.session_id == self.id:
                self._idle()
            case seen.SessionFailed() if body.session_id == self.id:
                if self._turn is not None and body.error is not None:
                    self._turn.failed(body.error)
            case seen.SessionCompacted():
                self._say(event, *self._transcript.compacted())
            case seen.PermissionAsked():
                self._permission(body)
            case seen.PermissionReplied():
                self._replied(body)
            case seen.QuestionAsked():
                self._question(body)
            case seen.QuestionEnded():
                self._asks.question_ended(body.request_id)
            case seen.TodoUpdated() if body.session_id == self.id:
                self._say(event, _plan(body.todos))
            case None:
                self._host.say_unknown(self.id, event.line)

    def _delta(self, body: seen.PartDelta) -> tuple[SessionUpdate, ...]:
        if body.field != "text":
            return ()
        return tuple(self._transcript.delta(body.session_id, body.message_id, body.part_id, body.delta))

    def _message(self, message: Message, line: bytes = b"") -> None:
        self._transcript.message(message)
        if message.session_id != self.id or self._turn is None:
            return
        if not isinstance(message, UserMessage):
            self._turn.assistant(message)
        elif self._turn.user(message) and message.agent != self.offers.agent:
            self._switched(message.agent, line)

    def _switched(self, agent: str, line: bytes) -> None:
        """OpenCode went on with another agent: a plan was approved."""
        if any(each.name == agent for each in self.offers.agents):
            self.offers = replace(self.offers, agent=agent)
            mode = self.offers.modes.current_mode_id
            self._host.say(self.id, CurrentModeUpdate(current_mode_id=mode), native=line)

    def _part(self, part: Part, line: bytes = b"") -> None:
        updates = [*self._transcript.part(part)]
        if isinstance(part, StepFinishPart):
            updates += self._step(part)
        self._host.say(self.id, *updates, native=line)
        if isinstance(part, ToolPart) and not isinstance(part.state, ToolPending):
            self._ask_early(lambda request: request.tool is not None and request.tool.call_id == part.call_id)

    def _step(self, part: StepFinishPart) -> list[SessionUpdate]:
        self._cost += part.cost
        if self._turn is not None:
            self._turn.finished_step(part, called=self._transcript.called(part.message_id))
            self._cut_if_due()
        if part.session_id != self.id:
            return []
        cost = Cost(amount=round(self._cost, 9), currency="USD")
        return [UsageUpdate(used=part.tokens.context, size=self.offers.context, cost=cost)]

    def _cut_if_due(self) -> None:
        turn = self._turn
        if turn is not None and turn.cut is not None and not turn.cancelled:
            self._abort()

    def _status(self, body: seen.StatusChanged, event: seen.Event) -> None:
        match body.status:
            case Busy() if body.session_id == self.id:
                self._busy.set()
            case Retry() as status:
                what = f"attempt {status.attempt}: {status.message[: refusals.MESSAGE_LENGTH]}"
                self._say(
                    event, Notice(severity="warning", title="The model is asked again", description=what)
                )
                if self._turn is not None:
                    self._turn.retried(status)
                    self._cut_if_due()

    def _idle(self) -> None:
        if self._turn is None:
            return
        match self._turn.idle():
            case "over":
                self._finish()
            case "doubtful":
                self._start(self._doubt(self._turn))

    def _info(self, info: SessionInfo, event: seen.Event) -> None:
        if info.parent_id in self._family:
            self._family.add(info.id)
        elif info.id == self.id and info.title != self._title and not info.title.startswith(_UNNAMED):
            self._title = info.title
            self._say(event, SessionInfoUpdate(title=info.title))

    # What OpenCode asks.

    def _permission(self, request: PermissionRequest) -> None:
        if self._asks.knows(request.id) or (self._turn is not None and self._turn.ending):
            return
        part = self._transcript.call(request.tool.call_id) if request.tool else None
        if request.tool is not None and (part is None or isinstance(part.state, ToolPending)):
            if request.id not in self._early:  # of an MCP tool: its arguments are told right behind
                self._early[request.id] = request
                self._start(self._ask_late(request.id))
            return
        self._ask(request)

    async def _ask_late(self, request_id: str) -> None:
        await self._within(self._over, EARLY_LIMIT)
        self._ask_early(lambda request: request.id == request_id)

    def _ask_early(self, due: Callable[[PermissionRequest], bool]) -> None:
        for request in [each for each in self._early.values() if due(each)]:
            del self._early[request.id]
            if self._turn is None or not self._turn.ending:
                self._ask(request)

    def _ask(self, request: PermissionRequest) -> None:
        part = self._transcript.call(request.tool.call_id) if request.tool else None
        self._asks.permission(request, asked(request, part, self._transcript.names))

    def _replied(self, body: seen.PermissionReplied) -> None:
        if self._early.pop(body.request_id, None) is not None and body.reply == "reject":
            return
        if self._asks.replied(body.request_id, body.reply):
            return
        forged = refusals.forged()
        self._host.trouble(DiagnosticCode.AGENT_PROCESS_ERROR, forged.message)
        if self._turn is not None and not self._turn.ending:
            self._turn.cut = forged
            self._abort()

    def _question(self, request: QuestionRequest) -> None:
        if not self._asks.knows(request.id) and not (self._turn is not None and self._turn.ending):
            self._asks.question(request)

    async def _answer(self, path: str, body: dict[str, object]) -> None:
        await self.server.api.do("POST", path, body, directory=self.directory, timeout=asks.REPLY_LIMIT)

    # What was missed, and what was before.

    async def catch_up(self) -> None:
        """INV-O4. Permissions and questions after the messages, which tell the calls that they are about."""
        api, where = self.server.api, self.directory
        self._transcript.lose_track()
        if self._turn is not None:
            for child in await api.get(
                f"/session/{self.id}/children", tuple[SessionInfo, ...], directory=where
            ):
                self._family.add(child.id)
            for session_id in tuple(self._family):
                for told in await self._history(session_id):
                    self._again(told)
        permissions = await api.get("/permission", tuple[PermissionRequest, ...], directory=where)
        questions = await api.get("/question", tuple[QuestionRequest, ...], directory=where)
        self._asks.keep_only({*(each.id for each in permissions), *(each.id for each in questions)})
        for permission in permissions:
            if permission.session_id in self._family:
                self._permission(permission)
        for question in questions:
            if question.session_id in self._family:
                self._question(question)
        if self._turn is not None and self._turn.users and not await self._is_busy():
            self._finish()

    def _again(self, told: Told) -> None:
        """A message of the running turn, as it is by now."""
        turn, message = self._turn, told.info
        if turn is None:
            return
        own = (
            message.id not in turn.old
            if isinstance(message, UserMessage)
            else message.parent_id in turn.users
        )
        if message.session_id != self.id or own:
            self._message(message)
            read, _ = told.known()
            for part in read:
                self._part(part)

    async def replay(self) -> None:
        """The whole history, as updates."""
        for told in await self._history(self.id):
            read, odd = told.known()
            for update in self._transcript.history(told.info, read):
                self._host.say(self.id, update)
            for raw in odd:
                self._host.say_unknown(self.id, jsontext.write(raw))
            if isinstance(told.info, UserMessage):
                self._users.append(told.info.id)

    async def quiet(self) -> None:
        """A turn that somebody left running is ended: nobody would hear of it."""
        if await self._is_busy():
            await self._do("abort", {}, ABORT_LIMIT)

    async def _history(self, session_id: str) -> tuple[Told, ...]:
        return await self.server.api.get(
            f"/session/{session_id}/message", tuple[Told, ...], directory=self.directory
        )

    async def _do(self, what: str, body: dict[str, object], limit: float) -> None:
        await self.server.api.do(
            "POST", f"/session/{self.id}/{what}", body, directory=self.directory, timeout=limit
        )

    def _say(self, event: seen.Event, *updates: SessionUpdate) -> None:
        self._host.say(self.id, *updates, native=event.line)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=f"legation-opencode-{self.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _plan(todos: tuple[Todo, ...]) -> Plan:
    """What was given up is no part of the plan any more."""
    return Plan(
        entries=tuple(
            PlanEntry(content=each.content, priority=each.priority, status=each.status)
            for each in todos
            if each.status in PLAN_STATUSES
        )
    )
