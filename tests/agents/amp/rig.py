"""A driver of Amp with a stand-in behind it, or the real program, and a host that answers as it is told."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from legation.agents.amp import AmpAgent
from legation.agents.driver import OpenRequest
from legation.agents.native import ALLOW, REJECT, DriverContext
from legation.agents.pool import Pool
from legation.agents.rpc import RpcFault
from legation.proc import Command, Launcher, Pipes, ProcessLauncher, child_environment
from legation.wire.acp.methods import (
    CancelledOutcome,
    ClientCapabilities,
    McpServer,
    PromptResponse,
    RequestPermissionResponse,
    SelectedOutcome,
)
from legation.wire.acp.updates import Text
from legation.wire.event_types import DiagnosticCode
from legation.wire.events import Draft

WAIT = 30.0  # seconds, the test's patience
STANDIN = Path(__file__).with_name("stand_in_agent.py")
Object = dict[str, object]


@dataclass
class Box:
    """What the driver tells; `answer` decides on what it asks."""

    updates_: list[tuple[str, str, Object]] = field(default_factory=list)
    natives: list[bytes] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    asked: list[Object] = field(default_factory=list)
    withdrawn: int = 0
    answer: Callable[[Object], Awaitable[RequestPermissionResponse]] | None = None
    asking: asyncio.Event = field(default_factory=asyncio.Event)

    def updates(self, session_id: str, drafts: list[Draft]) -> None:
        self.updates_ += [(session_id, draft.type, json.loads(draft.payload)) for draft in drafts]
        self.natives += [draft.native for draft in drafts if draft.native]

    def trouble(self, code: DiagnosticCode, message: str) -> None:
        self.troubles.append(f"{code}: {message}")

    def notification(self, method: str, _: bytes) -> None:
        raise AssertionError(method)

    def request(self, method: str, params: bytes) -> Awaitable[object]:
        if self.answer is None:
            raise RpcFault(-32601, method)
        request = json.loads(params)
        self.asked.append(request["toolCall"])
        self.asking.set()
        return self._answer(request["toolCall"])

    async def _answer(self, call: Object) -> object:
        assert self.answer is not None
        try:
            return await self.answer(call)
        except asyncio.CancelledError:
            self.withdrawn += 1
            raise

    async def keep(self, _session_id: str, draft: Draft) -> Draft:
        return draft

    async def room(self) -> None:
        return

    def of(self, type_: str, session_id: str | None = None) -> list[Object]:
        return [update for at, kind, update in self.updates_ if kind == type_ and session_id in (None, at)]

    def said(self, type_: str = "agent-message-chunk") -> str:
        return "".join(str(update["content"]["text"]) for update in self.of(type_))  # type: ignore[index]


async def allow(_: Object) -> RequestPermissionResponse:
    return RequestPermissionResponse(outcome=SelectedOutcome(option_id=ALLOW))


async def reject(_: Object) -> RequestPermissionResponse:
    meta = {"legation": {"message": "not today"}}
    return RequestPermissionResponse(outcome=SelectedOutcome(option_id=REJECT), meta=meta)


async def nobody(_: Object) -> RequestPermissionResponse:
    await asyncio.sleep(WAIT)
    return RequestPermissionResponse(outcome=CancelledOutcome())


@dataclass
class Rig:
    agent: AmpAgent
    box: Box
    work: Path
    home: Path
    tmp: Path

    async def session(self, mcp: tuple[McpServer, ...] = ()) -> str:
        return (await self.agent.new_session(OpenRequest(str(self.work), mcp), WAIT)).session_id

    async def ask(self, session_id: str, text: str) -> PromptResponse:
        async with asyncio.timeout(WAIT):
            return await self.agent.prompt(session_id, (Text(text=text),))

    def runs(self) -> list[list[str]]:
        """The arguments of all processes."""
        return [json.loads(line)["argv"] for line in (self.home / "argv.jsonl").read_text().splitlines()]

    def started(self) -> list[list[str]]:
        """Those of each turn."""
        return [argv for argv in self.runs() if argv not in (["--help"], ["--version"])]

    def left_over(self) -> list[str]:
        """Of the driver; the program's own runtime unpacks itself there."""
        return sorted(path.name for path in self.tmp.iterdir() if not path.name.startswith(".bun"))


@asynccontextmanager
async def rig(
    place: Path,
    *,
    argv: tuple[str, ...] = (),
    env: dict[str, str] | None = None,
    trusts: bool = False,
    launcher: Launcher | None = None,
    answer: Callable[[Object], Awaitable[RequestPermissionResponse]] | None = allow,
) -> AsyncIterator[Rig]:
    work, home, tmp = place / "work", place / "home", place / "tmp"
    for folder in (work, home, tmp):
        folder.mkdir(exist_ok=True)
    given = {"AMP_API_KEY": "sgamp-not-a-key"} if env is None else env
    program = place / "amp.py"
    if not argv and not program.exists():
        shutil.copyfile(STANDIN, program)  # each test's own: what a program can is asked once
    command = Command(
        argv or (sys.executable, "-I", "-S", str(program)),
        work,
        child_environment(given, home=home, tmp=tmp),
        "amp",
    )
    box = Box(answer=answer)
    agent = AmpAgent(
        DriverContext(
            command=command,
            launcher=launcher or ProcessLauncher(),
            pipes=Pipes(),
            listener=box,
            pool=Pool(),
            trusts=lambda _: trusts,
        )
    )
    made = Rig(agent, box, work, home, tmp)
    try:
        await agent.initialize(ClientCapabilities(), WAIT)
        yield made
    finally:
        await agent.stop(grace=0)
        assert agent.processes == ()
