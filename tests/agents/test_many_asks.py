"""Agents that ask more than anybody could answer, by every driver: what became of each ask is told, and told once."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from tests.agents.amp.rig import STANDIN
from tests.agents.bytes_agent import PRELUDE
from tests.agents.real_sessions import NAME, add_to_catalogue
from tests.agents.test_long_native_lines import CLAUDE, CODEX, turn
from tests.agents.test_long_native_lines import opened as opened_native
from tests.host.rig import Hand, of_type
from tests.server.sessions.session_client import open_session_client

from legation.agents.catalogue.entries import Direct, Way
from legation.agents.rpc import REQUESTS_AT_ONCE
from legation.host.router import ONE_BY_ONE

pytestmark = pytest.mark.heavy

ACP = f"""{PRELUDE}
hello(); session()
prompt = prompted(); number = 0
while True:
    number += 1
    permission(number, title="t", kind="edit")
    answer(number)
"""
MANY = 30  # asks that are refused while a server stops: it was 382
# Until they are ended: each ask is the next one's answer.
ON_AND_ON = {
    "acp": "on",
    "claude": "number = 0\nwhile True:\n    number += 1\n    asked(f'r{number}', {'file_path': '/x', 'content': 'x'})",
    "codex": "number = 100\nwhile True:\n    number += 1\n    asked(number, {})",
    "amp": "while True: tool('Bash', {'cmd': 'ls'})",
}


def way(kind: str, place: Path) -> Way:
    source = {"acp": ACP, "claude": CLAUDE, "codex": CODEX, "amp": STANDIN.read_text()}[kind]
    program = place / f"{kind}.py"
    program.write_text(source)
    argv = (sys.executable, "-I", "-S", str(program))
    return Way(cast(Any, kind), Direct(argv), env={"AMP_API_KEY": "k"})


@pytest.mark.parametrize("kind", ["acp", "claude", "codex", "amp"])
async def test_a_server_that_stops_under_one_that_asks_on_and_on_says_so_once(
    request: pytest.FixtureRequest, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    async with asyncio.timeout(110), open_session_client(tmp_path, request) as talk:
        add_to_catalogue(talk, way(kind, tmp_path))
        await talk.created("s", agent=NAME, directory=str(talk.work))
        answer = await talk.call("POST", "/v1/sessions/s/messages", {"message": ON_AND_ON[kind]})
        assert answer.status_code == 204, answer.text
        after, _ = await talk.until("s", "permission-asked")
        caplog.clear()
        await (
            talk.rig.services.door.close()
        )  # as a server that stops does first; its agents end when they end
        for _ in range(MANY):
            after, _ = await talk.until("s", "permission-answered", after=after)
    told = [each.getMessage() for each in caplog.records if each.name.startswith("legation")]
    [refused] = [each for each in told if "a permission was refused" in each]
    assert "the server stops" in refused
    assert len(told) <= 3, told


# All at once: those beyond the bound are answered, and the turn goes on.
ALL_AT_ONCE = {
    "claude": """
def ask(number, call):
    request = {"subtype": "can_use_tool", "tool_name": "Bash", "tool_use_id": call, "input": {"command": "ls"}}
    send(type="control_request", request_id=number, request=request)
for number in range(%d): ask(f"r{number}", f"c{number}")
for number in range(%d, %d): assert '"deny"' in answer(f"r{number}")
""",
    "codex": """
def ask(number):
    params = {"threadId": message["params"]["threadId"], "turnId": "u", "itemId": f"c{number}", "command": "ls", "cwd": "/"}
    send(id=1000 + number, method="item/commandExecution/requestApproval", params=params)
for number in range(%d): ask(number)
for number in range(%d, %d): assert '"decline"' in answer(1000 + number)
""",
    "amp": """
import socket
os.chdir(os.environ["LEGATION_AMP_DOOR"].rpartition("/")[0])
asking = [socket.socket(socket.AF_UNIX) for _ in range(%d)]
for number, each in enumerate(asking):
    each.connect("door")
    question = {"way": "plugin", "id": f"c{number}", "tool": "Bash", "input": {"cmd": str(number)}}
    each.sendall(json.dumps(question).encode() + b"\\n")
for each in asking[%d:%d]: assert each.recv(1) == b""
""",
}
BEYOND = 25  # more than are told one by one


@pytest.mark.parametrize("kind", ["claude", "codex", "amp"])
async def test_of_each_ask_beyond_the_bound_the_session_tells(tmp_path: Path, kind: str) -> None:
    bounds = (REQUESTS_AT_ONCE + BEYOND, REQUESTS_AT_ONCE, REQUESTS_AT_ONCE + BEYOND)
    async with asyncio.timeout(110), opened_native(tmp_path, kind, approver=Hand()) as (_, session):
        assert await turn(session, ALL_AT_ONCE[kind] % bounds) == "end_turn"
        answered = await of_type(
            session, "permission-answered"
        )  # with the turn's end; claude's are asked again
        assert len(answered) == REQUESTS_AT_ONCE
        told = [json.loads(each.payload) for each in await of_type(session, "diagnostic")]
    assert {each["code"] for each in told} == {"agent/unreadable-permission"}
    words = [each["message"] for each in told]
    assert all("nobody was asked: 64 of its requests wait" in each for each in words[:ONE_BY_ONE])
    if kind != "amp":  # whose question is not even read
        calls = [f"for call 'c{REQUESTS_AT_ONCE + number}'" for number in range(ONE_BY_ONE)]
        assert [call in each for call, each in zip(calls, words, strict=False)] == [True] * ONE_BY_ONE
    assert [each.partition(" were refused")[0] for each in words[ONE_BY_ONE:]] == [
        f"{BEYOND - ONE_BY_ONE} more asks of the agent"
    ]
