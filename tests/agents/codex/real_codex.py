"""The real Codex at work: sessions of it in a host, and the model that it believes in."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.host.rig import Hand, Rig, of_type, rig

from legation.agents.codex import CodexAgent
from legation.clock import new_id
from legation.host.options import AgentDefinition
from legation.host.session import Session
from legation.host.turn import PromptResult
from legation.testing.model import ScriptedModel, ToolCall
from legation.testing.model.openai_responses import OpenAiResponsesWire
from legation.wire.acp.methods import McpServer
from legation.wire.acp.updates import Text as Prompt
from legation.wire.events import Event

KEY = "not-a-key"
MODEL = "gpt-5.5"  # its tools are plain functions; the newest models write programs that call them
# Where an error is the subject, it is not waited for many times.
IMPATIENT = (
    "-c",
    "model_providers.legation.request_max_retries=0",
    "-c",
    "model_providers.legation.stream_max_retries=1",
)


def run(command: str, **more: object) -> ToolCall:
    return ToolCall("exec_command", {"cmd": command, **more})


def add_file(path: str, line: str) -> ToolCall:
    return patch(f"*** Add File: {path}\n+{line}\n")


def patch(text: str) -> ToolCall:
    return ToolCall("apply_patch", {"input": f"*** Begin Patch\n{text}*** End Patch\n"})


@dataclass
class RealCodex:
    made: Rig
    model: ScriptedModel
    definition: AgentDefinition
    hand: Hand

    @property
    def work(self) -> Path:
        return self.made.work

    async def open(self) -> Session:
        """With an agent of its own, on the server that all of them share."""
        agent = await self.made.host.spawn_agent(self.definition)
        session = await self.made.open(agent.agent_id)
        await self.made.host.set_config_option(session.id, "model", MODEL)
        return session

    def driver(self, session: Session) -> CodexAgent:
        assert isinstance(session.agent, CodexAgent)
        return session.agent


async def open_with(at: RealCodex, server: McpServer) -> Session:
    agent = await at.made.host.spawn_agent(at.definition)
    opened = await at.made.host.create_session(
        agent.agent_id, cwd=at.work, session_id=new_id("ses"), mcp_servers=(server,)
    )
    await at.made.host.set_config_option(opened.session_id, "model", MODEL)
    return at.made.host.session(opened.session_id)


async def ask(session: Session, text: str = "go") -> PromptResult:
    return await session.prompt((Prompt(text=text),))


async def said(session: Session, type_: str = "agent-message-chunk") -> str:
    chunks = [json.loads(event.payload) for event in await of_type(session, type_)]
    return "".join(chunk["content"]["text"] for chunk in chunks)


async def tool_calls(session: Session) -> dict[str, list[str]]:
    """By name, the statuses that each went through."""
    names: dict[str, str] = {}
    found: dict[str, list[str]] = {}
    for event in await of_type(session, "tool-call", "tool-call-update"):
        update = json.loads(event.payload)
        name = names.setdefault(update["toolCallId"], update.get("name", "?"))
        if "status" in update:
            found.setdefault(name, []).append(update["status"])
    return found


def payload(event: Event) -> dict[str, Any]:
    found = json.loads(event.payload)
    assert isinstance(found, dict)
    return found


@asynccontextmanager
async def real_codex(codex: Path, place: Path, *arguments: str, **options: Any) -> AsyncIterator[RealCodex]:
    """`options` are the host's. Unless told otherwise the hand decides."""
    hand = Hand()
    options.setdefault("approver", hand)
    wire = OpenAiResponsesWire()
    async with ScriptedModel(wires=(wire,)) as model, rig(place, **options) as made:
        env = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"{model.url}/v1", **model.proxy_variables()}
        definition = AgentDefinition(
            id="codex",
            command=str(codex),
            args=(*arguments, "app-server"),
            cwd=made.work,
            env=env,
            driver="codex",
        )
        yield RealCodex(made, model, definition, hand)
