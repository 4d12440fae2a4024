"""The states of a session: by the table, by one function, and by nothing else."""

import ast
import asyncio
from pathlib import Path

import pytest
from tests.host.rig import play, rig

from legation.agents.rpc import AgentRefused
from legation.errors import AgentExited, Conflict
from legation.host import session as session_module
from legation.host.session import TABLE, Act, State
from tools import pages

ROOT = Path(__file__).parents[2]


def test_the_page_of_the_states_is_current() -> None:
    written = (ROOT / "docs" / "reference" / "session-states.md").read_text()
    assert written == pages.session_states(), "run `./dev check --fix`"


def test_the_table_knows_every_state_and_every_way_ends() -> None:
    assert set(TABLE) == set(State)
    assert {act for moves in TABLE.values() for act in moves} == set(Act)
    for state in set(State) - {State.MAKING}:  # what is being made is seen by nobody who could end it
        assert TABLE[state][Act.DELETE] is State.DELETED


def test_the_state_of_a_session_is_set_in_one_function() -> None:
    tree = ast.parse(Path(session_module.__file__).read_text())
    setters = {
        function.name
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and node.attr == "state" and isinstance(node.ctx, ast.Store)
    }
    assert setters == {"__init__", "_move"}


@pytest.mark.heavy
async def test_a_session_goes_through_all_of_its_states(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        seen = [session.state]
        with pytest.raises(AgentExited):
            await play(session, "crash 3")
        seen.append((await made.host.until_settled(session.id)).state)
        agent = (await made.host.spawn_agent(made.rehearsal())).agent_id
        resuming = asyncio.create_task(made.host.resume_or_load(agent, session.id))
        while session.status != "resuming":
            await asyncio.sleep(0)
        seen.append(session.state)
        await resuming
        seen.append(session.state)
        await made.host.close_session(session.id, reopens=True)
        seen.append(session.state)
        await made.host.close_session(session.id)
        seen.append(session.state)
        await made.host.delete_session(agent, session.id)
        seen.append(session.state)
        names = ["active", "disconnected", "resuming", "active", "closed", "terminated", "deleted"]
        assert [str(state) for state in seen] == names


@pytest.mark.heavy
@pytest.mark.parametrize("reopens", [True, False])
async def test_a_later_host_knows_a_closed_session_by_how_it_was_closed(
    tmp_path: Path, reopens: bool
) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        await made.host.close_session(session.id, reopens=reopens)
        agent = session.agent_id or ""
        made.host.forget_session(session.id)
        if reopens:
            assert (await made.host.restore_session(session.id)).state is State.CLOSED
        await made.host.delete_session(agent, session.id)
        assert made.host.get_session(session.id) is not None
        assert made.host.session(session.id).state is State.DELETED


@pytest.mark.heavy
async def test_what_the_table_does_not_know_is_refused_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        assert session.agent_id
        await made.host.delete_session(session.agent_id, session.id)
        with pytest.raises(Conflict, match="`attach begins`: it is deleted"):
            session.begin_attach()
        assert session.state is State.DELETED
        assert "which is a defect" in caplog.text


# Whoever waits for a session hangs neither himself nor the others.


@pytest.mark.heavy
@pytest.mark.timeout(60)
async def test_a_session_that_is_closed_while_its_agent_ends_is_decided(tmp_path: Path) -> None:
    """Its agent has ended, and other sessions of it are disconnected first: there was no end to the wait, which held up all
    that the process did."""
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        session.losing_agent()
        await made.host.close_session(session.id)
        await session.decided()
        assert session.state is State.TERMINATED


@pytest.mark.heavy
@pytest.mark.timeout(60)
async def test_a_session_is_not_decided_by_a_refusal_while_its_agent_ends(tmp_path: Path) -> None:
    source = """
able = {"sessionCapabilities": {"resume": {}}}
send(id=serve("initialize"), result={"protocolVersion": 1, "agentCapabilities": able})
session(); resume = serve("session/resume"); read(); send(id=resume, error={"code": -32603, "message": "no"}); stay()
"""
    async with rig(tmp_path) as made:
        session = await made.script(source)
        assert session.agent_id
        taking_up = asyncio.create_task(made.host.resume_session(session.agent_id, session.id))
        while session.status != "resuming":
            await asyncio.sleep(0)
        session.losing_agent()
        await made.host.driver(session.agent_id).tell("_go", {})
        with pytest.raises(AgentRefused):
            await taking_up
        decided = asyncio.create_task(session.decided())
        await asyncio.sleep(0)
        assert not decided.done()
        await made.host.dispose_agent(session.agent_id)
        await decided
        assert session.state is State.DISCONNECTED
