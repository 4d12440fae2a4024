"""The events of sessions over HTTP: the whole fold and nothing else, however it is read (INV-P1 to P6, INV-T1, T2)."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from tests.server.session_events import (
    FACTS,
    SESSION,
    Server,
    ask,
    drafts,
    number_of,
    numbers,
    post,
    serving,
    whole_fold,
)
from tests.server.stream_client import LIMIT, frames, get
from tests.wire.universal.logs import ACTIVE, Entry, asked, call, change, chunk, output, turn

from legation.clock import SystemClock
from legation.errors import PromptInFlight
from legation.server.streaming import sse
from legation.server.streaming.hub import KEEP_ALIVE, Credential, Hub
from legation.server.streaming.projected import project
from legation.server.streaming.projected_checkpoints import Checkpoints
from legation.server.streaming.projected_fold import Schema
from legation.server.streaming.projected_turn import Cursor, TurnReader
from legation.store import stream as stream_module
from legation.store.log import EventLog
from legation.store.memory import MemoryBackend
from legation.store.sqlite import SqliteBackend
from legation.store.stream import Stream
from legation.testing.clock import FakeClock
from legation.wire.acp.content import Text
from legation.wire.api.sessions import NewMessage
from legation.wire.diagnostic import Diagnostic, DiagnosticCode
from legation.wire.events import Draft, Event
from legation.wire.lifecycle import PromptStarted, QuestionAsked, SessionReset, SessionStatus
from legation.wire.universal.outbox import Projected
from legation.wire.universal.projector import Projector

pytestmark = pytest.mark.heavy

SCHEMAS: list[Schema] = ["sandbox-agent", "universal"]
A_TURN = turn(
    chunk("Let me "),
    chunk("look."),
    call("c1", kind="execute", rawInput={"command": "make"}),
    change("c1", status="in_progress", content=output("a")),
    change("c1", status="completed", content=output("a", "b")),
    chunk("Done."),
)


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[EventLog]:
    async with EventLog(SqliteBackend(tmp_path / "log.db")) as log:
        yield log


@pytest.fixture
async def stream(log: EventLog) -> Stream:
    return await log.stream(SESSION)


@pytest.fixture
async def server(log: EventLog, stream: Stream) -> AsyncIterator[Server]:
    async with serving(log) as server:
        yield server


@pytest.fixture
def short_tails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little is kept in memory, so that what is read comes from the store."""
    monkeypatch.setattr(stream_module, "TAIL_EVENTS", 8)


def turns(count: int) -> list[Draft]:
    return [*drafts(ACTIVE), *(each for _ in range(count) for each in drafts(*A_TURN))]


async def take(server: Server, count: int, query: str = "", **headers: str) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    async with asyncio.timeout(LIMIT), aclosing(server.follow(query, **headers)) as body:
        async for frame in body:
            found.append(frame)
            if len(found) == count:
                break
    return found


# Pages.


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.usefixtures("short_tails")
async def test_pages_of_any_size_together_are_the_whole_fold(
    server: Server, stream: Stream, schema: Schema, raw: bool
) -> None:
    await stream.append(turns(12))
    whole = await whole_fold(stream, schema, include_raw=raw)
    server.hub.checkpoints.apart = 10
    for limit in (1, 3, 50, 10_000):
        offset, found = 0, []
        while True:
            query = f"?offset={offset}&limit={limit}&includeRaw={json.dumps(raw)}&schema={schema}"
            status, page = await server.page(query)
            assert status == 200
            assert len(page["events"]) == limit or not page["hasMore"]
            found += page["events"]
            if not page["hasMore"]:
                break
            offset = number_of(page["events"][-1])
        assert found == [json.loads(each) for _, each in whole]


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.usefixtures("short_tails")
async def test_a_page_is_the_same_whatever_was_read_before(
    server: Server, stream: Stream, schema: Schema
) -> None:
    await stream.append(turns(20))
    whole = [json.loads(each) for _, each in await whole_fold(stream, schema, include_raw=False)]
    server.hub.checkpoints.apart = 7
    chance = random.Random(6)
    for _ in range(60):
        offset, limit = chance.randrange(len(whole) + 2), chance.randrange(1, 40)
        _, page = await server.page(f"?offset={offset}&limit={limit}&schema={schema}")
        rest = [each for each in whole if number_of(each) > offset]
        assert (page["events"], page["hasMore"]) == (rest[:limit], len(rest) > limit)


async def test_a_page_without_a_limit_holds_everything_however_long(server: Server, stream: Stream) -> None:
    await stream.append(drafts(ACTIVE, *(chunk("x" * 1000) for _ in range(2000))))
    status, page = await server.page()
    assert status == 200
    assert len(json.dumps(page)) > 4 * sse.CHUNK_BYTES
    assert numbers(page["events"]) == [
        number for number, _ in await whole_fold(stream, "sandbox-agent", include_raw=False)
    ]
    assert page["hasMore"] is False


async def test_an_empty_session_has_an_empty_page(server: Server) -> None:
    assert await server.page() == (200, {"events": [], "hasMore": False})


async def test_a_page_beyond_the_end_is_empty_as_in_the_original(server: Server, stream: Stream) -> None:
    await stream.append(turns(1))
    assert await server.page("?offset=1000000") == (200, {"events": [], "hasMore": False})


async def test_both_spellings_of_a_parameter_are_understood(server: Server, stream: Stream) -> None:
    await stream.append(turns(1))
    camel, snake = await server.page("?includeRaw=true"), await server.page("?include_raw=true")
    assert camel == snake
    assert any(event["raw"] for event in camel[1]["events"])
    assert not any(event["raw"] for event in (await server.page())[1]["events"])


@pytest.mark.parametrize("query", ["?offset=-1", "?limit=0", "?schema=other", "?includeRaw=1", "?after=3"])
async def test_what_is_no_query_is_refused(server: Server, query: str) -> None:
    assert (await server.page(query))[0] == 400


async def test_pages_in_order_do_not_read_the_log_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with EventLog(SqliteBackend(tmp_path / "log.db")) as log:
        await (await log.stream(SESSION)).append(drafts(ACTIVE, *(chunk("x") for _ in range(5000))))
    fed = 0
    really = Projector.feed

    def counted(self: Projector, event: Event) -> list[Projected]:
        nonlocal fed
        fed += 1
        return really(self, event)

    monkeypatch.setattr(Projector, "feed", counted)
    async with EventLog(SqliteBackend(tmp_path / "log.db")) as log, serving(log) as server:
        offset, pages, more = 0, 0, True
        while more:
            _, page = await server.page(f"?offset={offset}&limit=100")
            offset, pages, more = number_of(page["events"][-1]), pages + 1, page["hasMore"]
        assert offset == 5002
        assert fed <= 5001 + 2 * pages


# Live.


@pytest.mark.parametrize("schema", SCHEMAS)
async def test_stored_events_and_those_to_come_are_one_body(
    server: Server, stream: Stream, schema: Schema
) -> None:
    await stream.append(turns(2))
    stored = len(await whole_fold(stream, schema, include_raw=True))
    reading = asyncio.create_task(take(server, 2 * stored - 1, f"?schema={schema}&includeRaw=true"))
    for each in turns(2)[1:]:
        await stream.append([each])
    whole = await whole_fold(stream, schema, include_raw=True)
    assert [(int(frame["id"]), frame["data"].encode()) for frame in await reading] == whole[: 2 * stored - 1]


@pytest.mark.usefixtures("short_tails")
async def test_readers_from_anywhere_miss_and_double_nothing_while_it_grows(
    server: Server, stream: Stream
) -> None:
    whole_at_end = 8 * 42
    chance = random.Random(5)

    async def read(offset: int) -> list[int]:
        found: list[int] = []
        async with asyncio.timeout(LIMIT), aclosing(server.follow(f"?offset={offset}")) as body:
            async for frame in body:
                found.append(int(frame["id"]))
                assert json.loads(frame["data"])["sequence"] == found[-1]
                if found[-1] >= whole_at_end:
                    break
        return found

    await stream.append(turns(2))
    readers = [asyncio.create_task(read(chance.randrange(20))) for _ in range(10)]
    for each in turns(30)[1:]:
        receipt = stream.append([each])
        if chance.random() < 0.3:
            await receipt
        if chance.random() < 0.02:
            readers.append(asyncio.create_task(read(chance.randrange(20))))
    for found in await asyncio.gather(*readers):
        assert found == list(range(found[0], found[-1] + 1))
        assert found[0] <= 20


async def test_the_last_event_id_of_a_browser_wins(server: Server, stream: Stream) -> None:
    await stream.append(turns(1))
    (frame,) = await take(server, 1, "?offset=1", **{"last-event-id": "5"})
    assert frame["id"] == "6"
    target = f"/v1/sessions/{SESSION}/events/sse"
    assert (await ask(server.port, target, {"last-event-id": "x"}))[0] == 400


async def test_to_follow_from_beyond_the_end_is_a_conflict_that_names_the_end(
    server: Server, stream: Stream
) -> None:
    await stream.append(turns(1))
    end = len(await whole_fold(stream, "sandbox-agent", include_raw=False))
    target = f"/v1/sessions/{SESSION}/events/sse?offset="
    status, problem = await ask(server.port, f"{target}{end + 1}")
    assert (status, problem["data"]["head"]) == (409, end)
    _, writer, status, _ = await get(server.port, f"{target}{end}")
    assert status == 200
    writer.close()


async def test_the_first_bytes_come_before_the_first_event(server: Server) -> None:
    reader, writer, _, fields = await get(server.port, f"/v1/sessions/{SESSION}/events/sse")
    assert fields["content-type"] == "text/event-stream"
    async with asyncio.timeout(LIMIT):
        assert await reader.readuntil(b"\n\n")
    writer.close()


async def test_sessions_of_another_workspace_do_not_exist(server: Server, log: EventLog) -> None:
    await log.stream(SESSION, "theirs")
    for target in ("events", "events/sse"):
        for token, session in (("theirs", SESSION), ("local", "absent")):
            given = {"authorization": f"Bearer {token}"}
            status, problem = await ask(server.port, f"/v1/sessions/{session}/{target}", given)
            assert (status, problem["code"]) == (404, "legation/not-found")


async def test_a_body_ends_with_its_credential(server: Server, stream: Stream) -> None:
    await stream.append(turns(1))
    async with asyncio.timeout(LIMIT), aclosing(server.follow()) as body:
        await anext(body)
        server.doors.shut.add("local")
        server.hub.recheck()
        last = [frame async for frame in body][-1]
    assert (last["event"], json.loads(last["data"])) == ("bye", {"reason": "credential"})


async def test_numbers_and_bytes_are_the_same_after_a_restart(tmp_path: Path) -> None:
    found = []
    for _ in range(2):
        async with EventLog(SqliteBackend(tmp_path / "log.db")) as log, serving(log) as server:
            stream = await log.stream(SESSION)
            if not stream.head:
                await stream.append(turns(5))
            count = len(await whole_fold(stream, "sandbox-agent", include_raw=True))
            found.append((await server.page(), await take(server, count, "?includeRaw=true")))
    assert found[0] == found[1]


async def test_who_follows_a_replaced_history_is_told_and_goes_on(server: Server, stream: Stream) -> None:
    open_turn: list[Entry] = [ACTIVE, PromptStarted(turn="trn_1", prompt=(Text(text="go"),)), chunk("half")]
    await stream.append(drafts(*open_turn))
    before = len(await whole_fold(stream, "sandbox-agent", include_raw=False))
    async with asyncio.timeout(LIMIT), aclosing(server.follow()) as body:
        for _ in range(before):
            await anext(body)
        await stream.replace(drafts(SessionReset(reason="loaded"), chunk("again")))
        followed: list[dict[str, Any]] = []
        while not followed or followed[-1]["type"] != "item.delta":
            followed.append(json.loads((await anext(body))["data"]))
    kinds = [event["type"] for event in followed]
    assert kinds[:3] == ["item.completed", "turn.ended", "session.started"]
    assert numbers(followed[:2]) == [before + 1, before + 2]
    anew = [json.loads(each) for _, each in await whole_fold(stream, "sandbox-agent", include_raw=False)]
    assert followed[2:] == anew[: len(followed) - 2]
    # Every offset that anybody holds is still good, and all of them see the same.
    for offset in range(before + 3):
        assert (await server.page(f"?offset={offset}"))[1]["events"] == anew
        assert int((await take(server, 1, f"?offset={offset}"))[0]["id"]) == number_of(anew[0])


@pytest.mark.usefixtures("short_tails")
async def test_a_slow_reader_is_left_behind_and_loses_nothing(server: Server, stream: Stream) -> None:
    """200 readers, 20 of which stall until everybody else has read it all."""
    count, size = 600, 2000
    await stream.append(drafts(ACTIVE))
    whole = count + 2  # the session's start and the item's

    async def read(go: asyncio.Event) -> int:
        reader, writer, _, _ = await get(server.port, f"/v1/sessions/{SESSION}/events/sse")
        connected.release()
        await go.wait()
        expected = 0
        async for frame in frames(reader):
            if "id" in frame:
                expected += 1
                assert int(frame["id"]) == expected
                if expected == whole:
                    break
        writer.close()
        return expected

    connected, now, later = asyncio.Semaphore(0), asyncio.Event(), asyncio.Event()
    now.set()
    async with asyncio.timeout(LIMIT):
        stalled = [asyncio.create_task(read(later)) for _ in range(20)]
        quick = [asyncio.create_task(read(now)) for _ in range(180)]
        for _ in range(200):
            await connected.acquire()
        for _ in range(count // 20):
            stream.append(drafts(*(chunk("x" * size) for _ in range(20))))
            await asyncio.sleep(0)
        assert set(await asyncio.gather(*quick)) == {whole}
        later.set()
        assert set(await asyncio.gather(*stalled)) == {whole}


# What is kept.


async def test_checkpoints_are_bounded_over_all_sessions_and_change_nothing() -> None:
    async with EventLog(MemoryBackend()) as log, serving(log) as server:
        stream = await log.stream(SESSION)
        await stream.append(turns(20))
        server.hub.checkpoints = Checkpoints(limit=5, apart=3)
        whole = [json.loads(each) for _, each in await whole_fold(stream, "sandbox-agent", include_raw=False)]
        for offset in (0, 100, 17, 250, 3):
            assert (await server.page(f"?offset={offset}"))[1]["events"] == whole[offset:]
            assert len(server.hub.checkpoints) <= 5


async def test_readers_at_the_end_share_one_fold_and_their_frames(log: EventLog, stream: Stream) -> None:
    hub = Hub(log, SystemClock())
    async with serving(log, hub) as server:
        await stream.append(turns(1))
        bodies = [server.follow() for _ in range(5)]
        for body in bodies:
            await anext(body)
        assert hub.readers == 5
        kept = hub.cached_bytes
        assert kept <= 2 * len(
            b"".join(each for _, each in await whole_fold(stream, "sandbox-agent", include_raw=False))
        )
        for body in bodies:
            await body.aclose()


# One turn.

MESSAGES = f"/v1/sessions/{SESSION}/messages/stream"


async def turn_of(server: Server, query: str = "") -> list[dict[str, str]]:
    async with asyncio.timeout(LIMIT):
        reader, writer, status, media = await post(server.port, MESSAGES + query, {"message": "go"})
        assert (status, media) == (200, "text/event-stream")
        found = [frame async for frame in frames(reader) if "data" in frame]
        writer.close()
    return found


def plays(server: Server, stream: Stream, *entries: object) -> None:
    async def on_send(message: NewMessage) -> None:
        assert message.message == "go"
        stream.append(drafts(*entries))  # type: ignore[arg-type]

    server.desk.on_send = on_send


@pytest.mark.parametrize("schema", SCHEMAS)
async def test_a_turn_is_streamed_from_its_message_to_its_end(
    server: Server, stream: Stream, schema: Schema
) -> None:
    await stream.append(turns(2))
    before = await whole_fold(stream, schema, include_raw=False)
    plays(server, stream, *A_TURN, *turn(chunk("another"), name="trn_9"))
    found = await turn_of(server, f"?schema={schema}")
    rest = (await whole_fold(stream, schema, include_raw=False))[len(before) :]
    assert [(int(frame["id"]), frame["data"].encode()) for frame in found] == rest[: len(found)]
    assert b'"text":"Done."' in b"".join(each for _, each in rest[: len(found)])
    assert b'"another"' not in b"".join(each for _, each in rest[: len(found)])
    assert b'"stopReason":"end_turn"' in rest[len(found) - 1][1]


async def test_what_ends_while_the_log_is_read_is_shown_to_its_end(
    log: EventLog, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is judged can be ahead of what was looked for to show."""
    said = chunk("all of it")
    whole = turn(said)
    cut = whole.index(said) + 1
    rest = list(whole[cut:])
    await stream.append(drafts(ACTIVE, *whole[:cut]))
    hub = Hub(log, SystemClock())
    shown, judged = [
        await project(hub, log, "local", FACTS, schema, include_raw=False)
        for schema in ("universal", "sandbox-agent")
    ]
    after, read_older = await shown.end(), shown.read_older

    async def read_and_end(after: int) -> list[Event]:
        found = await read_older(after)
        await stream.append(drafts(*rest))
        rest.clear()
        return found

    async def holds() -> bool:
        return True

    monkeypatch.setattr(shown, "read_older", read_and_end)
    cursors = Cursor(shown, after), Cursor(judged, await judged.end())
    body = b""
    with TurnReader(hub, *cursors, stream.visible, None, Credential("mine", holds)) as reader:
        async with asyncio.timeout(LIMIT):
            while chunk_of_it := await reader.next():
                body += chunk_of_it
    assert b'"text":"all of it"' in body


async def test_what_was_on_its_way_before_the_message_is_not_of_its_turn(
    server: Server, stream: Stream
) -> None:
    await stream.append(turns(1))
    stream.append(drafts(*turn(chunk("earlier"), name="trn_8")))
    plays(server, stream, *turn(chunk("mine"), name="trn_9"))
    found = [json.loads(frame["data"]) for frame in await turn_of(server)]
    assert found[0]["type"] == "turn.started"
    assert found[0]["data"]["turn_id"] == "trn_9"
    assert found[-1]["type"] == "turn.ended"
    assert found[-1]["data"]["turn_id"] == "trn_9"


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize(
    ("entry", "last"),
    [
        (asked(), ("permission.requested", "permission_asked")),
        (
            QuestionAsked(id="q1", message="Which?", mode="form", requested_schema={}),
            ("question.requested", "question_asked"),
        ),
        (SessionStatus(status="disconnected", reason="crashed: exit code 3"), ("session.ended", "error")),
    ],
)
async def test_a_turn_that_asks_or_whose_session_ends_is_handed_back(
    server: Server, stream: Stream, schema: Schema, entry: object, last: tuple[str, str]
) -> None:
    plays(server, stream, ACTIVE, *A_TURN[:5], entry, chunk("after"))
    event = json.loads((await turn_of(server, f"?schema={schema}"))[-1]["data"])
    assert (event["type"] if schema == "sandbox-agent" else event["data"]["type"]) == last[
        SCHEMAS.index(schema)
    ]


async def test_trouble_that_ends_nothing_does_not_end_the_body(server: Server, stream: Stream) -> None:
    stray = Diagnostic(code=DiagnosticCode.AGENT_STRAY_LINE, message="no protocol")
    trouble = Diagnostic(code=DiagnosticCode.STORAGE_WRITE_FAILED, message="full")
    plays(server, stream, *turn(stray, trouble, chunk("still here")))
    kinds = [json.loads(frame["data"])["type"] for frame in await turn_of(server)]
    assert {"agent.unparsed", "error"} <= set(kinds)
    assert kinds[-1] == "turn.ended"


async def test_a_message_that_is_refused_is_a_problem(server: Server) -> None:
    async def on_send(_: NewMessage) -> None:
        raise PromptInFlight("cannot send to session demo: it works on a prompt; wait for it")

    server.desk.on_send = on_send
    async with asyncio.timeout(LIMIT):
        _, writer, status, media = await post(server.port, MESSAGES, {"message": "go"})
    assert (status, media) == (409, "application/problem+json")
    writer.close()


@pytest.mark.parametrize("schema", SCHEMAS)
async def test_a_message_that_waits_for_others_has_a_body_of_its_own_turn_alone(
    server: Server, stream: Stream, schema: Schema
) -> None:
    await stream.append(drafts(ACTIVE, *turn(name="trn_1")[:2]))  # one runs
    begins: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def on_send(_: NewMessage) -> asyncio.Future[int]:
        return begins

    server.desk.on_send = on_send
    async with asyncio.timeout(LIMIT):
        reader, writer, status, _ = await post(server.port, f"{MESSAGES}?schema={schema}", {"message": "go"})
        assert status == 200
        await stream.append(drafts(asked(), chunk("not mine"), *turn(name="trn_1")[-2:]))
        begins.set_result(stream.head)
        await stream.append(drafts(*turn(chunk("mine"), name="trn_2")))
        found = [frame["data"] async for frame in frames(reader) if "data" in frame]
        writer.close()
    text = "".join(found)
    assert '"mine"' in text
    assert "not mine" not in text
    assert "trn_1" not in text
    assert '"turn":"trn_2"' in found[-1]


async def test_a_message_that_waits_ends_with_its_session(server: Server, stream: Stream) -> None:
    await stream.append(drafts(ACTIVE, *turn(name="trn_1")[:2]))

    async def on_send(_: NewMessage) -> asyncio.Future[int]:
        return asyncio.get_running_loop().create_future()

    server.desk.on_send = on_send
    async with asyncio.timeout(LIMIT):
        reader, writer, _, _ = await post(server.port, MESSAGES, {"message": "go"})
        await stream.append(drafts(chunk("not mine"), SessionStatus(status="closed")))
        found = [json.loads(frame["data"]) async for frame in frames(reader) if "data" in frame]
        writer.close()
    assert found[-1]["type"] == "session.ended"
    assert {event["type"] for event in found} <= {"item.completed", "turn.ended", "session.ended"}


async def test_a_turn_of_an_hour_is_kept_alive_and_ends_in_its_body(log: EventLog, stream: Stream) -> None:
    """However long the agent says nothing, no proxy sees a silent body."""
    clock = FakeClock()
    begin, end = turn(name="trn_1")[:2], turn(name="trn_1")[2:]
    async with serving(log, clock=clock) as server:
        plays(server, stream, ACTIVE, *begin)
        async with asyncio.timeout(LIMIT):
            reader, writer, _, _ = await post(server.port, MESSAGES, {"message": "go"})
            body = frames(reader)
            while "turn.started" not in (await anext(body)).get("data", ""):
                pass
            began, comments = clock.monotonic(), 0
            while clock.monotonic() - began < 3600:
                comments += "" in await anext_of(body, clock)
            assert comments > 60
            await stream.append(drafts(*end))
            rest = [frame["data"] async for frame in body if "data" in frame]
            writer.close()
    assert '"stopReason":"end_turn"' in rest[-1]


async def anext_of(body: AsyncIterator[dict[str, str]], clock: FakeClock) -> dict[str, str]:
    """The next frame, with as much silence before it as it takes."""
    waiting = asyncio.ensure_future(anext(body))
    while not waiting.done():
        clock.advance(KEEP_ALIVE)
        await asyncio.wait({waiting}, timeout=0.01)
    return waiting.result()
