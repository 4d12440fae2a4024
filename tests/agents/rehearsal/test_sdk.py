"""The official Python SDK as an independent client."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from acp import PROTOCOL_VERSION, spawn_agent_process, text_block
from acp.client.connection import ClientSideConnection
from acp.interfaces import Client
from acp.schema import AllowedOutcome, RequestPermissionResponse
from tests.agents.rehearsal.raw_client import WAIT


class Sdk:
    """The client's side as the SDK wants it: permissions are given, updates kept."""

    def __init__(self) -> None:
        self.updates: list[Any] = []
        self.arrived = asyncio.Event()

    async def request_permission(self, options: list[Any], **_: Any) -> RequestPermissionResponse:
        (option,) = [option for option in options if option.kind == "allow_once"]
        return RequestPermissionResponse(
            outcome=AllowedOutcome(outcome="selected", option_id=option.option_id)
        )

    async def session_update(self, update: Any, **_: Any) -> None:
        self.updates.append(update)
        self.arrived.set()

    def on_connect(self, conn: Any) -> None:
        pass

    def text(self) -> str:
        chunks = [update for update in self.updates if update.session_update == "agent_message_chunk"]
        return "".join(chunk.content.text for chunk in chunks)


@asynccontextmanager
async def connected(sdk: Sdk, home: Path) -> AsyncIterator[ClientSideConnection]:
    client: Client = sdk  # type: ignore[assignment]
    argv = (sys.executable, "-m", "legation.agents.rehearsal", "--execute")
    env = {"HOME": str(home), "PATH": os.defpath}
    async with asyncio.timeout(WAIT), spawn_agent_process(client, *argv, env=env) as (connection, _):
        await connection.initialize(PROTOCOL_VERSION)
        yield connection


async def test_a_prompt_with_a_permission_ends_well(home: Path, work: Path) -> None:
    sdk = Sdk()
    async with connected(sdk, home) as agent:
        session = await agent.new_session(cwd=str(work), mcp_servers=[])
        steps = "#!rehearse\nsay hello\nask write a.txt allowed"
        response = await agent.prompt(session_id=session.session_id, prompt=[text_block(steps)])
    assert response.stop_reason == "end_turn"
    assert sdk.text() == "hello"
    assert (work / "a.txt").read_text() == "allowed"


async def test_a_cancelled_prompt_says_so(home: Path, work: Path) -> None:
    sdk = Sdk()
    async with connected(sdk, home) as agent:
        session = await agent.new_session(cwd=str(work), mcp_servers=[])
        steps = text_block("#!rehearse\nsay on\nstall 60")
        prompt = asyncio.create_task(agent.prompt(session_id=session.session_id, prompt=[steps]))
        await sdk.arrived.wait()
        await agent.cancel(session_id=session.session_id)
        assert (await prompt).stop_reason == "cancelled"


async def test_a_session_is_loaded_listed_and_resumed_in_another_process(home: Path, work: Path) -> None:
    async with connected(Sdk(), home) as agent:
        session = (await agent.new_session(cwd=str(work), mcp_servers=[])).session_id
        await agent.prompt(session_id=session, prompt=[text_block("#!rehearse\nsay kept")])
    sdk = Sdk()
    async with connected(sdk, home) as agent:
        listed = await agent.list_sessions()
        loaded = await agent.load_session(cwd=str(work), session_id=session, mcp_servers=[])
        resumed = await agent.resume_session(session_id=session, cwd=str(work))
        assert loaded.modes
        assert resumed.modes
        # The SDK hands out the replay in tasks of its own, after load has returned.
        while "kept" not in sdk.text():
            sdk.arrived.clear()
            await sdk.arrived.wait()
    assert [entry.session_id for entry in listed.sessions] == [session]
