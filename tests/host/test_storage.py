"""What a host keeps, what it does when it cannot, and what the next host finds."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.host.host_events import codes, events_of, told, until_code, until_told
from tests.host.rig import LIMIT, Rig, events, go, of_type, play, status_of, until_type

from legation.errors import AgentError, StorageFailed
from legation.host.host import AcpHost
from legation.host.options import HostOptions
from legation.host.requests.handlers import ApproveAll
from legation.store.codec import Append, Backend, Op
from legation.store.jsonl import JsonlBackend
from legation.store.log import EventLog
from legation.wire.acp.methods import McpServer
from legation.wire.acp.updates import Text
from legation.wire.event_types import SessionUpdated

pytestmark = pytest.mark.heavy

LOADS = """
send(id=serve("initialize"), result={"protocolVersion": 1, "agentCapabilities": {"loadSession": True}})
"""


class Disk(JsonlBackend):
    """One that can fail."""

    broken = False

    def commit(self, ops: Sequence[Op]) -> None:
        if self.broken:
            raise StorageFailed("cannot save: the disk is full; free some space")
        super().commit(ops)


class Held(JsonlBackend):
    """One that stores the beginning of a turn only when the test lets it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.reached, self.opened = threading.Event(), threading.Event()

    def commit(self, ops: Sequence[Op]) -> None:
        types = [event.type for op in ops if isinstance(op, Append) for event in op.events]
        if "prompt-started" in types:
            self.reached.set()
            self.opened.wait(LIMIT)
        super().commit(ops)


@asynccontextmanager
async def hosted(place: Path, disk: Backend) -> AsyncIterator[Rig]:
    """A host whose log is its own."""
    (place / "work").mkdir(exist_ok=True)
    options = HostOptions(storage=disk, approver=ApproveAll(), data_dir=place / "data", kill_timeout_ms=500)
    async with asyncio.timeout(LIMIT), AcpHost(options) as host:
        yield Rig(host, host.log, place, [])


@pytest.mark.parametrize("how", ["close", "delete"])
async def test_an_end_that_cannot_be_written_is_refused_and_not_published(tmp_path: Path, how: str) -> None:
    """storage semantics: lifecycle tombstones are strict commits."""
    disk = Disk(tmp_path / "log")
    async with hosted(tmp_path, disk) as made:
        session = await made.rehearse()
        assert session.agent_id

        async def end() -> None:
            if how == "close":
                await made.host.close_session(session.id)
            else:
                await made.host.delete_session(session.agent_id or "", session.id)

        disk.broken = True
        with pytest.raises(StorageFailed):
            await end()
        assert session.status == "active"
        assert {each.status for each in await told(made.host, SessionUpdated)} == {"active"}
        assert [status_of(each) for each in await of_type(session, "session-status")] == ["active"]
        disk.broken = False
        assert (await play(session, "say still here")).stop_reason == "end_turn"
        await end()
        await until_told(made.host, SessionUpdated, lambda each: each.status == f"{how}d")


class Half(Disk):
    """Fails at tombstones alone."""

    def commit(self, ops: Sequence[Op]) -> None:
        if any(type(op).__name__ == "SetState" for op in ops):
            raise StorageFailed("cannot save: the disk is full; free some space")
        super().commit(ops)


async def test_a_close_that_fails_at_the_last_moment_takes_its_word_back(tmp_path: Path) -> None:
    """storage semantics: the last event says what is."""
    async with hosted(tmp_path, Half(tmp_path / "log")) as made:
        session = await made.rehearse()
        with pytest.raises(StorageFailed):
            await made.host.close_session(session.id)
        assert session.status == "active"
        await play(session, "say still here")
        found = [status_of(each) for each in await of_type(session, "session-status")]
        assert found == ["active", "closed", "active"]


HEARS = "hello(); session(); prompt = prompted(); open('heard', 'w').close(); done(prompt); stay()"


async def test_a_message_is_on_the_disk_as_a_turn_before_the_agent_hears_it(tmp_path: Path) -> None:
    """Killed in between, the next server finds no turn of it, and says it again."""
    disk = Held(tmp_path / "log")
    async with hosted(tmp_path, disk) as made:
        session = await made.script(HEARS)
        turn = session.talk.begin((Text(text="hi"),), message="msg_1")
        assert await asyncio.to_thread(disk.reached.wait, LIMIT)
        await asyncio.to_thread(Path.exists, tmp_path)  # a round in which it would have been written
        assert not turn.sent
        assert not (tmp_path / "heard").exists()
        disk.opened.set()
        assert (await session.talk.until_over(turn)).result.stop_reason == "end_turn"
        assert (tmp_path / "heard").exists()


async def test_a_message_whose_agent_ends_before_it_is_stored_is_a_turn_that_failed(tmp_path: Path) -> None:
    disk = Held(tmp_path / "log")
    async with hosted(tmp_path, disk) as made:
        session = await made.script(HEARS)
        turn = session.talk.begin((Text(text="hi"),), message="msg_1")
        assert await asyncio.to_thread(disk.reached.wait, LIMIT)
        agent = made.host.agents[session.agent_id or ""]
        leaving = asyncio.create_task(made.host.dispose_agent(agent.id))
        while agent.live is not None:
            await asyncio.sleep(0.001)
        disk.opened.set()
        await leaving
        end = await session.talk.until_over(turn)
        assert isinstance(end.error, AgentError)
        assert not (tmp_path / "heard").exists()
        assert len(await of_type(session, "prompt-finished")) == 1


async def test_inv_5_a_failing_disk_is_told_once_and_disturbs_no_live_stream(tmp_path: Path) -> None:
    """storage semantics: write failures emit diagnostics, which are not recursively persisted; retries:
    stronger than none, for what was shown from memory is stored, in order, when the disk works again."""
    disk = Disk(tmp_path / "log")
    async with hosted(tmp_path, disk) as made:
        session = await made.rehearse()
        disk.broken = True
        prompting = asyncio.create_task(play(session, "say one", "say two", "stall 60"))
        while len(await of_type(session, "agent-message-chunk")) < 2:
            await asyncio.sleep(0.001)
        await until_code(made.host, "storage/write-failed")
        disk.broken = False
        await session.cancel()
        await prompting
        await until_code(made.host, "storage/recovered")
        assert (await codes(made.host)).count("storage/write-failed") == 1
        seen = await events(session)
        assert [event.seq for event in seen] == list(range(1, len(seen) + 1))
        host_seen = await events_of(made.host)
    async with EventLog(JsonlBackend(tmp_path / "log")) as log:
        stored = [event async for event in (await log.stream(session.id)).subscribe(follow=False)]
        assert stored[: len(seen)] == seen
        host_stored = [event async for event in (await log.stream("host")).subscribe(follow=False)]
        assert host_stored[: len(host_seen)] == host_seen


async def test_a_session_that_cannot_be_stored_is_not_there(tmp_path: Path) -> None:
    """SessionMeta persistence."""
    disk = Disk(tmp_path / "log")
    async with hosted(tmp_path, disk) as made:
        agent = await made.host.spawn_agent(made.rehearsal())
        disk.broken = True
        with pytest.raises(StorageFailed):
            await made.host.create_session(agent.agent_id, cwd=made.work)
        assert made.host.get_sessions() == []
        assert await told(made.host, SessionUpdated) == []
        disk.broken = False
        await made.open(agent.agent_id)


@pytest.mark.parametrize("known", [True, False])
async def test_a_load_that_cannot_be_stored_changes_nothing(tmp_path: Path, known: bool) -> None:
    """SessionMeta persistence: a load is a strict commit before anything is published."""
    disk = Disk(tmp_path / "log")
    source = LOADS + "session()\n" * known + "load = serve('session/load'); update('replay')\n"
    source += "send(id=load, result={}); done(prompted()); stay()"
    async with hosted(tmp_path, disk) as made:
        agent = await made.host.spawn_agent(made.scripted(source))
        session = await made.open(agent.agent_id) if known else None
        before = await events(session) if session else []
        disk.broken = True
        with pytest.raises(StorageFailed):
            await made.host.load_session(agent.agent_id, session.id if session else "s1")
        disk.broken = False
        if session is None:
            assert made.host.get_sessions() == []
            assert await told(made.host, SessionUpdated) == []
        else:
            assert await events(session) == before
            assert session.status == "active"
            assert (await go(session)).stop_reason == "end_turn"


async def test_only_open_sessions_that_can_be_read_are_restored(tmp_path: Path) -> None:
    """storage semantics: restoreSessions."""
    async with hosted(tmp_path, JsonlBackend(tmp_path / "log")) as made:
        kept, closed, deleted = [await made.rehearse() for _ in range(3)]
        await play(kept, "title Kept well", "say old")
        await made.host.close_session(closed.id)
        assert deleted.agent_id
        await made.host.delete_session(deleted.agent_id, deleted.id)
        await (await made.log.stream("unreadable")).set_meta(b'{"cwd":5}')
        seen = await events(kept)
    async with hosted(tmp_path, JsonlBackend(tmp_path / "log")) as made:
        (restored,) = await made.host.restore_sessions()
        assert await made.host.restore_sessions() == []
        assert made.host.get_sessions() == [restored]
        assert (restored.session_id, restored.status, restored.agent_id) == (kept.id, "disconnected", None)
        assert (restored.cwd, restored.title) == (str(made.work), "Kept well")
        assert restored.agent_definition_id == "rehearsal"
        session = made.host.session(kept.id)
        found = await events(session)
        assert found[: len(seen)] == seen  # and no metadata among them
        agent = await made.host.spawn_agent(made.rehearsal())
        await made.host.resume_session(agent.agent_id, kept.id)
        assert (await play(session, "say new")).stop_reason == "end_turn"


async def test_no_secret_of_an_mcp_server_is_stored_or_told(tmp_path: Path) -> None:
    """SessionMeta persistence."""
    servers = (
        McpServer.stdio("files", "server", ("--flag",), {"API_KEY": "canary-one"}),
        McpServer.http("web", "http://127.0.0.1:9/canary-two", {"Authorization": "canary-three"}),
    )
    async with hosted(tmp_path, JsonlBackend(tmp_path / "log")) as made:
        agent = await made.host.spawn_agent(made.rehearsal())
        opened = await made.host.create_session(agent.agent_id, cwd=made.work, mcp_servers=servers)
        assert opened.mcp_servers is not None
        assert [(each.name, each.env, each.headers) for each in opened.mcp_servers] == [
            ("files", ("API_KEY",), ()),
            ("web", (), ("Authorization",)),
        ]
        shown = [event.raw for event in await events_of(made.host)]
    kept = [path.read_bytes() for path in (tmp_path / "log").rglob("*") if path.is_file()]
    assert any(b"API_KEY" in each for each in kept)
    assert not any(b"canary" in each for each in (*kept, *shown))


async def test_a_recovered_agent_gets_the_secrets_that_are_only_in_memory(tmp_path: Path) -> None:
    source = """
send(id=serve("initialize"), result={"protocolVersion": 1, "agentCapabilities":
    {"sessionCapabilities": {"resume": {}}}})
with open("lives", "a+") as file: life = file.write("x") and file.tell()
if life == 1: session(); prompted(); os._exit(1)
asked = read(); send(id=asked["id"], result={})
prompt = prompted(); update(json.dumps(asked["params"]["mcpServers"])); done(prompt); stay()
"""
    options = {"restart": "on-crash", "restart_backoff": {"initial_ms": 1}, "approver": ApproveAll()}
    async with asyncio.timeout(LIMIT), AcpHost(options) as host:
        made = Rig(host, host.log, tmp_path, [])
        agent = await host.spawn_agent(made.scripted(source))
        server = McpServer.stdio("files", "server", (), {"KEY": "value"})
        opened = await host.create_session(agent.agent_id, mcp_servers=(server,))
        session = host.session(opened.session_id)
        crashing = asyncio.create_task(go(session))
        exited = await until_type(session, "agent-exited")
        async for event in session.stream.subscribe(exited.seq):
            if status_of(event) == "active":
                break
        await asyncio.gather(crashing, return_exceptions=True)
        await go(session)
        (heard,) = await of_type(session, "agent-message-chunk")
        (given,) = json.loads(json.loads(heard.payload)["content"]["text"])
        assert given["env"] == [{"name": "KEY", "value": "value"}]


async def test_dispose_waits_for_what_is_queued(tmp_path: Path) -> None:
    """SessionMeta persistence: `dispose` waits for queued event and metadata writes."""
    async with hosted(tmp_path, JsonlBackend(tmp_path / "log")) as made:
        session = await made.rehearse()
        await play(session, "title Named at last", "flood 2000")
        head = session.stream.info().head
    async with EventLog(JsonlBackend(tmp_path / "log")) as log:
        info = (await log.stream(session.id)).info()
        assert info.head >= head
        assert json.loads(info.meta)["title"] == "Named at last"
