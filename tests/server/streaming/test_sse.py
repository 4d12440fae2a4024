"""The SSE body over a real server: its frames, its head, and what it refuses."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, Self

import pytest
from starlette.types import Message
from tests.server.stream_client import LIMIT, ask, frames, get
from tests.server.stream_server import serving

from legation.clock import SystemClock
from legation.server.streaming import sse
from legation.server.streaming.hub import Hub
from legation.store.codec import MemoryBackend
from legation.store.log import EventLog
from legation.wire.events import Draft, Event

pytestmark = pytest.mark.timeout(60)


class Place:
    """A log, its hub, and a server of both."""

    def __init__(self, log: EventLog, hub: Hub, port: int) -> None:
        self.log, self.hub, self.port = log, hub, port

    async def put(self, stream: str, *raws: bytes, workspace: str = "local") -> None:
        await (await self.log.stream(stream, workspace)).append([Draft("x", raw) for raw in raws])

    async def take(self, target: str, count: int, **headers: str) -> list[dict[str, str]]:
        """The first frames of a body, without the greeting."""
        async with asyncio.timeout(LIMIT):
            reader, writer, status, _ = await get(self.port, target, headers)
            assert status == 200
            body = frames(reader)
            first = [await anext(body)]
            assert first == [{"": "legation", "retry": "1000"}]
            found = [await anext(body) for _ in range(count)]
            writer.close()
        return found


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    async with EventLog(MemoryBackend()) as log:
        hub = Hub(log, SystemClock())
        async with serving(log, hub) as port:
            yield Place(log, hub, port)


def payloads(found: Sequence[dict[str, str]]) -> list[Any]:
    return [json.loads(frame["data"]) for frame in found]


async def test_an_event_is_an_id_and_its_stored_line(place: Place) -> None:
    await place.put("ses_1", b'{"a":1}', b'"\xc3\xa4"')
    first, second = await place.take("/v1/streams/ses_1/sse", 2)
    stored = json.loads(first["data"])
    assert first.keys() == {"id", "data"}  # no `event`, so that a browser's onmessage sees it
    assert first["id"] == "1"
    assert stored == {"seq": 1, "at": stored["at"], "type": "x", "raw": {"a": 1}}
    assert second["id"] == "2"
    assert payloads([second])[0]["raw"] == "ä"


async def test_the_head_keeps_proxies_and_caches_away(place: Place) -> None:
    await place.put("ses_1", b"1")
    _, writer, status, fields = await get(place.port, "/v1/streams/ses_1/sse")
    writer.close()
    assert status == 200
    assert fields["content-type"] == "text/event-stream"
    assert fields["cache-control"] == "no-store"
    assert fields["x-accel-buffering"] == "no"
    assert "server" not in fields


async def test_a_reader_goes_on_after_its_last_event_id_whatever_the_address_says(place: Place) -> None:
    await place.put("ses_1", b"1", b"2", b"3")
    (third,) = await place.take("/v1/streams/ses_1/sse?after=0", 1, **{"last-event-id": "2"})
    assert third["id"] == "3"
    (second,) = await place.take("/v1/streams/ses_1/sse?after=1", 1)
    assert second["id"] == "2"


async def test_the_greeting_comes_before_any_event(place: Place) -> None:
    await place.log.stream("ses_1")
    assert await place.take("/v1/streams/ses_1/sse", 0) == []


@pytest.mark.parametrize(
    "raw",
    [b'{"a":\r1}', b'\r{"a":1}\r', b'{"a":1\r\r}'],
    ids=["between", "around", "twice"],
)
async def test_a_carriage_return_between_tokens_does_not_end_the_line(place: Place, raw: bytes) -> None:
    await place.put("ses_1", raw)
    (found,) = await place.take("/v1/streams/ses_1/sse", 1)
    assert "\r" not in found["data"]
    assert payloads([found])[0]["raw"] == {"a": 1}


async def test_bytes_that_are_not_utf8_become_the_replacement_character(place: Place) -> None:
    await place.put("ses_1", b'"\xff"')
    (found,) = await place.take("/v1/streams/ses_1/sse", 1)
    assert payloads([found])[0]["raw"] == "\ufffd"
    status, body = await ask(place.port, "/v1/streams/ses_1/events")
    assert status == 200
    assert json.loads(body)["items"][0]["raw"] == "\ufffd"


async def test_a_deleted_stream_ends_its_bodies(place: Place) -> None:
    await place.put("ses_1", b"1")
    async with asyncio.timeout(LIMIT):
        reader, writer, _, _ = await get(place.port, "/v1/streams/ses_1/sse")
        body = frames(reader)
        assert [(await anext(body)).get("id") for _ in range(2)] == [None, "1"]
        await (await place.log.stream("ses_1")).delete()
        rest = [frame async for frame in body]
        writer.close()
    assert rest == [{"event": "end", "data": '{"reason":"deleted"}'}]
    assert (await ask(place.port, "/v1/streams/ses_1/sse"))[0] == 404


async def test_shutdown_says_bye_and_ends_the_body_cleanly(place: Place) -> None:
    await place.put("ses_1", b"1")
    async with asyncio.timeout(LIMIT):
        reader, writer, _, _ = await get(place.port, "/v1/streams/ses_1/sse")
        body = frames(reader)
        assert [(await anext(body)).get("id") for _ in range(2)] == [None, "1"]
        place.hub.close()
        assert [frame async for frame in body] == [{"event": "bye", "data": '{"reason":"shutdown"}'}]
        writer.close()


async def test_an_idle_reader_that_goes_away_is_dropped_at_once(place: Place) -> None:
    await place.log.stream("ses_1")
    _, writer, _, _ = await get(place.port, "/v1/streams/ses_1/sse")
    assert place.hub.readers == 1
    writer.close()
    async with asyncio.timeout(LIMIT):
        while place.hub.readers:
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    ("target", "header", "status"),
    [
        ("/v1/streams/ses_1/sse?after=-1", None, 400),
        ("/v1/streams/ses_1/sse?after=x", None, 400),
        ("/v1/streams/ses_1/sse", "x", 400),
        ("/v1/streams/ses_1/sse", "-1", 400),
        ("/v1/streams/ses_1/sse", "9" * 30, 400),
        ("/v1/streams/ses_1/sse?after=4", None, 409),
        ("/v1/streams/ses_1/sse", "4", 409),
        ("/v1/streams/ses_1/events?after=4", None, 409),
        ("/v1/streams/ses_1/events?limit=0", None, 400),
        ("/v1/streams/absent/sse", None, 404),
        ("/v1/streams/theirs/sse", None, 404),
        ("/v1/streams/theirs/events", None, 404),
    ],
)
async def test_what_cannot_be_followed_is_a_problem(
    place: Place, target: str, header: str | None, status: int
) -> None:
    await place.put("ses_1", b"1", b"2", b"3")
    await place.put("theirs", b"1", workspace="another")
    found, body = await ask(place.port, target, {"last-event-id": header} if header else {})
    assert found == status
    if status == 409:
        assert json.loads(body)["data"]["head"] == 3


async def test_foreign_and_absent_streams_give_the_same_answer_even_while_read(place: Place) -> None:
    await place.put("theirs", b"1", workspace="another")
    _, writer, _, _ = await get(place.port, "/v1/streams/theirs/sse", {"authorization": "Bearer another"})
    answers = [
        json.loads((await ask(place.port, f"/v1/streams/{name}/sse"))[1]) for name in ("theirs", "absent")
    ]
    writer.close()
    for answer, name in zip(answers, ("theirs", "absent"), strict=True):
        del answer["instance"]
        answer["detail"] = answer["detail"].replace(name, "NAME")
    assert answers[0] == answers[1]
    assert await place.log.streams("local") == []  # asking for one has not made one


async def test_a_head_request_does_not_wait_for_the_end(place: Place) -> None:
    await place.put("ses_1", b"1")
    async with asyncio.timeout(LIMIT):
        _, writer, status, fields = await get(place.port, "/v1/streams/ses_1/sse", method="HEAD")
    writer.close()
    assert (status, fields["content-type"]) == (200, "text/event-stream")
    assert place.hub.readers == 0


async def test_a_name_with_odd_characters_is_one_segment(place: Place) -> None:
    await place.put("a/b,c@d %", b"1")
    (found,) = await place.take("/v1/streams/a%2Fb%2Cc%40d%20%25/sse", 1)
    assert found["id"] == "1"


async def test_pages_go_on_to_the_head_and_hold_the_raw_text(place: Place) -> None:
    raws = [b'{"n": %d,  "x":1e1}' % number for number in range(5)]
    await place.put("ses_1", *raws)
    after, texts, sizes = "0", [], []
    while after:
        status, body = await ask(place.port, f"/v1/streams/ses_1/events?after={after}&limit=2")
        assert status == 200
        page = json.loads(body)
        sizes.append(len(page["items"]))
        texts.append(body)
        after = page["next"]
    assert sizes == [2, 2, 1]
    for raw in raws:
        assert any(raw in text for text in texts), "raw was written anew"
    assert json.loads((await ask(place.port, "/v1/streams/ses_1/events?after=5"))[1]) == {
        "items": [],
        "next": None,
    }


async def test_streams_are_listed_by_name_in_pages_of_the_callers_workspace(place: Place) -> None:
    for name in ("ses_2", "run_1", "ses_1", "ses_3"):
        await place.put(name, b"1")
    await place.put("ses_0", b"1", workspace="another")
    first = json.loads((await ask(place.port, "/v1/streams?prefix=ses_&limit=2"))[1])
    assert first["items"][0] == {"name": "ses_1", "state": "open", "firstSeq": 1, "head": 1, "generations": 1}
    assert [each["name"] for each in first["items"]] == ["ses_1", "ses_2"]
    rest = json.loads((await ask(place.port, f"/v1/streams?prefix=ses_&limit=2&after={first['next']}"))[1])
    assert [each["name"] for each in rest["items"]] == ["ses_3"]
    assert rest["next"] is None


def test_a_chunk_holds_whole_events_up_to_the_limit_and_at_least_one() -> None:
    events = [Event(number, 0, "x", b'"%b"' % (b"y" * 100_000)) for number in range(1, 8)]
    found = list(sse.chunks(events))
    assert [chunk.events for chunk in found] == [5, 2]
    assert [chunk.upto for chunk in found] == [5, 7]
    assert all(len(chunk.data) <= sse.CHUNK_BYTES for chunk in found)
    huge = [Event(1, 0, "x", b'"%b"' % (b"y" * 1_000_000)), events[1]]
    assert [chunk.events for chunk in sse.chunks(huge)] == [1, 1]


class Told:
    """A body that says what it is told to: chunks, or an error."""

    def __init__(self) -> None:
        self.says: asyncio.Queue[bytes | Exception] = asyncio.Queue()
        self.entered = False

    def __enter__(self) -> Self:
        self.entered = True
        return self

    def __exit__(self, *_: object) -> None:
        self.entered = False

    async def next(self) -> bytes:
        said = await self.says.get()
        if isinstance(said, Exception):
            raise said
        return said

    def leave(self) -> None:
        self.says.put_nowait(b"")


class Connection:
    """The server's end of one, as an application sees it."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.over = asyncio.Event()  # the reader has gone, or has all

    async def receive(self) -> Message:
        await self.over.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent += [message["body"]] if message["type"] == "http.response.body" else []
        if message["type"] == "http.response.body" and not message["more_body"]:
            self.over.set()


async def test_a_body_that_fails_fails_its_request_with_its_own_error() -> None:
    body, connection = Told(), Connection()
    body.says.put_nowait(ValueError("a defect"))
    with pytest.raises(ValueError, match="a defect"):
        await asyncio.wait_for(answered(body, connection), LIMIT)
    assert (connection.sent, connection.over.is_set(), body.entered) == ([sse.HELLO], False, False)


async def test_a_body_that_is_over_ends_its_request() -> None:
    body, connection = Told(), Connection()
    for chunk in (b"one", b""):
        body.says.put_nowait(chunk)
    await asyncio.wait_for(answered(body, connection), LIMIT)
    assert (connection.sent, body.entered) == ([sse.HELLO, b"one", b""], False)


async def test_a_request_that_is_cancelled_takes_its_writer_along() -> None:
    body, connection = Told(), Connection()
    request = asyncio.create_task(answered(body, connection))
    async with asyncio.timeout(LIMIT):
        while not connection.sent:
            await asyncio.sleep(0)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
    assert (connection.sent, body.entered) == ([sse.HELLO], False)


async def answered(body: Told, connection: Connection) -> None:
    await sse.EventStream(body)({"method": "GET"}, connection.receive, connection.send)
