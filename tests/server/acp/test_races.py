"""Things that come at the same time: a session that ends, or an agent that does, while somebody else is at it."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.sessions.session_client import SessionClient, open_session_client

from legation.errors import SessionClosed, StorageFailed, Unavailable
from legation.host.host import AcpHost
from legation.host.session import Session
from legation.server.acp.connections import IDLE
from legation.server.sessions.agents import LOOK_EVERY, AgentSlot
from legation.server.sessions.record import SealedServers
from legation.store.stream import Stream
from legation.wire.acp.updates import Text

pytestmark = pytest.mark.heavy

SERVERS = [{"name": "files", "command": "files-mcp", "args": ["--all"], "env": []}]
LIVE_GRANTS = "select id from approval_grant where revoked_at is null"


@pytest.fixture
async def talk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SessionClient]:
    async with asyncio.timeout(110), open_session_client(tmp_path, request) as made:
        os.mkfifo(made.work / "go")
        yield made


async def rpc(talk: SessionClient, agent: str, method: str, client: str = "one", /, **params: object) -> Any:
    message = {"jsonrpc": "2.0", "id": method, "method": method, "params": params}
    answer = await talk.call("POST", f"/v1/acp/{client}?agent={agent}", message)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def new(talk: SessionClient, agent: str, client: str = "one") -> str:
    await rpc(talk, agent, "initialize", client, protocolVersion=1)
    made = await rpc(talk, agent, "session/new", client, **place(talk))
    return str(made["result"]["sessionId"])


def place(talk: SessionClient) -> dict[str, object]:
    return {"cwd": str(talk.work), "mcpServers": []}


def hold(talk: SessionClient, method: str) -> None:
    """The agent waits before it answers the next of that method."""
    (talk.work / f"hold {method.replace('/', ' ')}").touch()


async def until_asked(talk: SessionClient) -> None:
    while not (talk.work / "asked").exists():
        await asyncio.sleep(0.02)  # an agent starts, or is asked; bounded
    (talk.work / "asked").unlink()


async def let_go(talk: SessionClient) -> None:
    await asyncio.to_thread((talk.work / "go").write_text, "x")


async def until_status(talk: SessionClient, session: str, status: str) -> None:
    while (await talk.info(session))["status"] != status:
        await asyncio.sleep(0.02)  # bounded


async def stop_agent_of(talk: SessionClient, session: str) -> None:
    host = await talk.rig.services.hosts.host()
    await host.dispose_agent(str(host.session(session).agent_id))
    await until_status(talk, session, "disconnected")


async def agents(talk: SessionClient) -> int:
    return len((await talk.rig.services.hosts.host()).get_agents())


async def test_a_session_that_is_deleted_leaves_the_agent_that_would_not_take_it_to_others(
    talk: SessionClient,
) -> None:
    await talk.created("s", agent="lossy", directory=str(talk.work))
    await talk.reflected("s")
    await stop_agent_of(talk, "s")
    mine = await new(talk, "lossy")
    assert "error" in await rpc(talk, "lossy", "session/load", sessionId="s", **place(talk))
    assert (await talk.call("DELETE", "/v1/sessions/s")).status_code == 204
    assert (await talk.info(mine))["status"] == "active"


async def test_a_close_that_its_client_gives_up_leaves_no_grant_to_whoever_opens_it_again(
    talk: SessionClient,
) -> None:
    session = await new(talk, "closing")
    answer = await talk.call("PATCH", f"/v1/sessions/{session}", {"permissionMode": "bypass"})
    assert answer.status_code == 200, answer.text
    hold(talk, "session/close")
    closing = asyncio.create_task(rpc(talk, "closing", "session/close", sessionId=session))
    await until_asked(talk)
    cancel = {"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": "session/close"}}
    assert (await talk.call("POST", "/v1/acp/one", cancel)).status_code == 202
    await let_go(talk)
    await closing
    assert "result" in await rpc(talk, "closing", "session/load", sessionId=session, **place(talk))
    assert (await talk.info(session))["permissionMode"] == "default"
    assert await talk.rig.rows(LIVE_GRANTS) == []


async def test_what_a_session_gets_when_it_is_opened_again_is_not_taken_by_the_close_before(
    talk: SessionClient,
) -> None:
    session = await new(talk, "closing")
    hold(talk, "session/close")
    closing = asyncio.create_task(rpc(talk, "closing", "session/close", sessionId=session))
    await until_asked(talk)
    given = {"cwd": str(talk.work), "mcpServers": SERVERS}
    await rpc(talk, "closing", "initialize", "two", protocolVersion=1)
    opened = await rpc(talk, "closing", "session/load", "two", sessionId=session, **given)
    assert "result" in opened, opened
    await talk.call("PATCH", f"/v1/sessions/{session}", {"permissionMode": "bypass"})
    await let_go(talk)
    assert "result" in await closing
    info = await talk.info(session)
    assert (info["status"], info["permissionMode"], info["mcp"]) == ("active", "bypass", ["files"])
    await stop_agent_of(talk, session)
    assert [each["name"] for each in (await talk.reflected(session))["mcpServers"]] == ["files"]


async def test_a_session_that_is_closed_while_its_agent_is_set_leaves_no_process(talk: SessionClient) -> None:
    await talk.created("s", agent="held", directory=str(talk.work), model="large")
    await stop_agent_of(talk, "s")
    await rpc(talk, "held", "initialize", protocolVersion=1)
    hold(talk, "session/set_config_option")
    await talk.call("POST", "/v1/sessions/s/messages", {"message": "say"})
    await until_asked(talk)
    assert "result" in await rpc(talk, "held", "session/close", sessionId="s")
    await let_go(talk)
    while await agents(talk) > 1:  # that of the client stays
        await asyncio.sleep(0.02)  # bounded
    assert (await talk.info("s"))["status"] == "closed"


async def test_a_session_that_is_terminated_while_it_is_let_go_of_is_over(
    talk: SessionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await talk.created("s", agent="mirror", directory=str(talk.work))
    lets_go, may_go, closes, may_close = (asyncio.Event() for _ in range(4))
    stop, close = AgentSlot.stop, Stream.close

    async def slow_stop(slot: AgentSlot) -> None:
        lets_go.set()
        await may_go.wait()
        await stop(slot)

    async def slow_close(stream: Stream) -> None:
        closes.set()
        await may_close.wait()
        await close(stream)

    monkeypatch.setattr(AgentSlot, "stop", slow_stop)
    native = str((await talk.info("s"))["nativeSessionId"])
    os.kill(int(native.removeprefix("mir-")), signal.SIGKILL)
    await lets_go.wait()
    monkeypatch.setattr(Stream, "close", slow_close)
    ending = asyncio.create_task(talk.call("POST", "/v1/sessions/s/terminate"))
    await closes.wait()
    may_go.set()
    for _ in range(20):
        await asyncio.sleep(0)  # whoever lets go of it has looked at it
    may_close.set()
    assert (await ending).status_code == 204
    info = await talk.info("s")
    assert (info["status"], info["ended"]) == ("closed", True)
    refused = await talk.call("POST", "/v1/sessions/s/messages", {"message": "say"})
    assert refused.status_code == 410, refused.text


async def test_an_agent_that_is_started_while_the_last_one_ends_is_stopped_when_it_is_idle(
    talk: SessionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await new(talk, "mirror")
    dispose, ends, may_end = AcpHost.dispose_agent, asyncio.Event(), asyncio.Event()

    async def slow_dispose(host: AcpHost, agent_id: str) -> None:
        ends.set()
        await may_end.wait()
        await dispose(host, agent_id)

    monkeypatch.setattr(AcpHost, "dispose_agent", slow_dispose)
    ending = asyncio.create_task(talk.call("POST", f"/v1/sessions/{session}/terminate"))
    await ends.wait()
    await new(talk, "mirror")
    may_end.set()
    assert (await ending).status_code == 204
    assert await agents(talk) == 1
    while await agents(talk):
        talk.rig.clock.advance(IDLE + LOOK_EVERY)
        await asyncio.sleep(0.02)  # bounded


async def test_a_session_that_is_made_beside_one_that_is_terminated_keeps_its_agent(
    talk: SessionClient,
) -> None:
    session = await new(talk, "held")
    hold(talk, "session/new")
    making = asyncio.create_task(rpc(talk, "held", "session/new", **place(talk)))
    await until_asked(talk)
    assert (await talk.call("POST", f"/v1/sessions/{session}/terminate")).status_code == 204
    await let_go(talk)
    assert "result" in (made := await making), made


async def test_an_agent_is_not_idle_while_it_makes_a_session_or_answers_a_request(
    talk: SessionClient,
) -> None:
    await talk.created("s", agent="held", directory=str(talk.work))
    hold(talk, "session/resume")
    await stop_agent_of(talk, "s")
    await talk.call("POST", "/v1/sessions/s/messages", {"message": "say"})
    await until_asked(talk)
    await pass_time(talk)
    await let_go(talk)
    _, ended = await talk.until("s", "prompt-finished")
    assert ended["stopReason"] == "end_turn", ended
    session = await new(talk, "held")
    hold(talk, "_own/work")
    working = asyncio.create_task(rpc(talk, "held", "_own/work", sessionId=session))
    await until_asked(talk)
    await pass_time(talk)
    await let_go(talk)
    assert "unknown" in (await working)["error"]["message"]  # in the agent's own words


async def pass_time(talk: SessionClient) -> None:
    """Whoever is idle is stopped meanwhile: one that is stands for all."""
    await rpc(talk, "loading", "initialize", "idle", protocolVersion=1)
    before = await agents(talk)
    connection = await talk.rig.services.acp.get("local", "idle", None)
    while connection.slot.agent_id is not None:
        talk.rig.clock.advance(3600)
        await asyncio.sleep(0.02)  # bounded
    while await agents(talk) >= before:
        await asyncio.sleep(0.02)  # bounded
    talk.rig.clock.advance(LOOK_EVERY)
    await asyncio.sleep(0.1)


async def test_a_session_that_only_the_agent_knew_keeps_its_mcp_servers(talk: SessionClient) -> None:
    await rpc(talk, "loading", "initialize", protocolVersion=1)
    given = {"sessionId": "of-the-agent", "cwd": str(talk.work), "mcpServers": SERVERS}
    assert "result" in await rpc(talk, "loading", "session/load", **given)
    assert (await talk.info("of-the-agent"))["mcp"] == ["files"]
    await stop_agent_of(talk, "of-the-agent")
    assert [each["name"] for each in (await talk.reflected("of-the-agent"))["mcpServers"]] == ["files"]


async def test_an_agent_that_was_replaced_since_it_did_not_obey_is_set_as_the_session_was(
    talk: SessionClient,
) -> None:
    await talk.created("s", agent="held", directory=str(talk.work), model="large", variant="high")
    hold(talk, "session/prompt")
    await talk.call("POST", "/v1/sessions/s/messages", {"message": "say"})
    await until_asked(talk)
    session = (await talk.rig.services.hosts.host()).session("s")
    former = session.agent
    assert (await talk.call("POST", "/v1/sessions/s/cancel")).status_code == 204
    while not await talk.events("s", "prompt-finished"):
        talk.rig.clock.advance(1)
        await asyncio.sleep(0.02)  # bounded
    while session.status != "active" or session.agent is former:
        await asyncio.sleep(0.02)  # another has its place; bounded
    chosen = (await talk.reflected("s"))["chosen"]
    assert (chosen["model"], chosen["effort"]) == ("large", "high")


async def test_nothing_is_kept_of_an_agent_that_crashed_in_a_turn(talk: SessionClient) -> None:
    await talk.created("s", directory=str(talk.work))
    await talk.played("s", "crash 3")
    host = await talk.rig.services.hosts.host()
    while host.get_agents() or host.get_sessions():
        await asyncio.sleep(0.02)  # bounded
    info = await talk.info("s")
    assert (info["status"], info["exit"]["code"]) == ("disconnected", 3)


async def test_a_message_that_waits_for_a_client_goes_with_a_close(
    talk: SessionClient, caplog: pytest.LogCaptureFixture
) -> None:
    session = await new(talk, "loading")
    said = [{"type": "text", "text": "ask a.txt"}]
    turn = asyncio.create_task(rpc(talk, "loading", "session/prompt", sessionId=session, prompt=said))
    await talk.until(session, "permission-asked")
    await talk.call("POST", f"/v1/sessions/{session}/messages", {"message": "say"})
    assert "result" in await rpc(talk, "loading", "session/close", "two", sessionId=session)
    await turn
    record = await talk.rig.services.sessions.records.get("local", session)
    while record.working is not None:
        await asyncio.sleep(0.02)  # bounded
    assert [each.getMessage() for each in caplog.records if each.levelname == "ERROR"] == []
    assert (await talk.info(session))["queued"] == 0


async def test_no_turn_begins_in_a_session_that_is_being_closed(
    talk: SessionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await new(talk, "loading")
    close, closes, may_close = Stream.close, asyncio.Event(), asyncio.Event()

    async def slow_close(stream: Stream) -> None:
        closes.set()
        await may_close.wait()
        await close(stream)

    monkeypatch.setattr(Stream, "close", slow_close)
    record = await talk.rig.services.sessions.records.get("local", session)
    assert record.session is not None
    ending = asyncio.create_task(rpc(talk, "loading", "session/close", sessionId=session))
    await closes.wait()
    with pytest.raises(SessionClosed):
        record.session.talk.begin((Text(text="say"),))
    may_close.set()
    assert "result" in await ending
    assert await talk.events(session, "prompt-started") == []


async def test_servers_that_others_have_replaced_are_destroyed_also_after_a_kill(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(110):
        async with open_session_client(tmp_path, request) as talk:
            await rpc(talk, "loading", "initialize", protocolVersion=1)
            given = {"cwd": str(talk.work), "mcpServers": SERVERS}
            session = (await rpc(talk, "loading", "session/new", **given))["result"]["sessionId"]
            await stop_agent_of(talk, session)

            async def killed(_servers: SealedServers, _workspace: str, _sealed: object) -> None:
                raise Unavailable("cannot go on: the test ends it here")

            with monkeypatch.context() as patched:
                patched.setattr(SealedServers, "destroy", killed)
                assert "error" in await rpc(talk, "loading", "session/load", sessionId=session, **given)
            assert len(await talk.rig.rows("select * from vault_bundle")) == 2
        async with open_session_client(tmp_path, request) as talk:
            assert len(await talk.rig.rows("select * from vault_bundle")) == 1
            said = await talk.reflected(session)
            assert [each["name"] for each in said["mcpServers"]] == ["files"]


async def test_where_a_session_cannot_be_closed_what_it_was_told_is_played(
    talk: SessionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk takes no end of it; what was accepted is not lost by the try."""
    await talk.created("s", directory=str(talk.work))
    await talk.send("s", "say-and-stall going")
    await talk.until("s", "agent-message-chunk")
    await talk.send("s", "say after")

    async def failing(_session: Session, _reopens: bool) -> None:
        raise StorageFailed("cannot write: the disk is full; free some space")

    await rpc(talk, "rehearsal", "initialize", protocolVersion=1)
    with monkeypatch.context() as patched:
        patched.setattr(Session, "_close", failing)
        refused = await rpc(talk, "rehearsal", "session/close", sessionId="s")
    assert "the disk is full" in refused["error"]["message"]
    await talk.until("s", "agent-message-chunk", where=lambda said: said["content"]["text"] == "after")
