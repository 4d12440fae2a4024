"""One turn of a session in one body (INV-T1, T2)."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from tests.server.stream_client import LIMIT, frames
from tests.server.streaming.events_server import (
    A_TURN,
    FACTS,
    SCHEMAS,
    SESSION,
    Server,
    drafts,
    post,
    serving,
    turns,
    whole_fold,
)
from tests.wire.universal.logs import ACTIVE, asked, chunk, turn

from legation.clock import SystemClock
from legation.errors import PromptInFlight
from legation.server.streaming.hub import KEEP_ALIVE, Credential, Hub
from legation.server.streaming.projection import TurnCursor, TurnReader, project
from legation.store.log import EventLog
from legation.store.stream import Stream
from legation.testing.clock import FakeClock
from legation.wire.api.sessions import NewMessage
from legation.wire.event_types import Diagnostic, DiagnosticCode, QuestionAsked, SessionStatus
from legation.wire.events import Event
from legation.wire.universal.shapes import Schema

pytestmark = pytest.mark.heavy


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
    cursors = TurnCursor(shown, after), TurnCursor(judged, await judged.end())
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


@pytest.mark.parametrize("schema", SCHEMAS)
async def test_a_message_that_waits_outlives_the_agent_that_crashes_in_anothers_turn(
    server: Server, stream: Stream, schema: Schema
) -> None:
    await stream.append(drafts(ACTIVE, *turn(name="trn_1")[:2]))
    begins: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def on_send(_: NewMessage) -> asyncio.Future[int]:
        return begins

    server.desk.on_send = on_send
    async with asyncio.timeout(LIMIT):
        reader, writer, _, _ = await post(server.port, f"{MESSAGES}?schema={schema}", {"message": "go"})
        await stream.append(drafts(*turn(name="trn_1")[-2:]))
        begins.set_result(stream.head)
        await stream.append(drafts(SessionStatus(status="disconnected", reason="crashed: exit code 3")))
        await stream.append(drafts(ACTIVE, *turn(chunk("mine"), name="trn_2")))
        found = [frame["data"] async for frame in frames(reader) if "data" in frame]
        writer.close()
    assert "crashed" not in "".join(found)
    assert '"mine"' in "".join(found)
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


@pytest.mark.parametrize("schema", SCHEMAS)
async def test_a_message_whose_session_is_closed_just_before_its_turn_ends_with_it(
    server: Server, stream: Stream, schema: Schema
) -> None:
    """The turn is said to begin behind the end, before anybody has looked."""
    await stream.append(drafts(ACTIVE, *turn(name="trn_1")))

    async def on_send(_: NewMessage) -> asyncio.Future[int]:
        begins: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        await stream.append(drafts(SessionStatus(status="closed")))
        begins.set_result(stream.head)
        return begins

    server.desk.on_send = on_send
    before = await whole_fold(stream, schema, include_raw=False)
    found = await turn_of(server, f"?schema={schema}")
    rest = (await whole_fold(stream, schema, include_raw=False))[len(before) :]
    assert [(int(frame["id"]), frame["data"].encode()) for frame in found] == rest
    if schema == "sandbox-agent":
        assert b"session.ended" in rest[-1][1]


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
