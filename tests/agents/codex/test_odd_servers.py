"""An app server that does what the real one should not: a few lines of Python that speak like it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.agents.codex.real_codex import ask, payload
from tests.host.rig import NO, YES, Hand, Rig, events, of_type, rig, until_status, until_type

from legation.agents.driver import OpenRequest
from legation.errors import AgentError, AgentExited, Forbidden, TimedOut
from legation.host.options import AgentDefinition, Limits
from legation.host.session import Session

PRELUDE = r"""
import json, sys

THREADS = {}

def send(**message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()

def thread(number, parent=None):
    return {"id": f"t{number}", "cwd": "/", "preview": "", "updatedAt": 0, "parentThreadId": parent}

def opened(message, **more):
    found = thread(len(THREADS) + 1)
    THREADS[found["id"]] = found
    send(id=message["id"], result={"thread": found, "model": "m", **more})

def turn(message, status="inProgress", **more):
    return {"id": "u-" + message["params"]["threadId"], "status": status, **more}

def tell(method, message, **params):
    send(method=method, params={"threadId": message["params"]["threadId"], **params})

def completed(message, status="completed"):
    tell("turn/completed", message, turn=turn(message, status))

def read():
    line = sys.stdin.readline()
    return json.loads(line) if line else sys.exit(0)

def serve(prompted, other=lambda message: send(id=message["id"], result={})):
    while True:
        message = read()
        method = message.get("method")
        if method == "model/list":
            send(id=message["id"], result={"data": []})
        elif method == "thread/start":
            opened(message)
        elif method == "turn/start":
            send(id=message["id"], result={"turn": turn(message)})
            prompted(message)
        elif "id" in message and method:
            other(message)

def answer(number):
    while True:
        message = read()
        if message.get("id") == number and "method" not in message:
            return json.dumps(message.get("result", message.get("error")))

def say(message, text):
    tell("item/agentMessage/delta", message, itemId="m", delta=text)
"""


@asynccontextmanager
async def server(source: str, place: Path, **options: Any) -> AsyncIterator[tuple[Rig, AgentDefinition]]:
    async with rig(place, **options) as made:
        argv = ("-I", "-S", "-c", PRELUDE + source)
        yield (
            made,
            AgentDefinition(id="odd", command=sys.executable, args=argv, cwd=made.work, driver="codex"),
        )


async def opened(made: Rig, definition: AgentDefinition) -> Session:
    return await made.open((await made.host.spawn_agent(definition)).agent_id)


async def heard(session: Session) -> str:
    chunks = [payload(event) for event in await of_type(session, "agent-message-chunk")]
    return "".join(chunk["content"]["text"] for chunk in chunks)


async def test_what_is_not_understood_is_kept_and_what_is_no_message_is_skipped(tmp_path: Path) -> None:
    source = """
def prompted(message):
    print("not a message", flush=True)
    tell("item/hologram/delta", message, itemId="h")
    tell("item/started", message, item={"type": "hologram", "id": "h"})
    tell("item/agentMessage/delta", message)
    print('{"method": "turn/started", "params": 7}', flush=True)
    completed(message)
serve(prompted)
"""
    async with server(source, tmp_path) as (made, definition):
        session = await opened(made, definition)
        assert (await ask(session)).stop_reason == "end_turn"
        unknown = [payload(event)["method"] for event in await of_type(session, "unrecognized-update")]
        assert unknown == ["item/hologram/delta", "item/started", "item/agentMessage/delta"]
        assert [each.code for each in made.reported] == ["agent/stray-line"]


async def test_every_request_is_answered_also_those_that_nobody_can_decide(tmp_path: Path) -> None:
    source = """
def prompted(message):
    own, other = message["params"]["threadId"], "somebody-else"
    send(id=100, method="item/commandExecution/requestApproval", params={"threadId": other, "itemId": "i"})
    say(message, answer_with_parent() + " ")
    send(id=101, method="item/commandExecution/requestApproval", params={"threadId": own})
    say(message, answer(101) + " ")
    send(id=102, method="item/hologram/request", params={"threadId": own})
    say(message, answer(102) + " ")
    send(id=103, method="attestation/generate", params={})
    say(message, answer(103) + " ")
    send(id=104, method="item/tool/requestUserInput",
         params={"threadId": own, "itemId": "i", "questions": [{"id": "q", "header": "h", "question": "?"}]})
    say(message, answer(104))
    completed(message)

def answer_with_parent():
    while True:
        message = read()
        if message.get("method") == "thread/read":
            send(id=message["id"], error={"code": -32600, "message": "no such thread"})
        elif message.get("id") == 100:
            return json.dumps(message["result"])
serve(prompted)
"""
    async with server(source, tmp_path) as (made, definition):
        session = await opened(made, definition)
        assert (await ask(session)).stop_reason == "end_turn"
        assert await heard(session) == (
            '{"decision": "decline"} {"decision": "decline"} '
            '{"code": -32601, "message": "item/hologram/request is not offered"} '
            '{"code": -32601, "message": "attestation/generate is not offered"} '
            '{"answers": {"q": {"answers": ["Nobody can be asked here: decide by yourself, or go on without."]}}}'
        )
        assert len(await of_type(session, "unrecognized-update")) == 2
        assert await of_type(session, "permission-asked") == []


async def test_a_sub_agent_that_asks_before_it_was_announced_is_found_by_its_parent(tmp_path: Path) -> None:
    source = """
def prompted(message):
    send(id=100, method="item/commandExecution/requestApproval",
         params={"threadId": "grandchild", "itemId": "i", "command": "ls", "cwd": "/"})
    while True:
        other = read()
        if other.get("method") == "thread/read":
            above = {"grandchild": "child", "child": message["params"]["threadId"]}
            found = {**thread(9), "parentThreadId": above[other["params"]["threadId"]]}
            send(id=other["id"], result={"thread": found})
        elif other.get("id") == 100:
            break
    say(message, json.dumps(other["result"]))
    completed(message)
serve(prompted)
"""
    hand = Hand()
    async with server(source, tmp_path, approver=hand) as (made, definition):
        session = await opened(made, definition)
        turn = asyncio.create_task(ask(session))
        await hand.until_asked()
        assert hand.asked[0].session_id == session.id
        hand.answer(hand.asked[0].id, NO)
        await turn
        assert await heard(session) == '{"decision": "decline"}'


async def test_a_request_that_the_server_takes_back_is_not_answered(tmp_path: Path) -> None:
    source = """
def prompted(message):
    own = message["params"]["threadId"]
    send(id=100, method="item/commandExecution/requestApproval",
         params={"threadId": own, "itemId": "i", "command": "ls"})
    tell("serverRequest/resolved", message, requestId=100)
    send(id=101, method="item/hologram/request", params={"threadId": own})
    say(message, str(read()["id"]))
    completed(message)
serve(prompted)
"""
    hand = Hand()
    async with server(source, tmp_path, approver=hand) as (made, definition):
        session = await opened(made, definition)
        assert (await ask(session)).stop_reason == "end_turn"
        assert await heard(session) == "101"
        (answered,) = [payload(event) for event in await of_type(session, "permission-answered")]
        assert answered["outcome"] != "approved"


async def test_a_turn_of_another_id_ends_nothing(tmp_path: Path) -> None:
    source = """
def prompted(message):
    tell("turn/completed", message, turn={"id": "another", "status": "failed"})
    say(message, "still here")
    completed(message)
serve(prompted)
"""
    async with server(source, tmp_path) as (made, definition):
        session = await opened(made, definition)
        result = await ask(session)
        assert (result.stop_reason, result.error) == ("end_turn", None)
        assert await heard(session) == "still here"


DEAF = """
def prompted(message):
    say(message, "working")
serve(prompted)
"""


@pytest.mark.heavy
async def test_a_server_that_does_not_end_a_turn_is_stopped_for_all_that_use_it(tmp_path: Path) -> None:
    async with server(DEAF, tmp_path) as (made, definition):
        stuck, other = await opened(made, definition), await opened(made, definition)
        (pid,) = {*stuck.agent.processes, *other.agent.processes}
        turn = asyncio.create_task(ask(stuck))
        await until_type(stuck, "agent-message-chunk")
        assert stuck.agent_id
        await made.host.dispose_agent(stuck.agent_id)
        with pytest.raises((AgentExited, AgentError)):
            await turn
        await until_status(other, "disconnected")
        assert not Path(f"/proc/{pid}").exists()


async def test_a_refused_prompt_is_an_error_of_its_turn(tmp_path: Path) -> None:
    source = """
def refuse(message):
    send(id=message["id"], error={"code": -32600, "message": "not now"})
while True:
    message = read()
    if message.get("method") == "model/list":
        send(id=message["id"], result={"data": []})
    elif message.get("method") == "thread/start":
        opened(message)
    elif message.get("method") == "turn/start":
        refuse(message)
    elif "id" in message:
        send(id=message["id"], result={})
"""
    async with server(source, tmp_path) as (made, definition):
        session = await opened(made, definition)
        result = await ask(session)
        assert result.error is not None
        assert "not now" in result.error.message


async def test_a_server_that_never_greets_is_given_up(tmp_path: Path) -> None:
    async with server("read()\nread()\n", tmp_path, limits=Limits(start=0.5)) as (made, definition):
        with pytest.raises(TimedOut, match=r"0\.5 s"):
            await made.host.spawn_agent(definition)


async def test_a_server_that_ends_at_once_is_told_with_its_last_words(tmp_path: Path) -> None:
    source = 'sys.stderr.write("no licence"); sys.exit(3)'
    async with server(source, tmp_path) as (made, definition):
        with pytest.raises(AgentExited, match="exit code 3, having said:\nno licence"):
            await made.host.spawn_agent(definition)


async def test_news_of_the_whole_server_reach_every_session(tmp_path: Path) -> None:
    source = """
def prompted(message):
    limits = {"limitName": "five hours", "rateLimitReachedType": "rate_limit_reached"}
    send(method="account/rateLimits/updated", params={"rateLimits": limits})
    completed(message)
serve(prompted)
"""
    async with server(source, tmp_path) as (made, definition):
        one, two = await opened(made, definition), await opened(made, definition)
        await ask(one)
        for session in (one, two):
            notice = payload(await until_type(session, "notice"))
            assert notice["title"] == "A limit of the account is reached: five hours"
        assert len([event for event in await events(two) if event.type == "prompt-started"]) == 0


async def test_a_turn_that_is_cancelled_before_it_can_be_interrupted_is_interrupted_when_it_began(
    tmp_path: Path,
) -> None:
    source = """
begun = []

def other(message):
    if message["method"] != "turn/interrupt":
        send(id=message["id"], result={})
    elif begun:
        send(id=message["id"], result={})
        completed(message, "interrupted")
    else:
        send(id=message["id"], error={"code": -32600, "message": "no active turn to interrupt"})
        begun.append(True)
        tell("turn/started", message, turn=turn(message))
serve(lambda message: say(message, "taken"), other)
"""
    async with server(source, tmp_path) as (made, definition):
        session = await opened(made, definition)
        coming = asyncio.create_task(ask(session))
        await until_type(session, "agent-message-chunk")
        await session.cancel()
        async with asyncio.timeout(5):  # of CANCEL_GRACE it takes nothing
            assert (await coming).stop_reason == "cancelled"


async def test_what_no_parser_takes_is_told_to_its_own_session_alone(tmp_path: Path) -> None:
    source = r"""
def prompted(message):
    tell("item/agentMessage/delta", message, itemId="m", delta="secret \ud800")
    completed(message)
serve(prompted)
"""
    async with server(source, tmp_path) as (made, definition):
        one, two = await opened(made, definition), await opened(made, definition)
        await ask(one)
        assert len(await of_type(one, "unrecognized-update")) == 1
        assert not [event for event in await events(two) if b"secret" in event.raw]


async def test_a_flood_of_requests_and_ids_that_come_twice_are_declined(tmp_path: Path) -> None:
    source = """
def prompted(message):
    own = message["params"]["threadId"]
    for number in (*range(100, 171), 100):
        send(id=number, method="item/commandExecution/requestApproval",
             params={"threadId": own, "itemId": f"i{number}", "command": "ls", "cwd": "/"})
    found = [read() for _ in range(8)]
    say(message, " ".join(str(each["id"]) for each in found))
    completed(message)
serve(prompted)
"""
    async with server(source, tmp_path, approver=Hand()) as (made, definition):
        session = await opened(made, definition)
        assert (await ask(session)).stop_reason == "end_turn"
        assert await heard(session) == "164 165 166 167 168 169 170 100"
        assert len(await of_type(session, "permission-asked")) == 64


async def test_a_patch_is_asked_about_by_what_it_does(tmp_path: Path) -> None:
    source = """
def prompted(message):
    own = message["params"]["threadId"]
    changes = [{"path": "/w/a", "kind": {"type": "add"}, "diff": "a"},
               {"path": "/w/b", "kind": {"type": "delete"}, "diff": "b"}]
    tell("item/started", message, item={"type": "fileChange", "id": "p", "changes": changes, "status": "inProgress"})
    for number in (100, 101):
        send(id=number, method="item/fileChange/requestApproval", params={"threadId": own, "itemId": "p"})
        say(message, answer(number))
    send(id=102, method="item/fileChange/requestApproval", params={"threadId": own, "itemId": "unseen"})
    say(message, answer(102))
    completed(message)
serve(prompted)
"""
    hand = Hand()
    async with server(source, tmp_path, approver=hand) as (made, definition):
        session = await opened(made, definition)
        turn = asyncio.create_task(ask(session))
        await hand.until_asked(2)
        shown = [(each.action.kind, each.action.paths) for each in hand.asked]
        assert shown == [("edit", ("/w/a",)), ("delete", ("/w/b",))]
        for each, answer in zip(hand.asked, (YES, NO), strict=True):
            hand.answer(each.id, answer)
        await hand.until_asked(4)
        for each in hand.asked[2:]:
            hand.answer(each.id, YES)
        await hand.until_asked(5)
        assert (hand.asked[4].action.kind, hand.asked[4].action.paths) == ("other", ())
        hand.answer(hand.asked[4].id, NO)
        await turn
        assert await heard(session) == '{"decision": "decline"}{"decision": "accept"}{"decision": "decline"}'


async def test_an_mcp_tool_is_asked_about_by_its_own_name_though_others_wait_too(tmp_path: Path) -> None:
    source = """
def prompted(message):
    own, given = message["params"]["threadId"], {"id": 1}
    for tool in ("delete", "get"):
        tell("item/started", message, item={"type": "mcpToolCall", "id": tool, "server": "db", "tool": tool,
             "arguments": given, "status": "inProgress"})
    for number, tool in enumerate(("delete", "get"), start=100):
        send(id=number, method="mcpServer/elicitation/request", params={"threadId": own, "serverName": "db",
             "mode": "form", "message": f'Allow the db MCP server to run tool "{tool}"?',
             "_meta": {"codex_approval_kind": "mcp_tool_call", "tool_params": given}})
    read(), read()
    completed(message)
serve(prompted)
"""
    async with server(source, tmp_path) as (made, definition):
        session = await opened(made, definition)
        await ask(session)
        asked = [payload(event)["action"]["tool"] for event in await of_type(session, "permission-asked")]
        assert asked == ["db.delete", "db.get"]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("rules/mine.rules", 'prefix_rule(pattern=["touch"], decision="allow")\n'),
        ("config.toml", 'model = "m"\nnotify = ["touch", "/tmp/x"]\n'),
        ("config.toml", "[mcp_servers.evil]\n"),
        ("config.toml", "not toml"),
        (".env", "BASH_ENV=/w/x\n"),
    ],
)
async def test_it_is_not_started_where_its_home_would_decide(tmp_path: Path, file: str, text: str) -> None:
    place = tmp_path / "data/agents/local/odd/home/.codex" / file
    async with server(DEAF, tmp_path) as (made, definition):
        session = await opened(made, definition)
        place.parent.mkdir(parents=True)
        place.write_text(text)
        with pytest.raises(Forbidden, match="unasked; look at it and remove it"):
            await made.open_another(session)
        with pytest.raises(Forbidden):
            await made.host.spawn_agent(definition)
        place.unlink()
        (place.parent / "config.toml").write_text('model = "m"\n[projects."/w"]\ntrust_level = "untrusted"\n')
        if place.parent.name == ".codex":
            await made.open_another(session)


async def test_a_history_without_end_is_given_up(tmp_path: Path) -> None:
    source = """
def other(message):
    page = {"data": [{"turnId": "u", "item": {"type": "agentMessage", "id": "m", "text": "again"}}], "nextCursor": "c"}
    found = {"thread/items/list": page, "thread/read": {"thread": thread(1)}}
    send(id=message["id"], result=found.get(message["method"], {}))
serve(completed, other)
"""
    async with server(source, tmp_path) as (made, definition):
        session = await opened(made, definition)
        with pytest.raises(TimedOut, match=r"not told in whole within 0\.5 s"):
            await session.agent.load_session(OpenRequest(str(made.work), session_id="t1"), 0.5)
