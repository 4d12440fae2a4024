"""Sessions as a connection finds them: what was ended elsewhere stays so, and what is taken up is seen elsewhere."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw
from tests.server.sessions.session_client import SessionClient, open_session_client, script

from legation.agents.messages import RpcMessage
from legation.server.acp.log import MESSAGE, SessionFollower

pytestmark = pytest.mark.heavy


@pytest.fixture
async def talk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SessionClient]:
    async with asyncio.timeout(110), open_session_client(tmp_path, request) as made:
        yield made


async def rpc(
    talk: SessionClient, method: str, agent: str = "loading", client: str = "client", **params: object
) -> Any:
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    answer = await talk.call("POST", f"/v1/acp/{client}?agent={agent}", message)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_session_that_was_terminated_is_not_loaded_by_an_agent_that_takes_any_name(
    talk: SessionClient,
) -> None:
    await talk.created("s", agent="loading", directory=str(talk.work))
    await talk.reflected("s")
    await talk.call("POST", "/v1/sessions/s/terminate")
    before = (await talk.call("GET", "/v1/sessions/s/events")).json()
    await rpc(talk, "initialize", protocolVersion=1)
    refused = await rpc(talk, "session/load", sessionId="s", cwd=str(talk.work), mcpServers=[])
    assert "it has ended" in refused["error"]["message"]
    assert (await talk.call("GET", "/v1/sessions/s/events")).json() == before
    found = await rpc(talk, "session/load", sessionId="of-the-agent", cwd=str(talk.work), mcpServers=[])
    assert "result" in found


async def test_a_session_that_only_the_agent_knew_is_one_like_any_other_once_it_is_loaded(
    talk: SessionClient,
) -> None:
    await rpc(talk, "initialize", protocolVersion=1)
    await rpc(talk, "session/load", sessionId="of-the-agent", cwd=str(talk.work), mcpServers=[])
    info = await talk.info("of-the-agent")
    assert (info["agent"], info["status"]) == ("loading", "active")


async def test_a_session_that_is_taken_up_after_a_restart_is_seen_and_ended_like_any_other(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async with asyncio.timeout(110):
        async with open_session_client(tmp_path, request) as talk:
            await rpc(talk, "initialize", "rehearsal", protocolVersion=1)
            made = await rpc(talk, "session/new", "rehearsal", cwd=str(talk.work), mcpServers=[])
            session = made["result"]["sessionId"]
            await talk.call("PATCH", f"/v1/sessions/{session}", {"permissionMode": "bypass"})
            made = await rpc(talk, "session/new", "rehearsal", cwd=str(talk.work), mcpServers=[])
            unused = made["result"]["sessionId"]
        async with open_session_client(tmp_path, request) as talk:
            said = [{"type": "text", "text": script("say back")}]
            await rpc(talk, "session/prompt", "rehearsal", sessionId=session, prompt=said)
            assert (await talk.info(session))["status"] == "active"
            await rpc(talk, "session/close", "rehearsal", sessionId=session)
            while (await talk.info(session))["permissionMode"] != "default":
                await asyncio.sleep(0.02)  # the end is noted after the answer; bounded
            assert (await talk.info(session))["ended"] is True
            await rpc(talk, "session/close", "rehearsal", sessionId=unused)
            assert (await talk.info(unused))["ended"] is True
            assert await talk.rig.rows("select id from approval_grant where revoked_at is null") == []


async def test_a_request_to_a_server_that_stops_is_answered_and_not_with_a_status(
    talk: SessionClient,
) -> None:
    await rpc(talk, "initialize", protocolVersion=1)
    talk.rig.services.acp.shut()
    refused = await rpc(talk, "session/list")
    assert "the server stops" in refused["error"]["message"]
    told = {"jsonrpc": "2.0", "method": "session/cancel", "params": {}}
    assert (await talk.call("POST", "/v1/acp/client", told)).status_code == 503  # nobody waits for more


async def made_and_closed(talk: SessionClient) -> str:
    """By a client of ACP, with something said in it."""
    await rpc(talk, "initialize", "rehearsal", protocolVersion=1)
    made = await rpc(talk, "session/new", "rehearsal", cwd=str(talk.work), mcpServers=[])
    session = str(made["result"]["sessionId"])
    said = [{"type": "text", "text": script("say before")}]
    await rpc(talk, "session/prompt", "rehearsal", sessionId=session, prompt=said)
    assert "result" in await rpc(talk, "session/close", "rehearsal", sessionId=session)
    return session


async def take_up(talk: SessionClient, session: str, method: str = "load", client: str = "client") -> Any:
    params = {"sessionId": session, "cwd": str(talk.work), "mcpServers": []}
    return await rpc(talk, f"session/{method}", "rehearsal", client, **params)


async def goes_on(talk: SessionClient, session: str, client: str = "client") -> None:
    said = [{"type": "text", "text": script("recall")}]
    answer = await rpc(talk, "session/prompt", "rehearsal", client, sessionId=session, prompt=said)
    assert answer["result"]["stopReason"] == "end_turn", answer
    assert await talk.heard(session) == "beforeprompts before this one: 1"
    info = await talk.info(session)
    assert (info["status"], info["ended"]) == ("active", False)


@pytest.mark.parametrize("method", ["load", "resume"])
@pytest.mark.parametrize("restart", [False, True])
async def test_a_session_that_a_client_closed_is_taken_up_by_any_client_also_after_a_restart(
    request: pytest.FixtureRequest, tmp_path: Path, method: str, restart: bool
) -> None:
    async with asyncio.timeout(110), AsyncExitStack() as servers:
        talk = await servers.enter_async_context(open_session_client(tmp_path, request))
        session = await made_and_closed(talk)
        if restart:
            await servers.aclose()
            talk = await servers.enter_async_context(open_session_client(tmp_path, request))
        info = await talk.info(session)
        assert (info["status"], info["ended"]) == ("closed", True)
        refused = await rpc(talk, "session/prompt", "rehearsal", sessionId=session, prompt=[])
        assert refused["error"]["data"]["code"] == "legation/session-closed"
        assert "load it" in refused["error"]["message"]
        listed = await rpc(talk, "session/list", "rehearsal", cwd=str(talk.work))
        assert [each["sessionId"] for each in listed["result"]["sessions"]] == [session]
        assert "result" in await take_up(talk, session, method, "another")
        await goes_on(talk, session, "another")


@pytest.mark.parametrize("restart", [False, True])
async def test_a_session_that_was_terminated_after_a_client_closed_it_is_over(
    request: pytest.FixtureRequest, tmp_path: Path, restart: bool
) -> None:
    async with asyncio.timeout(110), AsyncExitStack() as servers:
        talk = await servers.enter_async_context(open_session_client(tmp_path, request))
        session = await made_and_closed(talk)
        await take_up(talk, session)
        await rpc(talk, "session/close", "rehearsal", sessionId=session)
        assert (await talk.call("POST", f"/v1/sessions/{session}/terminate")).status_code == 204
        if restart:
            await servers.aclose()
            talk = await servers.enter_async_context(open_session_client(tmp_path, request))
        for method in ("load", "resume"):
            assert "error" in await take_up(talk, session, method)
        assert "error" in await rpc(talk, "session/close", "rehearsal", sessionId=session)
        listed = await rpc(talk, "session/list", "rehearsal")
        assert listed["result"]["sessions"] == []
        assert await talk.heard(session) == "before"


@pytest.mark.parametrize("how", ["close", "delete"])
async def test_an_agent_of_the_server_ends_when_a_client_ends_its_session(
    talk: SessionClient, how: str
) -> None:
    await talk.created("s", agent="loading", directory=str(talk.work))
    await rpc(talk, "initialize", protocolVersion=1)
    await rpc(talk, f"session/{how}", sessionId="s")
    host = await talk.rig.services.hosts.host()
    while len(host.get_agents()) > 1:  # that of the client stays
        await asyncio.sleep(0.02)  # the end is noted after the answer; bounded
    if how == "close":
        assert host.get_session("s") is None
        assert (await talk.info("s"))["status"] == "closed"
    else:
        assert (await talk.call("GET", "/v1/sessions/s")).status_code == 404


async def test_a_close_while_the_session_is_taken_up_counts(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Neither does the agent that takes it up open it again, nor keeps it what was granted to it."""
    async with asyncio.timeout(110):
        async with open_session_client(tmp_path, request) as talk:
            directory = str(talk.work)
            await talk.created("s", agent="slow", directory=directory, permissionMode="bypass")
        async with open_session_client(tmp_path, request) as talk:
            os.mkfifo(talk.work / "go")
            await talk.call("POST", "/v1/sessions/s/messages", {"message": "say"})
            while not (talk.work / "asked").exists():
                await asyncio.sleep(0.02)  # an agent starts; bounded
            closed = await rpc(talk, "session/close", "slow", sessionId="s")
            await asyncio.to_thread((talk.work / "go").write_text, "x")
            assert "result" in closed
            while (await talk.info("s"))["permissionMode"] != "default" or (await talk.info("s"))["busy"]:
                await asyncio.sleep(0.02)  # the end is noted when the agent is there; bounded
            info = await talk.info("s")
            assert (info["status"], info["queued"]) == ("closed", 0)
            assert await talk.rig.rows("select id from approval_grant where revoked_at is null") == []


async def test_a_connection_keeps_nothing_of_sessions_that_are_over(talk: SessionClient) -> None:
    await rpc(talk, "initialize", "rehearsal", protocolVersion=1)

    async def new() -> str:
        made = await rpc(talk, "session/new", "rehearsal", cwd=str(talk.work), mcpServers=[])
        return str(made["result"]["sessionId"])

    closed, deleted, terminated, kept = [await new() for _ in range(4)]
    acp = talk.rig.services.acp
    connection = await acp.get("local", "client", None)
    assert connection.followed == [closed, deleted, terminated, kept]
    await rpc(talk, "session/close", "rehearsal", sessionId=closed)
    await rpc(talk, "session/delete", "rehearsal", sessionId=deleted)
    await talk.call("POST", f"/v1/sessions/{terminated}/terminate")
    while connection.followed != [kept]:
        await asyncio.sleep(0.02)  # they are told to the end; bounded
    await take_up(talk, closed)
    assert connection.followed == [kept, closed]


async def test_one_that_was_closed_is_refused_for_what_it_is_where_the_agent_can_only_resume(
    talk: SessionClient,
) -> None:
    await rpc(talk, "initialize", "mirror", protocolVersion=1)
    made = await rpc(talk, "session/new", "mirror", cwd=str(talk.work), mcpServers=[])
    session = made["result"]["sessionId"]
    await rpc(talk, "session/close", "mirror", sessionId=session)
    given = {"sessionId": session, "cwd": str(talk.work), "mcpServers": []}
    refused = await rpc(talk, "session/load", "mirror", **given)
    assert "it was closed, and mirror cannot load one" in refused["error"]["message"]


async def test_one_that_the_agent_has_lost_says_all_that_it_said_and_what_can_be_done(
    talk: SessionClient,
) -> None:
    await talk.created("s", agent="lossy", directory=str(talk.work))
    await talk.reflected("s")
    host = await talk.rig.services.hosts.host()
    await host.dispose_agent(str(host.session("s").agent_id))
    await rpc(talk, "initialize", "lossy", protocolVersion=1)
    given: dict[str, Any] = {"sessionId": "s", "cwd": str(talk.work), "mcpServers": []}
    for method in ("session/load", "session/resume"):
        refused = (await rpc(talk, method, "lossy", **given))["error"]
        assert refused["code"] == -32603
        assert "Internal error (session/load: no conversation found)" in refused["message"]
        assert "go on in a new session that continues this one" in refused["message"]
        assert refused["data"]["where"] == "the agent's own words"
    assert "result" in await rpc(talk, "session/close", "lossy", sessionId="s")


async def test_one_that_the_agent_does_not_resume_is_loaded(talk: SessionClient) -> None:
    """By whichever of the two ways a client asks for it."""
    await talk.created("s", agent="lossy", directory=str(talk.work))
    await talk.reflected("s")
    host = await talk.rig.services.hosts.host()
    await host.dispose_agent(str(host.session("s").agent_id))
    (talk.work / "found").write_text("session/load")  # and no other
    await rpc(talk, "initialize", "lossy", protocolVersion=1)
    given: dict[str, Any] = {"sessionId": "s", "cwd": str(talk.work), "mcpServers": []}
    assert "result" in await rpc(talk, "session/resume", "lossy", **given)
    assert (await talk.reflected("s"))["opened"] == "session/load"


async def until_asked(folder: Path) -> None:
    """The agent there waits for the word to go on."""
    while not (folder / "asked").exists():
        await asyncio.sleep(0.02)  # an agent starts; bounded
    (folder / "asked").unlink()


async def let_go(folder: Path) -> None:
    await asyncio.to_thread((folder / "go").write_text, "x")


async def end(talk: SessionClient, how: str, session: str, agent: str) -> None:
    if how == "terminate":
        assert (await talk.call("POST", f"/v1/sessions/{session}/terminate")).status_code == 204
    else:
        assert "result" in await rpc(talk, "session/close", agent, "another", sessionId=session)


@pytest.mark.parametrize(
    ("how", "method"), [("terminate", "load"), ("terminate", "prompt"), ("close", "prompt")]
)
async def test_a_session_that_is_ended_while_the_agent_of_a_client_starts_is_over(
    request: pytest.FixtureRequest, tmp_path: Path, how: str, method: str
) -> None:
    """The agent takes any name, and would tell another history."""
    async with asyncio.timeout(110):
        async with open_session_client(tmp_path, request) as talk:
            start = talk.rig.services.settings.data_dir / "work"
            start.mkdir(exist_ok=True)
            os.mkfifo(start / "go")
            greeting = asyncio.create_task(rpc(talk, "initialize", "late", protocolVersion=1))
            await until_asked(start)
            await let_go(start)
            await greeting
            made = await rpc(talk, "session/new", "late", cwd=str(talk.work), mcpServers=[])
            session = made["result"]["sessionId"]
            await talk.reflected(session)
        async with open_session_client(tmp_path, request) as talk:
            place: dict[str, object] = {"cwd": str(talk.work), "mcpServers": []}
            given = place if method == "load" else {"prompt": [{"type": "text", "text": "say"}]}
            using = asyncio.create_task(
                rpc(talk, f"session/{method}", "late", "client", sessionId=session, **given)
            )
            await until_asked(start)
            await end(talk, how, session, "late")
            before = (await talk.call("GET", f"/v1/sessions/{session}/events")).json()
            await let_go(start)
            assert "error" in await using
            assert (await talk.info(session))["status"] == "closed"
            assert (await talk.call("GET", f"/v1/sessions/{session}/events")).json() == before


async def test_a_session_that_is_terminated_while_a_client_opens_it_again_is_over(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async with asyncio.timeout(110):
        async with open_session_client(tmp_path, request) as talk:
            os.mkfifo(talk.work / "go")
            place: dict[str, object] = {"cwd": str(talk.work), "mcpServers": []}
            await rpc(talk, "initialize", "slow", protocolVersion=1)
            session = (await rpc(talk, "session/new", "slow", "client", **place))["result"]["sessionId"]
            await rpc(talk, "session/close", "slow", sessionId=session)
            loading = asyncio.create_task(
                rpc(talk, "session/load", "slow", "client", sessionId=session, **place)
            )
            await until_asked(talk.work)
            await end(talk, "terminate", session, "slow")
            await let_go(talk.work)
            assert "closed meanwhile" in (await loading)["error"]["message"]
            assert (await talk.info(session))["status"] == "closed"
        async with open_session_client(tmp_path, request) as talk:
            refused = await rpc(talk, "session/load", "slow", "client", sessionId=session, **place)
            assert "it has ended" in refused["error"]["message"]


async def test_whoever_uses_a_session_while_a_client_takes_it_up_waits_for_that(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async with asyncio.timeout(110):
        async with open_session_client(tmp_path, request) as talk:
            await talk.created("s", agent="slow", directory=str(talk.work))
        async with open_session_client(tmp_path, request) as talk:
            os.mkfifo(talk.work / "go")
            for client in ("first", "second"):
                await rpc(talk, "initialize", "slow", client, protocolVersion=1)
            given = {"sessionId": "s", "cwd": str(talk.work), "mcpServers": []}
            loads = [asyncio.create_task(rpc(talk, "session/load", "slow", "first", **given))]
            await until_asked(talk.work)
            loads.append(asyncio.create_task(rpc(talk, "session/load", "slow", "second", **given)))
            await talk.call("POST", "/v1/sessions/s/messages", {"message": "say"})
            await let_go(talk.work)
            assert all("result" in each for each in await asyncio.gather(*loads))
            _, ended = await talk.until("s", "prompt-finished")
            assert ended["stopReason"] == "end_turn"
            said = [{"type": "text", "text": "say"}]
            for client in ("first", "second"):
                answer = await rpc(talk, "session/prompt", "slow", client, sessionId="s", prompt=said)
                assert "result" in answer
            host = await talk.rig.services.hosts.host()
            assert len(host.get_agents()) == 2  # those of the clients


async def test_what_a_session_had_ends_with_its_close_also_where_it_is_opened_again_at_once(
    talk: SessionClient,
) -> None:
    """Its agent, and its grants; what it is told afterwards counts."""
    await talk.created("s", directory=str(talk.work), permissionMode="bypass")
    await rpc(talk, "initialize", "rehearsal", protocolVersion=1)
    assert "result" in await rpc(talk, "session/close", "rehearsal", sessionId="s")
    assert "result" in await take_up(talk, "s")
    assert (await talk.played("s", "say after"))["stopReason"] == "end_turn"
    host = await talk.rig.services.hosts.host()
    while len(host.get_agents()) > 1:  # that of the client stays
        await asyncio.sleep(0.02)  # the end is noted after the answer; bounded
    info = await talk.info("s")
    assert (info["status"], info["permissionMode"], info["queued"]) == ("active", "default", 0)
    assert await talk.rig.rows("select id from approval_grant where revoked_at is null") == []


async def test_a_client_that_gave_up_a_load_is_told_what_its_next_prompt_says(
    talk: SessionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await made_and_closed(talk)
    replaying = asyncio.Event()

    async def replay(_: SessionFollower) -> None:
        replaying.set()
        never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        return await never

    with monkeypatch.context() as patch:
        patch.setattr(SessionFollower, "replay", replay)
        loading = asyncio.create_task(take_up(talk, session))
        await replaying.wait()
        told = {"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": 1}}
        assert (await talk.call("POST", "/v1/acp/client?agent=rehearsal", told)).status_code == 202
        assert "error" in await loading
    said = [{"type": "text", "text": script("say after")}]
    await rpc(talk, "session/prompt", "rehearsal", sessionId=session, prompt=said)
    events = (await talk.call("GET", "/v1/streams/acp:client/events?limit=1000")).text
    assert '"after"' in events


async def test_a_request_that_is_given_up_before_it_begins_is_answered_among_the_events_too(
    talk: SessionClient,
) -> None:
    """Who asked with `Prefer: respond-async` reads nothing else."""
    await rpc(talk, "initialize", "rehearsal", protocolVersion=1)
    connections = talk.rig.services.acp
    connection = await connections.get("local", "client", None)
    owner = await talk.rig.principal(talk.rig.people["owner"])
    coming = connection.receive(RpcMessage("session/list", id=Raw(b"7"), params=Raw(b"{}")), owner)
    connection.receive(RpcMessage("$/cancel_request", params=Raw(b'{"requestId":7}')), owner)
    assert coming is not None
    line = await coming
    assert b"cancelled" in line
    log = await talk.rig.services.log.stream("acp:client")
    async with asyncio.timeout(30):
        async for each in log.subscribe():
            if each.raw == line:
                break


async def test_a_request_that_is_refused_at_once_is_told_so_whatever_it_prefers(
    talk: SessionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rpc(talk, "initialize", "rehearsal", protocolVersion=1)
    monkeypatch.setattr("legation.server.acp.connection.REQUESTS_AT_ONCE", 0)
    message = {"jsonrpc": "2.0", "id": 1, "method": "session/list", "params": {}}
    headers = {**talk.headers, "prefer": "respond-async"}
    answer = await talk.call("POST", "/v1/acp/client", message, headers)
    assert (answer.status_code, "too many" in answer.json()["error"]["message"]) == (200, True)


async def test_a_client_that_opens_a_session_again_is_asked_anew_and_the_first_question_is_withdrawn(
    talk: SessionClient,
) -> None:
    await rpc(talk, "initialize", protocolVersion=1)
    made = await rpc(talk, "session/new", cwd=str(talk.work), mcpServers=[])
    session = made["result"]["sessionId"]
    given = {"sessionId": session, "cwd": str(talk.work), "mcpServers": []}
    said = [{"type": "text", "text": "ask a.txt"}]
    turn = asyncio.create_task(rpc(talk, "session/prompt", sessionId=session, prompt=said))
    await told(talk, "session/request_permission", 1)
    assert "result" in await rpc(talk, "session/load", **given)
    asked = [each["id"] for each in await told(talk, "session/request_permission", 2)]
    [permission] = await talk.events(session, "permission-asked")
    assert (await talk.reply(session, permission["id"], "once")).status_code == 204
    assert "result" in await turn
    withdrawn = [each["params"]["requestId"] for each in await told(talk, "$/cancel_request", 2)]
    assert withdrawn == asked


async def told(talk: SessionClient, method: str, count: int) -> list[Any]:
    """What the client was told of that method, once it is so much."""
    while True:
        found = [each for each in await talk.events("acp:client", MESSAGE) if each.get("method") == method]
        if len(found) >= count:
            return found
        await asyncio.sleep(0.02)  # bounded
