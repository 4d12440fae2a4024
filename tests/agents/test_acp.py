from collections.abc import Awaitable
from pathlib import Path

import pytest
from tests.agents.scripted import scripted

from legation.agents.acp import AcpAgent
from legation.agents.rpc import RpcFault
from legation.errors import AgentError, AgentExited
from legation.proc import Pipes, ProcessLauncher
from legation.wire.acp.capabilities import ClientCapabilities
from legation.wire.acp.content import Text
from legation.wire.acp.sessions import PromptResponse
from legation.wire.diagnostic import DiagnosticCode
from legation.wire.events import Draft

LIMIT = 30.0  # seconds for an agent to start and answer, on a busy machine


class Box:
    def __init__(self) -> None:
        self.got: list[str] = []

    def updates(self, _: str, drafts: list[Draft]) -> None:
        self.got += [draft.type for draft in drafts]

    def trouble(self, code: DiagnosticCode, _: str) -> None:
        self.got.append(code)

    def notification(self, method: str, _: bytes) -> None:
        self.got.append(method)

    def request(self, method: str, _: bytes) -> Awaitable[object]:
        raise RpcFault(-32601, method)

    async def room(self) -> None:
        return


async def start(source: str, folder: Path, box: Box | None = None) -> AcpAgent:
    return await AcpAgent.start(
        ProcessLauncher(),
        scripted(source, folder),
        box or Box(),
        pipes=Pipes(),
        capabilities=ClientCapabilities(),
        timeout=LIMIT,
    )


async def test_the_handshake_says_who_speaks(tmp_path: Path) -> None:
    source = """
message = read()
assert message["params"]["protocolVersion"] == 1 and message["params"]["clientInfo"]["name"] == "legation"
info = {"name": "odd", "version": "3"}
send(id=message["id"], result={"protocolVersion": 1, "agentInfo": info, "agentCapabilities": {"loadSession": True}})
session("abc"); stay()
"""
    agent = await start(source, tmp_path)
    assert agent.hello.agent_info is not None
    assert agent.hello.agent_info.name == "odd"
    assert (await agent.new_session(str(tmp_path), (), LIMIT)).session_id == "abc"
    assert (await agent.stop(LIMIT)).code == 0


async def test_the_answer_to_a_prompt_is_seen_before_what_follows_it(tmp_path: Path) -> None:
    box = Box()
    source = """
hello(); prompt = prompted()
answer = json.dumps({"id": prompt, "result": {"stopReason": "end_turn"}}).encode() + b"\\n"
raw(line("a") + answer + line("b")); stay()
"""
    agent = await start(source, tmp_path, box)

    def on_answer(answer: PromptResponse | AgentError) -> None:
        assert isinstance(answer, PromptResponse)
        box.got.append(answer.stop_reason)

    await agent.prompt("s1", (Text(text="hi"),), on_answer=on_answer)
    await agent.stop(LIMIT)
    assert box.got == ["agent-message-chunk", "end_turn", "agent-message-chunk"]


async def test_what_an_agent_wrote_last_is_handed_on_before_wait_returns(tmp_path: Path) -> None:
    box = Box()
    agent = await start("hello(); raw(line('x') * 5000); os._exit(0)", tmp_path, box)
    assert (await agent.wait()).code == 0
    assert box.got == ["agent-message-chunk"] * 5000


@pytest.mark.parametrize("result", ["{}", "[]", "None", "{'sessionId': 5}"])
async def test_an_answer_that_cannot_be_understood_is_an_error_that_names_the_agent(
    tmp_path: Path, result: str
) -> None:
    agent = await start(f"hello(); send(id=serve('session/new'), result={result}); stay()", tmp_path)
    with pytest.raises(AgentError, match="'scripted' to session/new"):
        await agent.new_session(str(tmp_path), (), LIMIT)
    await agent.stop(LIMIT)


async def test_a_call_to_an_agent_that_has_ended_says_how(tmp_path: Path) -> None:
    agent = await start("hello(); os.write(2, b'over'); os._exit(9)", tmp_path)
    await agent.wait()
    for _ in range(2):
        with pytest.raises(AgentExited, match="exit code 9") as caught:
            await agent.new_session(str(tmp_path), (), LIMIT)
        assert "over" in caught.value.message


async def test_stop_twice_is_stop_once(tmp_path: Path) -> None:
    agent = await start("hello(); stay()", tmp_path)
    assert await agent.stop(LIMIT) == await agent.stop(LIMIT) == await agent.wait()
