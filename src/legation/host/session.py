"""A session's place: which agent has it, what state it is in, what is recorded of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from contextlib import suppress
from pathlib import Path
from typing import Literal, Protocol

import msgspec
from msgspec import UNSET

from legation.agents.acp import AcpAgent
from legation.clock import Clock
from legation.errors import AgentExited, Conflict, LegationError, SessionClosed
from legation.host.conversation import Conversation
from legation.host.handlers import QuestionHandler
from legation.host.meta import SessionMeta
from legation.host.options import Limits
from legation.host.toolcalls import TYPES as TOOL_CALL_TYPES
from legation.host.turn import PromptResult
from legation.store.stream import Receipt, Stream
from legation.wire import codec
from legation.wire.acp.content import ContentBlock
from legation.wire.acp.elicitation import CreateElicitationRequest, CreateElicitationResponse
from legation.wire.acp.mcp import McpServer
from legation.wire.acp.permission import RequestPermissionRequest, RequestPermissionResponse
from legation.wire.acp.sessions import SessionSetup
from legation.wire.acp.updates import SessionInfoUpdate
from legation.wire.ask import Approver
from legation.wire.events import Draft
from legation.wire.hoststream import PermissionUpdated, SessionUpdated
from legation.wire.lifecycle import PermissionAnswered, PermissionAsked, SessionStatus, Status
from legation.wire.payload import Payload

_NOTED = TOOL_CALL_TYPES | {"session-info-update"}


class Surroundings(Protocol):
    """What a session needs of its host."""

    clock: Clock
    limits: Limits
    approver: Approver
    question_handler: QuestionHandler | None

    def publish(self, payload: Payload) -> object: ...
    async def replace_agent(self, session: Session, why: str) -> None: ...


class Session:
    """`id` is Legation's and names the stream; what the agent calls it is in `meta`."""

    def __init__(self, stream: Stream, meta: SessionMeta, around: Surroundings) -> None:
        self.id = stream.name
        self.stream = stream
        self.meta = meta
        # Resolved now: a link that the agent puts in their place later moves nothing.
        self.folders = [Path(os.path.realpath(each)) for each in (meta.cwd, *meta.additional_directories)]
        self.status: Status = "disconnected"
        self._reason: str | None = None
        self.agent_id: str | None = None
        self.mcp: tuple[McpServer, ...] = ()  # with their secrets, so in memory only
        self.has_modes = self.has_config = False  # whether the agent ever said that it has them
        self._agent: AcpAgent | None = None
        self._around = around
        self.talk = Conversation(
            self,
            approver=around.approver,
            questions=around.question_handler,
            clock=around.clock,
            limits=around.limits,
        )
        self._saving: set[asyncio.Task[None]] = set()

    # Its place in the host.

    @property
    def agent(self) -> AcpAgent:
        if self._agent is None or self.status != "active":
            why = f" ({self._reason})" if self._reason else ""
            raise AgentExited(
                f"cannot reach the agent of session {self.id}: it is {self.status}{why}; resume it"
            )
        return self._agent

    @property
    def busy(self) -> bool:
        return self.talk.busy

    def must_be_usable(self, what: str) -> None:
        if self.status in ("closed", "deleted"):
            raise SessionClosed(f"cannot {what} session {self.id}: it is {self.status}")
        _ = self.agent

    async def replace_agent(self, why: str) -> None:
        """The agent no longer obeys."""
        await self._around.replace_agent(self, why)

    def snapshot(self) -> SessionUpdated:
        return self.meta.snapshot(self.id, self.status, self.agent_id)

    def attach(
        self, agent_id: str, agent: AcpAgent, setup: SessionSetup, mcp: tuple[McpServer, ...]
    ) -> Receipt | None:
        """An agent has taken the session: new, loaded or resumed."""
        self.agent_id, self._agent, self.mcp = agent_id, agent, mcp
        self.has_modes |= setup.modes is not None
        self.has_config |= setup.config_options is not None
        return self.move("active")

    def move(self, status: Status, reason: str | None = None) -> Receipt | None:
        """Tell the session's readers and the host's."""
        self.status, self._reason = status, reason
        receipt = self.note(SessionStatus(status=status, reason=reason))
        self._around.publish(self.snapshot())
        return receipt

    def show(self, status: Status) -> None:
        """A projection only: nothing is decided yet."""
        self.status = status
        self._around.publish(self.snapshot())

    def disconnect(self, reason: str) -> None:
        """Its agent is gone; its history stays."""
        self._agent = None
        if self.status not in ("closed", "deleted", "disconnected"):
            self.move("disconnected", reason)

    async def lose_agent(self, reason: str) -> None:
        """First the turn says how it ended, then the session that it is disconnected."""
        await self.talk.settle()
        self.disconnect(reason)

    async def keep(self, meta: SessionMeta) -> None:
        self.meta = meta
        await self.stream.set_meta(meta.encode())

    async def end(self, status: Literal["closed", "deleted"]) -> None:
        """Strict: where the tombstone cannot be written, nothing is published and this raises."""
        await self.talk.cancel()
        await self.talk.settle()
        if status == "closed":
            self.note(SessionStatus(status="closed"))
            await self.stream.close()
        else:
            await self.stream.delete()
        self.status, self._agent = status, None
        self._around.publish(self.snapshot())

    # What is recorded.

    def note(self, *payloads: Payload) -> Receipt | None:
        """Append events of our own; None where the session takes no more."""
        with suppress(Conflict):
            return self.record(*payloads)
        return None

    def note_permission(self, payload: Payload) -> Receipt | None:
        """On the session's stream, and its projection on the host's."""
        receipt = self.note(payload)
        if isinstance(payload, PermissionAsked):
            self._around.publish(
                PermissionUpdated(id=payload.id, session_id=self.id, state="pending", ask=payload)
            )
        elif isinstance(payload, PermissionAnswered):
            self._around.publish(
                PermissionUpdated(
                    id=payload.id,
                    session_id=self.id,
                    state="superseded" if payload.outcome == "superseded" else "answered",
                    outcome=payload.outcome,
                    by=payload.by,
                )
            )
        return receipt

    def record(self, *payloads: Payload) -> Receipt:
        return self.stream.append([codec.draft(payload) for payload in payloads])

    # The agent speaks.

    def heard(self) -> None:
        """A sign of life."""
        self.talk.heard()

    def updates(self, drafts: list[Draft]) -> None:
        self.heard()
        self.stream.append(drafts)
        for draft in drafts:
            if draft.type in _NOTED:
                self._take_note(draft)

    def _take_note(self, draft: Draft) -> None:
        if draft.type == "session-info-update":
            self._retitle(codec.decode(draft))
        else:
            self.talk.tool_calls.take(draft)

    def _retitle(self, info: object) -> None:
        if not isinstance(info, SessionInfoUpdate):
            return
        title = self.meta.title if info.title is UNSET else info.title
        updated_at = self.meta.updated_at if info.updated_at is UNSET else info.updated_at
        self.meta = msgspec.structs.replace(self.meta, title=title, updated_at=updated_at)
        self._around.publish(self.snapshot())
        saving = asyncio.create_task(self._save_meta())
        self._saving.add(saving)
        saving.add_done_callback(self._saving.discard)

    async def _save_meta(self) -> None:
        with suppress(LegationError):  # best effort: the event itself is what counts
            await self.stream.set_meta(self.meta.encode())

    # What is said; see `Conversation`.

    def permission(self, request: RequestPermissionRequest) -> Awaitable[RequestPermissionResponse]:
        return self.talk.permission(request)

    def question(self, request: CreateElicitationRequest) -> Awaitable[CreateElicitationResponse]:
        return self.talk.question(request)

    async def prompt(self, prompt: tuple[ContentBlock, ...]) -> PromptResult:
        return await self.talk.prompt(prompt)

    async def cancel(self) -> None:
        await self.talk.cancel()
