"""The real @agentclientprotocol/claude-agent-acp at work: a session of it, and the model that it believes in.

Its start is seconds of work. Where a test is about turns alone, they are further turns of the session that its module has (`turns`): what came
before is not seen, and the folder is another.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.host.rig import Rig, definition_of, of_type, rig, until

from legation.clock import new_id
from legation.host.host import AcpHost
from legation.host.options import AgentDefinition
from legation.host.requests.handlers import ApproveAll, Approver
from legation.host.session import Session
from legation.host.turn import PromptResult
from legation.proc import Command, child_environment
from legation.testing.model import ModelRequest, ScriptedModel
from legation.wire.acp.updates import Text as Prompt
from legation.wire.action import Ask, Decision
from legation.wire.events import Event

QUIET = {
    "ANTHROPIC_API_KEY": "not-a-key",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",  # no telemetry, no look for updates
    "CLAUDE_CODE_MAX_RETRIES": "0",  # ten of them otherwise, for minutes
    "CLAUDE_CODE_ENABLE_PROMPT_SUGGESTION": "false",  # a request more after a turn, or not, as time allows
}


@dataclass
class ChosenApprover:
    """The approver of the session, unless a test chooses another."""

    approver: Approver
    chosen: Approver | None = None

    async def decide(self, ask: Ask) -> Decision:
        return await (self.chosen or self.approver).decide(ask)


@dataclass
class RealAgent:
    made: Rig
    model: ScriptedModel
    definition: AgentDefinition
    session: Session
    chooser: ChosenApprover
    folder: str = ""
    first_event: int = 0  # what the session and the model had before is another test's
    first_request: int = 0

    @asynccontextmanager
    async def turns(
        self, *, approver: Approver | None = None, fresh: bool = False
    ) -> AsyncIterator[RealAgent]:
        """The same session for one test more, with an approver of its own; a `fresh` one is a session more of the same agent."""
        session = await self.made.open(self.agent_id) if fresh else self.session
        events, requests = session.stream.head, len(self.model.requests)
        folder = new_id("turns")
        at = replace(self, session=session, folder=folder, first_event=events, first_request=requests)
        at.work.mkdir()
        self.chooser.chosen = approver
        try:
            yield at
            assert [*self.model.problems, *self.model._left_over()] == []
        finally:
            self.chooser.chosen = None
            self.model.clear()

    @property
    def requests(self) -> list[ModelRequest]:
        return self.model.requests[self.first_request :]

    async def events(self, *types: str) -> list[Event]:
        return await of_type(self.session, *types, after=self.first_event)

    async def until_type(self, type_: str) -> Event:
        return await until(self.session, lambda event: event.type == type_, self.first_event)

    @property
    def host(self) -> AcpHost:
        return self.made.host

    @property
    def work(self) -> Path:
        return self.made.work / self.folder

    @property
    def agent_id(self) -> str:
        assert self.session.agent_id
        return self.session.agent_id

    async def ask(self, text: str) -> PromptResult:
        return await self.session.prompt((Prompt(text=text),))

    async def replace_agent(self) -> str:
        """The process ends, another begins, with the same HOME; its agent id."""
        await self.host.dispose_agent(self.agent_id)
        return (await self.host.spawn_agent(self.definition)).agent_id

    async def said(self, type_: str = "agent-message-chunk") -> str:
        chunks = [json.loads(event.payload) for event in await self.events(type_)]
        return "".join(chunk["content"]["text"] for chunk in chunks)

    async def tool_calls(self) -> dict[str, list[str]]:
        """By id, the statuses that each went through."""
        found: dict[str, list[str]] = {}
        for event in await self.events("tool-call", "tool-call-update"):
            update = json.loads(event.payload)
            if "status" in update:
                found.setdefault(update["toolCallId"], []).append(update["status"])
        return found


@asynccontextmanager
async def real_claude_acp(
    argv: tuple[str, ...], place: Path, *, env: dict[str, str] | None = None, **options: Any
) -> AsyncIterator[RealAgent]:
    """`options` are the host's."""
    chooser = ChosenApprover(options.pop("approver", ApproveAll()))
    async with ScriptedModel() as model, rig(place, approver=chooser, **options) as made:
        passed = {**QUIET, "ANTHROPIC_BASE_URL": model.url, **model.proxy_variables(), **(env or {})}
        environment = child_environment(passed, home=place / "home", tmp=place / "tmp")
        definition = definition_of(Command(argv, made.work, environment, "claude-agent-acp"))
        session = await made.open((await made.host.spawn_agent(definition)).agent_id)
        yield RealAgent(made, model, definition, session, chooser)
