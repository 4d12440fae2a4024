"""Lists of streams. INV-E1 and INV-E2 are those of `store/entries.py`; every backend gives the same lists."""

import asyncio
import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.store.backends import ALL, DURABLE, make_backend
from tests.store.old_log import take_back

from legation.server.sessions.approvals import GRANTED
from legation.store import entries, sqlite
from legation.store.codec import StreamInfo
from legation.store.entries import (
    DUE_CLOSED,
    DUE_OPEN,
    GRANTED_MODES,
    ByName,
    Due,
    LastFailed,
    LastUsed,
    Newest,
    StreamQuery,
    WorkingIn,
    entry_of,
)
from legation.store.log import EventLog
from legation.store.sqlite import SqliteBackend
from legation.wire.events import Draft

ROOT = Path(__file__).parents[2]
MANY = 60  # streams
LIMIT = 120.0  # seconds: of a program's start on a busy machine


def meta_of(number: int = 0, **more: Any) -> bytes:
    """As a server writes it: among many numbers there are some of every kind."""
    details: dict[str, Any] = {
        "agent": ("a", "b")[number % 2],
        "createdAt": number // 3,
        "updatedAt": number // 4,
    }
    if number % 7 == 0:
        details["exit"] = {"reason": "crashed"}
    if number % 5 == 0:
        details[("queue", "begun", "prompted", "deletion", "sealed", "grant")[number // 5 % 6]] = [{}]
    meta: dict[str, Any] = {
        "agentSessionId": "x",
        "cwd": ("/w", "/w/deep", "/w0", "/v")[number % 4],
        "details": details,
    }
    if number % 11 == 0:
        meta["additionalDirectories"] = ["/w/other"]
    if number % 3 == 0:
        meta["reopens"] = True
    if number % 13 == 0:
        meta["updatedAt"] = "1970-01-01T00:00:00.009Z"
    if number % 17 == 0:
        del meta["details"]
    return msgspec.json.encode({**meta, **more})


async def fill(log: EventLog, workspace: str = "local") -> None:
    """Sessions, and streams that are none; open, closed and deleted."""
    for number in random.Random(5).sample(range(MANY), MANY):
        name = f"acp:{number}" if number % 9 == 0 else f"s{number:02}"
        stream = await log.stream(name, workspace)
        await stream.append([Draft("x", b"1")])
        await stream.set_meta(meta_of(number) if ":" not in name else b'{"acp":1}')
        if number % 4 == 1:
            await stream.close()
        if number % 10 == 4:
            await stream.delete()


QUERIES: Sequence[Callable[[str], StreamQuery]] = [
    ByName,
    lambda each: ByName(each, prefix="s1"),
    lambda each: ByName(each, (0, "s15"), "s"),
    lambda each: ByName(each, (0, "z"), "s"),
    lambda each: ByName(each, prefix="s\U0010ffff"),
    lambda each: ByName(each, prefix="\ud7ff"),
    lambda each: ByName(each, None, "acp:", ("open",)),
    lambda each: ByName(each, states=("deleted",)),
    Newest,
    lambda each: Newest(each, (-7, "s22")),
    lambda each: Newest(each, (-7, "s\ud800")),
    lambda each: LastUsed(each, agent="a"),
    lambda each: LastUsed(each, (9, "s38"), agent="b"),
    lambda each: LastUsed(each, agent="a", cwd="/w"),
    lambda each: LastUsed(each, agent="a", cwd="/w\ud800"),
    lambda each: LastUsed(each, (12, "s5\udfff"), agent="a"),
    lambda each: LastFailed(each, agent="a"),
    lambda each: LastFailed(each, agent="nobody"),
    lambda each: WorkingIn(each, folder="/w"),
    Due,
]


async def whole(log: EventLog, query: StreamQuery) -> list[StreamInfo]:
    """As it is defined: of everything that there is."""
    infos = await log.streams(query.workspace)
    gone = [await log.lookup(name, query.workspace) for name in await log.deleted(query.workspace)]
    streams = [*infos, *(info for info in gone if info is not None)]
    return [info for _, info in query.found((info, entry_of(info.meta)) for info in streams)]


async def in_pages(log: EventLog, query: StreamQuery, limit: int) -> list[StreamInfo]:
    page = await log.page(query, limit)
    infos = [info for _, info in page]
    assert len(page) <= limit
    return infos + await in_pages(log, query.behind(page[-1][0]), limit) if len(page) == limit else infos


@pytest.mark.parametrize(
    "kind", [pytest.param(each, marks=pytest.mark.heavy) if each == "jsonl" else each for each in ALL]
)
async def test_every_list_is_the_same_in_every_store_in_pages_of_any_size(kind: str, tmp_path: Path) -> None:
    async with EventLog(make_backend(kind, tmp_path)) as log:
        for workspace in ("local", "other"):
            await fill(log, workspace)
        some = [await log.stream(f"s{number:02}") for number in range(10, 20)]  # held, and the others are not
        for make in QUERIES:
            for workspace in ("local", "other"):
                query = make(workspace)
                wanted = await whole(log, query)
                for limit in (1, 3, MANY):
                    assert await in_pages(log, query, limit) == wanted, query
        found = [await log.page(make("local"), MANY) for make in QUERIES]
        assert [bool(each) for each in found].count(False) == 5  # the others have something to say
        assert await log.page(Newest("nowhere"), 5) == []
        del some


@pytest.mark.parametrize("kind", ALL)
async def test_what_was_just_given_to_the_log_counts_in_its_lists(kind: str, tmp_path: Path) -> None:
    async with EventLog(make_backend(kind, tmp_path)) as log:
        first, second, third = [await log.stream(name) for name in ("one", "two", "three")]
        assert [info.name for _, info in await log.page(ByName("local"), 2)] == ["one", "three"]
        for stream, used in ((first, 1), (second, 2), (third, 3)):
            details = {"agent": "a", "createdAt": 1, "updatedAt": used}
            await stream.set_meta(meta_of(1, details=details))
        query = LastUsed("local", agent="a")
        assert [info.name for _, info in await log.page(query, 2)] == ["three", "two"]
        writing = first.set_meta(meta_of(1, details={"agent": "a", "createdAt": 1, "updatedAt": 9}))
        assert [info.name for _, info in await log.page(query, 2)] == ["one", "three"]
        await writing
        await third.delete()
        assert [info.name for _, info in await log.page(query, 3)] == ["one", "two"]


@pytest.mark.parametrize("kind", DURABLE)
async def test_a_stream_is_looked_up_without_being_opened(kind: str, tmp_path: Path) -> None:
    async with EventLog(make_backend(kind, tmp_path)) as log:
        await (await log.stream("s", "other")).set_meta(b'{"n":1}')
        await (await log.stream("gone", "other")).delete()
    async with EventLog(make_backend(kind, tmp_path)) as log:
        for name in ("s", "other\x1fs", "s\ud800", "", "s" * 300):
            assert await log.lookup(name) is None
            assert await log.find(name) is None
        found, gone = await log.lookup("s", "other"), await log.lookup("gone", "other")
        assert found is not None
        assert gone is not None
        assert (found.name, found.meta, gone.state) == ("s", b'{"n":1}', "deleted")
        assert log.held("s", "other") is None


# Entries.


@pytest.mark.parametrize(
    ("details", "flags"),
    [
        ({}, 0),
        ({"queue": [{"text": "x"}]}, DUE_OPEN | DUE_CLOSED),
        ({"queue": []}, 0),
        ({"begun": {"after": 3}}, DUE_OPEN | DUE_CLOSED),
        ({"begun": None}, 0),
        ({"prompted": 0}, DUE_OPEN),
        ({"deletion": {"by": "x"}}, DUE_OPEN | DUE_CLOSED),
        ({"sealed": {"owner": "x"}}, DUE_CLOSED),
        ({"grant": "grt_1"}, DUE_OPEN | DUE_CLOSED),
        ({"grant": "grt_1", "permissionMode": "plan"}, DUE_OPEN | DUE_CLOSED),
        ({"grant": "grt_1", "permissionMode": "bypass"}, DUE_CLOSED),
        ({"permissionMode": "bypass"}, 0),
    ],
)
def test_what_a_server_may_leave_half_done_is_due(details: dict[str, Any], flags: int) -> None:
    found = entry_of(meta_of(1, details={"agent": "a", "createdAt": 5, "updatedAt": 6, **details}))
    assert found is not None
    assert found.flags == flags
    assert found.began == (None if "deletion" in details else 5)


def test_modes_that_are_grants_are_known_to_the_log() -> None:
    assert frozenset(GRANTED) == GRANTED_MODES


@pytest.mark.parametrize("meta", [b"{}", b'{"agentSessionId":1,"cwd":"/"}', b'{"agentSessionId":"x"}', b"[]"])
def test_what_is_no_session_has_no_entry(meta: bytes) -> None:
    assert entry_of(meta) is None


async def test_any_number_can_be_stored(tmp_path: Path) -> None:
    async with EventLog(SqliteBackend(tmp_path / "log.db")) as log:
        huge = {"agent": "a", "createdAt": 10**30, "updatedAt": -(10**30)}
        await (await log.stream("s")).set_meta(meta_of(details=huge))
        assert [info.name for _, info in await log.page(Newest("local"), 1)] == ["s"]


# In SQLite they are columns.


def columns(path: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(
            "select name, state, meta, agent, cwd, place, used, flags from stream order by id"
        ).fetchall()


async def test_an_entry_is_in_the_commit_of_its_metadata_however_that_is_written(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with EventLog(SqliteBackend(path)) as log:
        await fill(log)
        for name, number in (("s01", 30), ("s05", 35)):
            stream = await log.stream(name)  # closed
            await stream.reopen(meta=meta_of(number))
        await (await log.stream("s02")).replace([Draft("y", b"2")], meta=meta_of(40))
        await (await log.stream("s03")).replace([Draft("y", b"2")])
        await (await log.stream("s06")).set_meta(b'{"n":1}')  # no session any more
        await (await log.stream("s07")).delete()
        rows = columns(path)
    assert len(rows) == MANY
    for _, state, meta, *stored in rows:
        assert tuple(stored) == sqlite._columns(meta)
        assert state != "deleted" or stored == [None, None, None, 0, 0]


def plans(connection: sqlite3.Connection) -> dict[str, str]:
    found: dict[str, str] = {}
    for make in QUERIES:
        for sql, given in sqlite._selects(make("local")):
            rows = connection.execute(f"explain query plan {sql}", (*given, 50)).fetchall()
            found[sql] = "; ".join(row[3] for row in rows)
    return found


async def test_every_list_goes_through_what_it_shows_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with EventLog(SqliteBackend(path)) as log:
        await fill(log)
    with closing(sqlite3.connect(path)) as connection:
        fresh = plans(connection)
        connection.execute("analyze")
        connection.execute("update sqlite_stat1 set stat = '1000000' || substr(stat, instr(stat, ' '))")
        connection.commit()
    with closing(sqlite3.connect(path)) as connection:
        assert plans(connection) == fresh  # with a million rows too
    for sql, plan in fresh.items():
        assert "SCAN" not in plan, plan
        # What works in a folder is sorted by name: those are few.
        assert "TEMP B-TREE" not in plan or sql == sqlite._WORKING_IN, plan
        assert sql == sqlite._WORKING_IN or any(mark in plan for mark in ("name>?", ",name)>(", ",name)<("))


async def test_a_page_reads_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are, and whatever stands between: tombstones, streams of others, ended sessions."""
    path, read = tmp_path / "log.db", list[int]()
    async with EventLog(SqliteBackend(path)) as log:
        for workspace in ("local", "other"):
            await fill(log, workspace)
    made = sqlite._info

    def counted(row: tuple[Any, ...]) -> StreamInfo:
        read.append(1)
        return made(row)

    monkeypatch.setattr(sqlite, "_info", counted)
    async with EventLog(SqliteBackend(path)) as log:
        for make in QUERIES:
            query = make("other")
            for limit in (1, 5):
                read.clear()
                await log.page(query, limit)
                states = len(query.states) if isinstance(query, ByName) else 1
                assert len(read) <= limit * states, query


# A file of an earlier release.


async def test_a_log_of_an_earlier_release_has_its_lists_once_it_is_open(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with EventLog(SqliteBackend(path)) as log:
        await fill(log)
        wanted = [await log.page(make("local"), MANY) for make in QUERIES]
    before = columns(path)
    take_back(path)
    async with EventLog(SqliteBackend(path)) as log:
        assert [await log.page(make("local"), MANY) for make in QUERIES] == wanted
    assert columns(path) == before


def _version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("pragma user_version").fetchone()[0])


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_a_kill_at_any_step_of_the_upgrade_leaves_the_old_log_or_the_new(
    tmp_path: Path,
) -> None:
    async def make(path: Path) -> None:
        async with EventLog(SqliteBackend(path)) as log:
            await fill(log)

    asyncio.run(make(tmp_path / "log.db"))
    wanted, versions = columns(tmp_path / "log.db"), set[int]()
    take_back(tmp_path / "log.db")
    for number in range(1, 60):
        path = tmp_path / "log.db"  # the same: each of those killed has changed nothing, or all
        done = subprocess.run(
            [sys.executable, "-m", "tests.store.old_log", str(path), str(number)],
            stdout=subprocess.PIPE,
            env={"PATH": os.environ["PATH"]},
            cwd=ROOT,
            timeout=LIMIT,
            check=False,
        )
        versions.add(_version(path))
        if _version(path) >= sqlite.WITH_ENTRIES:
            assert columns(path) == wanted
        if done.stdout == b"open\n":
            break
    assert versions == {4, *range(sqlite.WITH_ENTRIES, sqlite.VERSION + 1)}  # each is one commit
    assert done.stdout == b"open\n"


async def test_many_streams_of_an_earlier_release_are_entered_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "ENTERED_AT_ONCE", 7)
    path = tmp_path / "log.db"
    async with EventLog(SqliteBackend(path)) as log:
        await fill(log)
    before = columns(path)
    take_back(path)
    async with EventLog(SqliteBackend(path)):
        assert columns(path) == before
    assert entries.entry_of(before[0][2]) is not None
