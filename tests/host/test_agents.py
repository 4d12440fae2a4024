"""Agents of a host: how they are named and found, what is said of them, and how they go."""

import asyncio
import json
from pathlib import Path

import pytest
from tests.host.host_events import codes, told, until_agent, until_code
from tests.host.rig import Hand, events, go, of_type, play, rig, until_type

import legation
from legation.agents.rpc import AgentRefused
from legation.errors import AgentError, AgentExited, CapabilityUnsupported, ConfigInvalid, Conflict, NotFound
from legation.host import AcpHost, create_acp_host
from legation.host.lifecycle import HostStream
from legation.host.options import HostOptions
from legation.proc.tree import process
from legation.testing.clock import FakeClock
from legation.wire.acp.updates import Text
from legation.wire.event_types import (
    AgentRemoved,
    AgentUpdated,
    Diagnostic,
    PermissionUpdated,
    SessionUpdated,
)
from legation.wire.events import Payload

pytestmark = pytest.mark.heavy  # a process or more for each test


BARE = "hello(); session(); stay()"


async def test_agent_ids_count_up_and_are_never_used_again(tmp_path: Path) -> None:
    """agentId / requestId format."""
    async with rig(tmp_path) as made:
        first = await made.host.spawn_agent(made.scripted("hello(); stay()"))
        with pytest.raises(ConfigInvalid):
            await made.host.spawn_agent({"command": "no-such-agent"})
        await made.host.dispose_agent(first.agent_id)
        third = await made.host.spawn_agent(made.scripted("hello(); stay()"))
        assert (first.agent_id, third.agent_id) == ("agent-1", "agent-3")
        assert [agent.agent_id for agent in made.host.get_agents()] == ["agent-2", "agent-3"]


async def test_a_session_works_where_its_agent_does_and_paths_reach_the_agent_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cwd default."""
    source = """
hello()
for number in (1, 2):
    asked = read()
    send(id=asked["id"], result={"sessionId": f"s{number}"})
    prompt = prompted(); update(asked["params"]["cwd"], f"s{number}"); done(prompt)
stay()
"""
    monkeypatch.chdir(tmp_path)
    async with rig(tmp_path) as made:
        agent = await made.host.spawn_agent(made.scripted(source))
        for given, used in ((None, tmp_path), ("work", tmp_path / "work")):
            opened = await made.host.create_session(agent.agent_id, cwd=given)
            assert opened.cwd == str(used)
            session = made.host.session(opened.session_id)
            await made.host.prompt(session.id, (Text(text="go"),))
            (heard,) = await of_type(session, "agent-message-chunk")
            assert json.loads(heard.payload)["content"]["text"] == str(used)


@pytest.mark.heavy
async def test_a_stubborn_agent_is_killed_after_the_kill_timeout_and_that_is_told(tmp_path: Path) -> None:
    """kill timeout."""
    assert HostOptions().kill_timeout_ms == 5000
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        pid = session.agent.processes[0]
        await play(session, "ignore-signals", "ignore-stdin-eof")
        await made.host.dispose_agent("agent-1")
        assert process(pid) is None
        assert "agent/kill" in await codes(made.host)
        (exited,) = [each for each in await told(made.host, Diagnostic) if each.code == "agent/exit"]
        assert exited.data == {"code": None, "signal": 9}


async def test_an_agent_that_ends_with_its_input_is_not_killed(tmp_path: Path) -> None:
    """kill timeout."""
    async with rig(tmp_path) as made:
        await made.rehearse()
        await made.host.dispose_agent("agent-1")
        assert "agent/kill" not in await codes(made.host)


async def test_an_agent_that_wants_a_sign_in_says_how_and_takes_it(tmp_path: Path) -> None:
    """auth errors. Beyond the seed: `authenticate` and `logout`."""
    async with rig(tmp_path) as made:
        agent = await made.host.spawn_agent(made.rehearsal("--require-auth"))
        way = {
            "id": "rehearsal-login",
            "name": "Rehearsal login",
            "description": "Signs in at once; nothing is asked",
        }
        assert agent.auth_methods == (way,)
        with pytest.raises(AgentRefused) as refused:
            await made.open(agent.agent_id)
        assert refused.value.error.code == -32000
        assert refused.value.data is not None
        assert [each["id"] for each in refused.value.data["authMethods"]] == ["rehearsal-login"]  # type: ignore[attr-defined]
        await made.host.authenticate(agent.agent_id, "rehearsal-login")
        assert (await play(await made.open(agent.agent_id), "say hi")).stop_reason == "end_turn"
        await made.host.logout(agent.agent_id)
        with pytest.raises(AgentRefused):
            await made.open(agent.agent_id)
        starting = (await told(made.host, AgentUpdated))[0]
        assert (starting.status, starting.auth_methods) == ("starting", None)


async def test_an_error_of_the_agent_is_a_placeholder_with_the_error_beside_it(tmp_path: Path) -> None:
    """prompt protocol-error event shape."""
    source = """
hello(); session()
send(id=prompted(), error={"code": -32042, "message": "no", "data": {"why": ["x"]}}); stay()
"""
    async with rig(tmp_path) as made:
        session = await made.script(source)
        result = await session.prompt((Text(text="go"),))
        assert result.stop_reason == "end_turn"
        assert result.error is not None
        (finished,) = await of_type(session, "prompt-finished")
        told_error = json.loads(finished.payload)
        error = {"code": -32042, "message": "no", "data": {"why": ["x"]}}
        assert (told_error["stopReason"], told_error["error"]) == ("end_turn", error)
        with pytest.raises(AgentRefused, match="no") as raised:
            result.raise_for_error()
        assert isinstance(raised.value, AgentError)
        assert raised.value.error == result.error


async def test_a_result_without_an_error_raises_nothing_and_a_crash_raises(tmp_path: Path) -> None:
    """prompt protocol-error event shape."""
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        (await play(session, "say fine")).raise_for_error()
        with pytest.raises(AgentExited):
            await play(session, "crash 9")


async def test_another_protocol_version_is_killed_and_its_exit_added_later(tmp_path: Path) -> None:
    """protocol version negotiation; initialize-failure exit backfill."""
    async with rig(tmp_path) as made:
        with pytest.raises(AgentError, match="speaks version 7"):
            await made.host.spawn_agent(made.scripted("hello(7); signal.pause()"))
        seen = [(each.status, each.reason, each.exit) for each in await told(made.host, AgentUpdated)]
        assert seen[:2] == [("starting", None, None), ("exited", "initialize-failed", None)]
        (agent,) = made.host.get_agents()
        assert (agent.status, agent.reason) == ("exited", "initialize-failed")
        assert agent.exit is not None
        assert seen[2:] == [("exited", "initialize-failed", agent.exit)]
        assert (await codes(made.host))[-2:] == ["agent/initialize-failed", "agent/exit"]


async def test_a_program_that_cannot_be_started_stays_listed_with_its_reason(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        with pytest.raises(ConfigInvalid):
            await made.host.spawn_agent({"command": "no-such-agent"})
        (agent,) = made.host.get_agents()
        assert (agent.status, agent.reason, agent.exit) == ("exited", "spawn-failed", None)
        assert "agent/spawn-failed" in await codes(made.host)


async def test_a_start_that_is_given_up_leaves_no_process_and_no_agent_that_starts_for_ever(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as made:
        source = "print(os.getpid(), file=open('pid', 'w')); os.mkfifo('up'); stay()"
        spawning = asyncio.create_task(made.host.spawn_agent(made.scripted(source)))
        while not (tmp_path / "up").exists():
            await asyncio.sleep(0.005)
        spawning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await spawning
        await until_code(made.host, "agent/exit")
        assert process(int((tmp_path / "pid").read_text())) is None
        assert made.host.get_agents()[0].status == "exited"


async def test_a_start_that_is_given_up_when_the_agent_is_ready_leaves_no_process(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        source = "print(os.getpid(), file=open('pid', 'w')); hello(); stay()"
        spawning = asyncio.create_task(made.host.spawn_agent(made.scripted(source)))
        publish = HostStream.publish

        def given_up(stream: HostStream, payload: Payload) -> None:
            if isinstance(payload, AgentUpdated) and payload.status == "ready":
                spawning.cancel()
            publish(stream, payload)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(HostStream, "publish", given_up)
            with pytest.raises(asyncio.CancelledError):
                await spawning
        assert process(int((tmp_path / "pid").read_text())) is None
        assert made.host.get_agents() == []


async def test_who_we_are_is_said_in_the_handshake(tmp_path: Path) -> None:
    """clientInfo."""
    source = """
asked = read(); send(id=asked["id"], result={"protocolVersion": 1})
session(); prompt = prompted(); update(json.dumps(asked["params"]["clientInfo"])); done(prompt); stay()
"""
    async with rig(tmp_path) as made:
        session = await made.script(source)
        await session.prompt((Text(text="go"),))
        (heard,) = await of_type(session, "agent-message-chunk")
        info = json.loads(json.loads(heard.payload)["content"]["text"])
        assert (info["name"], info["version"]) == ("legation", legation.__version__)


async def test_a_disposed_agent_is_removed_and_its_sessions_keep_their_history(tmp_path: Path) -> None:
    """disposeAgent semantics."""
    async with rig(tmp_path, approver=(hand := Hand())) as made:
        session = await made.rehearse()
        other = await made.rehearse()
        prompting = asyncio.create_task(play(session, "say kept", "ask something"))
        await hand.until_asked()
        await asyncio.gather(made.host.dispose_agent("agent-1"), made.host.dispose_agent("agent-1"))
        with pytest.raises(AgentExited):
            await prompting
        await made.host.dispose_agent("agent-1")
        await made.host.dispose_agent("agent-99")
        assert [agent.agent_id for agent in made.host.get_agents()] == ["agent-2"]
        assert made.host.get_agent("agent-1") is None
        assert [each.agent_id for each in await told(made.host, AgentRemoved)] == ["agent-1"]
        assert (session.status, other.status) == ("disconnected", "active")
        assert len(await of_type(session, "agent-message-chunk")) == 1
        assert [each.state for each in await told(made.host, PermissionUpdated)] == ["pending", "superseded"]
        with pytest.raises(NotFound):
            await made.host.create_session("agent-1")
        assert (await play(other, "say hi")).stop_reason == "end_turn"


async def test_an_agent_that_ended_by_itself_stays_listed_with_its_exit(tmp_path: Path) -> None:
    """disposeAgent semantics: distinct from an involuntary `exited` tombstone."""
    async with rig(tmp_path) as made:
        session = await made.script("hello(); session(); os._exit(4)")
        await until_type(session, "agent-exited")
        agent = await until_agent(made.host, "exited")
        assert agent == made.host.get_agent("agent-1")
        assert (agent.reason, agent.exit and agent.exit.code) == ("crashed", 4)
        assert await told(made.host, AgentRemoved) == []


async def test_dispose_ends_agents_sessions_and_permissions_and_tells_all_of_it(tmp_path: Path) -> None:
    """dispose semantics. More of it: host/test_end."""
    async with rig(tmp_path, approver=(hand := Hand())) as made:
        heard: list[str] = []
        made.host.subscribe(None, 0, lambda event: heard.append(event.type))
        session = await made.rehearse()
        prompting = asyncio.create_task(play(session, "ask something"))
        await hand.until_asked()
        await made.host.dispose()
        with pytest.raises(AgentExited):
            await prompting
        agent = (await told(made.host, AgentUpdated))[-1]
        assert (agent.status, agent.reason) == ("disposed", "disposed")
        assert (await told(made.host, SessionUpdated))[-1].status == "disconnected"
        assert (await told(made.host, PermissionUpdated))[-1].state == "superseded"
        assert heard.count("permission-updated") == 2  # a callback is not cut off before the end
        with pytest.raises(Conflict):
            await made.host.create_session("agent-1")


async def test_a_host_that_is_not_entered_refuses_and_can_be_disposed_of() -> None:
    host = create_acp_host()
    with pytest.raises(Conflict, match="async with"):
        await host.spawn_agent({"command": "x"})
    await host.dispose()


async def test_a_host_of_its_own_log_ends_callbacks_after_the_last_event() -> None:
    heard: list[str] = []
    async with AcpHost() as host:
        host.subscribe(None, 0, lambda event: heard.append(event.type))
        with pytest.raises(ConfigInvalid):
            await host.spawn_agent({"command": "no-such-agent"})
    assert heard.count("agent-updated") == 3


async def test_what_an_agent_did_not_declare_is_refused_before_it_is_asked(tmp_path: Path) -> None:
    """capability gating."""
    source = """
hello(); session(); message = read(); update(message["method"]); done(message["id"]); stay()
"""
    async with rig(tmp_path) as made:
        session = await made.script(source)
        host, agent_id = made.host, session.agent_id
        assert agent_id
        for refused in (
            host.list_sessions(agent_id),
            host.resume_session(agent_id, session.id),
            host.load_session(agent_id, session.id),
            host.set_mode(session.id, "plan"),
            host.set_config_option(session.id, "model", "x"),
            host.logout(agent_id),
        ):
            with pytest.raises(CapabilityUnsupported):
                await refused
        assert session.status == "active"
        await session.prompt((Text(text="go"),))
        (heard,) = await of_type(session, "agent-message-chunk")
        assert json.loads(heard.payload)["content"]["text"] == "session/prompt"


async def test_what_an_agent_declared_is_served(tmp_path: Path) -> None:
    """capability gating. Modes and options are told as events when the agent takes the session."""
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        assert session.agent_id
        listed = await made.host.list_sessions(session.agent_id, cwd=made.work)
        assert [each.session_id for each in listed.sessions] == [session.meta.agent_session_id]
        await made.host.set_mode(session.id, "plan")
        options = await made.host.set_config_option(session.id, "model", "rehearsal-terse")
        assert len(options) == 2
        first, *later = await events(session)
        assert first.type == "setup-facts"
        facts = json.loads(first.payload)
        assert facts["modes"]["currentModeId"] == "default"
        assert [each["id"] for each in facts["modes"]["availableModes"]] == ["default", "plan", "bypass"]
        assert [each["id"] for each in facts["configOptions"]] == ["model", "thoughts"]
        mode, chosen = [json.loads(each.payload) for each in later if each.type == "setup-facts"]
        assert (mode["modes"]["currentModeId"], "configOptions" in mode) == ("plan", False)
        assert (chosen["configOptions"][0]["currentValue"], "modes" in chosen) == ("rehearsal-terse", False)
        # Nothing stands in the log as an update of the agent's that it did not send.
        assert not {each.type for each in later} & {"current-mode-update", "config-option-update"}


# How an agent ends, told to who waits for it.


async def test_who_waits_for_the_end_of_an_agent_hears_how_it_ended_when_its_sessions_are_free(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        assert session.agent_id
        ended = asyncio.create_task(made.host.until_ended(session.agent_id))
        with pytest.raises(AgentExited):
            await play(session, "crash 3")
        found = await ended
        assert (found.status, found.reason, found.exit and found.exit.code) == ("exited", "crashed", 3)
        assert session.status == "disconnected"
        assert await made.host.until_ended(session.agent_id) == found


async def test_who_waits_for_the_end_of_an_agent_hears_that_it_was_disposed_of(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        agent = await made.host.spawn_agent(made.rehearsal())
        ended = asyncio.create_task(made.host.until_ended(agent.agent_id))
        await asyncio.sleep(0)
        await made.host.dispose_agent(agent.agent_id)
        assert (await ended).status == "disposed"
        with pytest.raises(NotFound):
            await made.host.until_ended(agent.agent_id)


async def test_an_agent_that_is_started_again_has_not_ended(tmp_path: Path) -> None:
    clock = FakeClock()
    async with rig(tmp_path, clock=clock, restart="on-crash", restart_limit=1) as made:
        session = await made.script("hello(); session(); read(); os._exit(3)")
        assert session.agent_id
        ended = asyncio.create_task(made.host.until_ended(session.agent_id))
        with pytest.raises(AgentExited):
            await go(session)
        await until_code(made.host, "agent/restart-scheduled")
        await clock.until_sleeping()
        assert not ended.done()
        await made.host.dispose_agent(session.agent_id)
        assert (await ended).status == "disposed"


async def test_an_agent_that_never_started_has_ended(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        with pytest.raises(AgentExited):
            await made.host.spawn_agent(made.scripted("os._exit(3)"))
        (agent,) = made.host.get_agents()
        found = await made.host.until_ended(agent.agent_id)
        assert (found.status, found.reason) == ("exited", "initialize-failed")
