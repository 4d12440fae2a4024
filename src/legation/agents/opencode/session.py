"""A session of OpenCode's: what it says goes to the host, and what the host wants goes to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from legation.agents.driver import OnAnswer, PromptBlocks
from legation.agents.native import TOO_LONG
from legation.agents.opencode.messages import (
    Busy,
    Message,
    MessageUpdated,
    OpenCodeEvent,
    OpenCodeSessionInfo,
    Part,
    PartDelta,
    PartUpdated,
    PermissionReplied,
    PermissionRequest,
    QuestionEnded,
    QuestionRequest,
    Retry,
    SessionChanged,
    SessionCompacted,
    SessionFailed,
    SessionIdle,
    StatusChanged,
    StepFinishPart,
    TodoUpdated,
    Told,
    ToolPart,
    UserMessage,
)
from legation.agents.opencode.options import OpenCodeOptions
from legation.agents.opencode.permissions import OpenCodeHost, OpenCodePermissions
from legation.agents.opencode.server import OpenCodeServer, RemoteSession
from legation.agents.opencode.tools import Names
from legation.agents.opencode.translate import OpenCodeTranslator, plan, prompt_parts
from legation.agents.opencode.turn import MESSAGE_LENGTH, OpenCodeTurns
from legation.errors import LegationError
from legation.wire import jsontext
from legation.wire.acp.methods import McpServer, PromptResponse
from legation.wire.acp.updates import (
    Cost,
    CurrentModeUpdate,
    Notice,
    SessionInfoUpdate,
    SessionUpdate,
    UsageUpdate,
)
from legation.wire.event_types import DiagnosticCode

_UNNAMED: Final = "New session - "  # how a title begins that nobody has given


class OpenCodeSession:
    """A session with those of its sub-agents, on one server."""

    def __init__(
        self,
        host: OpenCodeHost,
        server: OpenCodeServer,
        info: OpenCodeSessionInfo,
        offers: OpenCodeOptions,
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
        self._family: set[str] = {info.id}  # the session and those of its sub-agents
        self._remote = RemoteSession(server.api, info.id, info.directory)
        self._translator = OpenCodeTranslator(info.id, Names(tuple(each.name for each in mcp)))
        self._turns = OpenCodeTurns(self._remote, f"legation-opencode-{info.id}", self)
        self._permissions = OpenCodePermissions(info.id, host, self._remote, self._translator, self._turns)

    @property
    def running(self) -> bool:
        return self._turns.now is not None

    def has(self, session_id: str | None) -> bool:
        """Tell whether it is this one, or that of a sub-agent that works for it."""
        return session_id in self._family

    # What the host wants.

    async def prompt(self, prompt: PromptBlocks, on_answer: OnAnswer[PromptResponse]) -> PromptResponse:
        return await self._turns.run({**self.offers.body(), "parts": prompt_parts(prompt)}, on_answer)

    async def cancel(self) -> None:
        self._turns.cancel()

    async def cancel_and_wait(self, timeout: float) -> None:
        """The turn, if there is one."""
        await self._turns.cancel_and_wait(timeout)

    def lost(self, error: LegationError) -> None:
        """The server is gone."""
        self._turns.lost(error)

    async def close(self) -> None:
        await self._permissions.close()
        await self._turns.close()

    # How its turns go: `turn.TurnObserver`.

    def begins(self) -> None:
        self._translator.begin()

    def is_cancelled(self) -> None:
        self._permissions.release()

    def ends(self) -> None:
        self._permissions.cancel_all()

    # What OpenCode says.

    def take(self, event: OpenCodeEvent) -> None:
        body = event.body
        match body:
            case MessageUpdated():
                self._message(body.info, event.line)
            case PartUpdated():
                self._part(body.part, event.line)
            case PartDelta():
                self._say(event, *self._delta(body))
            case SessionChanged():
                self._info(body.info, event)
            case StatusChanged():
                self._status(body, event)
            case SessionIdle() if body.session_id == self.id:
                self._turns.idle()
            case SessionFailed() if body.session_id == self.id:
                if body.error is not None:
                    self._turns.failed(body.error)
            case SessionCompacted():
                self._say(event, *self._translator.compacted())
            case PermissionRequest():
                if event.is_cut:
                    self._host.mark_cut(self.id, body.tool.call_id if body.tool else body.id)
                self._permissions.permission(body)
            case PermissionReplied():
                self._permissions.replied(body.request_id, body.reply)
            case QuestionRequest() if event.is_cut:
                self._host.trouble(
                    DiagnosticCode.AGENT_LINE_TOO_LONG, f"rejected a question of the agent's: {TOO_LONG}"
                )
                self._permissions.reject(body)
            case QuestionRequest():
                self._permissions.question(body)
            case QuestionEnded():
                self._permissions.question_ended(body.request_id)
            case TodoUpdated() if body.session_id == self.id:
                self._say(event, plan(body.todos))
            case None:
                self._host.say_unknown(self.id, event.line)

    def _delta(self, body: PartDelta) -> tuple[SessionUpdate, ...]:
        if body.field != "text":
            return ()
        return tuple(self._translator.delta(body.session_id, body.message_id, body.part_id, body.delta))

    def _message(self, message: Message, line: bytes = b"") -> None:
        self._translator.message(message)
        turn = self._turns.now
        if message.session_id != self.id or turn is None:
            return
        if not isinstance(message, UserMessage):
            turn.assistant(message)
        elif turn.user(message) and message.agent != self.offers.agent:
            self._switched(message.agent, line)

    def _switched(self, agent: str, line: bytes) -> None:
        """OpenCode went on with another agent: a plan was approved."""
        if any(each.name == agent for each in self.offers.agents):
            self.offers = replace(self.offers, agent=agent)
            mode = self.offers.modes.current_mode_id
            self._host.say(self.id, CurrentModeUpdate(current_mode_id=mode), native=line)

    def _part(self, part: Part, line: bytes = b"") -> None:
        updates = [*self._translator.part(part)]
        if isinstance(part, StepFinishPart):
            updates += self._step(part)
        self._host.say(self.id, *updates, native=line)
        if isinstance(part, ToolPart):
            self._permissions.told(part)

    def _step(self, part: StepFinishPart) -> list[SessionUpdate]:
        self._cost += part.cost
        if self._turns.now is not None:
            self._turns.now.finished_step(part, called=self._translator.called(part.message_id))
            self._turns.cut_if_due()
        if part.session_id != self.id:
            return []
        cost = Cost(amount=round(self._cost, 9), currency="USD")
        return [UsageUpdate(used=part.tokens.context, size=self.offers.context, cost=cost)]

    def _status(self, body: StatusChanged, event: OpenCodeEvent) -> None:
        match body.status:
            case Busy() if body.session_id == self.id:
                self._turns.busy()
            case Retry() as status:
                what = f"attempt {status.attempt}: {status.message[:MESSAGE_LENGTH]}"
                self._say(
                    event, Notice(severity="warning", title="The model is asked again", description=what)
                )
                if self._turns.now is not None:
                    self._turns.now.retried(status)
                    self._turns.cut_if_due()

    def _info(self, info: OpenCodeSessionInfo, event: OpenCodeEvent) -> None:
        if info.parent_id in self._family:
            self._family.add(info.id)
        elif info.id == self.id and info.title != self._title and not info.title.startswith(_UNNAMED):
            self._title = info.title
            self._say(event, SessionInfoUpdate(title=info.title))

    def _say(self, event: OpenCodeEvent, *updates: SessionUpdate) -> None:
        self._host.say(self.id, *updates, native=event.line)

    # What was missed, and what was before.

    async def catch_up(self) -> None:
        """Fetch what was missed (INV-O4). Permissions and questions come after the messages, which tell the calls that they are about."""
        self._translator.lose_track()
        if self.running:
            self._family.update(child.id for child in await self._remote.children())
            for session_id in tuple(self._family):
                for told in await self._remote.history(session_id):
                    self._again(told)
        permissions = await self._remote.permissions()
        questions = await self._remote.questions()
        self._permissions.keep_only({*(each.id for each in permissions), *(each.id for each in questions)})
        for permission in permissions:
            if permission.session_id in self._family:
                self._permissions.permission(permission)
        for question in questions:
            if question.session_id in self._family:
                self._permissions.question(question)
        await self._turns.look()

    def _again(self, told: Told) -> None:
        """A message of the running turn, as it is by now."""
        turn, message = self._turns.now, told.info
        if turn is not None and (message.session_id != self.id or turn.owns(message)):
            self._message(message)
            read, _ = told.known()
            for part in read:
                self._part(part)

    async def replay(self) -> None:
        """The whole history, as updates."""
        for told in await self._remote.history(self.id):
            read, odd = told.known()
            for update in self._translator.history(told.info, read):
                self._host.say(self.id, update)
            for raw in odd:
                self._host.say_unknown(self.id, jsontext.write(raw))
            if isinstance(told.info, UserMessage):
                self._turns.remember(told.info.id)

    async def quiet(self) -> None:
        """A turn that somebody left running is ended: nobody would hear of it."""
        if await self._remote.is_busy():
            await self._remote.abort()
