"""Events of runs that have ended, packed into sealed blobs: read as before, from any place, whatever happened on the way."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.runs.rig import CountingProvider, Rig, folder_blobs, one, tell, until_packed
from tests.store.blob_stores import blob_store
from tests.store.canary import new_canary, search, stored
from tests.store.database.databases import Either, opened
from tests.store.installation import add_workspaces, new_sealer
from tests.store.s3_server import needs_rclone

from legation.clock import SystemClock
from legation.errors import StorageFailed, Unavailable
from legation.runs import packs as packs_module
from legation.runs import steps
from legation.runs.events import RunEventStore
from legation.runs.lists import resume_run
from legation.runs.packs import EventPacks
from legation.runs.provider import Observation
from legation.runs.run import PACKING, Run
from legation.runs.states import ErrorClass, RunState
from legation.runs.worker import WorkerOptions
from legation.secret import Secret
from legation.server.worker import _shared_blobs, make_worker
from legation.settings import load
from legation.store import backup
from legation.store.blobs.base import BlobInfo, Blobs, Content
from legation.store.blobs.folder import FolderBlobs
from legation.store.database.sqlite import SqliteDatabase
from legation.store.database.transaction import Row, rows
from legation.store.secrets.sealer import KeyRing, Sealer, make_key, new_key_text
from legation.store.secrets.vault import ContentStore, Rewrapper
from legation.wire.events import Event
from legation.wire.principal import Principal

BY = Principal(kind="token", id="tok_1", workspace="local", scopes=frozenset(), level=0)


@pytest.fixture
def rig(database: Either, tmp_path: Path) -> Rig:
    return Rig(database, CountingProvider(tmp_path / "things"))


@pytest.fixture
def blobs(tmp_path: Path) -> FolderBlobs:
    return folder_blobs(tmp_path)


async def packed(rig: Rig, blobs: Blobs, texts: Sequence[str] = ("one", "two", "three")) -> str:
    """Have a run told of, ended and packed."""
    run_id = await rig.submit()
    await tell(rig, run_id, texts)
    async with rig.working(rig.worker(packs=EventPacks(rig.database, rig.content, blobs))):
        await until_packed(rig, run_id)
    return run_id


async def manifest(rig: Rig) -> list[Row]:
    return [*await rig.database.read(rows, one("select * from run_pack order by page"))]


async def whole(store: RunEventStore, run_id: str, after: int = 0) -> list[Event]:
    found = list[Event]()
    while part := await store.read("local", run_id, found[-1].seq if found else after):
        found += part
    return found


async def test_they_are_read_as_before_and_the_database_has_none_of_them(
    rig: Rig, blobs: FolderBlobs, request: pytest.FixtureRequest
) -> None:
    canary = new_canary("event")
    run_id = await rig.submit()
    told = await tell(rig, run_id, ["one", canary, "three"])
    store = RunEventStore(rig.database, rig.content, blobs)
    before = await store.metadata("local", run_id, 0, 10)
    async with rig.working(rig.worker(packs=EventPacks(rig.database, rig.content, blobs))):
        await until_packed(rig, run_id)
    assert [await whole(store, run_id, after) for after in range(4)] == [told[after:] for after in range(4)]
    assert await store.read("local", run_id, 3) == []
    assert await store.read("other", run_id, 0) == []
    assert await store.metadata("local", run_id, 0, 10) == before
    (row,) = await manifest(rig)
    sealed = await blobs.read(row["blob"], 2**20)
    assert (row["first_seq"], row["last_seq"], row["attempt"], row["page"]) == (1, 3, 1, 1)
    assert (row["encoding"], row["bytes"]) == ("gzip", len(sealed))
    assert row["packed_at"] >= row["intended_at"]
    assert search({"blob": sealed, **await stored(rig.database, request)}, [canary]) == []


async def test_a_pack_is_bounded_and_no_more_are_opened_than_are_needed(
    rig: Rig, blobs: FolderBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packs_module, "PACK_BYTES", 1000)
    texts = [f"{number} " + "x" * (2000 if number == 5 else 200) for number in range(12)]
    run_id = await packed(rig, blobs, texts)
    found = await manifest(rig)
    assert [row["page"] for row in found] == [*range(1, len(found) + 1)]
    assert [row["first_seq"] for row in found] == [1, *(row["last_seq"] + 1 for row in found[:-1])]
    assert all(row["plain_bytes"] <= 1000 or row["first_seq"] == row["last_seq"] for row in found)
    assert len(found) >= 4
    opened, read = list[str](), blobs.read

    async def counted(name: str, most: int) -> bytes:
        opened.append(name)
        return await read(name, most)

    monkeypatch.setattr(blobs, "read", counted)
    store = RunEventStore(rig.database, rig.content, blobs)
    for after in range(12):
        assert [each.seq for each in await whole(store, run_id, after)] == [*range(after + 1, 13)]
    opened.clear()
    first = await store.read("local", run_id, 1, wanted=1)
    assert (first[0].seq, len(opened)) == (2, 1)
    opened.clear()
    assert (await store.read("local", run_id, 0, 1))[0].seq == 1
    assert len(opened) == 1


class FailsOnce(CountingProvider):
    async def observe(self, run: Run) -> Observation:
        if run.attempt == 1:
            return Observation("ended", RunState.FAILED, ErrorClass.AGENT_FAILED, "x", "it failed")
        return await super().observe(run)


@pytest.mark.parametrize("phase", ["before", "after"])
async def test_a_run_that_is_resumed_while_it_is_packed_goes_on_behind_its_events(
    phase: str, rig: Rig, blobs: FolderBlobs, tmp_path: Path
) -> None:
    rig.provider, resumed = FailsOnce(tmp_path / "things"), list[str]()

    async def on_effect(run: Run, step: str, effect: str, at: str) -> None:
        if (step, effect, at) == ("pack", "blob", phase) and not resumed:
            resumed.append(run.id)
            await rig.database.transact(resume_run, BY, run, None, now_ms=rig.clock.now_ms())
        if (step, effect, at, run.attempt) == ("start", "record", "after", 2):
            await tell(rig, run.id, ["four"], attempt=2)

    run_id = await rig.submit()
    told = await tell(rig, run_id)
    worker = rig.worker(on_effect=on_effect, packs=EventPacks(rig.database, rig.content, blobs))
    async with rig.working(worker):
        run = await rig.until(run_id, lambda each: each.state is RunState.SUCCEEDED)
        await until_packed(rig, run_id)
    assert (resumed, run.attempt, worker.figures.lost) == ([run_id], 2, 1)
    events = await whole(RunEventStore(rig.database, rig.content, blobs), run_id)
    assert (events[:3], [each.seq for each in events]) == (told, [1, 2, 3, 4])
    assert [(row["attempt"], row["page"]) for row in await manifest(rig)] == [(1, 1), (2, 2)]


async def test_one_that_was_packed_is_resumed_and_its_numbers_go_on(
    rig: Rig, blobs: FolderBlobs, tmp_path: Path
) -> None:
    rig.provider = FailsOnce(tmp_path / "things")
    run_id = await packed(rig, blobs)
    run = await rig.run(run_id)
    await rig.database.transact(resume_run, BY, run, None, now_ms=rig.clock.now_ms())
    store = RunEventStore(rig.database, rig.content, blobs)
    await tell(rig, run_id, ["four", "five"], attempt=2)
    assert [each.seq for each in await whole(store, run_id)] == [1, 2, 3, 4, 5]
    assert [each.seq for each in await whole(store, run_id, 3)] == [4, 5]
    async with rig.working(rig.worker(packs=EventPacks(rig.database, rig.content, blobs))):
        await rig.until(run_id)
        await until_packed(rig, run_id)
    assert [each.seq for each in await whole(store, run_id)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("how", ["missing", "damaged", "another's"])
async def test_a_blob_that_is_not_what_it_was_is_told_by_its_name(
    how: str, rig: Rig, blobs: FolderBlobs
) -> None:
    other = await packed(rig, blobs, ["of another"])
    run_id = await packed(rig, blobs)
    names = {row["run_id"]: row["blob"] for row in await manifest(rig)}
    if how == "missing":
        await blobs.delete(names[run_id])
    else:
        sealed = await blobs.read(names[other if how == "another's" else run_id], 2**20)
        await blobs.put(names[run_id], sealed[:-1] if how == "damaged" else sealed)
    store = RunEventStore(rig.database, rig.content, blobs)
    with pytest.raises(StorageFailed, match=f"^cannot read events of {run_id}: blob {names[run_id]} is "):
        await store.read("local", run_id, 0)
    assert len(await store.read("local", other, 0)) == 1


@needs_rclone
@pytest.mark.heavy
async def test_in_a_bucket_it_is_the_same(rig: Rig, tmp_path: Path) -> None:
    with blob_store("s3", tmp_path) as bucket:
        run_id = await packed(rig, bucket())
        (row,) = await manifest(rig)
        store = RunEventStore(rig.database, rig.content, bucket())
        assert [each.seq for each in await whole(store, run_id, 1)] == [2, 3]
        await bucket().delete(row["blob"])
        with pytest.raises(StorageFailed, match=f"blob {row['blob']} is missing"):
            await store.read("local", run_id, 0)


@pytest.mark.parametrize(
    ("chosen", "wanted"),
    [
        ({}, None),  # a folder is one server's own
        ({"LEGATION_BLOBS": "s3://bucket/prefix?endpoint=http://127.0.0.1:1&region=eu-central-1"}, 3_600_000),
        ({"LEGATION_BLOBS": "s3://bucket/prefix", "LEGATION_RUN_PACK_AFTER": "90s"}, 90_000),
        ({"LEGATION_BLOBS": "s3://bucket/prefix", "LEGATION_RUN_PACK_AFTER": "never"}, None),
    ],
)
async def test_a_worker_beside_servers_packs_only_where_all_of_them_find_it(
    chosen: dict[str, str], wanted: int | None, tmp_path: Path
) -> None:
    settings = load({"data_dir": tmp_path}, {"HOME": str(tmp_path), **chosen})
    async with SqliteDatabase(tmp_path / "legation.db") as database:
        made = make_worker(
            settings,
            database,
            SystemClock(),
            new_sealer(),
            "m1",
            "http://127.0.0.1:1",
            WorkerOptions(id="w1"),
            _shared_blobs(settings),
        )
    assert (None if made.tools.packs is None else made.tools.pack_after_ms) == wanted


async def test_with_its_content_deleted_there_is_nothing_to_read(rig: Rig, blobs: FolderBlobs) -> None:
    run_id = await packed(rig, blobs)
    await rig.database.transact(rig.content.delete, "local", run_id)
    assert await RunEventStore(rig.database, rig.content, blobs).read("local", run_id, 0) == []


async def test_under_a_new_key_of_the_installation_they_still_open(
    database: Either, blobs: FolderBlobs, tmp_path: Path
) -> None:
    former, current = (
        make_key(Secret(new_key_text(), "vault-key")),
        make_key(Secret(new_key_text(), "vault-key")),
    )
    rig = Rig(database, CountingProvider(tmp_path / "things"), Sealer(KeyRing(former)))
    run_id = await packed(rig, blobs)
    await Rewrapper(database, Sealer(KeyRing(current, (former,)))).run(lambda _done: None)
    content = ContentStore(database, Sealer(KeyRing(current)), SystemClock())
    assert len(await RunEventStore(database, content, blobs).read("local", run_id, 0)) == 3


class AwayOnce:
    """Blobs that cannot be reached at first."""

    def __init__(self, inner: FolderBlobs) -> None:
        self.inner, self.tries = inner, 0

    async def put(
        self, key: str, data: Content, *, content_type: str | None = None, if_absent: bool = False
    ) -> BlobInfo:
        self.tries += 1
        if self.tries == 1:
            raise Unavailable("cannot reach the store of blobs; try again")
        return await self.inner.put(key, data, content_type=content_type, if_absent=if_absent)

    async def read(self, key: str, limit: int) -> bytes:
        return await self.inner.read(key, limit)


async def test_while_blobs_cannot_be_put_events_stay_in_the_database_and_it_is_tried_again(
    rig: Rig, blobs: FolderBlobs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    away = AwayOnce(blobs)
    packs = EventPacks(rig.database, rig.content, away)  # type: ignore[arg-type]
    run_id = await rig.submit()
    told = await tell(rig, run_id)
    async with rig.working(rig.worker(packs=packs)):
        run = await rig.until(run_id, lambda each: away.tries == 1 and not each.lease_token)
    assert (run.state, run.next_check_at) > (RunState.SUCCEEDED, rig.clock.now_ms() + 3_000_000)
    store = RunEventStore(rig.database, rig.content, blobs)
    assert await whole(store, run_id) == told
    assert f"cannot pack the events of {run_id} now; they stay in the database" in caplog.text
    await rig.database.transact(rows, one(f"update run set next_check_at = 0 where id = '{run_id}'"))
    monkeypatch.setattr(steps, "PACK_AGAIN_MS", 0)
    async with rig.working(rig.worker(packs=packs)):
        await until_packed(rig, run_id)
    assert (away.tries, await whole(store, run_id)) == (2, told)


async def test_what_is_new_never_waits_behind_what_is_to_be_packed(rig: Rig, blobs: FolderBlobs) -> None:
    """A worker that packs nothing, such as one of an earlier release, does not even see it."""
    run_id = await rig.submit()
    await tell(rig, run_id)
    worker = rig.worker()
    async with rig.working(worker):
        run = await rig.until(run_id)
        await rig.database.transact(rows, one(f"update run set next_check_at = 1 where id = '{run_id}'"))
        claimed = worker.figures.claimed
        other = await rig.until(await rig.submit())
        assert worker.figures.claimed > claimed
        assert (await rig.run(run_id)).lease_token == ""
    assert (run.machine, other.machine) == (PACKING, PACKING)
    assert await manifest(rig) == []
    async with rig.working(rig.worker(packs=EventPacks(rig.database, rig.content, blobs))):
        await until_packed(rig, run_id)
    assert [row["run_id"] for row in await manifest(rig)] == [run_id]


async def test_a_backup_has_them_and_a_restore_gives_them_back(tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy.tar"
    data.mkdir(mode=0o700)
    async with opened(SqliteDatabase(data / "legation.db")) as database:
        await add_workspaces(database)
        rig = Rig(database, CountingProvider(tmp_path / "things"))
        run_id = await packed(rig, folder_blobs(data))
        made = backup.archive(data, with_keys=False, made_at=1_794_774_823_000, legation="1.0")
        copy.write_bytes(b"".join([piece async for piece in made]))
    backup.restore(copy, tmp_path / "again", replace=False, now_ms=1)
    async with opened(SqliteDatabase(tmp_path / "again" / "legation.db")) as database:
        content = ContentStore(database, rig.sealer, SystemClock())
        store = RunEventStore(database, content, folder_blobs(tmp_path / "again"))
        assert [each.seq for each in await whole(store, run_id)] == [1, 2, 3]
