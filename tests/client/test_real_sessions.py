"""Sessions through the client with `legation server` and the rehearsal agent, as a user has them."""

import os
import signal
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from legation.client import AsyncLegation, Legation, Spawn
from legation.client.session_event import SessionEvent
from legation.errors import AlreadyAnswered, Conflict, LegationError, NotFound
from legation.wire.universal.shapes import Error, ItemDelta, ItemEvent, Permission, Question, Turn

pytestmark = pytest.mark.heavy  # a server each

TOKEN = "canary-" + "t" * 40


@pytest.fixture(autouse=True)
def clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in [name for name in os.environ if name.startswith(("LEGATION_", "XDG_"))]:
        if name != "LEGATION_BIN":
            monkeypatch.delenv(name)


def spawn(folder: Path, port: int | None = None) -> Spawn:
    return Spawn(data_dir=folder / "data", port=port, token=TOKEN, log=folder / "server.log")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Legation]:
    with Legation.start(spawn(tmp_path)) as running:
        yield running


def script(*steps: str) -> str:
    return "\n".join(("#!rehearse", *steps))


def words(events: list[SessionEvent]) -> str:
    return "".join(each.data.delta for each in events if isinstance(each.data, ItemDelta))


def prompts(events: list[SessionEvent]) -> int:
    items = [each.data.item for each in events if isinstance(each.data, ItemEvent)]
    return len([each for each in items if each.role == "user" and each.status == "completed"])


def test_a_session_from_its_beginning_to_its_end(server: Legation, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    session = server.sessions.create("rehearsal", session_id="mine", directory=str(folder), title="a title")
    with pytest.raises(Conflict):
        server.sessions.create("rehearsal", session_id="mine")
    first = list(session.turn(script("say one")))
    assert [each.type for each in first][0 :: len(first) - 1] == ["turn.started", "turn.ended"]
    assert words(first) == "one"
    session.send(script("say two"))
    third = list(session.turn(script("say three")))
    assert words(third) == "three"  # what waited before it is not given

    recorded = session.recorded(limit=7).all()
    assert recorded[0].type == "session.started"
    assert (words(recorded), prompts(recorded)) == ("onetwothree", 3)
    middle = recorded[len(recorded) // 2].sequence
    rest = [each for each in recorded if each.sequence > middle]
    assert list(islice(session.events(middle), len(rest))) == rest
    found = session.snapshot()
    assert found.offset == recorded[-1].sequence
    assert b'"text":"three"' in bytes(found.snapshot)
    assert all(each.raw is None for each in recorded)
    assert any(each.raw is not None for each in session.recorded(raw=True))

    changed = session.change(agent_mode="plan", title="another")
    assert (changed.agent_mode, changed.title) == ("plan", "another")
    session.terminate()
    assert [(each.session_id, each.ended) for each in server.sessions.list()] == [("mine", True)]
    with pytest.raises(LegationError):
        session.send("too late")
    with pytest.raises(NotFound):
        server.sessions.get("another")


def test_permissions_are_answered_in_their_turn(server: Legation) -> None:
    session = server.sessions.create("rehearsal")
    replies = {"a.txt": "once", "b.txt": "reject", "c.txt": "always", "d.txt": "once"}
    asked: list[str] = []
    events: list[SessionEvent] = []
    for event in session.turn(script(*(f"ask write {name} x" for name in replies))):
        events.append(event)
        if isinstance(event.data, Permission) and event.type == "permission.requested":
            name = next(each for each in replies if each in bytes(event.data.metadata or b"").decode())
            if name == "d.txt":  # granted already; the answer may come before ours
                continue
            asked.append(name)
            session.answer(event.data, replies[name])  # type: ignore[arg-type]  # one of the words
            with pytest.raises((AlreadyAnswered, Conflict, NotFound)):
                session.answer(event.data, "once")
    assert asked == ["a.txt", "b.txt", "c.txt"]
    folder = Path(session.info().directory or "")
    assert sorted(path.name for path in folder.glob("*.txt")) == ["a.txt", "c.txt", "d.txt"]
    resolved = [
        each.data.status
        for each in events
        if each.type == "permission.resolved" and isinstance(each.data, Permission)
    ]
    assert (resolved[0], resolved[1], len(resolved)) == ("accept", "reject", 4)


async def test_questions_are_answered_and_turns_cancelled_async(tmp_path: Path) -> None:
    async with AsyncLegation.start(spawn(tmp_path)) as server:
        session = await server.sessions.create("rehearsal")
        found: list[SessionEvent] = []
        async for event in session.turn(
            script("elicit Name? who:string", "elicit Again? who:string", "stall 600")
        ):
            found.append(event)
            if isinstance(event.data, Question) and event.data.status == "requested":
                if len([each for each in found if isinstance(each.data, Question)]) == 1:
                    await session.reply(event.data, "Ada")
                else:
                    await session.reject(event.data)
            if "decline" in words(found) or "cancel" in words(found):
                await session.cancel()
        assert '"who": "Ada"' in words(found)
        last = found[-1].data
        assert isinstance(last, Turn)
        assert b"cancelled" in bytes(last.metadata or b"")
        assert not (await session.info()).ended


def test_agents_are_known_and_asked(server: Legation) -> None:
    agents = {each.id: each for each in server.agents.list()}
    assert agents["rehearsal"].installed
    assert server.agents.install("rehearsal").already_installed
    assert "plan" in [each.id for each in server.agents.modes("rehearsal")]
    assert server.agents.models("rehearsal").models is not None
    with pytest.raises(NotFound):
        server.agents.modes("nobody")


def test_a_turn_goes_on_over_a_server_that_is_killed_and_its_message_is_sent_once(tmp_path: Path) -> None:
    first = Legation.start(spawn(tmp_path))
    port, pid = int(first.url.rpartition(":")[2]), first.info().pid
    with Legation.connect(first.url, TOKEN) as legation:
        session = legation.sessions.create("rehearsal")
        found: list[SessionEvent] = []
        begun = threading.Event()

        def read() -> None:
            for event in session.turn(script("say begun", "stall 600")):
                found.append(event)
                if words(found):
                    begun.set()

        reader = threading.Thread(target=read)
        reader.start()
        assert begun.wait(60)
        os.kill(pid, signal.SIGKILL)
        first.close()
        with Legation.start(spawn(tmp_path, port)):
            reader.join(60)
            assert not reader.is_alive()
            recorded = session.recorded().all()
    assert found[-1].type in ("turn.ended", "session.ended")
    assert prompts(recorded) == 1
    numbers = [each.sequence for each in found]
    assert numbers == [each.sequence for each in recorded if numbers[0] <= each.sequence <= numbers[-1]]


def test_an_agent_that_crashes_ends_its_turn_and_the_session_goes_on(server: Legation) -> None:
    session = server.sessions.create("rehearsal")
    crashed = list(session.turn(script("crash 3")))
    assert crashed[-1].type in ("turn.ended", "session.ended")
    assert any(isinstance(each.data, Error) for each in crashed)
    assert words(list(session.turn(script("say again")))) == "again"
