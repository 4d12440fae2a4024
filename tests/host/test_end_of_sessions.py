"""Closing and deleting: here always, at the agent as far as it can be told."""

import asyncio
import json
from contextlib import suppress
from pathlib import Path

import pytest
from tests.host.host_events import codes
from tests.host.rig import go, of_type, play, rig

from legation.errors import AgentExited, CapabilityUnsupported, Conflict, NotFound, SessionClosed
from legation.host.options import Limits, read_meta
from legation.store.jsonl import JsonlBackend

pytestmark = pytest.mark.heavy  # a process or more for each test


@pytest.mark.parametrize("how", ["close", "delete"])
async def test_an_agent_that_can_neither_close_nor_delete_hears_nothing_of_it(
    tmp_path: Path, how: str
) -> None:
    """capability gating: the local lifecycle is always available."""
    source = """
hello(); session("s1"); session("s2")
message = read(); update(message["method"], "s2"); done(message["id"]); stay()
"""
    async with rig(tmp_path) as made:
        session = await made.script(source)
        other = await made.open_another(session)
        assert session.agent_id
        if how == "close":
            await made.host.close_session(session.id)
            await made.host.close_session(session.id)
        else:
            await made.host.delete_session(session.agent_id, session.id)
        assert session.status == f"{how}d"
        await go(other)
        (heard,) = await of_type(other, "agent-message-chunk")
        assert json.loads(heard.payload)["content"]["text"] == "session/prompt"
        assert made.reported == []


@pytest.mark.parametrize("how", ["close", "delete"])
async def test_an_agent_that_refuses_or_is_silent_keeps_no_session_open(tmp_path: Path, how: str) -> None:
    """capability gating: remote close and delete are best effort; agent/process-error."""
    source = """
able = {"sessionCapabilities": {"close": {}, "delete": {}}}
send(id=serve("initialize"), result={"protocolVersion": 1, "agentCapabilities": able})
session("s1"); session("s2")
send(id=read()["id"], error={"code": -32603, "message": "no"})
read(); stay()
"""
    async with rig(tmp_path, limits=Limits(start=1.0)) as made:
        first = await made.script(source)
        second = await made.open_another(first)
        for session in (first, second):
            assert session.agent_id
            if how == "close":
                await made.host.close_session(session.id)
            else:
                await made.host.delete_session(session.agent_id, session.id)
            assert session.status == f"{how}d"
        assert (await codes(made.host)).count("agent/process-error") == 2


async def test_a_session_that_only_the_agent_has_is_deleted_there(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        assert session.agent_id
        name = session.meta.agent_session_id
        await made.host.dispose_agent(session.agent_id)
        agent = await made.host.spawn_agent(made.rehearsal())
        await made.host.delete_session(agent.agent_id, name)
        assert (await made.host.list_sessions(agent.agent_id)).sessions == ()
        bare = await made.host.spawn_agent(made.scripted("hello(); stay()"))
        with pytest.raises(CapabilityUnsupported):
            await made.host.delete_session(bare.agent_id, "any")
        with pytest.raises(NotFound):
            await made.host.close_session("any")


ASKED = """
caps = {"loadSession": True, "sessionCapabilities": {"resume": {}, "delete": {}}}
send(id=serve("initialize"), result={"protocolVersion": 1, "agentCapabilities": caps})
while True:
    message = read()
    with open("asked", "a") as file:
        file.write(message["method"] + "\\n")
    send(id=message["id"], result={"sessionId": "s1"})
"""


async def test_what_an_earlier_host_ended_is_refused_before_the_agent_is_asked(tmp_path: Path) -> None:
    async with rig(tmp_path, backend=JsonlBackend(tmp_path / "log")) as made:
        deleted, closed = await made.rehearse(), await made.rehearse()
        await made.host.delete_session(deleted.agent_id or "", deleted.id)
        await made.host.close_session(closed.id)
    async with rig(tmp_path, backend=JsonlBackend(tmp_path / "log")) as made:
        agent = (await made.host.spawn_agent(made.scripted(ASKED))).agent_id
        with pytest.raises(SessionClosed, match="it was deleted; start another"):
            await made.host.load_session(agent, deleted.id)
        with pytest.raises(SessionClosed, match="it was deleted; start another"):
            await made.host.resume_session(agent, deleted.id)
        with pytest.raises(SessionClosed, match="it is closed; load it"):
            await made.host.resume_session(agent, closed.id)
        for name in (deleted.id, closed.id):
            with pytest.raises(Conflict, match="deleted" if name == deleted.id else "there is a record"):
                await made.host.create_session(agent, cwd=made.work, session_id=name)
        await made.host.delete_session(agent, deleted.id)  # twice is as once
        assert not (made.place / "asked").exists()


async def test_one_that_an_earlier_host_had_is_deleted_here_too(tmp_path: Path) -> None:
    """The agent knows it by a name of its own."""
    async with rig(tmp_path, backend=JsonlBackend(tmp_path / "log")) as made:
        kept, closed = await made.rehearse(), await made.rehearse()
        await made.host.close_session(closed.id)
    async with rig(tmp_path, backend=JsonlBackend(tmp_path / "log")) as made:
        agent = (await made.host.spawn_agent(made.rehearsal())).agent_id
        assert len((await made.host.list_sessions(agent)).sessions) == 2
        for session in (kept, closed):
            await made.host.delete_session(agent, session.id)
        assert (await made.host.list_sessions(agent)).sessions == ()
        assert await made.log.deleted() == [kept.id, closed.id]


async def test_a_closed_session_takes_nothing_more(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        await made.host.close_session(session.id)
        for refused in (
            made.host.set_mode(session.id, "plan"),
            made.host.set_config_option(session.id, "model", "x"),
            play(session, "say hi"),
        ):
            with pytest.raises(SessionClosed):
                await refused
        await made.host.cancel(session.id)


@pytest.mark.parametrize("first", [True, False])
async def test_whoever_ends_a_session_at_the_same_time_finds_it_ended_and_for_good_counts(
    tmp_path: Path, first: bool
) -> None:
    async with rig(tmp_path, backend=JsonlBackend(tmp_path / "log")) as made:
        session = await made.rehearse()
        await asyncio.gather(
            made.host.close_session(session.id, reopens=first),
            made.host.close_session(session.id, reopens=not first),
        )
        assert session.status == "closed"
        stored = read_meta(session.stream.info().meta)
        assert stored is not None
        assert not stored.reopens
        assert [
            json.loads(event.payload)["status"] for event in await of_type(session, "session-status")
        ] == [
            "active",
            "closed",
        ]


@pytest.mark.parametrize("step", ["kill-self KILL", "crash 3"])
async def test_who_waits_after_a_turn_that_ended_with_its_agent_finds_the_session_without_one(
    tmp_path: Path, step: str
) -> None:
    """The next message is not for the agent that is gone: it would be lost with it."""
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        with suppress(AgentExited):
            await play(session, step)
        await session.decided()
        assert session.status == "disconnected"
