"""An agent built on the official Python SDK. A prompt is one line: a word that says what to do, and its rest.

tests/agents/ts_agent.mjs is the same agent on the TypeScript SDK; tests/agents/test_sdks.py drives both.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import acp
from acp.schema import (
    AgentCapabilities,
    AllowedOutcome,
    PermissionOption,
    TextContentBlock,
    ToolCallUpdate,
)

REPLAYED = 50
CRASH = 7
OPTIONS = [
    PermissionOption(option_id="always", name="Always", kind="allow_always"),
    PermissionOption(option_id="yes", name="Yes", kind="allow_once"),
    PermissionOption(option_id="no", name="No", kind="reject_once"),
]


class SdkAgent:
    def __init__(self) -> None:
        self._client: acp.Client
        self._cancelled: dict[str, asyncio.Event] = {}
        self._actions: Mapping[str, Callable[[str, str], Awaitable[str]]] = {
            "say": self.say,
            "flood": self.flood,
            "tool": self.tool,
            "tools": self.tools,
            "read": self.read,
            "write": self.write,
            "wait": self.wait,
            "fail": self.fail,
            "crash": self.crash,
        }

    def on_connect(self, client: acp.Client) -> None:
        self._client = client

    async def initialize(self, protocol_version: int, **_: Any) -> acp.InitializeResponse:
        capabilities = AgentCapabilities(load_session=True)
        return acp.InitializeResponse(protocol_version=protocol_version, agent_capabilities=capabilities)

    async def new_session(self, **_: Any) -> acp.NewSessionResponse:
        session = f"session-{len(self._cancelled)}"
        self._cancelled[session] = asyncio.Event()
        return acp.NewSessionResponse(session_id=session)

    async def load_session(self, session_id: str, **_: Any) -> acp.LoadSessionResponse:
        self._cancelled[session_id] = asyncio.Event()
        for number in range(REPLAYED):
            await self.say(session_id, str(number))
        return acp.LoadSessionResponse()

    async def cancel(self, session_id: str, **_: Any) -> None:
        self._cancelled[session_id].set()

    async def prompt(self, session_id: str, prompt: list[Any], **_: Any) -> acp.PromptResponse:
        (block,) = prompt
        assert isinstance(block, TextContentBlock)
        action, _space, rest = block.text.partition(" ")
        self._cancelled[session_id].clear()
        reason = await self._actions[action](session_id, rest)
        return acp.PromptResponse(stop_reason=cast(Any, reason))

    async def say(self, session: str, text: str) -> str:
        await self._client.session_update(session_id=session, update=acp.update_agent_message_text(text))
        return "end_turn"

    async def flood(self, session: str, count: str) -> str:
        for number in range(int(count)):
            await self.say(session, str(number))
        return "end_turn"

    async def tool(self, session: str, title: str) -> str:
        start = acp.start_tool_call(
            title, title, kind="execute", status="pending", raw_input={"command": title}
        )
        await self._client.session_update(session_id=session, update=start)
        answer = await self._client.request_permission(
            session_id=session, tool_call=ToolCallUpdate(tool_call_id=title), options=OPTIONS
        )
        if not isinstance(answer.outcome, AllowedOutcome):
            return "cancelled"
        status: Any = "completed" if answer.outcome.option_id == "yes" else "failed"
        await self._client.session_update(
            session_id=session, update=acp.update_tool_call(title, status=status)
        )
        return "end_turn"

    async def tools(self, session: str, titles: str) -> str:
        await asyncio.gather(*(self.tool(session, title) for title in titles.split()))
        return "end_turn"

    async def read(self, session: str, path: str) -> str:
        try:
            answer = await self._client.read_text_file(session_id=session, path=path)
        except acp.RequestError as error:
            return await self.say(session, f"error {error.code}")
        return await self.say(session, answer.content)

    async def write(self, session: str, rest: str) -> str:
        path, _, text = rest.partition(" ")
        await self._client.write_text_file(session_id=session, path=path, content=text)
        return "end_turn"

    async def wait(self, session: str, text: str) -> str:
        await self.say(session, text)
        await self._cancelled[session].wait()
        return "cancelled"

    async def fail(self, _: str, rest: str) -> str:
        code, _space, message = rest.partition(" ")
        raise acp.RequestError(int(code), message, {"by": "agent"})

    async def crash(self, session: str, text: str) -> str:
        await self.say(session, text)
        os._exit(CRASH)


if __name__ == "__main__":
    asyncio.run(acp.run_agent(cast(acp.Agent, SdkAgent())))
