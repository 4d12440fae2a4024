"""The real @agentclientprotocol/claude-agent-acp at work: a session of it, and the model that it believes in."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.host.rig import Rig, definition_of, of_type, rig

from legation.host.host import AcpHost
from legation.host.options import AgentDefinition
from legation.host.session import Session
from legation.host.turn import PromptResult
from legation.proc import Command, child_environment
from legation.testing.model import ScriptedModel
from legation.wire.acp.updates import Text as Prompt

QUIET = {
    "ANTHROPIC_API_KEY": "not-a-key",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",  # no telemetry, no look for updates
    "CLAUDE_CODE_MAX_RETRIES": "0",  # ten of them otherwise, for minutes
    "CLAUDE_CODE_ENABLE_PROMPT_SUGGESTION": "false",  # a request more after a turn, or not, as time allows
}


@dataclass
class RealAgent:
    made: Rig
    model: ScriptedModel
    definition: AgentDefinition
    session: Session

    @property
    def host(self) -> AcpHost:
        return self.made.host

    @property
    def work(self) -> Path:
        return self.made.work

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
        chunks = [json.loads(event.payload) for event in await of_type(self.session, type_)]
        return "".join(chunk["content"]["text"] for chunk in chunks)

    async def tool_calls(self) -> dict[str, list[str]]:
        """By id, the statuses that each went through."""
        found: dict[str, list[str]] = {}
        for event in await of_type(self.session, "tool-call", "tool-call-update"):
            update = json.loads(event.payload)
            if "status" in update:
                found.setdefault(update["toolCallId"], []).append(update["status"])
        return found


@asynccontextmanager
async def real_claude_acp(
    argv: tuple[str, ...], place: Path, *, env: dict[str, str] | None = None, **options: Any
) -> AsyncIterator[RealAgent]:
    """`options` are the host's."""
    async with ScriptedModel() as model, rig(place, **options) as made:
        passed = {**QUIET, "ANTHROPIC_BASE_URL": model.url, **model.proxy_variables(), **(env or {})}
        environment = child_environment(passed, home=place / "home", tmp=place / "tmp")
        definition = definition_of(Command(argv, made.work, environment, "claude-agent-acp"))
        session = await made.open((await made.host.spawn_agent(definition)).agent_id)
        yield RealAgent(made, model, definition, session)
