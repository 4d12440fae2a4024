"""Restarts: their budget and their pauses, on a clock that moves by hand, and what becomes of the sessions."""

import asyncio
import json
from pathlib import Path

import pytest
from tests.host.host_events import codes, told, until_agent, until_code
from tests.host.rig import Rig, go, of_type, play, rig, until_status, until_type

from legation.errors import AgentError, AgentExited
from legation.host.options import Backoff, HostOptions, Limits
from legation.host.turn import CANCEL_GRACE
from legation.testing.clock import FakeClock
from legation.wire.event_types import AgentUpdated, Diagnostic

pytestmark = pytest.mark.heavy  # a process or more for each test


LIVES = """
with open("lives", "a+") as file:
    life = file.write("x") and file.tell()
"""


async def restart(made: Rig, clock: FakeClock, number: int, seconds: float) -> None:
    """The `number`-th restart of the host comes after that long, and not before."""
    scheduled = await until_code(made.host, "agent/restart-scheduled", number)
    assert scheduled.message.endswith(f"in {seconds:g} s")
    await clock.until_sleeping()
    before = (await codes(made.host)).count("agent/spawn")
    clock.advance(seconds - 0.5)
    await asyncio.sleep(0)
    await clock.until_sleeping()
    assert (await codes(made.host)).count("agent/spawn") == before
    clock.advance(0.5)
    await until_code(made.host, "agent/spawn", before + 1)


async def test_failures_before_ready_use_up_the_budget_with_growing_pauses(tmp_path: Path) -> None:
    """pre-ready failure inside a restart cycle."""
    clock = FakeClock()
    source = LIVES + "if life == 1: hello()\nos._exit(3)"
    async with rig(tmp_path, clock=clock, restart="on-crash", restart_limit=7) as made:
        await made.host.spawn_agent(made.scripted(source))
        for number, seconds in enumerate((1, 2, 4, 8, 16, 30, 30), 1):
            await restart(made, clock, number, seconds)
        await until_code(made.host, "agent/restart-exhausted")
        (agent,) = made.host.get_agents()
        assert (agent.status, agent.reason, agent.restart_count) == ("exited", "initialize-failed", 7)
        assert (await codes(made.host)).count("agent/spawn") == 8


async def test_a_first_start_that_fails_is_not_tried_again(tmp_path: Path) -> None:
    """pre-ready failure inside a restart cycle: the first (non-cyclic) failure is not retried."""
    async with rig(tmp_path, clock=FakeClock(), restart="on-crash") as made:
        with pytest.raises(AgentExited):
            await made.host.spawn_agent(made.scripted("os._exit(3)"))
        assert not [code for code in await codes(made.host) if "restart" in code]


async def test_a_program_that_vanished_uses_up_the_budget_too(tmp_path: Path) -> None:
    """pre-ready failure inside a restart cycle."""
    clock = FakeClock()
    async with rig(tmp_path, clock=clock, restart="on-crash", restart_limit=2) as made:
        program = tmp_path / "agent"
        definition = made.scripted("hello(); os.unlink('agent'); os._exit(1)")
        program.symlink_to(definition.command)
        await made.host.spawn_agent(
            {"command": str(program), "args": definition.args, "cwd": tmp_path, "env": definition.env}
        )
        for seconds in (1, 2):
            await clock.until_sleeping()
            clock.advance(seconds)
            await asyncio.sleep(0)
        await until_code(made.host, "agent/restart-exhausted")
        assert made.host.get_agents()[0].reason == "spawn-failed"


async def test_any_ready_resets_the_counter(tmp_path: Path) -> None:
    """HostOptions.restartLimit."""
    clock = FakeClock()
    async with rig(tmp_path, clock=clock, restart="on-crash", restart_limit=1) as made:
        await made.host.spawn_agent(made.scripted("hello(); os._exit(1)"))
        for number in range(1, 4):
            await restart(made, clock, number, 1)
        ready = [each for each in await told(made.host, AgentUpdated) if each.status == "ready"]
        assert {each.restart_count for each in ready} == {0}
        assert "agent/restart-exhausted" not in await codes(made.host)


@pytest.mark.parametrize(("policy", "code", "reason"), [("on-crash", 0, "ended"), ("never", 1, "crashed")])
async def test_a_clean_exit_is_not_restarted_nor_any_under_never(
    tmp_path: Path, policy: str, code: int, reason: str
) -> None:
    """HostOptions.restart."""
    async with rig(tmp_path, clock=FakeClock(), restart=policy) as made:
        await made.host.spawn_agent(made.scripted(f"hello(); os._exit({code})"))
        await until_code(made.host, "agent/restart-suppressed")
        (agent,) = made.host.get_agents()
        assert (agent.status, agent.reason) == ("exited", reason)
        assert "agent/restart-scheduled" not in await codes(made.host)


async def test_an_agent_is_disposed_of_in_its_pause(tmp_path: Path) -> None:
    clock = FakeClock()
    async with rig(tmp_path, clock=clock, restart="on-crash") as made:
        await made.host.spawn_agent(made.scripted("hello(); os._exit(1)"))
        await clock.until_sleeping()
        assert made.host.get_agents()[0].status == "restarting"
        await made.host.dispose_agent("agent-1")
        clock.advance(100)
        assert made.host.get_agents() == []
        assert (await codes(made.host)).count("agent/spawn") == 1


def test_the_defaults_of_restarts_are_the_documented_ones() -> None:
    """HostOptions."""
    options = HostOptions()
    assert (options.restart, options.restart_limit) == ("never", 3)
    assert options.restart_backoff == Backoff(initial_ms=1000, factor=2, max_ms=30_000)


RESUMES: dict[str, object] = {"sessionCapabilities": {"resume": {}}}
LOADS: dict[str, object] = {"loadSession": True}


def able(can: object) -> str:
    return f"send(id=serve('initialize'), result={{'protocolVersion': 1, 'agentCapabilities': {can!r}}})\n"


async def test_a_crashed_session_is_resumed_and_its_history_stays(tmp_path: Path) -> None:
    """Stronger: crash recovery by resume."""
    async with rig(tmp_path, restart="on-crash", restart_backoff=Backoff(initial_ms=1)) as made:
        session = await made.rehearse()
        await play(session, "say before")
        with pytest.raises(AgentExited):
            await play(session, "crash 5")
        lost = await until_status(session, "disconnected")
        await until_status(session, "active", after=lost.seq)
        await play(session, "say after")
        said = [json.loads(event.payload) for event in await of_type(session, "agent-message-chunk")]
        assert [each["content"]["text"] for each in said] == ["before", "after"]
        assert await of_type(session, "session-reset") == []


async def test_an_agent_that_cannot_resume_has_its_session_loaded(tmp_path: Path) -> None:
    """Stronger: crash recovery by load, where there is no resume."""
    source = LIVES + able(LOADS)
    source += "if life == 1: session(); update('old'); os._exit(1)\n"
    source += "load = serve('session/load'); update('told again'); send(id=load, result={}); stay()"
    async with rig(tmp_path, restart="on-crash", restart_backoff=Backoff(initial_ms=1)) as made:
        session = await made.script(source)
        reset = await until_type(session, "session-reset")
        await until_status(session, "active", after=reset.seq)
        (said,) = await of_type(session, "agent-message-chunk")
        assert b"told again" in said.raw
        assert session.stream.info().first_seq == reset.seq > 1


async def test_a_resume_that_is_refused_is_followed_by_a_load(tmp_path: Path) -> None:
    """Stronger: crash recovery by resume, else load."""
    source = LIVES + able({**LOADS, **RESUMES})
    source += "if life == 1: session(); os._exit(1)\n"
    source += "send(id=serve('session/resume'), error={'code': -32603, 'message': 'gone'})\n"
    source += "load = serve('session/load'); update('told'); send(id=load, result={}); stay()"
    async with rig(tmp_path, restart="on-crash", restart_backoff=Backoff(initial_ms=1)) as made:
        session = await made.script(source)
        reset = await until_type(session, "session-reset")
        await until_status(session, "active", after=reset.seq)


async def test_a_session_that_cannot_be_recovered_is_told_and_stays_disconnected(tmp_path: Path) -> None:
    """Stronger: else session/recovery-skipped."""
    source = LIVES + "hello()\nif life == 1: session(); os._exit(1)\nstay()"
    async with rig(tmp_path, restart="on-crash", restart_backoff=Backoff(initial_ms=1)) as made:
        session = await made.script(source)
        skipped = await until_code(made.host, "session/recovery-skipped")
        assert skipped.session_id == session.id
        assert session.status == "disconnected"
        assert (await codes(made.host)).count("session/recovery-skipped") == 1


async def test_a_cancel_that_is_not_obeyed_ends_in_a_kill_and_the_session_goes_on(tmp_path: Path) -> None:
    """Stronger: cancel that is not obeyed ends in kill and resume, whatever the restart policy."""
    clock = FakeClock()
    async with rig(tmp_path, clock=clock, limits=Limits(idle=1000)) as made:
        session = await made.rehearse()
        pid = session.agent.processes[0]
        prompting = asyncio.create_task(play(session, "say-and-stall hi"))
        await until_type(session, "agent-message-chunk")
        await session.cancel()
        await clock.until_sleeping()
        clock.advance(CANCEL_GRACE)
        with pytest.raises(AgentError):
            await prompting
        lost = await until_status(session, "disconnected")
        await until_status(session, "active", after=lost.seq)
        assert session.agent.processes[0] != pid
        assert (await play(session, "say again")).stop_reason == "end_turn"
        kills = [each for each in await told(made.host, Diagnostic) if each.code == "agent/kill"]
        assert len(kills) == 1
        await until_agent(made.host, "ready", 2)


async def test_a_recovered_agent_is_prompted_by_the_same_session(tmp_path: Path) -> None:
    source = LIVES + able(RESUMES)
    source += "if life == 1: session(); os._exit(1)\n"
    source += "send(id=serve('session/resume'), result={}); done(prompted()); stay()"
    async with rig(tmp_path, restart="on-crash", restart_backoff=Backoff(initial_ms=1)) as made:
        session = await made.script(source)
        lost = await until_status(session, "disconnected")
        await until_status(session, "active", after=lost.seq)
        assert (await go(session)).stop_reason == "end_turn"
        assert [each.agent_id for each in made.host.get_agents()] == ["agent-1"]
