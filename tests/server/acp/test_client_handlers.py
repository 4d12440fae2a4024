"""Files and terminals: the client's where it offers them, else the host's."""

import asyncio

import pytest
from tests.server.acp.acp_server import Client, Json

pytestmark = pytest.mark.heavy

READ, WRITE = "fs/read_text_file", "fs/write_text_file"
ASK = "session/request_permission"


async def opened(client: Client, **capabilities: object) -> str:
    await client.initialize("rehearsal", **capabilities)
    client.follow()
    return await client.new()


def methods(client: Client) -> set[str]:
    return {str(message["method"]) for message in client.messages if "method" in message}


async def allow(client: Client, kind: str = "allow_once") -> None:
    """What an agent has written for it is asked about first, whoever writes it."""
    asked = await client.until(ASK)
    assert asked["params"]["toolCall"]["kind"] == "edit"
    await client.answer(asked, {"outcome": {"outcome": "selected", "optionId": kind}})


async def test_files_are_read_and_written_by_the_client_that_offers_it(client: Client) -> None:
    session = await opened(client, fs={"readTextFile": True, "writeTextFile": True})
    (client.work / "a.txt").write_text("on the disk")
    path = str(client.work / "a.txt")
    prompting = client.prompting(session, "fs-read a.txt", "fs-write b.txt hello")
    read = await client.until(READ)
    assert read["params"] == {"sessionId": session, "path": path}
    await client.answer(read, {"content": "in the editor"})
    await allow(client)
    write = await client.until(WRITE)
    assert (write["params"]["sessionId"], write["params"]["content"]) == (session, "hello")
    await client.answer(write, {})
    assert (await prompting)["result"]["stopReason"] == "end_turn"
    assert not (client.work / "b.txt").exists()  # the client keeps it


async def test_files_are_served_by_the_host_where_the_client_has_none(client: Client) -> None:
    session = await opened(client)
    (client.work / "a.txt").write_text("on the disk")
    prompting = client.prompting(session, "fs-read a.txt", "fs-write b.txt hello")
    await allow(client)
    assert (await prompting)["result"]["stopReason"] == "end_turn"
    assert (client.work / "b.txt").read_text() == "hello"
    assert not methods(client) & {READ, WRITE}


@pytest.mark.parametrize("offers", [True, False], ids=["the client writes", "the host writes"])
async def test_a_write_that_is_refused_is_done_by_nobody(offers: bool, client: Client) -> None:
    session = await opened(client, fs={"readTextFile": offers, "writeTextFile": offers})
    prompting = client.prompting(session, "fs-write b.txt hello")
    await allow(client, "reject_once")
    await prompting
    assert WRITE not in methods(client)
    assert not (client.work / "b.txt").exists()


async def test_each_method_is_the_clients_only_if_it_offers_that_one(client: Client) -> None:
    session = await opened(client, fs={"readTextFile": True, "writeTextFile": False})
    prompting = client.prompting(session, "fs-read a.txt", "fs-write b.txt hello")
    await client.answer(await client.until(READ), {"content": "in the editor"})
    await allow(client)
    await prompting
    assert (client.work / "b.txt").read_text() == "hello"


async def test_an_error_of_the_client_is_told_to_the_agent(client: Client) -> None:
    session = await opened(client, fs={"readTextFile": True})
    prompting = client.prompting(session, "fs-read a.txt", "say on")
    read = await client.until(READ)
    refusal = {"jsonrpc": "2.0", "id": read["id"], "error": {"code": -32002, "message": "no such buffer"}}
    assert (await client.post(refusal)).status_code == 202
    assert (await prompting)["result"]["stopReason"] == "end_turn"


async def test_a_command_runs_in_the_clients_terminal(client: Client) -> None:
    session = await opened(client, terminal=True)
    prompting = client.prompting(session, "terminal echo hi", "say done")
    created = await client.until("terminal/create")
    assert created["params"]["sessionId"] == session
    await client.answer(created, {"terminalId": "term-1"})
    answers: dict[str, Json] = {
        "terminal/wait_for_exit": {"exitCode": 0},
        "terminal/output": {"output": "hi\n", "truncated": False, "exitStatus": {"exitCode": 0}},
        "terminal/release": {},
    }
    answered: set[object] = set()
    async with asyncio.timeout(30):
        while not prompting.done():
            for message in client.messages:
                if message.get("method") in answers and message["id"] not in answered:
                    assert message["params"] == {"sessionId": session, "terminalId": "term-1"}
                    answered.add(message["id"])
                    await client.answer(message, answers[message["method"]])
            await asyncio.wait({prompting}, timeout=0.02)
    assert (await prompting)["result"]["stopReason"] == "end_turn"
    assert "terminal/release" in methods(client)


async def test_agents_are_not_offered_terminals_that_their_client_has_not(client: Client) -> None:
    session = await opened(client)
    await client.play(session, "terminal echo hi", "say done")
    await client.until_text(session, "done")
    assert "terminal/create" not in methods(client)
