"""Loading and resuming: staged, and seen by nobody until the agent has agreed and the store has it."""

import asyncio
import json
import os
from pathlib import Path

import pytest
from tests.host.host_events import codes, told
from tests.host.rig import Rig, events, go, of_type, play, rig, status_of

from legation.agents.rpc import AgentRefused
from legation.errors import Conflict, SessionClosed
from legation.host.session import Session
from legation.store.jsonl import JsonlBackend
from legation.wire.event_types import SessionUpdated

pytestmark = pytest.mark.heavy  # a process or more for each test


# Waits for the test before it answers, and for the test to look at the replay that it has sent by then.
SLOW = """
able = {"loadSession": True, "sessionCapabilities": {"resume": {}}}
send(id=serve("initialize"), result={"protocolVersion": 1, "agentCapabilities": able})
def slow(method):
    asked = serve(method); update("replay", name); open("asked", "w").close()
    os.read(os.open("go", os.O_RDONLY), 1)
    return asked
"""
LOADED = 'send(id=slow("session/load"), result={}); done(prompted()); stay()'
REFUSED = 'send(id=slow("session/load"), error={"code": -32603, "message": "no"}); done(prompted()); stay()'


async def until_asked(made: Rig) -> None:
    while not (made.place / "asked").exists():
        await asyncio.sleep(0.005)


async def let_go(made: Rig) -> None:
    await asyncio.to_thread((made.place / "go").write_text, "x")


async def statuses(made: Rig, session_id: str) -> list[str]:
    found = await told(made.host, SessionUpdated)
    return [each.status for each in found if each.session_id == session_id]


def agent_of(session: Session) -> str:
    assert session.agent_id
    return session.agent_id


@pytest.mark.parametrize("method", ["load", "resume"])
async def test_an_unknown_session_is_invisible_until_the_agent_has_agreed(
    tmp_path: Path, method: str
) -> None:
    """load/resume lifecycle."""
    os.mkfifo(tmp_path / "go")
    source = f'name = "old"\nsend(id=slow("session/{method}"), result={{}}); done(prompted()); stay()'
    async with rig(tmp_path) as made:
        agent = await made.host.spawn_agent(made.scripted(SLOW + source))
        take_up = made.host.load_session if method == "load" else made.host.resume_session
        taking = asyncio.create_task(take_up(agent.agent_id, "old", cwd=made.work))
        await until_asked(made)
        assert made.host.get_sessions() == []
        assert made.host.get_session("old") is None
        assert await statuses(made, "old") == []
        with pytest.raises(Conflict):
            await take_up(agent.agent_id, "old")
        await let_go(made)
        assert (await taking).status == "active"
        assert [each.session_id for each in made.host.get_sessions()] == ["old"]
        assert await statuses(made, "old") == ["active"]
        session = made.host.session("old")
        found = [event.type for event in await events(session)]
        replayed = ["session-reset", "agent-message-chunk"] if method == "load" else []
        assert found == [*replayed, "session-status"]
        assert (await go(session)).stop_reason == "end_turn"


async def test_an_unknown_session_that_is_refused_leaves_no_trace(tmp_path: Path) -> None:
    """load/resume lifecycle; session/load-failed."""
    async with rig(tmp_path) as made:
        agent = await made.host.spawn_agent(made.rehearsal())
        for take_up in (made.host.load_session, made.host.resume_session):
            with pytest.raises(AgentRefused):
                await take_up(agent.agent_id, "never-was", cwd=made.work)
        assert made.host.get_sessions() == []
        assert await told(made.host, SessionUpdated) == []
        assert (await codes(made.host)).count("session/load-failed") == 1


async def test_a_known_session_shows_resuming_and_loses_nothing_before_the_commit(tmp_path: Path) -> None:
    """load/resume lifecycle; stronger: load keeps numbers."""
    os.mkfifo(tmp_path / "go")
    async with rig(tmp_path) as made:
        session = await made.script(SLOW + 'name = "s1"; session(); update("before")\n' + LOADED)
        while not await of_type(session, "agent-message-chunk"):
            await asyncio.sleep(0.001)
        before = await events(session)
        loading = asyncio.create_task(made.host.load_session(agent_of(session), session.id))
        await until_asked(made)
        assert session.status == "resuming"
        assert (await statuses(made, session.id))[-1] == "resuming"
        assert await events(session) == before
        with pytest.raises(Conflict):
            await made.host.resume_session(agent_of(session), session.id)
        await let_go(made)
        await loading
        found = await events(session)
        assert [event.type for event in found] == ["session-reset", "agent-message-chunk", "session-status"]
        assert [event.seq for event in found] == [before[-1].seq + 1 + n for n in range(3)]
        assert b"replay" in found[1].raw
        assert status_of(found[2]) == "active"
        assert session.stream.info().first_seq == found[0].seq
        assert (await go(session)).stop_reason == "end_turn"


async def test_a_load_that_fails_leaves_a_known_session_as_it_was(tmp_path: Path) -> None:
    """load/resume lifecycle."""
    os.mkfifo(tmp_path / "go")
    async with rig(tmp_path) as made:
        session = await made.script(SLOW + 'name = "s1"; session()\n' + REFUSED)
        before = await events(session)
        meta, folders = session.meta, session.folders
        loading = asyncio.create_task(made.host.load_session(agent_of(session), session.id, cwd=tmp_path))
        await until_asked(made)
        await let_go(made)
        with pytest.raises(AgentRefused):
            await loading
        assert await events(session) == before
        assert (session.status, session.meta, session.folders) == ("active", meta, folders)
        assert (await statuses(made, session.id))[-2:] == ["resuming", "active"]
        assert (await go(session)).stop_reason == "end_turn"


async def test_a_session_that_is_closed_while_it_is_loaded_stays_closed(tmp_path: Path) -> None:
    """load/resume lifecycle; capability gating: close is always available."""
    os.mkfifo(tmp_path / "go")
    async with rig(tmp_path) as made:
        session = await made.script(SLOW + 'name = "s1"; session()\n' + LOADED)
        loading = asyncio.create_task(made.host.load_session(agent_of(session), session.id))
        await until_asked(made)
        await made.host.close_session(session.id)
        await let_go(made)
        with pytest.raises(SessionClosed):
            await loading
        assert (session.status, session.stream.info().state) == ("closed", "closed")


async def test_a_closed_session_is_reopened_by_a_load_and_not_by_a_resume(tmp_path: Path) -> None:
    """loadSession reopens a closed session."""
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        await play(session, "say remembered")
        last = (await events(session))[-1].seq
        await made.host.close_session(session.id)
        with pytest.raises(SessionClosed, match="load it"):
            await made.host.resume_session(agent_of(session), session.id)
        loaded = await made.host.load_session(agent_of(session), session.id)
        assert loaded.status == "active"
        assert (await play(session, "say again")).stop_reason == "end_turn"
        said = [json.loads(event.payload) for event in await of_type(session, "agent-message-chunk")]
        assert [each["content"]["text"] for each in said] == ["remembered", "again"]
        found = await events(session)  # the agent told what is recorded: that goes on
        assert (found[0].seq, next(each.seq for each in found if each.seq > last)) == (1, last + 1)
        assert await of_type(session, "session-reset") == []


async def test_a_session_closed_in_an_earlier_host_is_reopened_by_a_load_only(tmp_path: Path) -> None:
    """loadSession reopens a closed session, in the next host too, and its numbers go on."""
    async with rig(tmp_path, backend=JsonlBackend(tmp_path / "log")) as made:
        agent = await made.host.spawn_agent(made.rehearsal())
        opened = await made.host.create_session(agent.agent_id, cwd=made.work)
        await play(made.host.session(opened.session_id), "say old")
        await made.host.close_session(opened.session_id)
        last = (await events(made.host.session(opened.session_id)))[-1].seq
    async with rig(tmp_path, backend=JsonlBackend(tmp_path / "log")) as made:
        agent = await made.host.spawn_agent(made.rehearsal())
        with pytest.raises(SessionClosed):
            await made.host.resume_session(agent.agent_id, opened.session_id)
        assert made.host.get_sessions() == []
        await made.host.load_session(agent.agent_id, opened.session_id, cwd=made.work)
        found = await events(made.host.session(opened.session_id))
        assert [each.seq for each in found] == list(range(1, len(found) + 1))
        assert len(found) > last
        assert found[-1].type == "session-status"
        assert status_of(found[-1]) == "active"


async def test_whoever_restores_a_session_at_the_same_time_gets_the_same_one(tmp_path: Path) -> None:
    async with rig(tmp_path, backend=JsonlBackend(tmp_path / "log")) as made:
        session = await made.rehearse()
    async with rig(tmp_path, backend=JsonlBackend(tmp_path / "log")) as made:
        found = await asyncio.gather(*[made.host.restore_session(session.id) for _ in range(3)])
        assert found == [made.host.session(session.id)] * 3


async def test_a_deleted_session_stays_rejected(tmp_path: Path) -> None:
    """loadSession: a deleted session stays permanently rejected."""
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        await made.host.delete_session(agent_of(session), session.id)
        await made.host.delete_session(agent_of(session), session.id)
        for take_up in (made.host.load_session, made.host.resume_session):
            with pytest.raises(SessionClosed, match="deleted"):
                await take_up("agent-1", session.id)
        assert await made.host.list_sessions("agent-1") is not None
        with pytest.raises(SessionClosed):
            await play(session, "say hi")


async def test_a_session_is_deleted_at_the_agent_that_the_caller_names(tmp_path: Path) -> None:
    """capability gating: remote delete, also of a session that is closed or of an earlier agent's."""
    async with rig(tmp_path) as made:
        closed, lost = await made.rehearse(), await made.rehearse()
        await made.host.close_session(closed.id)
        await made.host.dispose_agent(agent_of(lost))
        assert len((await made.host.list_sessions("agent-1")).sessions) == 2
        for session in (closed, lost):
            await made.host.delete_session("agent-1", session.id)
        assert (await made.host.list_sessions("agent-1")).sessions == ()


async def test_a_session_moves_to_another_folder_when_it_is_taken_up_there(tmp_path: Path) -> None:
    """Its files are those of the folder that its agent was told of."""
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "a.txt").write_text("found")
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        await made.host.resume_session(agent_of(session), session.id, cwd=tmp_path / "new")
        assert made.host.get_sessions()[0].cwd == str(tmp_path / "new")
        await play(session, "fs-read a.txt")
        assert any(b"completed" in each.raw for each in await of_type(session, "tool-call-update"))


async def test_one_session_of_the_agents_is_not_taken_up_twice(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        with pytest.raises(Conflict, match=session.id):
            await made.host.load_session(agent_of(session), session.meta.agent_session_id)
        assert (await play(session, "say hi")).stop_reason == "end_turn"


async def test_the_record_of_another_session_is_never_continued(tmp_path: Path) -> None:
    async with rig(tmp_path, backend=JsonlBackend(tmp_path / "log")) as made:
        agent = await made.host.spawn_agent(made.scripted("hello(); session(); stay()"))
        await made.host.create_session(agent.agent_id)
    async with rig(tmp_path, backend=JsonlBackend(tmp_path / "log")) as made:
        agent = await made.host.spawn_agent(made.scripted("hello(); session(); stay()"))
        with pytest.raises(Conflict, match="record"):
            await made.host.create_session(agent.agent_id)
        assert made.host.get_sessions() == []


async def test_two_sessions_of_one_name_are_not_made_at_once(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        agent = await made.host.spawn_agent(made.rehearsal())
        makings = [made.host.create_session(agent.agent_id, session_id="mine") for _ in range(2)]
        outcomes = await asyncio.gather(*makings, return_exceptions=True)
        assert {type(each) for each in outcomes} == {SessionUpdated, Conflict}  # whoever comes first
