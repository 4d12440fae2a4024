import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from legation.errors import StorageFailed
from legation.store.codec import Append, Create, SetState
from legation.store.database.sqlite import WAL_BYTES
from legation.store.log import EventLog
from legation.store.sqlite import AT_ONCE, DISK_PAGE, PAGE_BYTES, SqliteBackend
from legation.wire.events import Draft, Event


async def test_every_commit_is_synced(tmp_path: Path) -> None:
    async with EventLog(SqliteBackend(tmp_path / "log.db")) as log:
        writer = log._backend._writer  # type: ignore[attr-defined]
        assert writer.execute("pragma synchronous").fetchone() == (2,)
        assert writer.execute("pragma journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize("unit", [None, 32 * 1024], ids=["made now", "made by an earlier release"])
async def test_a_log_is_merged_by_its_size_whatever_its_units(tmp_path: Path, unit: int | None) -> None:
    path = tmp_path / "log.db"
    if unit is not None:
        with closing(sqlite3.connect(path)) as earlier:
            earlier.executescript(f"pragma page_size = {unit}; pragma auto_vacuum = incremental; vacuum")
    async with EventLog(SqliteBackend(path)) as log:
        await (await log.stream("ses_a")).append([Draft("x", b"%d" % number) for number in range(100)])
        writer = log._backend._writer  # type: ignore[attr-defined]
        [(size,)] = writer.execute("pragma page_size").fetchall()
        [(units,)] = writer.execute("pragma wal_autocheckpoint").fetchall()
    assert (size, size * units) == (unit or DISK_PAGE, WAL_BYTES)


async def test_a_batch_becomes_few_rows(tmp_path: Path) -> None:
    async with EventLog(SqliteBackend(tmp_path / "log.db")) as log:
        await (await log.stream("ses_a")).append([Draft("x", b"%d" % number) for number in range(10_000)])
    with closing(sqlite3.connect(tmp_path / "log.db")) as connection, connection:
        assert connection.execute("select count(*) from page").fetchone()[0] < 10
    connection.close()


async def test_references_that_follow_each_other_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    async with EventLog(SqliteBackend(path)) as log:
        names = [Draft("acp-ref", b'["ses_a",%d]' % number) for number in range(1, 2001)]
        await (await log.stream("acp:1")).append(names)
    with closing(sqlite3.connect(path)) as connection:
        [(body,)] = connection.execute("select body from page").fetchall()
        assert len(body) < 100
        assert connection.execute("pragma user_version").fetchone() == (6,)  # older ones would read one event


async def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "log.db")
    connection.execute("pragma user_version = 99")
    connection.close()
    with pytest.raises(StorageFailed, match="newer"):
        async with EventLog(SqliteBackend(tmp_path / "log.db")):
            pass


async def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "log.db").write_bytes(b"not a database, but somebody's file" * 100)
    with pytest.raises(StorageFailed, match="cannot open"):
        async with EventLog(SqliteBackend(tmp_path / "log.db")):
            pass
    assert (tmp_path / "log.db").read_bytes().startswith(b"not a database")


async def test_the_database_is_private(tmp_path: Path) -> None:
    async with EventLog(SqliteBackend(tmp_path / "log.db")) as log:
        await (await log.stream("ses_a")).append([Draft("x", b"1")])
        for path in tmp_path.iterdir():
            assert path.stat().st_mode & 0o077 == 0, path


async def test_what_was_deleted_is_not_left_in_the_file(tmp_path: Path) -> None:
    async with EventLog(SqliteBackend(tmp_path / "log.db")) as log:
        stream = await log.stream("ses_a")
        await stream.append([Draft("x", b'"canary-%d"' % number) for number in range(5000)])
    assert b"canary-4242" in (tmp_path / "log.db").read_bytes()
    async with EventLog(SqliteBackend(tmp_path / "log.db")) as log:
        await (await log.stream("ses_a")).delete()
    assert b"canary" not in (tmp_path / "log.db").read_bytes()


async def test_what_was_deleted_is_not_left_in_the_write_ahead_log(tmp_path: Path) -> None:
    def canaries() -> list[str]:  # in a process of its own: to close such a file gives up SQLite's locks
        files = sorted(path.name for path in tmp_path.iterdir())
        found = subprocess.run(
            ["grep", "-la", "canary", *files], cwd=tmp_path, capture_output=True, text=True
        )
        assert found.returncode in (0, 1)
        return found.stdout.split()

    async with EventLog(SqliteBackend(tmp_path / "log.db")) as log:
        for name in ("ses_a", "ses_b"):
            said = [Draft("x", b'"canary-%d"' % number) for number in range(5000)]
            await (await log.stream(name)).append(said)
        assert canaries() == ["log.db-wal"]
        await (await log.stream("ses_a")).delete()
        assert canaries() == ["log.db"]  # of the other
        with closing(sqlite3.connect(tmp_path / "log.db", isolation_level=None)) as reader:
            reader.execute("begin")
            assert reader.execute("select count(*) from stream").fetchone() == (2,)
            await (await log.stream("ses_b")).delete()  # in spite of one who reads what was
        await (await log.stream("ses_c")).append([Draft("x", b"1")])
        await (await log.stream("ses_c")).delete()
        assert canaries() == []


async def test_more_pages_than_one_statement_takes_are_one_commit_all_the_same(tmp_path: Path) -> None:
    big = [Draft("x", b'"%b"' % (b"y" * PAGE_BYTES)) for _ in range(2 * AT_ONCE + 1)]
    async with EventLog(SqliteBackend(tmp_path / "log.db")) as log:
        stream = await log.stream("ses_a")
        await stream.append(big)
        await stream.append([Draft("x", b"1")])
    async with EventLog(SqliteBackend(tmp_path / "log.db")) as log:
        found = await log.stream("ses_a")
        assert found.head == len(big) + 1
        assert [event.seq async for event in found.subscribe(0, follow=False)] == list(range(1, len(big) + 2))


async def test_a_commit_that_failed_is_made_again_with_nothing_stored_twice(tmp_path: Path) -> None:
    """What the backend remembers of the heads is forgotten with the failure, wherever it came."""
    backend = SqliteBackend(tmp_path / "log.db")
    backend.open(lambda _: None)
    events = [Event(number, 0, "x", b"%d" % number) for number in range(1, 4)]
    backend.commit([Create("a", "local"), Append("a", events[:1])])
    backend._writer.execute("pragma query_only = on")
    for others in ((), (SetState("a", "closed"),)):
        with pytest.raises(StorageFailed):
            backend.commit([Append("a", events[1:]), *others])
    backend._writer.execute("pragma query_only = off")
    backend.commit([Append("a", events)])
    backend.commit([Append("a", events)])
    assert [event.seq for event in backend.read("a", 0, 10**6)] == [1, 2, 3]
    found = backend.lookup("a")
    assert found is not None
    assert found.head == 3
    backend.close()
