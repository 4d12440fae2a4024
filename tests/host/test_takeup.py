"""Sessions that are taken up while their agent, or their host, does its worst."""

import asyncio
import json
import shutil
import threading
from pathlib import Path

import pytest
from tests.host.rig import Hand, events, go, of_type, play, rig, until_status, until_type

from legation.agents.rpc import AgentRefused
from legation.errors import AgentExited, SessionClosed
from legation.host.options import Backoff, read_meta
from legation.host.session import Session
from legation.store.jsonl import JsonlBackend
from legation.wire.events import Event

# An agent that can load and resume, and sends what follows in one piece.
ABLE = r"""
able = {"loadSession": True, "sessionCapabilities": {"resume": {}}}
send(id=serve("initialize"), result={"protocolVersion": 1, "agentCapabilities": able})

def packed(**message):
    return json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"

def mode(name):
    update = {"sessionUpdate": "current_mode_update", "currentModeId": name}
    return packed(method="session/update", params={"sessionId": "s1", "update": update})
"""


async def said(session: Session) -> list[str]:
    chunks = await of_type(session, "agent-message-chunk")
    return [json.loads(event.payload)["content"]["text"] for event in chunks]


async def test_a_resume_keeps_state_before_its_answer_and_all_that_follows_in_order(tmp_path: Path) -> None:
    source = """
session(); resume = serve("session/resume")
raw(mode("a") + line("history") + packed(id=resume, result={}) + mode("b") + line("live"))
done(prompted()); stay()
"""
    async with rig(tmp_path) as made:
        session = await made.script(ABLE + source)
        assert session.agent_id
        await made.host.resume_session(session.agent_id, session.id)
        await go(session)
        modes = [json.loads(event.payload) for event in await of_type(session, "current-mode-update")]
        assert [each["currentModeId"] for each in modes] == ["a", "b"]
        assert await said(session) == ["live"]


async def test_an_agent_that_dies_while_it_replays_leaves_the_history_as_it_was(tmp_path: Path) -> None:
    source = 'session(); serve("session/load"); update("half of it"); os._exit(3)'
    async with rig(tmp_path) as made:
        session = await made.script(ABLE + source)
        assert session.agent_id
        before = await events(session)
        with pytest.raises(AgentExited, match="exit code 3"):
            await made.host.load_session(session.agent_id, session.id)
        await until_status(session, "disconnected")
        assert session.status == "disconnected"
        found = await events(session)
        assert found[: len(before)] == before
        assert [event.type for event in found[len(before) :]] == ["agent-exited", "session-status"]


async def test_a_recovery_that_crashes_is_followed_by_another(tmp_path: Path) -> None:
    source = """
with open("lives", "a+") as file:
    life = file.write("x") and file.tell()
if life == 1: session(); os._exit(1)
resume = serve("session/resume")
if life == 2: os._exit(2)
send(id=resume, result={}); prompt = prompted(); update("back"); done(prompt); stay()
"""
    async with rig(tmp_path, restart="on-crash", restart_backoff=Backoff(initial_ms=1)) as made:
        session = await made.script(ABLE + source)
        lost = await until_status(session, "disconnected")
        await until_status(session, "active", after=lost.seq)
        assert (await go(session)).stop_reason == "end_turn"
        assert await said(session) == ["back"]
        scheduled = [each for each in made.reported if each.code == "agent/restart-scheduled"]
        assert len(scheduled) == 2


async def test_a_load_that_is_refused_costs_an_active_session_no_update(tmp_path: Path) -> None:
    source = """
session(); load = serve("session/load")
raw(packed(id=load, error={"code": -32603, "message": "no"}) + line("after"))
prompt = prompted(); update("in the turn"); done(prompt); stay()
"""
    async with rig(tmp_path) as made:
        session = await made.script(ABLE + source)
        assert session.agent_id
        with pytest.raises(AgentRefused):
            await made.host.load_session(session.agent_id, session.id)
        await go(session)
        assert await said(session) == ["after", "in the turn"]


async def test_what_a_killed_host_left_open_is_closed_when_its_session_is_taken_up(tmp_path: Path) -> None:
    async with rig(tmp_path, backend=JsonlBackend(tmp_path / "log"), approver=(hand := Hand())) as made:
        session = await made.rehearse()
        turn = asyncio.create_task(play(session, "ask something"))
        await hand.until_asked()
        await until_type(session, "permission-asked")
        shutil.copytree(tmp_path / "log", tmp_path / "killed")  # as a kill leaves it
        await session.cancel()
        await turn
    async with rig(tmp_path, backend=JsonlBackend(tmp_path / "killed")) as made:
        (restored,) = await made.host.restore_sessions()
        agent = await made.host.spawn_agent(made.rehearsal())
        await made.host.resume_session(agent.agent_id, restored.session_id)
        types = [event.type for event in await events(made.host.session(restored.session_id))]
        assert types.count("permission-answered") == types.count("permission-asked") == 1
        assert types.count("prompt-finished") == types.count("prompt-started") == 1


async def test_what_is_noted_of_a_session_while_it_is_taken_up_stays(tmp_path: Path) -> None:
    source = 'session(); resume = serve("session/resume"); read(); send(id=resume, result={}); stay()'
    async with rig(tmp_path) as made:
        session = await made.script(ABLE + source)
        assert session.agent_id
        taking_up = asyncio.create_task(made.host.resume_session(session.agent_id, session.id))
        while session.status != "resuming":
            await asyncio.sleep(0)
        await session.keep_details({"queue": ["accepted"]}, "Renamed")
        await made.host.driver(session.agent_id).tell("_go", {})
        assert (await taking_up).title == "Renamed"
        stored = read_meta(session.stream.info().meta)
        assert stored is not None
        assert (stored.title, stored.details) == ("Renamed", {"queue": ["accepted"]})
        assert session.meta == stored


class Gate(JsonlBackend):
    """Reads the events of one stream only when the test lets it."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(folder)
        self._name = name
        self.reached, self.opened = threading.Event(), threading.Event()

    def read(self, stream: str, after: int, limit: int) -> list[Event]:
        if stream == self._name:
            self.reached.set()
            self.opened.wait(20)
        return super().read(stream, after, limit)


async def test_a_session_that_is_closed_when_its_agent_has_resumed_it_stays_closed(tmp_path: Path) -> None:
    """A long history is read then; the agent would have a session whose log takes nothing."""
    async with rig(tmp_path, backend=JsonlBackend(tmp_path / "log")) as made:
        name = (await made.rehearse()).id
    gate = Gate(tmp_path / "log", name)
    async with rig(tmp_path, backend=gate) as made:
        session = await made.host.restore_session(name)
        agent = await made.host.spawn_agent(made.rehearsal())
        resuming = asyncio.create_task(made.host.resume_session(agent.agent_id, name))
        assert await asyncio.to_thread(gate.reached.wait, 20)
        await made.host.close_session(name, reopens=True)
        gate.opened.set()
        with pytest.raises(SessionClosed, match="closed meanwhile"):
            await resuming
        assert session.status == "closed"
    async with rig(tmp_path, backend=JsonlBackend(tmp_path / "log")) as made:
        assert (await made.host.restore_session(name)).status == "closed"


async def test_a_session_that_is_forgotten_while_its_folder_is_looked_up_is_taken_up_by_its_own_name(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        name = session.meta.agent_session_id
        assert session.agent_id
        await made.host.dispose_agent(session.agent_id)
        agent = await made.host.spawn_agent(made.rehearsal())
        resuming = asyncio.create_task(made.host.resume_session(agent.agent_id, session.id, cwd=made.work))
        await asyncio.sleep(0)  # it has begun, and waits for the disk
        made.host.forget_session(session.id)
        await resuming
        assert made.host.session(session.id).meta.agent_session_id == name


async def test_a_session_that_is_closed_while_its_agent_refuses_to_resume_it_is_not_loaded(
    tmp_path: Path,
) -> None:
    source = """
session(); resume = serve("session/resume"); read()
send(id=resume, error={"code": -32603, "message": "no"}); send(id=serve("session/load"), result={}); stay()
"""
    async with rig(tmp_path) as made:
        session = await made.script(ABLE + source)
        assert session.agent_id
        taking_up = asyncio.create_task(made.host.resume_or_load(session.agent_id, session.id))
        while session.status != "resuming":
            await asyncio.sleep(0)
        await made.host.close_session(session.id, reopens=True)
        await made.host.driver(session.agent_id).tell("_go", {})
        with pytest.raises(SessionClosed, match="closed meanwhile"):
            await taking_up
        assert (session.status, session.stream.info().state) == ("closed", "closed")


# Waiting until it is decided whose it is.


async def test_a_session_is_settled_when_an_agent_that_leaves_has_left(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        assert session.agent_id
        assert (await made.host.until_settled(session.id)).status == "active"
        made.host.agents[session.agent_id].leaving = True
        settled = await made.host.until_settled(session.id)
        assert (settled is session, settled.status) == (True, "disconnected")


async def test_a_session_is_settled_when_whoever_takes_it_up_has_done_so(tmp_path: Path) -> None:
    source = 'session(); resume = serve("session/resume"); read(); send(id=resume, result={}); stay()'
    async with rig(tmp_path) as made:
        session = await made.script(ABLE + source)
        assert session.agent_id
        taking_up = asyncio.create_task(made.host.resume_or_load(session.agent_id, session.id))
        while session.status != "resuming":
            await asyncio.sleep(0)
        settled = asyncio.create_task(made.host.until_settled(session.id))
        await made.host.driver(session.agent_id).tell("_go", {})
        assert not settled.done()
        await taking_up
        assert (await settled).status == "active"


async def test_a_session_whose_agent_has_crashed_is_settled_without_it(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        with pytest.raises(AgentExited):
            await play(session, "kill-self KILL")
        assert (await made.host.until_settled(session.id)).status == "disconnected"


async def test_a_session_that_is_closed_while_somebody_waits_is_settled_closed(tmp_path: Path) -> None:
    source = 'session(); resume = serve("session/resume"); read(); send(id=resume, result={}); stay()'
    async with rig(tmp_path) as made:
        session = await made.script(ABLE + source)
        assert session.agent_id
        taking_up = asyncio.create_task(made.host.resume_or_load(session.agent_id, session.id))
        while session.status != "resuming":
            await asyncio.sleep(0)
        settled = asyncio.create_task(made.host.until_settled(session.id))
        await asyncio.sleep(0)
        await made.host.close_session(session.id)
        made.host.forget_session(session.id)
        assert (await settled).status == "closed"
        await made.host.driver(session.agent_id).tell("_go", {})
        with pytest.raises(SessionClosed):
            await taking_up


async def test_who_waits_for_a_session_that_is_forgotten_gets_the_one_that_the_host_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        assert session.agent_id
        await made.host.dispose_agent(session.agent_id)
        decided = session.decided

        async def forgotten_meanwhile() -> None:
            await decided()
            made.host.forget_session(session.id)

        monkeypatch.setattr(session, "decided", forgotten_meanwhile)
        settled = await made.host.until_settled(session.id)
        assert settled is not session
        assert settled is made.host.session(session.id)
