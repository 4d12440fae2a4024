"""Turns: in order, cancelled, crashed, and of several sessions at once."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.host.rig import of_type, rig, until_type
from tests.host.test_storage import Disk
from tests.server.sessions.session_client import LIMIT, SessionClient, script

from legation.errors import StorageFailed
from legation.host.session import Session
from legation.proc.tree import process
from legation.server.sessions.agents import SessionAgents
from legation.server.sessions.messages import MOST_QUEUED, MOST_QUEUED_SIZE, MessageQueue
from legation.server.sessions.record import Details, QueuedMessage, SessionRecord, SessionRecords
from legation.wire.universal.shapes import Metadata

pytestmark = pytest.mark.heavy


async def test_messages_are_taken_in_their_order(talk: SessionClient) -> None:
    await talk.created("s")
    for word in ("one", "two", "three", "four"):
        await talk.send("s", f"say {word}")
    after = 0
    for _ in range(4):
        after, ended = await talk.until("s", "prompt-finished", after=after)
        assert ended["stopReason"] == "end_turn"
    assert await talk.heard("s") == "onetwothreefour"
    types = [event["state"] for event in await talk.events("s", "turn-state")]
    assert types == ["running", "idle"] * 4


async def test_a_message_that_is_sent_again_by_its_id_is_played_once_and_ids_are_the_sessions_own(
    talk: SessionClient,
) -> None:
    for session in ("s", "t"):
        await talk.created(session)
        await talk.send(session, "say going", "stall 60", messageId="mine")
        await talk.until(session, "agent-message-chunk")
        await talk.send(session, "say more", messageId="more")
        for again in ("mine", "more"):
            body = {"message": "again", "messageId": again}
            for path in ("messages", "messages/stream"):
                refused = await talk.call("POST", f"/v1/sessions/{session}/{path}", body)
                assert (refused.status_code, again in refused.text) == (409, True)
        await talk.call("POST", f"/v1/sessions/{session}/cancel")
        _, started = await talk.until(session, "prompt-started", where=lambda said: said["message"] == "more")
        await talk.until(session, "prompt-finished", where=lambda said: said["turn"] == started["turn"])  # noqa: B023
        assert await talk.heard(session) == "goingmore"
    for odd in ("", "a b", "ü", "x" * 129):
        body = {"message": "hi", "messageId": odd}
        assert (await talk.call("POST", "/v1/sessions/s/messages", body)).status_code == 400


async def test_a_message_may_be_as_long_as_all_that_wait(talk: SessionClient) -> None:
    """sandbox-agent takes 2 MB; a diff from a pipe is soon longer than what other bodies may be."""
    await talk.created("s")
    padding = "# " + "x" * (MOST_QUEUED_SIZE - 1000)
    assert (await talk.played("s", padding, "say got it"))["stopReason"] == "end_turn"
    assert await talk.heard("s") == "got it"
    for path in ("messages", "messages/stream", "steer"):
        body = {"message": "x" * MOST_QUEUED_SIZE}
        refused = await talk.call("POST", f"/v1/sessions/s/{path}", body)
        assert (refused.status_code, refused.json()["data"]["limit"]) == (413, MOST_QUEUED_SIZE)


async def test_no_more_messages_wait_than_may(talk: SessionClient) -> None:
    await talk.created("s")
    await talk.send("s", "stall 60")
    await talk.until("s", "prompt-started")
    for number in range(MOST_QUEUED):
        await talk.send("s", f"say {number}")
    answer = await talk.call("POST", "/v1/sessions/s/messages", {"message": "one more"})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    assert (await talk.info("s"))["queued"] == MOST_QUEUED
    await talk.call("POST", "/v1/sessions/s/terminate")
    assert (await talk.info("s"))["queued"] == 0
    assert len(await talk.events("s", "prompt-started")) == 1


async def test_a_turn_is_cancelled_and_the_session_goes_on(talk: SessionClient) -> None:
    await talk.created("s")
    await talk.send("s", "say before", "stall 60", "say after")
    await talk.until("s", "agent-message-chunk")
    assert (await talk.call("POST", "/v1/sessions/s/cancel")).status_code == 204
    _, ended = await talk.until("s", "prompt-finished")
    assert ended["stopReason"] == "cancelled"
    assert (await talk.played("s", "say next"))["stopReason"] == "end_turn"
    assert await talk.heard("s") == "beforenext"
    assert (await talk.call("POST", "/v1/sessions/s/cancel")).status_code == 204  # without a turn: nothing


async def test_a_turn_is_cancelled_while_it_waits_for_a_permission(talk: SessionClient) -> None:
    await talk.created("s")
    permission = await talk.asked("s", "ask write a.txt x", "say after")
    await talk.call("POST", "/v1/sessions/s/cancel")
    _, ended = await talk.until("s", "prompt-finished")
    assert ended["stopReason"] == "cancelled"
    [answered] = await talk.events("s", "permission-answered")
    assert answered["outcome"] == "cancelled"
    async with asyncio.timeout(LIMIT):
        while (await talk.reply("s", permission, "once")).status_code != 409:
            await asyncio.sleep(0.02)  # until the door has heard of it
    assert (await talk.played("s", "say next"))["stopReason"] == "end_turn"


async def last_of_session(talk: SessionClient) -> str:
    """Whether the events say that it goes on or has ended."""
    events = (await talk.call("GET", "/v1/sessions/s/events")).json()["events"]
    return str([each["type"] for each in events if each["type"].startswith("session.")][-1])


async def test_a_crash_says_how_it_ended_and_the_next_message_works(talk: SessionClient) -> None:
    native = (await talk.created("s"))["nativeSessionId"]
    ended = await talk.played("s", "say before", "stderr 300", "crash 3", "say after")
    assert ended["error"] is not None
    await talk.until("s", "session-status", where=lambda status: status["status"] == "disconnected")
    async with asyncio.timeout(LIMIT):
        while (await talk.info("s"))["exit"] is None:
            await asyncio.sleep(0.02)
    info = await talk.info("s")
    assert (info["status"], info["ended"]) == ("disconnected", True)
    assert await last_of_session(talk) == "session.ended"
    assert (info["exit"]["reason"], info["exit"]["code"]) == ("crashed", 3)
    assert len(info["exit"]["stderr"]) > 200
    status = (await talk.call("GET", "/v1/agents/rehearsal")).json()["serverStatus"]
    assert (status["status"], status["lastError"]) == ("error", "crashed: exit code 3")
    assert (await talk.played("s", "recall"))["stopReason"] == "end_turn"
    assert await talk.heard("s") == "beforeprompts before this one: 1"
    info = await talk.info("s")
    assert (info["status"], info["exit"], info["nativeSessionId"]) == ("active", None, native)
    assert (info["ended"], await last_of_session(talk)) == (False, "session.started")
    status = (await talk.call("GET", "/v1/agents/rehearsal")).json()["serverStatus"]
    assert (status["status"], status["restartCount"]) == ("running", 1)


@pytest.mark.parametrize("asked", [{"agentMode": "plan"}, {"permissionMode": "plan"}])
async def test_an_agent_that_has_left_its_plan_does_not_plan_again_after_a_crash(
    talk: SessionClient, asked: dict[str, str]
) -> None:
    native = (await talk.created("s", **asked))["nativeSessionId"]
    assert talk.agent_state(native)["mode"] == "plan"
    await talk.played("s", "mode default")  # as it does when its plan was approved
    await talk.played("s", "crash 3")
    await talk.until("s", "session-status", where=lambda status: status["status"] == "disconnected")
    await talk.played("s", "say back")
    assert talk.agent_state(native)["mode"] == "default"
    info = await talk.info("s")
    assert (info["agentMode"], info["permissionMode"]) == ("build", "default")


async def test_an_agent_that_is_killed_while_idle_comes_back(talk: SessionClient) -> None:
    await talk.created("s")
    await talk.send("s", "late x", "kill-self KILL")
    await talk.until("s", "session-status", where=lambda status: status["status"] == "disconnected")
    await talk.played("s", "say back")
    assert (await talk.heard("s")).endswith("back")


async def test_a_message_that_no_agent_can_get_is_told_with_why(talk: SessionClient) -> None:
    """An agent that can neither resume nor load."""
    await talk.created("s", agent="forgetful")
    host = await talk.rig.services.hosts.host()
    await host.dispose_agent(str(host.session("s").agent_id))
    ended = await talk.played("s", "say back")
    assert "can neither resume nor load" in ended["error"]["message"]
    assert (await talk.info("s"))["busy"] is False


async def test_an_agent_without_resume_loads(talk: SessionClient) -> None:
    await talk.created("s", agent="loading", mcp={"a": {"type": "local", "command": "a", "env": {"K": "v"}}})
    host = await talk.rig.services.hosts.host()
    await host.dispose_agent(str(host.session("s").agent_id))
    said = await talk.reflected("s")
    assert said["opened"] == "session/load"
    assert said["mcpServers"][0]["env"] == [{"name": "K", "value": "v"}]


async def test_two_sessions_work_at_once(talk: SessionClient) -> None:
    for name in ("a", "b"):
        await talk.created(name)
        await talk.send(name, f"say {name} waits", "ask run false")
        await talk.until(name, "permission-asked")
    host = await talk.rig.services.hosts.host()
    assert host.session("a").agent_id != host.session("b").agent_id
    [first], [second] = [await talk.events(name, "permission-asked") for name in ("a", "b")]
    assert (await talk.reply("b", second["id"], "once")).status_code == 204
    await talk.until("b", "prompt-finished")
    assert (await talk.info("a"))["busy"] is True
    assert (await talk.reply("a", first["id"], "once")).status_code == 204
    await talk.until("a", "prompt-finished")
    assert [await talk.heard(name) for name in ("a", "b")] == ["a waits", "b waits"]


async def lose_agent(talk: SessionClient) -> None:
    host = await talk.rig.services.hosts.host()
    await host.dispose_agent(str(host.session("s").agent_id))


async def test_a_turn_is_cancelled_while_its_agent_starts(talk: SessionClient) -> None:
    await talk.created("s")
    await lose_agent(talk)
    await talk.send("s", "stall 60")
    await talk.call("POST", "/v1/sessions/s/cancel")
    _, ended = await talk.until("s", "prompt-finished")
    assert ended["stopReason"] == "cancelled"
    assert (await talk.played("s", "say next"))["stopReason"] == "end_turn"


async def test_a_session_is_terminated_while_its_agent_starts(talk: SessionClient) -> None:
    await talk.created("s")
    await lose_agent(talk)
    await talk.send("s", "stall 60")
    replies = await asyncio.gather(*[talk.call("POST", "/v1/sessions/s/terminate") for _ in range(3)])
    assert [reply.status_code for reply in replies] == [204] * 3
    assert (await talk.info("s"))["status"] == "closed"
    host = await talk.rig.services.hosts.host()
    async with asyncio.timeout(LIMIT):
        while any(agent.status != "disposed" for agent in host.get_agents()):
            await asyncio.sleep(0.02)


async def test_the_file_routes_know_the_folders_of_a_session(talk: SessionClient) -> None:
    (talk.work / "repo").mkdir()
    (talk.work / "repo/a.txt").write_text("a")
    await talk.created("s", directory=str(talk.work / "repo"))
    listed = await talk.call("GET", "/v1/fs/entries?sessionId=s")
    assert [entry["name"] for entry in listed.json()] == ["a.txt"]
    assert (await talk.call("GET", "/v1/fs/entries?sessionId=none")).status_code == 404


async def test_terminate_leaves_no_process(talk: SessionClient) -> None:
    """Not even of a tree that ignores signals and has left its group, and of a turn that does not heed a cancel."""
    await talk.created("s")
    await talk.send("s", "spawn-tree ignore-signals hold", "ignore-signals", "stall-hard 600")
    _, said = await talk.until("s", "agent-message-chunk")
    pids = [pid for pid in json.loads(said["content"]["text"]).values() if isinstance(pid, int)]
    assert len(pids) >= 3
    assert all(process(pid) is not None for pid in pids)
    assert (await talk.call("POST", "/v1/sessions/s/terminate")).status_code == 204
    async with asyncio.timeout(LIMIT):
        while any(process(pid) is not None for pid in pids):
            await asyncio.sleep(0.02)
    ended = [status["status"] for status in await talk.events("s", "session-status")]
    assert ended[-1] == "closed"
    answer = await talk.call("POST", "/v1/sessions/s/messages", {"message": script("say x")})
    assert answer.status_code == 410
    assert (await talk.create("s")).status_code == 409  # its name stays its own


async def test_only_a_turn_that_runs_can_be_steered_and_only_where_the_agent_can(talk: SessionClient) -> None:
    await talk.created("s")
    steer = "/v1/sessions/s/steer"
    answer = await talk.call("POST", steer, {"message": "left"})
    assert (answer.status_code, "no turn runs" in answer.text) == (409, True)
    await talk.send("s", "say-and-stall working")
    await talk.until("s", "agent-message-chunk")
    answer = await talk.call("POST", steer, {"message": "left"})
    assert "takes nothing while a turn runs" in answer.text
    assert answer.status_code == 422, answer.text
    assert (await talk.call("POST", steer, {"message": "  "})).status_code == 400


@dataclass
class Desk:
    """The turns of one session, on a disk that can fail."""

    disk: Disk
    session: Session
    record: SessionRecord
    turns: MessageQueue

    async def send(self, text: str) -> None:
        await self.turns.send(self.record, QueuedMessage(text=script(f"say {text}")))

    async def done(self) -> None:
        if self.record.working is not None:
            await asyncio.wait({self.record.working})

    async def heard(self) -> str:
        chunks = await of_type(self.session, "agent-message-chunk")
        return "".join(json.loads(event.payload)["content"]["text"] for event in chunks)


@asynccontextmanager
async def at_desk(place: Path) -> AsyncIterator[Desk]:
    disk = Disk(place / "log")
    async with rig(place, backend=disk) as made:
        session = await made.rehearse()
        given = Metadata("rehearsal", "build", None, "default", None)
        details = Details(agent="rehearsal", given=given, created_at=0, updated_at=0)
        record = SessionRecord("local", session.id, session.meta, details, session.stream.head)
        record.session = session
        records = SessionRecords(made.log)
        records.add(record)

        class Agents(SessionAgents):
            async def attach(self, *_: object, **__: object) -> Session:
                return session

        agents = Agents.__new__(Agents)
        turns = MessageQueue(records, agents, made.log, made.log.clock, lambda *_: None)
        yield Desk(disk, session, record, turns)
        await turns.close()


async def test_a_message_that_a_full_disk_holds_up_goes_on_waiting(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        await desk.send("one")
        desk.disk.broken = True  # before its turn begins
        await desk.done()
        info = desk.record.info()
        assert (info.busy, info.queued) == (False, 1)
        desk.disk.broken = False
        await desk.send("two")
        await desk.done()
        assert await desk.heard() == "onetwo"


async def test_a_message_that_could_not_be_accepted_is_not_taken_later(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        desk.disk.broken = True
        with pytest.raises(StorageFailed):
            await desk.send("one")
        desk.disk.broken = False
        await desk.done()
        await desk.send("two")
        await desk.done()
        assert await desk.heard() == "two"


async def test_a_cancel_at_the_end_of_a_turn_does_not_hit_the_next(tmp_path: Path) -> None:
    async with at_desk(tmp_path) as desk:
        await desk.send("one")
        await until_type(desk.session, "prompt-finished")
        while desk.record.working is not None:  # at every step that is left
            await desk.turns.cancel(desk.record)
            await asyncio.sleep(0)
        await desk.send("two")
        await desk.done()
        assert await desk.heard() == "onetwo"
