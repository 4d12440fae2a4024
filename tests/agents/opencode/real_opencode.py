"""The real OpenCode at work: one host and one server for a whole module, since its start is slow; a seat for each test.

A seat has a folder (within that of all sessions), a session and a script of the model of its own: what it says and scripts carries its mark.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.host.rig import of_type

from legation.clock import new_id
from legation.host.host import AcpHost
from legation.host.options import AgentDefinition, HostOptions, Limits
from legation.host.requests.handlers import ApproveAll, Approver
from legation.host.session import Session
from legation.host.turn import PromptResult
from legation.store.codec import MemoryBackend
from legation.store.log import EventLog
from legation.testing.model import ModelRequest, Reply, Script, ScriptedModel
from legation.testing.model.openai_chat import OpenAiChatWire
from legation.testing.model.request import Frame
from legation.wire.acp.methods import CreateElicitationRequest, CreateElicitationResponse, McpServer
from legation.wire.acp.updates import ContentBlock
from legation.wire.acp.updates import Text as Prompt
from legation.wire.action import Ask, Decision

LIMIT = 300.0  # seconds of real time for a whole module, on a busy machine
# It would fetch the types of its plugins for its own folder, and does as well without.
NOWHERE = "http://127.0.0.1:9"
UNFINISHED = "[unfinished]"  # in a prompt: the model's answers come without their end


class Wire(OpenAiChatWire):
    def stream(self, request: ModelRequest, reply: Reply) -> Iterator[Frame]:
        for frame in super().stream(request, reply):
            ends = isinstance(frame, bytes) and (b'"finish_reason": "' in frame or b"[DONE]" in frame)
            if not (ends and request.mentions(UNFINISHED)):
                yield frame


@dataclass
class People:
    """Whoever decides and answers, chosen by session; without a choice everything is approved, and nothing answered."""

    deciding: dict[str, Approver] = field(default_factory=dict)
    answering: dict[str, CreateElicitationResponse] = field(default_factory=dict)
    asked: list[Ask] = field(default_factory=list)
    questions: list[CreateElicitationRequest] = field(default_factory=list)
    modes: frozenset[str] = frozenset(("form",))

    async def decide(self, ask: Ask) -> Decision:
        self.asked.append(ask)
        return await self.deciding.get(ask.session_id, ApproveAll()).decide(ask)

    async def ask(self, request: CreateElicitationRequest) -> CreateElicitationResponse:
        self.questions.append(request)
        return self.answering.get(request.session_id or "", CreateElicitationResponse(action="cancel"))


@dataclass
class OpencodeSession:
    opencode_at_work: RealOpencode
    mark: str
    work: Path
    session: Session
    script: Script

    async def ask(self, text: str, *more: ContentBlock) -> PromptResult:
        return await self.session.prompt((Prompt(text=f"{text} {self.mark}"), *more))

    async def choose_mode(self, mode: str) -> None:
        await self.opencode_at_work.host.set_mode(self.session.id, mode)

    async def choose(self, option: str, value: str) -> None:
        await self.opencode_at_work.host.set_config_option(self.session.id, option, value)

    async def said(self, type_: str = "agent-message-chunk") -> str:
        chunks = await self.updates(type_)
        return "".join(chunk["content"]["text"] for chunk in chunks)

    async def updates(self, *types: str) -> list[dict[str, Any]]:
        return [json.loads(event.payload) for event in await of_type(self.session, *types)]

    async def statuses(self) -> dict[str, list[str]]:
        """By the id of the tool call, what it went through."""
        found: dict[str, list[str]] = {}
        for update in await self.updates("tool-call", "tool-call-update"):
            found.setdefault(update["toolCallId"], []).append(update["status"])
        return found

    def requests(self) -> list[ModelRequest]:
        return [each for each in self.opencode_at_work.model.requests if each.mentions(self.mark)]

    @property
    def asked(self) -> list[Ask]:
        return [each for each in self.opencode_at_work.people.asked if each.session_id == self.session.id]


@dataclass
class RealOpencode:
    host: AcpHost
    model: ScriptedModel
    place: Path
    argv: tuple[str, ...]
    env: dict[str, str]
    people: People
    _seats: int = 0

    def definition(self) -> AgentDefinition:
        return AgentDefinition(
            id="opencode",
            command=self.argv[0],
            args=self.argv[1:],
            cwd=self.place,
            driver="opencode",
            env={
                "OPENCODE_CONFIG_CONTENT": json.dumps(provider(self.model.url)),
                **self.model.proxy_variables(),
                "npm_config_registry": NOWHERE,
                "npm_config_fetch_retries": "0",
                **self.env,
            },
        )

    @asynccontextmanager
    async def seat(
        self, *, approver: Approver | None = None, mcp: tuple[McpServer, ...] = ()
    ) -> AsyncIterator[OpencodeSession]:
        self._seats += 1
        work = self.place / "work" / f"seat-{self._seats}"
        work.mkdir(parents=True)
        agent = await self.host.spawn_agent(self.definition())
        opened = await self.host.create_session(
            agent.agent_id, cwd=work.parent, session_id=new_id("ses"), mcp_servers=mcp
        )  # all of them in one folder: what OpenCode does for each is slow, too
        session = self.host.session(opened.session_id)
        if approver is not None:
            self.people.deciding[session.id] = approver
        mark = f"[seat {self._seats}]"
        script = self.model.when(mark)
        try:
            yield OpencodeSession(self, mark, work, session, script)
        finally:
            await self.host.dispose_agent(agent.agent_id)


def provider(url: str) -> dict[str, Any]:
    def model(**more: object) -> dict[str, object]:
        return {
            "tool_call": True,
            "cost": {"input": 1, "output": 2},
            "limit": {"context": 200_000, "output": 8000},
            **more,
        }

    return {
        "model": "scripted/first",
        "small_model": "scripted/first",
        "enabled_providers": ["scripted"],
        "provider": {
            "scripted": {
                "npm": "@ai-sdk/openai-compatible",
                "options": {"baseURL": f"{url}/v1", "apiKey": "not-a-key"},
                "models": {"first": model(reasoning=True), "second": model()},
            }
        },
    }


@asynccontextmanager
async def open_opencode(
    program: str | tuple[str, ...], place: Path, *, env: dict[str, str] | None = None, **options: Any
) -> AsyncIterator[RealOpencode]:
    """An agent without a session keeps the server up from test to test."""
    people = People()
    made = HostOptions(
        approver=people,
        questions=people,
        kill_timeout_ms=500,
        data_dir=place / "data",
        limits=Limits(),
        **options,
    )
    async with (
        asyncio.timeout(LIMIT),
        ScriptedModel(wires=(Wire(),)) as model,
        EventLog(MemoryBackend()) as log,
        AcpHost(made, log=log) as host,
    ):
        argv = (program,) if isinstance(program, str) else program
        opencode_at_work = RealOpencode(host, model, place, argv, env or {}, people)
        await host.spawn_agent(opencode_at_work.definition())
        yield opencode_at_work
