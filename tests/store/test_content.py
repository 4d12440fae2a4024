import asyncio

import pytest
from tests.store.database.databases import Either
from tests.store.installation import add_workspaces, new_sealer

from legation.clock import SystemClock
from legation.errors import Conflict, InternalError, InvalidParams, NotFound, StorageFailed, TooLarge
from legation.store.database.transaction import Transaction, parse
from legation.store.secrets.sealer import Sealer
from legation.store.secrets.vault import MAX_PAGE, MAX_READ_PAGES, ContentPage, ContentStore

SQL = {
    query.name: query
    for query in parse(
        """
-- name: counts
select (select count(*) from content_key) as keys, (select count(*) from content_page) as pages;
-- name: move
update content_page set stream = :stream where stream = 'events' and last_seq = 2;
-- name: swap
update content_page set body = (select body from content_page where stream = 'events' and last_seq = 2)
where stream = 'events' and last_seq = 4;
"""
    )
}


def counts() -> Transaction[tuple[int, int]]:
    (row,) = yield SQL["counts"]()
    return row["keys"], row["pages"]


def do(name: str, **args: str) -> Transaction[None]:
    yield SQL[name](**args)


async def new_content(database: Either, sealer: Sealer | None = None) -> ContentStore:
    await add_workspaces(database)
    return ContentStore(database, sealer or new_sealer(), SystemClock())


async def append(
    database: Either, content: ContentStore, first: int, last: int, plain: bytes = b"-", owner: str = "run_1"
) -> None:
    await database.transact(content.append, "local", owner, "events", first, last, plain)


async def test_pages_come_back_in_order_and_as_they_were(database: Either) -> None:
    content = await new_content(database)
    await append(database, content, 1, 2, b"one")
    await append(database, content, 3, 3, b"")
    await append(database, content, 4, 9, b"\x00" * 10_000)
    pages = [ContentPage(1, 2, b"one"), ContentPage(3, 3, b""), ContentPage(4, 9, b"\x00" * 10_000)]
    assert await content.read("local", "run_1", "events") == pages
    assert await content.read("local", "run_1", "events", after=2) == pages[1:]
    assert await content.read("local", "run_1", "events", after=5) == pages[2:]
    assert await content.read("local", "run_1", "events", after=9) == []
    assert await database.read(content.head, "local", "run_1", "events") == 9
    assert await database.read(content.head, "local", "run_1", "prompts") == 0


async def test_a_page_hides_what_it_holds() -> None:
    assert repr(ContentPage(1, 2, b"hello")) == "<page 1-2, 5 bytes>"


async def test_gaps_and_overlaps_are_refused_and_told_where_it_ends(database: Either) -> None:
    content = await new_content(database)
    with pytest.raises(Conflict):
        await append(database, content, 2, 3)
    await append(database, content, 1, 5)
    for first, last in ((1, 5), (5, 6), (7, 8), (3, 4), (0, 9)):
        with pytest.raises(Conflict, match="ends at 5") as refused:
            await append(database, content, first, last)
        assert refused.value.data == {"head": 5}
    with pytest.raises(InvalidParams):
        await append(database, content, 6, 5)
    assert await database.read(counts) == (1, 1)


async def test_streams_and_owners_count_for_themselves_under_one_key_an_owner(database: Either) -> None:
    content = await new_content(database)
    for workspace, owner, stream in (
        ("local", "run_1", "events"),
        ("local", "run_1", "prompts"),
        ("local", "run_2", "events"),
        ("other", "run_1", "events"),
    ):
        plain = f"{workspace} {owner} {stream}".encode()
        await database.transact(content.append, workspace, owner, stream, 1, 1, plain)
    assert await database.read(counts) == (3, 4)
    (page,) = await content.read("other", "run_1", "events")
    assert page.plain == b"other run_1 events"
    assert await content.read("other", "run_2", "events") == []


async def test_a_reader_gets_at_least_one_page_and_no_more_than_fit(database: Either) -> None:
    content = await new_content(database)
    for number in range(1, 6):
        await append(database, content, number, number, b"x" * 100)

    async def numbers(up_to_bytes: int, after: int = 0) -> list[int]:
        pages = await content.read("local", "run_1", "events", after, up_to_bytes)
        return [page.last_seq for page in pages]

    assert await numbers(0) == await numbers(100) == await numbers(199) == [1]
    assert await numbers(200) == [1, 2]
    assert await numbers(250, after=2) == [3, 4]
    assert await numbers(10_000) == [1, 2, 3, 4, 5]


async def test_a_long_stream_is_read_in_turns(database: Either) -> None:
    content = await new_content(database)

    def many() -> Transaction[None]:
        for number in range(1, MAX_READ_PAGES + 5):
            yield from content.append("local", "run_1", "events", number, number, b"-")

    await database.transact(many)
    assert len(pages := await content.read("local", "run_1", "events")) == MAX_READ_PAGES
    assert len(await content.read("local", "run_1", "events", after=pages[-1].last_seq)) == 4


async def test_two_writers_of_one_stream_make_neither_gap_nor_double(database: Either) -> None:
    content = await new_content(database)
    works = [append(database, content, 1, 1, b"%d" % number) for number in range(8)]
    outcomes = await asyncio.gather(*works, return_exceptions=True)
    assert sum(outcome is None for outcome in outcomes) == 1
    assert all(isinstance(outcome, Conflict | None) for outcome in outcomes)
    assert await database.read(counts) == (1, 1)


async def test_many_runs_write_at_once(database: Either) -> None:
    content = await new_content(database)

    async def run(owner: str) -> None:
        for number in range(1, 6):
            await append(database, content, number, number, owner.encode(), owner)

    await asyncio.gather(*(run(f"run_{number}") for number in range(20)))
    assert await database.read(counts) == (20, 100)


async def test_it_is_one_transaction_with_what_else_the_caller_writes(database: Either) -> None:
    content = await new_content(database)

    def fail() -> Transaction[None]:
        yield from content.append("local", "run_1", "events", 1, 1, b"-")
        yield from content.append("local", "run_1", "events", 2, 2, b"-")
        raise Conflict("cannot go on: the lease is gone; stop")

    with pytest.raises(Conflict, match="lease"):
        await database.transact(fail)
    assert await database.read(counts) == (0, 0)


async def test_deleting_takes_key_and_pages_of_one_owner(database: Either) -> None:
    content = await new_content(database)
    await append(database, content, 1, 1)
    await append(database, content, 1, 1, owner="run_2")
    assert not await database.transact(content.delete, "other", "run_1")
    assert await database.transact(content.delete, "local", "run_1")
    assert not await database.transact(content.delete, "local", "run_1")
    assert await content.read("local", "run_1", "events") == []
    assert await database.read(counts) == (1, 1)


async def test_a_page_opens_only_in_its_place(database: Either) -> None:
    content = await new_content(database)
    await append(database, content, 1, 2)
    await append(database, content, 3, 4)
    await database.transact(do, "swap")
    with pytest.raises(StorageFailed):
        await content.read("local", "run_1", "events", after=2)
    await database.transact(do, "move", stream="prompts")
    with pytest.raises(StorageFailed):
        await content.read("local", "run_1", "prompts")


async def test_what_cannot_be_kept_is_refused(database: Either) -> None:
    content = await new_content(database)
    with pytest.raises(TooLarge):
        await append(database, content, 1, 1, bytes(MAX_PAGE + 1))
    with pytest.raises(InternalError):
        await append(database, content, 1, 1, owner="not an id")
    with pytest.raises(NotFound, match="no such workspace"):
        await database.transact(content.append, "nowhere", "run_1", "events", 1, 1, b"-")
    assert await database.read(counts) == (0, 0)
