"""Calls that wait at the door of a real application for somebody to answer them over HTTP."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.approvals.doors import Counter
from tests.approvals.installation import add_asker
from tests.server.rig import Rig, bearer, open_rig

from legation.approvals.approval import Approval
from legation.approvals.policy.facts import Facts, as_named
from legation.approvals.request import DoorRequest, DoorResult, ToolReturn
from legation.approvals.trace.step import StepKind
from legation.server.instance import Services
from legation.wire.action import Action
from legation.wire.principal import Principal

LIMIT = 20.0  # seconds: the application's time to come to what a test waits for
FACTS = Facts(workspace="/w", cwd="/w", home="/home/you", resolve=as_named)
POLICY = """
name: p
agent: "*"
loop: off
rules:
  - {id: reads, tools: filesystem.read_file, action: allow}
  - {id: writes, tools: "filesystem.*", action: supervisor}
  - {id: mails, tools: "gmail.*", action: human_approval}
  - {id: rm, tools: "shell.*", action: deny}
"""

Outcome = tuple[DoorResult, ToolReturn | None]


@dataclass
class Calls:
    """Made in the server's own process, by an agent that has a token of its own."""

    services: Services
    counter: Counter = field(default_factory=Counter)
    made: list[asyncio.Task[Outcome]] = field(default_factory=list)
    _asked: asyncio.Queue[Approval] = field(default_factory=asyncio.Queue)

    def __post_init__(self) -> None:
        self.services.inbox.on_change(self._on_change)

    def _on_change(self, approval: Approval, happened: StepKind) -> None:
        if happened is StepKind.PROPOSED:
            self._asked.put_nowait(approval)

    def start(
        self, tool: str = "filesystem.write_file", agent: str = "claude", **given: Any
    ) -> asyncio.Task[Outcome]:
        params = given.pop("params", {"path": "/w/main.go", "content": "package main"})
        asker = Principal(
            kind="token",
            id=f"tok_{agent}",
            workspace=given.pop("workspace", "local"),
            scopes=frozenset({"call"}),
            level=0,
        )
        request = DoorRequest(
            principal=given.pop("by", asker),
            action=given.pop("action", None) or Action(agent=agent, tool=tool, kind="edit", params=params),
            facts=FACTS,
            timeout=given.pop("timeout", 300),
            **given,
        )
        task = asyncio.create_task(self._run(request))
        self.made.append(task)
        return task

    async def _run(self, request: DoorRequest) -> Outcome:
        who = request.principal
        if who.kind == "token":
            await add_asker(self.services.database, who.id, who.workspace)
        return await self.services.door.run(request, self.counter)

    async def ask(self, *args: Any, **given: Any) -> tuple[Approval, asyncio.Task[Outcome]]:
        """Until it waits."""
        task = self.start(*args, **given)
        async with asyncio.timeout(LIMIT):
            return await self._asked.get(), task

    async def end(self) -> None:
        for task in self.made:
            task.cancel()
        await asyncio.gather(*self.made, return_exceptions=True)


@dataclass
class Desk:
    rig: Rig
    calls: Calls
    person: dict[str, str]
    supervisor: dict[str, str]
    second: dict[str, str]  # another supervisor

    async def get(self, path: str, by: dict[str, str] | None = None) -> httpx2.Response:
        return await self.rig.client.get(path, headers=self.person if by is None else by)

    async def post(self, path: str, body: object = None, by: dict[str, str] | None = None) -> httpx2.Response:
        headers = self.person if by is None else by
        return await self.rig.client.post(path, headers=headers, **({} if body is None else {"json": body}))  # type: ignore[arg-type]


@asynccontextmanager
async def open_desk(
    dialect: str, folder: Path, request: pytest.FixtureRequest, **flags: object
) -> AsyncIterator[Desk]:
    policy = folder / "policy.yaml"
    policy.write_text(POLICY)
    async with open_rig(dialect, folder, request, policy=policy, **flags) as rig:
        owner = rig.people["owner"]
        calls = Calls(rig.services)
        desk = Desk(
            rig,
            calls,
            await rig.bearer(owner),
            bearer((await rig.token(owner, "read", "approve", kind="supervisor"))[1]),
            bearer((await rig.token(owner, "read", "approve", kind="supervisor"))[1]),
        )
        try:
            yield desk
        finally:
            await calls.end()


async def outcome(task: asyncio.Task[Outcome]) -> Outcome:
    async with asyncio.timeout(LIMIT):
        return await task
