"""session/list, on the log of a real host: the order, the pages, and what is no cursor."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
from tests.server.acp.acp_server import Client

from legation.errors import InvalidParams
from legation.host.host import AcpHost
from legation.host.options import SessionMeta
from legation.server.acp.methods import PAGE, page_of
from legation.server.sessions.record import Details, SessionRecords
from legation.store.codec import LOCAL
from legation.wire.acp.methods import ListSessionsRequest, ListSessionsResponse
from legation.wire.universal.shapes import Metadata


def at(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


async def use(host: AcpHost, name: str, ms: int | None, told: str | None = None) -> None:
    """There is a session of that name, last used then by us; and last as its agent told."""
    given = Metadata("rehearsal", "build", None, "default")
    details = Details(agent="rehearsal", given=given, created_at=1, updated_at=ms or 0)
    meta = SessionMeta(
        cwd="/w",
        agent_definition_id="rehearsal",
        agent_session_id="a",
        updated_at=told,
        details=None if ms is None else details.plain(),
    )
    stream = await host.log.stream(name)
    await stream.set_meta(meta.encode())


async def listed(host: AcpHost, cursor: str | None = None) -> ListSessionsResponse:
    return await page_of(SessionRecords(host.log), LOCAL, "rehearsal", ListSessionsRequest(cursor=cursor))


async def page(host: AcpHost, cursor: str | None = None) -> tuple[list[str], str | None]:
    answer = await listed(host, cursor)
    return [each.session_id for each in answer.sessions], answer.next_cursor


async def pages(host: AcpHost, cursor: str | None = None) -> list[str]:
    names, more = await page(host, cursor)
    return names + (await pages(host, more) if more else [])


@asynccontextmanager
async def with_sessions(count: int) -> AsyncIterator[tuple[AcpHost, list[str]]]:
    """Each used at the same moment as one other, and all of them, the last used first."""
    async with AcpHost() as host:
        names = [f"s{number:04}" for number in range(count)]
        for number, name in enumerate(names):
            await use(host, name, 1000 + number // 2)
        yield host, names[::-1]


async def test_the_last_used_comes_first_whoever_says_when_that_was() -> None:
    async with AcpHost() as host:
        await use(host, "a-by-us", 3000)
        await use(host, "b-by-both", 1000, at(4000))
        await use(host, "c-as-told", None, "1970-01-01T02:00:02+02:00")
        await use(host, "d-unknown", None)
        await use(host, "e-nonsense", 500, "yesterday")
        answer = await listed(host)
        assert [(each.session_id, each.updated_at) for each in answer.sessions] == [
            ("b-by-both", at(4000)),
            ("a-by-us", at(3000)),
            ("c-as-told", at(2000)),
            ("e-nonsense", at(500)),
            ("d-unknown", None),
        ]


@pytest.mark.parametrize(
    "told", ["9999-12-31T23:59:59-05:00", "9999-12-31T23:59:59.999999", "0001-01-01", "x"]
)
async def test_an_agent_may_say_any_time(told: str) -> None:
    async with AcpHost() as host:
        await use(host, "odd", 1000, told)
        await use(host, "plain", 2000)
        assert set(await pages(host)) == {"odd", "plain"}


async def test_pages_have_every_session_once() -> None:
    async with with_sessions(2 * PAGE + 3) as (host, names):
        assert await pages(host) == names


async def test_what_is_used_between_two_pages_moves_nothing_else() -> None:
    async with with_sessions(2 * PAGE + 3) as (host, names):
        first, more = await page(host)
        assert more is not None
        for name in (first[0], first[-1], names[-1]):  # also the one that the cursor was made of
            await use(host, name, 9000)
        await (await host.log.stream(names[-2])).delete()
        await use(host, "new", 9001)
        assert first + await pages(host, more) == names[:-2]


@pytest.mark.parametrize("cursor", ["", "x", "ses_1", "-5.s", "1.", ".s", "9" * 16 + ".s", "१.s"])
async def test_what_no_page_gave_out_is_no_cursor(cursor: str) -> None:
    async with with_sessions(1) as (host, _):
        with pytest.raises(InvalidParams, match="cannot read the cursor"):
            await page(host, cursor)


@pytest.mark.heavy
async def test_a_prompt_brings_its_session_to_the_front(client: Client) -> None:
    await client.initialize()
    first, second = await client.new(), await client.new()
    here = {"cwd": str(client.work)}
    listed = (await client.result("session/list", here))["sessions"]
    assert [each["sessionId"] for each in listed] == [second, first]
    await client.play(first, "say hello")
    again = (await client.result("session/list", here))["sessions"]
    assert [each["sessionId"] for each in again] == [first, second]
    assert again[0]["updatedAt"] > listed[0]["updatedAt"]
    refused = await client.call("session/list", {"cursor": "of another agent"})
    assert refused["error"]["code"] == -32602
