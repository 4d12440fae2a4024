"""Records of sessions: read when they are needed, one of each, forgotten when nobody uses them. INV-R1 is that of `record.py`.

Nothing is timed: what is counted is what was read of sessions that nobody asked for."""

import asyncio
import gc
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from bench.filler import fill, name_of
from msgspec.structs import replace
from tests.cli.server_process import running
from tests.server.sessions.session_client import LIMIT, SessionClient, open_session_client, script
from tests.server.sessions.test_accepted import client

from legation.server.sessions import record as module
from legation.server.sessions.agents import SessionAgents
from legation.server.sessions.record import Begun, Owner, QueuedMessage, SessionRecord, SessionRecords
from legation.server.sessions.service import UNSETTLED
from legation.store.codec import StreamInfo
from legation.store.datafolder import EVENTS, make_folder
from legation.store.log import EventLog
from legation.store.sqlite import SqliteBackend

MANY = 300  # sessions on record, every other one ended


@asynccontextmanager
async def after_years(place: Path, request: pytest.FixtureRequest) -> AsyncIterator[SessionClient]:
    make_folder(place / "data")
    fill(SqliteBackend(place / "data" / EVENTS), MANY)
    async with asyncio.timeout(110), open_session_client(place, request) as talk:
        yield talk


@pytest.fixture
async def talk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SessionClient]:
    async with after_years(tmp_path, request) as made:
        yield made


@contextmanager
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of those whose metadata was read for a record."""
    names: list[str] = []
    real = module._read

    def counted(workspace: str, info: StreamInfo) -> SessionRecord | None:
        names.append(info.name)
        return real(workspace, info)

    with monkeypatch.context() as patch:
        patch.setattr(module, "_read", counted)
        yield names


def in_memory(talk: SessionClient) -> set[str]:
    gc.collect()
    return {record.id for record in talk.rig.services.sessions.records}


async def change(place: Path, name: str, **details: Any) -> None:
    """As a server leaves it that is killed now."""
    async with EventLog(SqliteBackend(place / "data" / EVENTS)) as log:
        records = SessionRecords(log)
        record = await records.get("local", name)
        await records.save(record, replace(record.details, **details))


# A start.


async def test_a_start_reads_what_must_be_recovered_and_nothing_else(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with after_years(tmp_path, request):
        pass
    cut, waits, closed = name_of(40), name_of(80), name_of(81)
    message = QueuedMessage(id="msg_1", text="go on")
    await change(tmp_path, cut, begun=Begun(message=message, after=4))
    await change(tmp_path, waits, prompted=4)
    await change(tmp_path, closed, queue=(message,))
    saved: list[str] = []
    monkeypatch.setattr(SessionRecords, "save", _noting(saved))
    with reads(monkeypatch) as read:
        async with asyncio.timeout(110), open_session_client(tmp_path, request) as talk:
            assert sorted(set(read)) == sorted([cut, waits, closed])
            assert sorted(set(saved)) == sorted([cut, waits, closed])
            assert (await talk.info(closed))["queued"] == 0  # it had ended
    with reads(monkeypatch) as read:
        async with asyncio.timeout(110), open_session_client(tmp_path, request):
            pass
        assert set(read) <= {cut}  # its message may wait for an agent that there is not


def _noting(names: list[str]) -> Any:
    real = SessionRecords.save

    async def save(self: SessionRecords, record: SessionRecord, *args: Any) -> None:
        names.append(record.id)
        await real(self, record, *args)

    return save


async def test_a_start_without_anything_left_reads_no_session(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with reads(monkeypatch) as read:
        async with after_years(tmp_path, request) as talk:
            assert read == []
            assert in_memory(talk) == set()


async def test_what_was_being_sealed_is_looked_for_in_its_session_alone(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with after_years(tmp_path, request) as talk:
        vault = talk.rig.services.vault
        for owner in ("ssn_left", "ssn_never"):
            await vault.put("local", owner, b"[]")
        unsettled = talk.rig.services.sessions._secrets
        unsettled._note(Owner("local", "ssn_left", name_of(7)))
        unsettled._note(Owner("local", "ssn_never", "never-made"))
    with reads(monkeypatch) as read:
        async with asyncio.timeout(110), open_session_client(tmp_path, request) as talk:
            assert read == [name_of(7)]
            assert await talk.rig.rows("select owner from vault_bundle") == []
            assert list((tmp_path / "data" / UNSETTLED).iterdir()) == []


@pytest.mark.heavy
@pytest.mark.timeout(300)
def test_one_that_a_kill_cut_off_is_found_among_many(tmp_path: Path) -> None:
    """Its turn is ended, and what waits behind that is played."""
    with running(tmp_path, "server") as server:
        server.line()
        data = server.data_dir
        server.stop()
    fill(SqliteBackend(data / EVENTS), MANY)
    with running(tmp_path, "server") as server:
        server.line()
        with client(server) as http:
            made = http.post("/v1/sessions/cut", json={"agent": "mock"})
            assert made.status_code == 200, made.text
            for step in ("say-and-stall working", "say hello"):
                said = http.post("/v1/sessions/cut/messages", json={"message": script(step)})
                assert said.status_code == 204, said.text
            until_said(http, "working")
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait(LIMIT)
    with running(tmp_path, "server") as server:
        server.line()
        with client(server) as http:
            events = until_said(http, "hello")
            first = next(each["raw"] for each in events if each["type"] == "prompt-finished")
            assert first["error"]["data"]["cut"] is True
            page = http.get("/v1/sessions", params={"limit": 2}).json()["sessions"]
            assert [each["sessionId"] for each in page] == ["cut", name_of(MANY - 1)]


def until_said(http: httpx2.Client, word: str) -> list[dict[str, Any]]:
    """All events, once the agent has said that."""
    end = time.monotonic() + LIMIT
    while True:
        events = http.get("/v1/streams/cut/events", params={"limit": 1000}).json()["items"]
        told = [each for each in events if each["type"] == "agent-message-chunk"]
        if word in json.dumps(told):
            return events  # type: ignore[no-any-return]
        assert time.monotonic() < end, events
        time.sleep(0.05)


# What is asked for.


async def test_a_session_is_made_and_woken_without_a_look_at_others(
    talk: SessionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with reads(monkeypatch) as read:
        await talk.created("new")
        await talk.played("new", "say one")
        assert (await talk.call("POST", "/v1/sessions/new/terminate")).status_code == 204
        await talk.created("asleep")
        record = await talk.rig.services.sessions.records.get("local", "asleep")
        assert record.slot is not None
        await record.slot.stop()
        await talk.played("asleep", "say two")
        assert set(read) <= {"new", "asleep"}


async def test_lists_read_what_they_show(talk: SessionClient, monkeypatch: pytest.MonkeyPatch) -> None:
    with reads(monkeypatch) as read:
        await talk.call("GET", "/v1/sessions?limit=10")
        assert len(read) == 11  # and whether there is one behind
        read.clear()
        await talk.call("GET", "/v1/streams?limit=10")
        await talk.call("GET", "/v1/acp")
        assert read == []
        agents = (await talk.call("GET", "/v1/agents")).json()["agents"]
        assert read == [name_of(200)]  # the last one whose agent crashed
        (agent,) = [each for each in agents if each["id"] == "rehearsal"]
        assert agent["serverStatus"]["status"] == "error"
        assert agent["serverStatus"]["lastError"] == "crashed: exit code 1"
        read.clear()
        everything = (await talk.call("GET", "/v1/sessions")).json()
        assert [each["sessionId"] for each in everything["sessions"]] == [
            name_of(number) for number in range(MANY - 1, -1, -1)
        ]
        assert len(read) == MANY
    assert in_memory(talk) == set()


async def test_pages_have_every_session_once_however_they_are_cut(talk: SessionClient) -> None:
    names: list[str] = []
    query = "limit=77"
    while query:
        page = (await talk.call("GET", f"/v1/sessions?{query}")).json()
        names += [each["sessionId"] for each in page["sessions"]]
        query = f"limit=77&cursor={page['next']}" if page["next"] else ""
    assert names == [name_of(number) for number in range(MANY - 1, -1, -1)]


async def test_a_record_that_nobody_uses_is_forgotten(talk: SessionClient) -> None:
    await talk.created("active")
    for number in range(20):
        assert (await talk.info(name_of(number)))["sessionId"] == name_of(number)
    assert in_memory(talk) == {"active"}
    assert (await talk.call("POST", "/v1/sessions/active/terminate")).status_code == 204
    async with asyncio.timeout(LIMIT):
        while in_memory(talk):
            await asyncio.sleep(0.02)
    assert (await talk.info("active"))["status"] == "closed"


# One owner.


async def test_whoever_asks_for_a_session_at_once_gets_the_same_record(talk: SessionClient) -> None:
    records = talk.rig.services.sessions.records
    found = await asyncio.gather(*[records.get("local", name_of(2)) for _ in range(10)])
    assert len({id(record) for record in found}) == 1
    first = found[0]
    await records.save(first, replace(first.details, model="other"))
    assert (await records.get("local", name_of(2))).details.model == "other"
    del found, first
    gc.collect()
    assert records.held("local", name_of(2)) is None
    assert (await records.get("local", name_of(2))).details.model == "other"


async def test_a_session_that_is_being_made_has_the_record_of_its_maker(
    talk: SessionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the log before its maker is told."""
    records, found = talk.rig.services.sessions.records, list[SessionRecord | None]()
    real = SessionAgents.create

    async def create(*args: Any) -> SessionRecord:
        record = await real(*args)
        records.delete(record)  # as if the log had it, and its maker did not know yet
        found.append(await records.known("local", "new"))
        assert "new" not in [each.session_id for each in (await records.page("local", 5, None))[0]]
        records.add(record)
        return record

    monkeypatch.setattr(SessionAgents, "create", create)
    await talk.created("new")
    assert found == [None]
    assert (await talk.info("new"))["status"] == "active"


async def test_who_wants_a_name_that_is_taken_hides_nobody(
    talk: SessionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = talk.rig.services.sessions.records
    seen: list[SessionRecord | None] = []
    real = EventLog.lookup

    async def lookup(log: EventLog, name: str, workspace: str = "local") -> StreamInfo | None:
        if name == name_of(4) and not seen:  # while it is looked whether there is one
            seen.append(None)
            seen.append(await records.known("local", name_of(4)))
        return await real(log, name, workspace)

    monkeypatch.setattr(EventLog, "lookup", lookup)
    assert (await talk.create(name_of(4))).status_code == 409
    assert seen[1] is not None


async def test_what_a_deleted_session_leaves_is_looked_for_by_its_folder(
    talk: SessionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await talk.created("s")
    work = talk.rig.services.settings.data_dir / "work/local/s"
    with reads(monkeypatch) as read:
        assert (await talk.call("DELETE", "/v1/sessions/s")).status_code == 204
        assert set(read) <= {"s"}
    assert not work.exists()
