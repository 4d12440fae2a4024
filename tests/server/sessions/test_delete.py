"""A session that is deleted: nothing of it is left but its name, the trace and a row of the audit log."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.server.acp.test_opened import rpc
from tests.server.rig import BOTH
from tests.server.sessions.session_client import SessionClient, open_session_client
from tests.server.sessions.test_bad_input import ON_A_SESSION
from tests.server.sessions.test_making import MCP, NEW, dying, next_server, play
from tests.server.test_access_table import an_approval

from legation.errors import StorageFailed
from legation.proc.tree import process
from legation.server.streaming.sse import end
from legation.store.codec import Op

pytestmark = pytest.mark.heavy


def work_of(talk: SessionClient, session: str) -> Path:
    return talk.rig.services.settings.data_dir / "work/local" / session


async def pids_of(talk: SessionClient, session: str) -> list[int]:
    await talk.played(session, "spawn-tree")
    [said] = (await talk.events(session, "agent-message-chunk"))[-1:]
    return [pid for pid in json.loads(said["content"]["text"]).values() if isinstance(pid, int)]


async def refusals(talk: SessionClient, session: str) -> set[tuple[int, str]]:
    """Of every route that is about it."""
    answers = [
        await talk.call(method, f"/v1/sessions/{session}{path}", body) for method, path, body in ON_A_SESSION
    ]
    files = await talk.call("GET", f"/v1/fs/entries?path=.&sessionId={session}")
    return {(answer.status_code, answer.json()["detail"]) for answer in (*answers, files)}


GONE = {(404, "cannot find session s: it was deleted; start another")}


@pytest.mark.parametrize("dialect", BOTH)
async def test_nothing_of_it_is_left_but_its_name_and_the_trace(
    request: pytest.FixtureRequest, tmp_path: Path, dialect: str
) -> None:
    async with asyncio.timeout(110), open_session_client(tmp_path, request, dialect) as talk:
        rig = talk.rig
        await talk.created("s", mcp=MCP, permissionMode="bypass", title="Quiet words")
        await talk.created("other")
        await talk.played("s", "say quiet", "ask write kept.txt x")
        pids = await pids_of(talk, "s")
        asked = await an_approval(rig, session_id="s")
        with await rig.services.hub.reader("s", "local", 0) as reader:
            answer = await talk.call("DELETE", "/v1/sessions/s")
            assert (answer.status_code, answer.text) == (204, "")
            told = b""
            while chunk := await reader.next():
                told += chunk
        assert told.endswith(end("deleted"))
        assert [pid for pid in pids if (found := process(pid)) and not found.dead] == []
        assert not work_of(talk, "s").exists()
        assert await rig.rows("select * from vault_bundle") == []
        assert await rig.rows("select id from approval_grant where revoked_at is null") == []
        [approval] = await rig.rows(f"select status from approval where id = '{asked.id}'")
        assert approval["status"] == "superseded"
        traces = (await talk.call("GET", "/traces?session=s")).json()
        assert traces, "what was decided in it is to be read still"
        [audited] = [
            row for row in await rig.rows("select * from audit") if row["action"] == "session.deleted"
        ]
        assert (audited["actor_kind"], audited["target"]) == ("token", "s")
        assert (await rig.services.log.find("s", "local")).info().meta == b"{}"  # type: ignore[union-attr]
        assert await refusals(talk, "s") == GONE
        again = await talk.create("s")
        assert (again.status_code, again.json()["data"]["type"]) == (409, "session_already_exists")
        assert "was deleted, and no name is used again" in again.json()["detail"]
        listed = (await talk.call("GET", "/v1/sessions")).json()["sessions"]
        assert [each["sessionId"] for each in listed] == ["other"]
        assert (await talk.played("other", "say on"))["stopReason"] == "end_turn"


async def test_a_later_server_knows_that_it_was_deleted(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async with asyncio.timeout(110):
        async with open_session_client(tmp_path, request) as talk:
            await talk.created("s", agent="loading", directory=str(talk.work))
            await talk.reflected("s")
            assert (await talk.call("DELETE", "/v1/sessions/s")).status_code == 204
        async with open_session_client(tmp_path, request) as talk:
            assert await refusals(talk, "s") == GONE
            assert (await talk.create("s")).status_code == 409
            await rpc(talk, "initialize", protocolVersion=1)
            here: Any = {"sessionId": "s", "cwd": str(talk.work), "mcpServers": []}
            for method in ("session/load", "session/resume"):  # of an agent that takes any name
                refused = await rpc(talk, method, **here)
                assert "it was deleted; start another" in refused["error"]["message"]
            refused = await rpc(talk, "session/prompt", sessionId="s", prompt=[])
            assert "it was deleted; start another" in refused["error"]["message"]


async def test_it_is_not_deleted_during_a_turn(talk: SessionClient) -> None:
    await talk.created("s")
    await talk.send("s", "say begun", "stall 600")
    await talk.until("s", "agent-message-chunk")
    refused = await talk.call("DELETE", "/v1/sessions/s")
    assert (refused.status_code, refused.json()["code"]) == (409, "legation/prompt-in-flight")
    assert "cancel it or wait for its end, or terminate the session" in refused.json()["detail"]
    await talk.call("POST", "/v1/sessions/s/cancel")
    await talk.until("s", "prompt-finished")
    assert (await talk.played("s", "say still here"))["stopReason"] == "end_turn"
    assert (await talk.call("POST", "/v1/sessions/s/terminate")).status_code == 204
    assert (await talk.call("DELETE", "/v1/sessions/s")).status_code == 204


async def test_a_turn_of_a_client_of_acp_is_not_cut_off_either(talk: SessionClient) -> None:
    await rpc(talk, "initialize", "rehearsal", protocolVersion=1)
    made = await rpc(talk, "session/new", "rehearsal", cwd=str(talk.work), mcpServers=[])
    session = made["result"]["sessionId"]
    prompt = [{"type": "text", "text": "#!rehearse\nsay begun\nstall 600"}]
    playing = asyncio.create_task(rpc(talk, "session/prompt", "rehearsal", sessionId=session, prompt=prompt))
    await talk.until(session, "agent-message-chunk")
    assert (await talk.call("DELETE", f"/v1/sessions/{session}")).status_code == 409
    refused = await rpc(talk, "session/delete", "rehearsal", sessionId=session)
    assert "a turn runs, or is about to" in refused["error"]["message"]
    await talk.call("POST", f"/v1/sessions/{session}/cancel")
    assert (await playing)["result"]["stopReason"] == "cancelled"
    assert await rpc(talk, "session/delete", "rehearsal", sessionId=session) == {
        "jsonrpc": "2.0",
        "id": 1,
        "result": {},
    }
    assert (await talk.call("GET", f"/v1/sessions/{session}")).status_code == 404


@pytest.mark.parametrize("how", ["terminate", "close"])
async def test_a_client_of_acp_deletes_one_that_has_ended(talk: SessionClient, how: str) -> None:
    await talk.created("s", mcp=MCP, directory=str(talk.work))
    await talk.played("s", "say quiet")
    await rpc(talk, "initialize", "rehearsal", protocolVersion=1)
    if how == "close":
        await rpc(talk, "session/close", "rehearsal", sessionId="s")
    else:
        await talk.call("POST", "/v1/sessions/s/terminate")
    assert "result" in await rpc(talk, "session/delete", "rehearsal", sessionId="s")
    assert await refusals(talk, "s") == GONE
    assert await talk.rig.services.log.deleted() == ["s"]
    assert "result" in await rpc(talk, "session/delete", "rehearsal", sessionId="s")  # twice is as once
    assert talk.work.is_dir()  # it is none of its own


async def test_a_client_deletes_none_of_another_agent(talk: SessionClient) -> None:
    await talk.created("s")
    await talk.call("POST", "/v1/sessions/s/terminate")
    await rpc(talk, "initialize", "mirror", protocolVersion=1)
    refused = await rpc(talk, "session/delete", "mirror", sessionId="s")
    assert "its agent is rehearsal" in refused["error"]["message"]
    assert (await talk.info("s"))["status"] == "closed"


async def test_the_folder_of_one_stays_as_long_as_another_works_there(talk: SessionClient) -> None:
    await talk.created("s")
    locked = work_of(talk, "s") / "locked"
    (locked / "deep").mkdir(parents=True)
    locked.chmod(0o500)
    sessions = talk.rig.services.sessions
    record = await sessions.records.get("local", "s")
    fork = await a_fork(talk, "f", record.meta.cwd)
    assert (await talk.call("DELETE", "/v1/sessions/s")).status_code == 204
    assert locked.is_dir()
    assert (await talk.call("DELETE", f"/v1/sessions/{fork}")).status_code == 204
    assert not work_of(talk, "s").exists()  # with what was read-only in it


async def a_fork(talk: SessionClient, name: str, cwd: str) -> str:
    """As the log has one: rehearsal cannot fork."""
    stream, source = await talk.rig.services.log.stream(name), await talk.rig.services.log.stream("s")
    meta = json.loads(source.meta)
    assert meta["cwd"] == cwd
    await stream.set_meta(source.meta)
    return name


async def test_one_that_the_disk_does_not_take_is_whole(
    talk: SessionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await talk.created("s")
    backend = talk.rig.services.log._backend
    real = backend.commit

    def failing(ops: Sequence[Op]) -> None:
        if any(b"deletion" in getattr(op, "meta", b"") for op in ops):
            raise StorageFailed("cannot write: the disk is full; free some space")
        real(ops)

    monkeypatch.setattr(backend, "commit", failing)
    assert (await talk.call("DELETE", "/v1/sessions/s")).status_code == 500
    monkeypatch.undo()
    assert (await talk.played("s", "say here"))["stopReason"] == "end_turn"
    assert (await talk.call("DELETE", "/v1/sessions/s")).status_code == 204


async def test_what_was_cut_off_is_brought_to_its_end_by_the_next_try(
    talk: SessionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await talk.created("s", mcp=MCP)
    sessions = talk.rig.services.sessions

    async def failing(_: Any) -> None:
        raise StorageFailed("cannot use the database; look at it")

    monkeypatch.setattr(sessions, "_remove_folder", failing)
    assert (await talk.call("DELETE", "/v1/sessions/s")).status_code == 500
    assert (await talk.call("GET", "/v1/sessions/s")).status_code == 404  # it was decided
    monkeypatch.undo()
    assert (await talk.call("DELETE", "/v1/sessions/s")).status_code == 204
    assert (await talk.call("DELETE", "/v1/sessions/s")).status_code == 404
    assert (await talk.rig.actions()).count("session.deleted") == 1


async def test_of_two_that_delete_it_at_once_one_does(talk: SessionClient) -> None:
    await talk.created("s")
    answers = await asyncio.gather(*[talk.call("DELETE", "/v1/sessions/s") for _ in range(3)])
    assert sorted(answer.status_code for answer in answers) == [204, 404, 404]


async def test_an_id_that_may_hold_a_secret_is_not_in_the_audit_log(talk: SessionClient) -> None:
    name = "k" * 40
    await talk.created(name)
    assert (await talk.call("DELETE", f"/v1/sessions/{name}")).status_code == 204
    [audited] = [
        row for row in await talk.rig.rows("select * from audit") if row["action"] == "session.deleted"
    ]
    assert audited["target"].startswith("sha256:")
    assert name not in str(audited)


# In the order of what is done; it is gone for everybody once the first commit stands.
NOTHING_IS_DECIDED = ("legation.server.sessions.service:SessionService._mark_deleted", 1)
AFTER_THAT = [
    ("legation.server.sessions.service:SessionService._delete", 1),
    ("legation.host.session:Session.end", 1),
    ("legation.approvals.queue:ApprovalQueue.supersede_session", 1),
    ("legation.server.sessions.record:SealedServers.destroy", 1),
    ("legation.server.sessions.service:SessionService._remove_folder", 1),
    ("legation.store.stream:Stream.delete", 1),
    ("legation.server.sessions.record:SessionRecords.delete", 1),
]


@pytest.mark.parametrize("where", [NOTHING_IS_DECIDED, *AFTER_THAT])
def test_one_whose_server_is_killed_while_it_is_deleted_is_whole_or_gone(
    tmp_path: Path, where: tuple[str, int]
) -> None:
    with dying(tmp_path, where) as http:
        assert http.post("/v1/sessions/s", json=NEW).status_code == 200
        assert "quiet" in play(http, "s", "say quiet")
        with pytest.raises(httpx2.HTTPError):
            http.delete("/v1/sessions/s")
    with next_server(tmp_path) as http:
        if where == NOTHING_IS_DECIDED:
            assert http.get("/v1/sessions/s").json()["mcp"] == ["a"]
            assert "again" in play(http, "s", "say again")
            assert http.delete("/v1/sessions/s").status_code == 204
        gone = http.get("/v1/sessions/s")
        assert (gone.status_code, gone.json()["detail"]) == next(iter(GONE))
        assert http.post("/v1/sessions/s", json=NEW).status_code == 409
        assert [each["active"] for each in http.get("/grants").json() if each["active"]] == []
        rows = [each for each in http.get("/v1/audit").json()["items"] if each["action"] == "session.deleted"]
        assert len(rows) == 1
        assert http.get("/v1/streams/s/events").status_code == 404
        assert not (tmp_path / ".local/share/legation/work/local/s").exists()
