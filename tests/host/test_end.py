"""How agents end: by themselves, in mid-turn, or with the host. Nothing of them is left."""

import asyncio
import json
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from tests.host.rig import Hand, Rig, events, go, of_type, play, rig, until_type

from legation.agents import rpc as agent_output
from legation.errors import (
    AgentError,
    AgentExited,
    ConfigInvalid,
    Conflict,
    LegationError,
    StorageFailed,
    TimedOut,
    TransportClosed,
)
from legation.host.host import AcpHost
from legation.host.options import HostOptions, Limits
from legation.host.requests.handlers import DenyAll
from legation.host.session import Session
from legation.proc.tree import process
from legation.redact import Redactor
from legation.secret import Secret
from legation.store.codec import Op
from legation.store.jsonl import JsonlBackend
from legation.store.log import EventLog

pytestmark = pytest.mark.heavy

KEY = b"sk-very-secret-0123456789"
DISPOSE_LIMIT = 20.0  # seconds in which a host must be gone, whatever its agents and its disk do


def alive(pid: int) -> bool:
    found = process(pid)
    return found is not None and not found.dead


def descriptors() -> set[str]:
    """Number and target of each that is open, but for the one that lists them."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.add(f"{link.name} {link.readlink()}")
    return found


async def exits(session: Session) -> list[dict[str, object]]:
    return [json.loads(event.payload) for event in await of_type(session, "agent-exited")]


async def test_a_crash_in_mid_turn_tells_code_and_last_words(tmp_path: Path) -> None:
    source = "hello(); session(); prompted(); update('a'); os.write(2, b'out of luck'); os._exit(7)"
    async with rig(tmp_path) as made:
        session = await made.script(source)
        with pytest.raises(AgentExited, match="exit code 7") as caught:
            await go(session)
        assert "out of luck" in caught.value.message
        assert caught.value.data == {"exitCode": 7, "signal": None}
        await until_type(session, "agent-exited")
        assert await exits(session) == [{"code": 7, "stderrTail": "out of luck"}]
        (end,) = await of_type(session, "prompt-finished")
        assert b'"error"' in end.raw
        assert len(await of_type(session, "agent-message-chunk")) == 1


async def test_a_signal_is_named(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        with pytest.raises(AgentExited, match="SIGKILL"):
            await play(session, "kill-self KILL")
        await until_type(session, "agent-exited")
        assert (await exits(session))[0]["signal"] == signal.SIGKILL


async def test_much_stderr_neither_blocks_nor_fills_memory(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        assert (await play(session, "stderr 400000", "say done")).stop_reason == "end_turn"
        assert 0 < len(session.agent.stderr_tail()) <= 65536


async def test_an_agent_that_closes_its_output_is_stopped_at_once_and_the_session_says_so(
    tmp_path: Path,
) -> None:
    source = "hello(); session(); prompted(); os.write(2, b'bye'); os.close(1); signal.pause()"
    async with rig(tmp_path) as made:
        session = await made.script(source)
        pid = session.agent.processes[0]
        with pytest.raises(TransportClosed, match="closed its output") as caught:
            await go(session)
        assert "bye" in caught.value.message
        await until_type(session, "agent-exited")
        assert not alive(pid)
        [told] = await of_type(session, "diagnostic")
        assert json.loads(told.payload)["code"] == "agent/process-error"
        assert "closed its output and went on" in json.loads(told.payload)["message"]


async def test_an_agent_without_an_output_is_not_waited_for(tmp_path: Path) -> None:
    """It would end by itself, and is stopped long before."""
    source = "hello(); session(); prompted(); os.close(1); signal.alarm(8); signal.pause()"
    async with rig(tmp_path) as made:
        session = await made.script(source)
        with pytest.raises(TransportClosed, match="it was stopped"):
            await go(session)
        await until_type(session, "agent-exited")
        assert (await exits(session))[0]["signal"] == signal.SIGTERM


async def test_an_agent_that_ends_right_after_its_output_has_ended_by_itself(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.script("hello(); session(); prompted(); os.close(1); os._exit(0)")
        with pytest.raises(AgentExited, match="exit code 0"):
            await go(session)
        await until_type(session, "agent-exited")
        assert await of_type(session, "diagnostic") == []


async def test_what_a_program_prints_instead_of_a_handshake_is_quoted(tmp_path: Path) -> None:
    lines = b"npm warn deprecated a@1\n\x1b[31mUsage: agent [OPTIONS]\x1b[0m\n\tkey " + KEY + b"\n"
    redact = Redactor([Secret(KEY.decode(), "api-key")]).bytes
    async with rig(tmp_path, redact=redact) as made:
        with pytest.raises(AgentExited) as caught:
            await made.script(
                f"raw({lines!r}); raw(b'x' * 5000 + b'\\n'); raw(b'line\\n' * 1000); sys.exit(2)"
            )
        said = caught.value.message
        assert "having written to its standard output what is no message:\nnpm warn deprecated a@1\n" in said
        assert "Usage: agent [OPTIONS]" in said
        assert "key [redacted:api-key]" in said
        assert "\x1b" not in said
        assert len(said) < 2000
        [failed] = [each for each in made.reported if each.code == "agent/initialize-failed"]
        assert "npm warn deprecated" in failed.message


async def test_a_program_of_another_framing_is_quoted_with_what_is_wrong(tmp_path: Path) -> None:
    """As language servers write: the last message has no end of a line, and none comes."""
    source = 'raw(b\'Content-Length: 40\\r\\n\\r\\n{"jsonrpc": "2.0"\'); os.close(1); stay(); signal.pause()'
    async with rig(tmp_path) as made:
        with pytest.raises(TransportClosed) as caught:
            await made.script(source)
        said = caught.value.message
        assert "Content-Length: 40" in said
        assert '{"jsonrpc": "2.0"' in said
        assert "an agent writes one message a line" in said


async def test_what_an_agent_prints_besides_its_messages_is_not_blamed_later(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.script("raw(b'npm warn x\\n'); hello(); session(); prompted(); os._exit(3)")
        with pytest.raises(AgentExited) as caught:
            await go(session)
        assert "npm warn" not in caught.value.message


async def test_an_agent_that_never_answers_initialize_is_stopped_and_its_stderr_shown(tmp_path: Path) -> None:
    async with rig(tmp_path, limits=Limits(start=0.5)) as made:
        with pytest.raises(TimedOut, match="waiting for godot"):
            await made.script("os.write(2, b'waiting for godot'); stay(); signal.pause()")
        (agent,) = made.host.get_agents()
        assert (agent.status, agent.reason) == ("exited", "initialize-failed")
        assert agent.exit is not None


async def test_an_agent_that_dies_at_the_start_says_why(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        with pytest.raises(AgentExited, match="no such flag"):
            await made.script("os.write(2, b'no such flag'); os._exit(2)")


async def test_another_version_of_the_protocol_is_refused(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        with pytest.raises(AgentError, match="speaks version 2"):
            await made.script("hello(2); stay()")


async def test_an_error_to_initialize_is_an_error_of_the_agent(tmp_path: Path) -> None:
    source = "send(id=serve('initialize'), error={'code': -32603, 'message': 'broken'}); stay()"
    async with rig(tmp_path) as made:
        with pytest.raises(AgentError, match="broken"):
            await made.script(source)


async def test_a_missing_program_is_named(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        with pytest.raises(ConfigInvalid, match="no-such-agent"):
            await made.host.spawn_agent({"command": "no-such-agent"})


async def test_a_session_opened_as_its_agent_dies_still_says_so(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.script("hello(); session(); os._exit(4)")
        await until_type(session, "agent-exited")
        assert [each["code"] for each in await exits(session)] == [4]


async def test_the_same_id_for_two_sessions_is_refused(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        first = await made.script("hello(); session(); session(); done(prompted()); stay()")
        with pytest.raises(AgentError, match="in use"):
            await made.open_another(first)
        assert (await go(first)).stop_reason == "end_turn"


@pytest.mark.heavy
async def test_a_tree_that_ignores_signals_is_gone_after_dispose(tmp_path: Path) -> None:
    async with rig(tmp_path, limits=Limits()) as made:
        session = await made.rehearse()
        await play(session, "spawn-tree ignore-signals hold", "ignore-signals", "ignore-stdin-eof")
        (said,) = await of_type(session, "agent-message-chunk")
        pids = json.loads(json.loads(said.payload)["content"]["text"]).values()
        pids = [*pids, session.agent.processes[0]]
        assert all(map(alive, pids))
        await made.host.dispose()
        assert not any(map(alive, pids))
        await made.host.dispose()


async def test_dispose_ends_a_running_turn_and_its_question_and_disconnects_the_session(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path, approver=(hand := Hand())) as made:
        session = await made.script("hello(); session(); prompted(); permission(1, title='t'); stay()")
        prompting = asyncio.create_task(go(session))
        await hand.until_asked()
        await asyncio.gather(made.host.dispose(), made.host.dispose())
        with pytest.raises(AgentExited):
            await prompting
        found = [event.type for event in await events(session)]
        assert found.count("permission-answered") == found.count("agent-exited") == 1
        assert found.count("prompt-finished") == 1
        assert found[-1] == "session-status"
        assert (session.status, session.stream.info().state) == ("disconnected", "open")
        answered = json.loads((await of_type(session, "permission-answered"))[0].payload)
        assert answered["outcome"] == "superseded"


async def test_dispose_stops_an_agent_that_is_still_starting(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        source = (
            "open('started', 'w').close(); print(os.getpid(), file=open('pid', 'w')); os.mkfifo('up'); stay()"
        )
        spawning = asyncio.create_task(made.host.spawn_agent(made.scripted(source)))
        while not (tmp_path / "up").exists():
            await asyncio.sleep(0.005)
        await made.host.dispose()
        with pytest.raises(AgentExited, match="disposed"):
            await spawning
        assert not alive(int((tmp_path / "pid").read_text()))
        with pytest.raises(Conflict):
            await made.host.spawn_agent(made.rehearsal())


async def test_a_cancelled_caller_does_not_stop_dispose(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        pid = session.agent.processes[0]
        disposing = asyncio.create_task(made.host.dispose())
        await asyncio.sleep(0)
        disposing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await disposing
        await made.host.dispose()
        assert session.status == "disconnected"
        assert not alive(pid)


class Broken(JsonlBackend):
    broken = False

    def commit(self, ops: Sequence[Op]) -> None:
        if self.broken:
            raise StorageFailed("cannot save: the disk is full; free some space")
        super().commit(ops)


@pytest.mark.heavy
async def test_a_failing_disk_does_not_hold_up_dispose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even with the memory bound reached, when nothing more is read of the agent."""
    monkeypatch.setattr(agent_output, "REST_LIMIT", 0.5)
    disk = Broken(tmp_path / "log")
    reported: list[str] = []
    (tmp_path / "work").mkdir()
    async with EventLog(disk, pending_limit=100_000, report=lambda each: reported.append(each.code)) as log:
        options = HostOptions(approver=DenyAll(), kill_timeout_ms=200, data_dir=tmp_path / "data")
        async with AcpHost(options, log=log) as host:
            made = Rig(host, log, tmp_path, [])
            session = await made.script("hello(); session(); prompted()\nwhile True: update('x' * 1000)")
            pid = session.agent.processes[0]
            disk.broken = True
            prompting = asyncio.create_task(go(session))
            while log.pending_bytes < 100_000:
                await asyncio.sleep(0.001)
            async with asyncio.timeout(DISPOSE_LIMIT):
                await host.dispose()
            assert not alive(pid)
            assert reported == ["storage/write-failed"]
    with pytest.raises(LegationError):
        await prompting


async def come_and_go(made: Rig) -> None:
    """Disposed of, not only stopped: once its process has ended, a thread removes its temporary folder."""
    session = await made.script("hello(); session(); stay()")
    assert session.agent_id
    await made.host.dispose_agent(session.agent_id)


async def test_no_descriptor_is_left_after_many_agents(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        await come_and_go(made)
        before = descriptors()
        for _ in range(3):
            await come_and_go(made)
        assert descriptors() - before == set()
