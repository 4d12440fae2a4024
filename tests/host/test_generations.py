"""What an agent tells of a session when it loads it takes nothing away from what is recorded."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.host.host_events import until_code
from tests.host.rig import Rig, events, go, of_type, play, rig, until_status
from tests.host.test_restart import LIVES, LOADS, RESUMES, able
from tests.store.backends import ALL, make_backend

from legation.agents.rpc import AgentRefused
from legation.errors import AgentExited, CapabilityUnsupported, SessionClosed, StorageFailed
from legation.host.options import Backoff, read_meta
from legation.host.session import Session
from legation.store.codec import Op, Replace, SetMeta
from legation.store.jsonl import JsonlBackend
from legation.store.log import EventLog
from legation.store.stream import GenerationRange, Stream
from legation.wire import event_types
from legation.wire.event_types import Diagnostic

pytestmark = pytest.mark.heavy  # a process or more for each test

ROOT = Path(__file__).parents[2]
CRASHES: dict[str, Any] = {"restart": "on-crash", "restart_backoff": Backoff(initial_ms=1)}

# In its first life it says what is in `said`, in each later one it tells what is in `told`.
TELLS = """
def told_of(name):
    return open(name).read().splitlines() if os.path.exists(name) else []
if life == 1:
    session(); prompt = prompted()
    for text in told_of("said"): update(text)
    done(prompt); serve("session/prompt"); os._exit(1)
while True:
    message = read()
    if message.get("method") == "session/resume":
        send(id=message["id"], error={"code": -32603, "message": "no"})
    elif message.get("method") == "session/load":
        for text in told_of("told"): update(text)
        send(id=message["id"], result={})
    elif message.get("method") == "session/prompt":
        update("after"); done(message["id"])
"""


async def texts(of: Stream | GenerationRange) -> list[str]:
    rows = [event async for event in of.subscribe(follow=False) if event.type == "agent-message-chunk"]
    return [json.loads(event.payload)["content"]["text"] for event in rows]


async def crashed(made: Rig, can: dict[str, object], said: Sequence[str], told: Sequence[str]) -> Session:
    """A session whose agent said something, ended in the next turn, and has it again."""
    (made.place / "said").write_text("".join(f"{each}\n" for each in said))
    (made.place / "told").write_text("".join(f"{each}\n" for each in told))
    session = await made.script(LIVES + able(can) + TELLS)
    await go(session)
    with pytest.raises(Exception, match="exit code 1"):
        await go(session)
    lost = await until_status(session, "disconnected")
    await until_status(session, "active", after=lost.seq)
    return session


@pytest.mark.parametrize("kind", ALL)
async def test_what_was_recorded_before_a_load_stays_readable(tmp_path: Path, kind: str) -> None:
    async with rig(tmp_path, backend=make_backend(kind, tmp_path), **CRASHES) as made:
        session = await crashed(made, LOADS, ["one", "two"], ["something quite different"])
        (reset,) = await of_type(session, "session-reset")
        assert await texts(session.stream) == ["something quite different"]
        assert await texts(session.stream.generation(1)) == ["one", "two"]
        whole = [event async for event in session.stream.whole().subscribe(follow=False)]
        assert [event.seq for event in whole] == list(range(1, len(whole) + 1))
        assert whole[reset.seq - 1] == reset
        assert (await go(session)).stop_reason == "end_turn"
        assert await texts(session.stream) == ["something quite different", "after"]


@pytest.mark.parametrize("can", [LOADS, {**LOADS, **RESUMES}])
async def test_an_agent_that_tells_less_than_is_recorded_does_not_replace_it(
    tmp_path: Path, can: dict[str, object]
) -> None:
    """Also where it has forgotten everything: both counts are told."""
    for number, told in enumerate((["one"], [])):
        (tmp_path / str(number)).mkdir()
        async with rig(tmp_path / str(number), **CRASHES) as made:
            session = await crashed(made, can, ["one", "two"], told)
            assert await of_type(session, "session-reset") == []
            assert await texts(session.stream) == ["one", "two"]
            diagnostic = await until_code(made.host, "session/replay-shorter")
            assert diagnostic.session_id == session.id
            # Two prompts, and two words of the agent's.
            assert f"told {len(told)} updates" in diagnostic.message
            assert "and 4 are recorded" in diagnostic.message
            noted = [event_types.decode(event) for event in await of_type(session, "diagnostic")]
            assert [each.message for each in noted if isinstance(each, Diagnostic)] == [diagnostic.message]
            assert (await go(session)).stop_reason == "end_turn"
            assert await texts(session.stream) == ["one", "two", "after"]


@pytest.mark.parametrize("reader", ["resumes", "loads"])
async def test_a_load_that_tells_what_is_shown_appends_nothing(tmp_path: Path, reader: str) -> None:
    """At every wake-up, whoever asks for it, and however often."""
    async with rig(tmp_path, backend=JsonlBackend(tmp_path / "log")) as made:
        session = await made.rehearse()
        await play(session, "say one", "write a.txt two", "say three")
        shown: set[str] = set()
        for number in range(3):
            assert session.agent_id
            await made.host.dispose_agent(session.agent_id)
            before = await events(session)
            agent = await made.host.spawn_agent(made.rehearsal())
            await made.host.load_session(agent.agent_id, session.id)
            after = await events(session)
            assert after[: len(before)] == before
            shown |= {event.type for event in after[len(before) :]}
            if reader == "resumes":
                await play(session, f"say again {number}")
        set_up = {"setup-facts"}
        assert shown - set_up <= {"agent-exited", "session-status"}
        assert session.stream.starts() == (1,)


async def test_what_follows_a_load_is_numbered_behind_all_generations(tmp_path: Path) -> None:
    async with rig(tmp_path, backend=JsonlBackend(tmp_path / "log"), **CRASHES) as made:
        session = await crashed(made, LOADS, ["one"], ["another history"])
        await go(session)
        last = session.stream.head
    async with EventLog(JsonlBackend(tmp_path / "log")) as log:
        stream = await log.stream(session.id)
        assert stream.head > last  # it was disconnected since
        assert (await texts(stream.generation(1)), await texts(stream)) == (
            ["one"],
            ["another history", "after"],
        )


# One commit.


def test_a_kill_when_the_history_is_stored_leaves_its_metadata_too(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.host.load_to_kill", str(tmp_path)],
        stdout=subprocess.PIPE,
        env={"PATH": os.environ["PATH"]},
        cwd=ROOT,
        check=False,
        timeout=300,
    )
    assert ended.returncode < 0
    asyncio.run(check_killed(tmp_path, ended.stdout.decode().strip()))


async def check_killed(place: Path, session_id: str) -> None:
    async with EventLog(JsonlBackend(place / "log")) as log:
        stream = await log.stream(session_id)
        assert await texts(stream) == ["told again"]
        meta = read_meta(stream.meta)
        assert meta is not None
        assert meta.cwd == str(place / "new")
        assert await texts(stream.generation(1)) == ["old"]


class Picky(JsonlBackend):
    """Refuses what it is told to."""

    refuses: type[Op] | None = None

    def commit(self, ops: Sequence[Op]) -> None:
        if self.refuses and any(isinstance(op, self.refuses) for op in ops):
            raise StorageFailed("cannot save: the disk is full; free some space")
        super().commit(ops)


@pytest.mark.parametrize("refuses", [Replace, SetMeta])
async def test_a_store_that_fails_within_a_load_has_all_of_it_or_nothing(
    tmp_path: Path, refuses: type[Op]
) -> None:
    backend = Picky(tmp_path / "log")
    (tmp_path / "new").mkdir()
    async with rig(tmp_path, backend=backend) as made:
        source = able(LOADS) + "session(); prompt = prompted(); update('old'); done(prompt)\n"
        source += "load = serve('session/load'); update('told again'); send(id=load, result={}); stay()"
        session = await made.script(source)
        await go(session)
        before, meta, folders = await events(session), session.meta, session.folders
        backend.refuses = refuses
        assert session.agent_id
        loading = made.host.load_session(session.agent_id, session.id, cwd=tmp_path / "new")
        if refuses is Replace:
            with pytest.raises(StorageFailed):
                await loading
            assert (await events(session), session.meta, session.folders) == (before, meta, folders)
            await until_code(made.host, "session/load-failed")
        else:
            await loading
            assert await texts(session.stream) == ["told again"]
            assert session.meta.cwd == str(tmp_path / "new")
        backend.refuses = None


# The one way to take a session up.


@pytest.mark.parametrize(
    ("can", "asked"),
    [
        (RESUMES, ["session/resume"]),
        (LOADS, ["session/load"]),
        ({**LOADS, **RESUMES}, ["session/resume", "session/load"]),
    ],
)
async def test_a_session_is_resumed_and_loaded_only_where_that_is_refused(
    tmp_path: Path, can: dict[str, object], asked: list[str]
) -> None:
    source = LIVES + able(can) + "if life == 1: session(); stay()\n"
    source += """
while True:
    message = read()
    if message["method"] in ("session/resume", "session/load"):
        open("asked", "a").write(message["method"] + "\\n")
        refused = message["method"] == "session/resume" and %r
        send(id=message["id"], **({"error": {"code": -32603, "message": "no"}} if refused else {"result": {}}))
""" % ("loadSession" in can)
    async with rig(tmp_path) as made:
        session = await made.script(source)
        assert session.agent_id
        await made.host.dispose_agent(session.agent_id)
        agent = await made.host.spawn_agent(made.scripted(source))
        taken = await made.host.resume_or_load(agent.agent_id, session.id)
        assert (taken.status, taken.agent_id) == ("active", agent.agent_id)
        assert (made.place / "asked").read_text().split() == asked


async def test_an_agent_that_can_do_neither_is_not_asked(tmp_path: Path) -> None:
    source = "hello(); session(); stay()"
    async with rig(tmp_path) as made:
        session = await made.script(source)
        assert session.agent_id
        await made.host.dispose_agent(session.agent_id)
        agent = await made.host.spawn_agent(made.scripted(source))
        with pytest.raises(CapabilityUnsupported, match="can neither resume nor load"):
            await made.host.resume_or_load(agent.agent_id, session.id)
        assert session.status == "disconnected"


async def test_a_closed_session_is_opened_again_by_a_load_and_only_if_that_is_wanted(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        await play(session, "say one")
        assert session.agent_id
        await made.host.close_session(session.id, reopens=True)
        with pytest.raises(SessionClosed, match="load it"):
            await made.host.resume_or_load(session.agent_id, session.id)
        taken = await made.host.resume_or_load(session.agent_id, session.id, reopen=True)
        assert taken.status == "active"
        assert (session.stream.info().state, session.meta.reopens) == ("open", False)
        assert await of_type(session, "session-reset") == []


# A failed load.


REFUSED = {"code": -32603, "message": "Internal error", "data": {"details": "no conversation with that id"}}


@pytest.mark.parametrize("can", [LOADS, RESUMES, {**LOADS, **RESUMES}])
async def test_a_refused_load_says_all_that_the_agent_said_and_what_can_be_done(
    tmp_path: Path, can: dict[str, object]
) -> None:
    source = (
        LIVES
        + able(can)
        + "if life == 1: session(); prompt = prompted(); update('one'); done(prompt); stay()\n"
    )
    source += f"while True: send(id=read()['id'], error={REFUSED!r})"
    async with rig(tmp_path) as made:
        session = await made.script(source)
        await go(session)
        assert session.agent_id
        await made.host.dispose_agent(session.agent_id)
        agent = await made.host.spawn_agent(made.scripted(source))
        with pytest.raises(AgentRefused) as refused:
            await made.host.resume_or_load(agent.agent_id, session.id)
        assert "-32603: Internal error (no conversation with that id)" in refused.value.message
        assert refused.value.message.endswith("or go on in a new session that continues this one")
        assert refused.value.data is not None
        assert refused.value.data["data"] == refused.value.error.data == REFUSED["data"]
        # It can be read, and closed.
        assert session.status == "disconnected"
        assert await texts(session.stream) == ["one"]
        await made.host.close_session(session.id)
        assert session.stream.info().state == "closed"


@pytest.mark.parametrize("can", [LOADS, RESUMES, {**LOADS, **RESUMES}])
async def test_an_agent_that_ends_at_a_load_leaves_a_way_out_too(
    tmp_path: Path, can: dict[str, object]
) -> None:
    source = (
        LIVES
        + able(can)
        + "if life == 1: session(); prompt = prompted(); update('one'); done(prompt); stay()\n"
    )
    async with rig(tmp_path) as made:
        session = await made.script(source + "read(); os._exit(3)")
        await go(session)
        assert session.agent_id
        await made.host.dispose_agent(session.agent_id)
        agent = await made.host.spawn_agent(made.scripted(source + "read(); os._exit(3)"))
        with pytest.raises(AgentExited) as ended:
            await made.host.resume_or_load(agent.agent_id, session.id)
        assert "exit code 3" in str(ended.value)
        assert str(ended.value).endswith("or go on in a new session that continues this one")
        assert session.status == "disconnected"
