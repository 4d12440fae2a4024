"""A real child is recorded, and the recording is played to whoever spoke with the child."""

import asyncio
import json
from pathlib import Path

import pytest
from tests.agents.bytes_agent import scripted

from legation.agents.acp import AcpAgent
from legation.agents.driver import OpenRequest
from legation.agents.rpc import RpcFault
from legation.proc import Child, Command, Exit, Launcher, Pipes, ProcessLauncher
from legation.testing.recorder import RecordedEntry, Recorder, read_recording
from legation.testing.replay import NO_PID, Replay, ReplayMismatch
from legation.wire.acp.methods import ClientCapabilities
from legation.wire.acp.updates import Text
from legation.wire.event_types import DiagnosticCode
from legation.wire.events import Draft

WAIT = 30.0  # the test's patience, in seconds
UUID = "2be92723-98d8-4416-a763-d84477cf20af"
TALK = f"""
hello()
session("{UUID}")
prompt = prompted()
update("a long way below " + os.getcwd() + " " + "x" * 900, "{UUID}")
update("at http://127.0.0.1:43607/, call toolu_01AbCdEfGh23, key " + os.environ["MODEL_KEY"], "{UUID}")
sys.stderr.write("a complaint\\n"); sys.stderr.flush()
print("no message")
done(prompt)
stay()
"""


class Box:
    def __init__(self) -> None:
        self.got: list[tuple[str, str]] = []

    def updates(self, session_id: str, drafts: list[Draft]) -> None:
        self.got += [(session_id, draft.type) for draft in drafts]

    def trouble(self, code: DiagnosticCode, _: str) -> None:
        self.got.append(("", code))

    def notification(self, method: str, _: bytes) -> None:
        self.got.append(("", method))

    async def request(self, method: str, _: bytes) -> object:
        raise RpcFault(-32601, method)

    async def keep(self, _session_id: str, draft: Draft) -> Draft:
        return draft

    async def room(self) -> None:
        return


async def converse(launcher: Launcher, command: Command) -> tuple[list[tuple[str, str]], str, Exit]:
    box = Box()
    agent = await AcpAgent.start(
        launcher, command, box, pipes=Pipes(), capabilities=ClientCapabilities(), timeout=WAIT
    )
    try:
        session = await agent.new_session(OpenRequest(str(command.cwd)), WAIT)
        async with asyncio.timeout(WAIT):
            await agent.prompt(session.session_id, (Text(text="go"),))
    finally:
        ended = await agent.stop(WAIT)
    return box.got, agent.stderr_tail(), ended


def talker(folder: Path) -> Command:
    command = scripted(TALK, folder)
    return Command(command.argv, command.cwd, {**command.env, "MODEL_KEY": "sk-very-secret"}, "talker")


@pytest.mark.heavy
async def test_what_was_recorded_plays_back_the_same(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    recorder = Recorder(ProcessLauncher(), tmp_path / "recordings")
    heard, complaints, ended = await converse(recorder, talker(work))
    (path,) = recorder.recordings
    replay = Replay(path)
    played, played_complaints, played_end = await converse(replay, talker(work))
    replay.check()
    neutral = "00000000-0000-4000-8000-000000000001"
    assert [(UUID if who == neutral else who, what) for who, what in played] == heard
    assert (played_complaints, complaints) == (
        "a complaint",
        "a complaint\n",
    ) or played_complaints in complaints
    assert played_end == ended == Exit(0, None)


@pytest.mark.heavy
async def test_a_recording_holds_nothing_of_this_machine_or_run(tmp_path: Path) -> None:
    recorder = Recorder(ProcessLauncher(), tmp_path / "recordings", longest=100)
    await converse(recorder, talker(tmp_path))
    (path,) = recorder.recordings
    text = path.read_text()
    assert path.name == "talker-1.jsonl"
    for private in (str(tmp_path), UUID, "43607", "01AbCdEfGh23", "sk-very-secret", "x" * 101):
        assert private not in text
    entries = read_recording(path)
    assert [entry.dir for entry in entries][:2] == ["start", "in"]
    start = entries[0].msg
    assert isinstance(start, dict)
    assert start["cwd"] == "/w"
    assert start["env"]["MODEL_KEY"] == "***"
    assert entries[-1].msg == {"rc": 0}
    said = [entry.msg for entry in entries if entry.dir == "out"]
    assert "no message" in said
    assert "at http://127.0.0.1:0/, call toolu_1, key ***" in json.dumps(said)


def written(folder: Path, *entries: tuple[str, object]) -> Path:
    path = folder / "made.jsonl"
    path.write_bytes(b"".join(RecordedEntry(0.0, way, message).line() for way, message in entries))
    return path


async def started(replay: Replay, folder: Path, pipes: Pipes | None = None) -> Child:
    return await replay.spawn(Command(("nobody",), folder, {}, "nobody"), pipes)


async def next_of(child: Child) -> object:
    async with asyncio.timeout(WAIT):
        async for lines in child.lines():
            return json.loads(lines[0])
    return None


async def test_nothing_is_said_before_what_it_answers(tmp_path: Path) -> None:
    replay = Replay(written(tmp_path, ("in", {"type": "user"}), ("out", {"type": "result"})))
    child = await started(replay, tmp_path)
    listening = asyncio.create_task(next_of(child))
    child.write(b'{"type": "other"}\n')
    done, _ = await asyncio.wait({listening}, timeout=0.02)
    assert not done
    child.write(b'{"type": "us')
    child.write(b'er"}\n')
    assert await listening == {"type": "result"}
    assert replay.children[0].unasked == ({"type": "other"},)
    await child.stop()
    replay.check()


async def test_the_drivers_own_ids_are_answered(tmp_path: Path) -> None:
    asked = {"id": 1, "method": "thread/start", "params": {"clientUuid": "abcdefgh-old", "request_id": "r1"}}
    answer = {"id": 1, "result": {"echo": "about abcdefgh-old", "request_id": "r1", "path": "/w/a.txt"}}
    request = {"id": 1, "method": "ask"}  # the agent's own: its number is its own
    path = written(tmp_path, ("in", asked), ("out", answer), ("out", request))
    child = await started(Replay(path, places={"/w": "/real"}), tmp_path)
    child.write(
        b'{"id": 77, "method": "thread/start", "params": {"clientUuid": "new", "request_id": "q9"}}\n'
    )
    assert await next_of(child) == {
        "id": 77,
        "result": {"echo": "about new", "request_id": "q9", "path": "/real/a.txt"},
    }
    assert await next_of(child) == request
    await child.stop()


async def test_a_driver_that_does_not_write_what_is_awaited_fails_the_test(tmp_path: Path) -> None:
    waits = ("in", {"type": "control_request", "request": {"subtype": "interrupt"}})
    replay = Replay(written(tmp_path, waits), within=0.01)
    child = await started(replay, tmp_path)
    await asyncio.wait_for(child.wait(), WAIT)
    with pytest.raises(ReplayMismatch, match="made waited in vain for control_request interrupt"):
        replay.check()


async def test_a_recording_that_nobody_played_fails_the_test(tmp_path: Path) -> None:
    replay = Replay(written(tmp_path, ("out", "hi")))
    with pytest.raises(ReplayMismatch, match="made was never played"):
        replay.check()
    child = await started(replay, tmp_path)
    with pytest.raises(ReplayMismatch, match="there is no recording left"):
        await started(replay, tmp_path)
    await child.stop()


@pytest.mark.parametrize(
    ("code", "ended"), [(3, Exit(3, None)), (-9, Exit(None, 9)), (0, Exit(0, None)), (None, Exit(None, None))]
)
async def test_a_child_that_ends_by_itself_does_so_in_its_place(
    code: int | None, ended: Exit, tmp_path: Path
) -> None:
    heard: list[bytes] = []
    path = written(tmp_path, ("out", {"a": 1}), ("err", "oh"), ("exit", {"rc": code}))
    child = await started(Replay(path), tmp_path, Pipes(on_stderr=heard.extend))
    assert await asyncio.wait_for(child.wait(), WAIT) == ended
    assert [lines async for lines in child.lines()] == [[b'{"a":1}']]
    assert (child.stderr_tail(), heard, child.pid) == ("oh", [b"oh"], NO_PID)


async def test_a_child_that_was_left_waits_to_be_left(tmp_path: Path) -> None:
    conversation = (("in", {"type": "user"}), ("out", {"type": "result"}), ("exit", {"rc": 0}))
    child = await started(Replay(written(tmp_path, *conversation)), tmp_path)
    child.write(b'{"type": "user"}\n')
    ending = asyncio.create_task(child.wait())
    assert await next_of(child) == {"type": "result"}
    assert not ending.done()
    child.close_stdin()
    assert await asyncio.wait_for(ending, WAIT) == Exit(0, None)
