import asyncio
import json
from pathlib import Path

import pytest
from tests.host.rig import Hand, events, go, of_type, play, rig, until, until_type

from legation.host.lifecycle import HOST_STREAM
from legation.host.options import Limits
from legation.host.requests import asks
from legation.host.requests.handlers import ApproveAll, Prepared
from legation.host.router import EARLY_KEPT
from legation.store.jsonl import JsonlBackend
from legation.wire.action import Ask

pytestmark = pytest.mark.heavy

CHUNKS = 2000


def texts(found: list[bytes]) -> list[str]:
    return [json.loads(raw)["content"]["text"] for raw in found]


async def test_updates_requests_and_answers_keep_their_order(tmp_path: Path) -> None:
    source = f"""
hello(); session(); prompt = prompted()
for number in range({CHUNKS}):
    update(str(number))
    if number % 100 == 50:
        send(id=10000 + number, method="fs/read_text_file", params={{}})
    if number % 500 == 250:
        permission(number, title=str(number))
for number in range(250, {CHUNKS}, 500): answer(number)
done(prompt); update("after"); stay()
"""
    async with rig(tmp_path) as made:
        session = await made.script(source)
        await go(session)
        await until_type(session, "prompt-finished")
        kinds = ("agent-message-chunk", "permission-asked")
        names = [
            json.loads(event.payload).get("title") or texts([event.payload])[0]
            for event in await of_type(session, *kinds)
        ]
        expected = [
            name for n in range(CHUNKS) for name in ([str(n)] if n % 500 != 250 else [str(n), str(n)])
        ]
        assert names[: len(expected)] == expected


async def test_what_follows_the_answer_is_recorded_after_the_end_of_the_turn(tmp_path: Path) -> None:
    source = 'hello(); session(); prompt = prompted()\nraw(line("in") + json.dumps({"jsonrpc": "2.0", "id": prompt,'
    source += ' "result": {"stopReason": "end_turn"}}).encode() + b"\\n" + line("out")); stay()'
    async with rig(tmp_path) as made:
        session = await made.script(source)
        await go(session)
        found = [event.type for event in await events(session)]
    assert found[-4:] == ["agent-message-chunk", "prompt-finished", "turn-state", "agent-message-chunk"]


async def test_updates_before_the_session_is_known_are_kept(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse("--early")
        found = [event.type for event in await events(session)]
    assert found == ["setup-facts", "session-status", "available-commands-update", "agent-message-chunk"]


async def test_a_late_update_is_kept_after_the_turn(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        await play(session, "say one", "late two")
        finished = await until_type(session, "prompt-finished")
        async for event in session.stream.subscribe(finished.seq + 1):
            assert texts([event.payload]) == ["two"]
            break


async def test_updates_of_sessions_that_nobody_opens_are_dropped_beyond_the_bound(tmp_path: Path) -> None:
    source = f"""
hello(); session(); prompt = prompted()
raw(b"".join(line(str(n), "stranger") for n in range({EARLY_KEPT * 2})))
update("mine"); done(prompt); stay()
"""
    async with rig(tmp_path) as made:
        session = await made.script(source)
        await go(session)
        assert len(await of_type(session, "agent-message-chunk")) == 1
        assert {each.code for each in made.reported} == {"agent/unknown-session"}


async def test_prompt_returns_only_when_its_last_update_is_on_the_disk(tmp_path: Path) -> None:
    async with rig(tmp_path, backend=JsonlBackend(tmp_path / "log")) as made:
        session = await made.rehearse()
        for _ in range(3):
            await play(session, "flood 500")
            stored = b"".join(
                path.read_bytes() for path in (tmp_path / "log").rglob("*") if path.is_file()
            ).count(b'"type":"agent-message-chunk"')
            assert stored == len(await of_type(session, "agent-message-chunk"))


async def test_one_agent_serves_two_sessions_at_once(tmp_path: Path) -> None:
    async with rig(tmp_path, approver=(hand := Hand())) as made:
        first = await made.rehearse()
        second = await made.open_another(first)
        waiting = asyncio.create_task(play(first, "ask something", "say first"))
        await until_type(first, "permission-asked")
        await play(second, "say second")
        assert texts([event.payload for event in await of_type(second, "agent-message-chunk")]) == ["second"]
        await first.cancel()
        assert (await waiting).stop_reason == "cancelled"
        assert len(hand.asked) == 1


class SlowTimekeeper(ApproveAll):
    """Takes until `go` to find out when a permission ends."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.go = asyncio.Event()

    async def prepare(self, ask: Ask) -> Prepared:
        self.asked.set()
        await self.go.wait()
        return Prepared(ask.asked_at + 5_000, self.decide)


ASKS_AND_TALKS = """
hello(); session(); prompt = prompted()
update("before"); permission(1, title="asked"); update("behind")
answer(1); update("told"); done(prompt); stay()
"""


async def test_nothing_overtakes_a_permission_whose_end_is_being_found_out(tmp_path: Path) -> None:
    keeper = SlowTimekeeper()
    async with rig(tmp_path, approver=keeper, backend=JsonlBackend(tmp_path / "log")) as made:
        session = await made.script(ASKS_AND_TALKS)
        other = await made.rehearse()
        prompting = asyncio.create_task(go(session))
        await keeper.asked.wait()
        await play(other, "say hello")  # nobody else waits
        early = await of_type(session, "agent-message-chunk", "permission-asked")
        assert [event.type for event in early] == ["agent-message-chunk"]
        keeper.go.set()
        assert (await prompting).stop_reason == "end_turn"
        found = [
            event
            for event in await events(session)
            if event.type in ("agent-message-chunk", "permission-asked", "permission-answered")
        ]
        said = [json.loads(event.payload) for event in found]
        told = [each.get("title") or each.get("outcome") or each["content"]["text"] for each in said]
        assert told == ["before", "asked", "behind", "approved", "told"]
        assert [event.seq for event in found] == sorted(event.seq for event in found)
        assert said[1]["expiresAt"] == said[1]["askedAt"] + 5_000


async def test_a_permission_that_is_taken_back_before_its_end_is_known_is_recorded_all_the_same(
    tmp_path: Path,
) -> None:
    keeper = SlowTimekeeper()
    async with rig(tmp_path, approver=keeper) as made:
        session = await made.script(ASKS_AND_TALKS)
        prompting = asyncio.create_task(go(session))
        await keeper.asked.wait()
        await session.cancel()
        await prompting
        [asked, answered] = await of_type(session, "permission-asked", "permission-answered")
        assert "expiresAt" not in json.loads(asked.raw)  # nobody knows
        assert json.loads(answered.raw)["outcome"] == "cancelled"
        [pending, over] = [
            json.loads(event.raw)["state"]
            async for event in (await made.log.stream(HOST_STREAM)).subscribe(follow=False)
            if event.type == "permission-updated"
        ]
        assert (pending, over) == ("pending", "answered")


async def test_a_disk_that_is_stuck_does_not_keep_back_what_an_agent_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asks, "PREPARE_LIMIT", 0.01)
    keeper = SlowTimekeeper()
    async with rig(tmp_path, approver=keeper, limits=Limits(permission=3600.0)) as made:
        session = await made.script(ASKS_AND_TALKS)
        prompting = asyncio.create_task(go(session))
        await until_type(session, "permission-asked")
        await until(session, lambda event: b"behind" in event.raw)
        keeper.go.set()
        await prompting
        [asked] = await of_type(session, "permission-asked")
        assert "expiresAt" not in json.loads(asked.raw)  # better none than a false one
