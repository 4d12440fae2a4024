"""The real Claude Code, by its native driver, behind the façade: for a client over HTTP and for one on stdio.

It is found on PATH and given its key and its address by the server's environment, as its owner would have it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import real_agents
from tests.cli.command import environment
from tests.server.acp.acp_server import LIMIT, Client, Json, connected, serving

from legation.testing.model import ScriptedModel

pytestmark = [pytest.mark.heavy, pytest.mark.network]

ASK = "session/request_permission"
ALLOW = {"outcome": {"outcome": "selected", "optionId": "allow"}}


@pytest.fixture(scope="module")
def path_with_claude() -> str:
    try:
        argv = real_agents.agent("claude")
    except real_agents.NotAvailable as error:
        pytest.skip(str(error))
    return f"{Path(argv[-1]).parent}{os.pathsep}{os.environ['PATH']}"


def given(model: ScriptedModel, path: str) -> dict[str, str]:
    return {"PATH": path, "ANTHROPIC_API_KEY": "not-a-key", "ANTHROPIC_BASE_URL": model.url}


def writes(model: ScriptedModel, target: Path) -> None:
    model.call_tool("Write", {"file_path": str(target), "content": "by claude"}, say="I write it.")
    model.say("Done.")


def said(session: str, text: str) -> Json:
    return {"sessionId": session, "prompt": [{"type": "text", "text": text}]}


async def test_over_http_it_asks_the_client_and_goes_on(tmp_path: Path, path_with_claude: str) -> None:
    async with ScriptedModel() as model:
        with serving(tmp_path / "home", **given(model, path_with_claude)) as server:
            async with connected(server, "real", tmp_path / "work") as client:
                await client.initialize("claude")
                client.follow()
                session = await client.new()
                writes(model, client.work / "a.txt")
                prompting = asyncio.create_task(client.call("session/prompt", said(session, "Write a.txt")))
                request = await client.until(ASK)
                assert request["params"]["toolCall"]["kind"] == "edit"
                await client.answer(request, ALLOW)
                assert (await prompting)["result"]["stopReason"] == "end_turn"
                assert (client.work / "a.txt").read_text() == "by claude"
                assert client.text(session).endswith("Done.")
                await is_cancelled(client, model, session)


async def is_cancelled(client: Client, model: ScriptedModel, session: str) -> None:
    stall = model.stall()
    prompting = asyncio.create_task(client.call("session/prompt", said(session, "Think")))
    await stall.reached()
    await client.notify("session/cancel", {"sessionId": session})
    assert (await prompting)["result"]["stopReason"] == "cancelled"


async def test_on_stdio_it_is_an_agent_for_editors(tmp_path: Path, path_with_claude: str) -> None:
    work = tmp_path / "work"
    work.mkdir()
    async with ScriptedModel() as model:
        with serving(tmp_path / "home", **given(model, path_with_claude)):
            editor = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "legation", "acp", "--agent", "claude"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=environment(tmp_path / "home"),
                cwd=work,
                limit=2**20,
            )
            try:
                async with asyncio.timeout(LIMIT):
                    await _conversation(editor, model, work)
            finally:
                assert editor.stdin is not None
                editor.stdin.close()
                await editor.wait()
    assert (work / "b.txt").read_text() == "by claude"


async def _conversation(editor: asyncio.subprocess.Process, model: ScriptedModel, work: Path) -> None:
    await _answer(editor, 1, "initialize", {"protocolVersion": 1, "clientCapabilities": {}})
    made = await _answer(editor, 2, "session/new", {"cwd": str(work), "mcpServers": []})
    writes(model, work / "b.txt")
    done = await _answer(editor, 3, "session/prompt", said(made["sessionId"], "Write b.txt"))
    assert done["stopReason"] == "end_turn"


async def _answer(editor: asyncio.subprocess.Process, number: int, method: str, params: Json) -> Any:
    """Its result; what is asked meanwhile is allowed."""
    assert editor.stdin is not None
    assert editor.stdout is not None
    _write(editor.stdin, {"jsonrpc": "2.0", "id": number, "method": method, "params": params})
    while True:
        message = json.loads(await editor.stdout.readline())
        if message.get("method") == ASK:
            _write(editor.stdin, {"jsonrpc": "2.0", "id": message["id"], "result": ALLOW})
        elif message.get("id") == number and "method" not in message:
            assert "error" not in message, message
            return message["result"]


def _write(pipe: asyncio.StreamWriter, message: Json) -> None:
    pipe.write(json.dumps(message).encode() + b"\n")
