"""Terminals through the whole host: offered only when injected, owned by their session, gone with it."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.host.host_events import codes
from tests.host.rig import LIMIT, Rig, of_type, play, rig, until, until_type
from tests.host.test_end import alive

from legation.host.requests.services import DefaultTerminals
from legation.host.session import Session
from legation.proc import Command, ProcessLauncher, Registry, child_environment
from legation.proc import launcher as launcher_module
from legation.proc.child import StartedChild
from legation.store.forbidden import ForbiddenPlaces

pytestmark = pytest.mark.heavy  # a process or more for each test


SCRIPT = "terminal echo $$ > pid; exec sleep 300"


@asynccontextmanager
async def with_terminals(place: Path) -> AsyncIterator[Rig]:
    environment = child_environment({}, home=place, tmp=place)
    terminals = DefaultTerminals(ProcessLauncher(), environment, forbidden=ForbiddenPlaces())
    try:
        async with rig(place, terminal=terminals) as made:
            yield made
    finally:
        await terminals.dispose()


async def started(made: Rig, session: Session) -> tuple[int, asyncio.Task[object]]:
    """The pid of a command that runs for long in a terminal, and the turn that waits for it."""
    turn: asyncio.Task[object] = asyncio.create_task(play(session, SCRIPT))
    pid = made.work / "pid"
    while not pid.exists() or not pid.read_text().strip():
        await asyncio.sleep(0.005)
    return int(pid.read_text()), turn


async def test_a_command_runs_in_a_terminal_of_the_host(tmp_path: Path) -> None:
    """terminal capability boundary."""
    async with with_terminals(tmp_path) as made:
        session = await made.rehearse()
        await play(session, "terminal printf hello; exit 3")
        last = json.loads((await of_type(session, "tool-call-update"))[-1].payload)
        assert (last["status"], last["rawOutput"]["output"]) == ("completed", "hello")
        assert last["rawOutput"]["exitCode"] == 3


async def test_terminals_are_off_unless_injected(tmp_path: Path) -> None:
    """terminal capability boundary."""
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        await play(session, "terminal echo no")
        await play(session, "terminal! echo no")
        failed = [json.loads(each.payload) for each in await of_type(session, "tool-call-update")]
        assert [each["status"] for each in failed if each.get("status") != "in_progress"] == ["failed"] * 2


@pytest.mark.parametrize("how", ["close", "delete", "dispose agent", "dispose", "crash"])
async def test_no_command_outlives_its_session_or_its_agent(tmp_path: Path, how: str) -> None:
    """terminal capability boundary: close and delete call cleanup_session; so does the end of the agent."""
    async with with_terminals(tmp_path) as made:
        session = await made.rehearse()
        assert session.agent_id
        pid, turn = await started(made, session)
        assert alive(pid)
        match how:
            case "close":
                await made.host.close_session(session.id)
            case "delete":
                await made.host.delete_session(session.agent_id, session.id)
            case "dispose agent":
                await made.host.dispose_agent(session.agent_id)
            case "dispose":
                await made.host.dispose()
            case "crash":
                await session.agent.stop(grace=0)
                await until(session, lambda event: event.type == "agent-exited")
                while alive(pid):
                    await asyncio.sleep(0.005)
        assert not alive(pid)
        await asyncio.gather(turn, return_exceptions=True)


async def test_a_command_that_starts_while_its_session_closes_is_ended_before_that_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, start = threading.Event(), launcher_module._start

    def start_slowly(command: Command, registry: Registry | None) -> StartedChild:
        started = start(command, registry)
        if command.name == "terminal":
            go_on.wait(LIMIT)
        return started

    monkeypatch.setattr(launcher_module, "_start", start_slowly)
    async with with_terminals(tmp_path) as made:
        session = await made.rehearse()
        pid, turn = await started(made, session)
        asyncio.get_running_loop().call_later(0.5, go_on.set)  # longer than a close that waits for nothing
        await made.host.close_session(session.id)
        was_alive = alive(pid)
        go_on.set()
        assert not was_alive
        await asyncio.gather(turn, return_exceptions=True)


async def test_a_terminal_of_another_session_is_refused_before_the_handler(tmp_path: Path) -> None:
    """terminal-session ownership, end to end. Unit tests: host/test_ownership."""
    source = """
hello(); session("s1"); session("s2"); prompt = prompted()
def call(number, method, session, **more):
    send(id=number, method=method, params={"sessionId": session, **more})
    return answer(number)
made = call(1, "terminal/create", "s1", command="/bin/true", cwd=os.getcwd())["result"]["terminalId"]
found = [call(9, "terminal/wait_for_exit", "s1", terminalId=made)["result"]["exitCode"]]
for number, method in enumerate(("output", "wait_for_exit", "kill", "release"), 10):
    found.append(call(number, "terminal/" + method, "s2", terminalId=made)["error"]["code"])
update(json.dumps(found)); done(prompt); stay()
"""
    async with with_terminals(tmp_path) as made:
        session = await made.script(source)
        await made.open_another(session)
        await play(session, "say unread")
        heard = await until_type(session, "agent-message-chunk")
        assert json.loads(json.loads(heard.payload)["content"]["text"]) == [0, *[-32602] * 4]


class Clumsy(DefaultTerminals):
    async def cleanup_session(self, session_id: str) -> None:
        raise RuntimeError(f"s3cret-canary of {session_id}")


async def test_a_handler_that_fails_to_clean_up_is_told_and_keeps_nothing_open(tmp_path: Path) -> None:
    environment = child_environment({}, home=tmp_path, tmp=tmp_path)
    async with rig(
        tmp_path, terminal=Clumsy(ProcessLauncher(), environment, forbidden=ForbiddenPlaces())
    ) as made:
        session = await made.rehearse()
        await made.host.close_session(session.id)
        assert session.status == "closed"
        assert "agent/process-error" in await codes(made.host)
        assert not any("canary" in each.message for each in made.reported)
