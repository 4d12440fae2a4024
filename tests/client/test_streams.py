"""Followed streams over real sockets: the same faults with the sync and the async client."""

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.client.both_clients import TOKEN, Driver, both
from tests.client.faulty_server import (
    BYE,
    END,
    HELLO,
    STREAM_HEAD,
    Asked,
    Cut,
    event,
    html,
    in_turn,
    notice,
    problem,
    serving,
    tagged,
)

from legation.client import AsyncLegation, Legation, Timeouts
from legation.errors import Conflict, NotFound, Unauthenticated, Unavailable

pytestmark = pytest.mark.heavy  # a server each

START = STREAM_HEAD + HELLO


def numbers(items: list[Any]) -> list[int]:
    return [item.seq for item in items]


def follow(one: Any) -> Any:
    return one.streams.follow("ses_1")


@both
def test_every_fault_on_the_way_gives_the_exact_suffix(driver: Driver) -> None:
    def reset() -> Iterator[bytes]:
        yield START + event(1) + event(2)[:20]
        raise Cut

    chunked = STREAM_HEAD.replace(b"Connection: close", b"Transfer-Encoding: chunked")
    script = in_turn(
        reset(),  # in the middle of a frame
        html(503),  # a proxy while the server restarts
        b"",  # nothing at all
        START + event(2) + event(2) + event(3) + event(5),  # a double and a jump
        html(200),  # a proxy's page
        chunked + b"%x\r\n" % 5000 + HELLO + event(4),  # a chunk that never ends
        START + event(3) + event(4) + event(5) + BYE,  # one that begins too early
        START + event(6, '{"half":"\\ud83d"}') + END,
    )
    with serving(script) as server:
        items = driver.items(server.url, follow)
    assert numbers(items) == [1, 2, 3, 4, 5, 6]
    assert items[-1].raw == b'{"half":"\\ud83d"}'
    assert [asked.query["after"] for asked in server.asked] == ["0", "1", "1", "1", "3", "3", "4", "5"]
    assert [asked.headers.get("last-event-id") for asked in server.asked][:3] == [None, "1", "1"]
    assert {asked.headers["authorization"] for asked in server.asked} == {f"Bearer {TOKEN}"}


@both
def test_bytes_that_come_one_by_one_are_events_all_the_same(driver: Driver) -> None:
    text = START + event(1) + b": ping\n\n" + event(2) + END

    with serving(in_turn([bytes([byte]) for byte in text])) as server:
        assert numbers(driver.items(server.url, follow)) == [1, 2]


@both
def test_an_event_is_given_before_the_next_one_comes(driver: Driver) -> None:
    def script(_: Asked) -> Iterator[bytes]:
        yield START + event(1)
        server.over.wait(20)

    with serving(script) as server:
        assert numbers(driver.items(server.url, follow, most=1)) == [1]


@both
def test_a_silent_connection_is_given_up_and_made_again(driver: Driver) -> None:
    silent = threading.Event()

    def script(asked: Asked) -> Iterator[bytes]:
        if asked.query["after"] == "0":
            yield START + event(1)
            silent.set()
            server.over.wait(20)
        else:
            yield START + event(2) + END

    with serving(script) as server:
        assert numbers(driver.items(server.url, follow, timeouts=Timeouts(stream=0.2))) == [1, 2]
    assert silent.is_set()


@both
@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (problem(404, "legation/not-found", "cannot find stream ses_1"), NotFound),
        (problem(401, "legation/unauthenticated", "cannot tell"), Unauthenticated),
        (problem(409, "legation/conflict", "cannot go on after 9"), Conflict),
        (html(200), Unavailable),
    ],
)
def test_what_another_try_cannot_mend_ends_it(driver: Driver, reply: bytes, kind: type[Exception]) -> None:
    with serving(in_turn(reply)) as server, pytest.raises(kind):
        driver.items(server.url, follow)
    assert len(server.asked) == 1


@both
def test_a_credential_that_is_revoked_on_the_way_ends_it(driver: Driver) -> None:
    refusal = problem(401, "legation/unauthenticated", "cannot tell who you are")
    with (
        serving(in_turn(START + event(1) + notice("bye", reason="credential"), refusal)) as server,
        pytest.raises(Unauthenticated),
    ):
        driver.items(server.url, follow)


@both
def test_patience_ends(driver: Driver) -> None:
    with serving(in_turn(html(503))) as server, pytest.raises(Unavailable, match="HTTP 503"):
        driver.items(server.url, lambda one: one.streams.follow("s", patience=3.0))
    assert len(server.asked) >= 2


@both
def test_many_streams_come_over_one_connection(driver: Driver) -> None:
    script = in_turn(
        START + tagged("a", 13) + tagged("b", 1) + BYE,
        START + notice("end", stream="a") + tagged("b", 2) + tagged("b", 2) + notice("end", stream="b"),
    )
    with serving(script) as server:
        items = driver.items(server.url, lambda one: one.streams.follow_many({"a": 12, "b": 0}))
    assert [(name, item.seq) for name, item in items] == [("a", 13), ("b", 1), ("b", 2)]
    assert [asked.query["streams"] for asked in server.asked] == ["a@12,b@0", "a@13,b@1"]
    assert server.asked[1].headers["last-event-id"] == "13.1"


@both
def test_leaving_early_closes_the_connection(driver: Driver) -> None:
    left = threading.Event()

    def script(_: Asked) -> Iterator[bytes]:
        yield START + event(1)
        try:
            while not server.over.wait(0.01):
                yield b": ping\n\n"  # raises once the reader has gone
        finally:
            left.set()

    with serving(script) as server:
        assert numbers(driver.items(server.url, follow, most=1)) == [1]
        # The script's generator is closed when its connection fails.
        assert left.wait(10)


def test_closing_the_client_from_another_thread_ends_a_wait_for_the_next_connection() -> None:
    with serving(in_turn(START.replace(b"retry: 20", b"retry: 30000"))) as server:
        legation = Legation.connect(server.url, TOKEN)
        caught: list[BaseException] = []

        def read() -> None:
            try:
                list(legation.streams.follow("s"))
            except Conflict as error:
                caught.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        _until(lambda: len(server.asked) == 2)  # at once, and from now on it waits for half a minute
        legation.close()
        reader.join(10)
    assert "after it was closed" in str(caught[0])


def test_closing_the_client_from_another_task_ends_a_wait_for_the_next_connection() -> None:
    async def main() -> None:
        legation = AsyncLegation.connect(server.url, TOKEN)

        async def read() -> None:
            async for _ in legation.streams.follow("s"):
                pass

        reader = asyncio.create_task(read())
        await asyncio.to_thread(_until, lambda: len(server.asked) == 2)
        await legation.close()
        with pytest.raises(Conflict, match="after it was closed"):
            await asyncio.wait_for(reader, 10)

    with serving(in_turn(START.replace(b"retry: 20", b"retry: 30000"))) as server:
        asyncio.run(main())


def test_closing_the_client_wakes_a_thread_that_reads() -> None:
    def script(_: Asked) -> Iterator[bytes]:
        yield START + event(1)
        server.over.wait(20)

    with serving(script) as server:
        legation = Legation.connect(server.url, TOKEN)
        got = threading.Event()
        caught: list[BaseException] = []

        def read() -> None:
            try:
                for _ in legation.streams.follow("s"):
                    got.set()
            except Conflict as error:
                caught.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        assert got.wait(10)
        legation.close()
        reader.join(10)
        assert not reader.is_alive()
    assert "after it was closed" in str(caught[0])


def test_a_blocking_stream_outlives_a_loop_that_ran_where_it_began() -> None:
    with (
        serving(in_turn(START + event(1) + event(2) + END)) as server,
        Legation.connect(server.url, TOKEN) as one,
        one.streams.follow("ses_1") as events,
    ):

        async def begin() -> int:
            return next(events).seq

        assert asyncio.run(begin()) == 1
        assert numbers(list(events)) == [2]


def test_a_closed_client_says_so() -> None:
    legation = Legation.connect("http://127.0.0.1:1", TOKEN)
    legation.close()
    with pytest.raises(Conflict, match="after it was closed"):
        legation.health()


def test_a_cancelled_follower_leaves_nothing_open() -> None:
    left = threading.Event()

    def script(_: Asked) -> Iterator[bytes]:
        yield START + event(1)
        try:
            while not server.over.wait(0.01):
                yield b": ping\n\n"
        finally:
            left.set()

    async def main() -> None:
        async with AsyncLegation.connect(server.url, TOKEN) as legation:
            got = asyncio.Event()

            async def read() -> None:
                async for _ in legation.streams.follow("s"):
                    got.set()

            reader = asyncio.create_task(read())
            await asyncio.wait_for(got.wait(), 10)
            reader.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reader
            assert await asyncio.to_thread(left.wait, 10)

    with serving(script) as server:
        asyncio.run(main())


def test_a_hundred_and_twenty_streams_are_followed_at_a_time() -> None:
    """More than the hundred connections that httpx allows by default."""
    together = threading.Barrier(120, timeout=20)

    def script(_: Asked) -> Iterator[bytes]:
        together.wait()
        yield START + event(1) + END

    async def main() -> None:
        async with AsyncLegation.connect(server.url, TOKEN) as legation:

            async def read() -> list[int]:
                return [item.seq async for item in legation.streams.follow("s")]

            assert await asyncio.gather(*(read() for _ in range(120))) == [[1]] * 120

    with serving(script) as server:
        asyncio.run(main())


def _until(done: Any) -> None:
    deadline = time.monotonic() + 10
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.005)
