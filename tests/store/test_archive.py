"""Backup and restore of a data folder, with real files and databases."""

import asyncio
import gc
import hashlib
import io
import json
import os
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import uvloop

from legation.clock import SystemClock
from legation.errors import Conflict, InvalidParams, LegationError
from legation.secret import Secret
from legation.server.installation import prepare_folder
from legation.store.backup import Written, archive, restore
from legation.store.database.sqlite import SqliteDatabase
from legation.store.database.transaction import Transaction, parse
from legation.store.identity.workspaces import bootstrap
from legation.store.log import EventLog
from legation.store.secrets.passphrase import Seal
from legation.store.secrets.sealer import Sealer, new_key_text, open_key_file, ring_of
from legation.store.secrets.vault import Vault, check_keys
from legation.store.sqlite import SqliteBackend
from legation.wire.events import Draft

(PUT, ALL) = parse(
    """
-- name: put
insert into bucket (workspace_id, name, tokens, updated_at) values ('local', :name, 1.0, 0);
-- name: everything
select name from bucket order by name;
"""
)


def put(name: str) -> Transaction[None]:
    yield PUT(name=name)


def names() -> Transaction[list[str]]:
    rows = yield ALL()
    return [row["name"] for row in rows]


async def copy_of(
    folder: Path, target: Path, *, with_keys: bool = False, written: Sequence[Written] = ()
) -> Path:
    made = archive(folder, with_keys=with_keys, made_at=1_794_774_823_000, legation="1.0", written=written)
    with target.open("wb") as file:
        async for piece in made:
            file.write(piece)
    return target


async def test_what_the_owner_wrote_is_in_its_place_or_told_of(tmp_path: Path) -> None:
    """In the data folder it goes back to where it was; nothing outside is written, and what is the same there is not told."""
    data, etc = tmp_path / "data", tmp_path / "etc"
    data.mkdir()
    etc.mkdir()
    (data / "agents.toml").write_text("agents of then")
    (data / "rules").mkdir()
    (data / "rules/a.yaml").write_text("in the data folder")
    for name in ("changed.yaml", "gone.yaml", "same.yaml"):
        (etc / name).write_text(f"{name} of then")
    (etc / "linked.yaml").symlink_to(etc / "same.yaml")
    written: list[Written] = [
        ("agents.toml", data / "agents.toml"),
        ("policy/a.yaml", data / "rules/a.yaml"),
        *(
            (f"policy/{name}", etc / name)
            for name in ("changed.yaml", "gone.yaml", "same.yaml", "linked.yaml")
        ),
        ("tools/never.yaml", etc / "never.yaml"),
    ]
    copy = await copy_of(data, tmp_path / "copy.tar", written=written)
    (etc / "changed.yaml").write_text("of now")
    (etc / "gone.yaml").unlink()
    before = {path.name: path.read_text() for path in etc.iterdir()}
    again = tmp_path / "again"
    done = restore(copy, again, replace=False, now_ms=1)
    assert (again / "agents.toml").read_text() == "agents of then"
    assert (again / "rules/a.yaml").read_text() == "in the data folder"
    assert {path.name: path.read_text() for path in etc.iterdir()} == before
    told = {each.was.name: each for each in done.elsewhere}
    assert {name for name, each in told.items() if not each.is_the_same} == {"changed.yaml", "gone.yaml"}
    assert told["gone.yaml"].now == again / "config/policy/gone.yaml"
    assert told["gone.yaml"].now.read_text() == "gone.yaml of then"
    assert "never.yaml" not in told
    assert {path.stat().st_mode & 0o077 for path in again.rglob("*")} == {0}


@pytest.mark.parametrize(
    "place", ["../out.yaml", "legation.db", "keys.json", "blobs/x", "config/other", "", "replaced/1/x"]
)
async def test_a_place_that_is_none_is_left_where_it_was_unpacked(tmp_path: Path, place: str) -> None:
    content, target = b"text", tmp_path / "copy.tar"
    file = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest = {
        "format": 2, "madeAt": 1, "legation": "1.0", "schema": 1,
        "files": {"config/policy/x.yaml": file}, "places": {"config/policy/x.yaml": place},
    }  # fmt: skip
    with tarfile.open(target, "w") as tar:
        for name, data in (
            ("config/policy/x.yaml", content),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    done = restore(target, tmp_path / "again", replace=False, now_ms=1)
    assert done.elsewhere == ()
    found = [path.relative_to(tmp_path / "again").as_posix() for path in (tmp_path / "again").rglob("*.*")]
    assert found == ["config/policy/x.yaml"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "copy.tar"]


async def test_a_backup_of_an_earlier_release_is_taken(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    copy = await copy_of(tmp_path / "data", tmp_path / "copy.tar")
    with tarfile.open(copy) as tar:
        found = tar.extractfile("manifest.json")
        assert found is not None
        manifest = json.loads(found.read())
    del manifest["places"]
    text = json.dumps(manifest | {"format": 1}).encode()
    with tarfile.open(tmp_path / "older.tar", "w") as tar:
        info = tarfile.TarInfo("manifest.json")
        info.size = len(text)
        tar.addfile(info, io.BytesIO(text))
    assert restore(tmp_path / "older.tar", tmp_path / "again", replace=False, now_ms=1).files == 0


async def test_a_copy_made_while_others_write_restores_to_a_working_folder(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    async with (
        SqliteDatabase(folder / "legation.db") as database,
        EventLog(SqliteBackend(folder / "events.db")) as log,
    ):
        await database.migrate()
        stream = await log.stream("ses_1")
        await stream.append([Draft("text", b'{"n":%d}' % n) for n in range(100)])
        (folder / "blobs/local/out").mkdir(parents=True)
        (folder / "blobs/local/out/a.txt").write_bytes(b"x" * 700_000)
        writing = asyncio.gather(*(database.transact(put, f"n{n:03d}") for n in range(200)))
        copy = await copy_of(folder, tmp_path / "copy.tar")
        await writing
    done = restore(copy, tmp_path / "again", replace=False, now_ms=1)
    assert (done.files, done.with_keys, done.moved_aside) == (3, False, None)
    again = tmp_path / "again"
    assert (again / "blobs/local/out/a.txt").read_bytes() == b"x" * 700_000
    async with (
        SqliteDatabase(again / "legation.db") as database,
        EventLog(SqliteBackend(again / "events.db")) as log,
    ):
        assert await database.migrate() == []
        found = await database.read(names)
        assert found == [f"n{n:03d}" for n in range(len(found))]  # one state of it, not a mixture
        events = [event async for event in (await log.stream("ses_1")).subscribe(follow=False)]
        assert [event.seq for event in events] == list(range(1, 101))
    assert {path.stat().st_mode & 0o077 for path in again.rglob("*")} == {0}


async def test_keys_are_in_it_only_if_asked(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "keys.json").write_text('{"canary": 1}')
    without = await copy_of(folder, tmp_path / "without.tar")
    assert b"canary" not in without.read_bytes()
    with_keys = await copy_of(folder, tmp_path / "with.tar", with_keys=True)
    assert restore(with_keys, tmp_path / "again", replace=False, now_ms=1).with_keys
    assert (tmp_path / "again/keys.json").read_text() == '{"canary": 1}'


async def test_the_keys_that_are_there_stay(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/keys.json").write_text("kept")
    copy = await copy_of(tmp_path / "data", tmp_path / "copy.tar")
    done = restore(copy, tmp_path / "data", replace=False, now_ms=1)
    assert done.with_keys
    assert (tmp_path / "data/keys.json").read_text() == "kept"


async def test_data_that_is_there_is_moved_aside_only_if_asked(tmp_path: Path) -> None:
    (tmp_path / "data/blobs").mkdir(parents=True)
    (tmp_path / "data/blobs/old").write_text("old")
    copy = await copy_of(tmp_path / "data", tmp_path / "copy.tar")
    with pytest.raises(Conflict, match="--replace"):
        restore(copy, tmp_path / "data", replace=False, now_ms=1)
    done = restore(copy, tmp_path / "data", replace=True, now_ms=7)
    assert done.moved_aside is not None
    assert (done.moved_aside / "blobs/old").read_text() == "old"


async def test_what_was_there_stays_in_the_private_folder(tmp_path: Path) -> None:
    """And does not hide deeper with every restore."""
    (tmp_path / "data/blobs").mkdir(parents=True)
    for number in (1, 2, 3):
        (tmp_path / "data/keys.json").write_text(f"keys of {number}")
        (tmp_path / "data/blobs/old").write_text(str(number))
        copy = await copy_of(tmp_path / "data", tmp_path / f"{number}.tar")
        restore(copy, tmp_path / "data", replace=True, now_ms=number)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.tar", "2.tar", "3.tar", "data"]
    replaced = tmp_path / "data/replaced"
    assert sorted(
        str(path.relative_to(replaced)) for path in replaced.rglob("*") if path.name == "keys.json"
    ) == [
        "1/keys.json",
        "2/keys.json",
        "3/keys.json",
    ]
    assert replaced.stat().st_mode & 0o077 == 0
    assert (replaced / "3/blobs/old").read_text() == "3"


async def test_a_data_folder_that_is_a_link_stays_one_and_nothing_is_left_where_it_leads(
    tmp_path: Path,
) -> None:
    (tmp_path / "disk/real/blobs").mkdir(parents=True)
    (tmp_path / "disk/real/keys.json").write_text("old keys")
    (tmp_path / "data").symlink_to("disk/real")
    copy = await copy_of(tmp_path / "data", tmp_path / "copy.tar")
    restore(copy, tmp_path / "data", replace=True, now_ms=4)
    assert (tmp_path / "data").readlink() == Path("disk/real")
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["real"]
    assert (tmp_path / "disk/real/replaced/4/keys.json").read_text() == "old keys"


MOVES = ("rename of the old", "rename of the new")


@pytest.mark.parametrize("killed_before", MOVES)
async def test_a_restore_that_is_killed_between_its_moves_loses_nothing(
    tmp_path: Path, killed_before: str
) -> None:
    (tmp_path / "data/blobs").mkdir(parents=True)
    (tmp_path / "data/blobs/old").write_text("of the copy")
    copy = await copy_of(tmp_path / "data", tmp_path / "copy.tar")
    (tmp_path / "data/blobs/old").write_text("precious")
    program = f"""
import os, pathlib, sys
from legation.store.secrets.passphrase import Seal
from legation.store.backup import restore
done, left = pathlib.Path.rename, [{MOVES.index(killed_before)}]
def rename(self, target):
    if not left[0]:
        os.kill(os.getpid(), 9)
    left[0] -= 1
    return done(self, target)
pathlib.Path.rename = rename
restore(pathlib.Path({str(copy)!r}), pathlib.Path({str(tmp_path / "data")!r}), replace=True, now_ms=5)
"""
    killed = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", program], check=False)
    assert killed.returncode == -9
    if killed_before == "rename of the new":
        assert not (tmp_path / "data").exists()
        with pytest.raises(Conflict, match="a restore was cut off"):
            prepare_folder(tmp_path / "data")
    (tmp_path / "bad.tar").write_bytes(b"no copy")
    with pytest.raises(InvalidParams):
        restore(tmp_path / "bad.tar", tmp_path / "data", replace=True, now_ms=6)
    assert (tmp_path / "data/blobs/old").read_text() == "precious"
    done = restore(copy, tmp_path / "data", replace=True, now_ms=7)
    assert done.moved_aside == tmp_path / "data/replaced/7"
    assert (done.moved_aside / "blobs/old").read_text() == "precious"
    assert (tmp_path / "data/blobs/old").read_text() == "of the copy"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.tar", "copy.tar", "data"]


async def test_a_restore_that_is_interrupted_between_its_moves_puts_the_old_data_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data/blobs").mkdir(parents=True)
    (tmp_path / "data/blobs/old").write_text("precious")
    copy = await copy_of(tmp_path / "data", tmp_path / "copy.tar")
    rename = Path.rename

    def interrupted(self: Path, target: Path) -> Path:
        if target == tmp_path / "data" and self.name.startswith(".data-restore-"):
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        restore(copy, tmp_path / "data", replace=True, now_ms=5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy.tar", "data"]
    assert (tmp_path / "data/blobs/old").read_text() == "precious"


async def test_new_keys_open_what_was_sealed_and_the_old_ones_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    before = open_key_file(folder / "keys.json")
    async with SqliteDatabase(folder / "legation.db") as database:
        await database.migrate()
        await check_keys(database, before, 0)
        await database.transact(bootstrap, "usr_1", now_ms=0)
        bundle = await Vault(database, Sealer(before.vault), SystemClock()).put("local", "run_1", b"secret")
    copy = await copy_of(folder, tmp_path / "copy.tar", with_keys=True)
    await asyncio.to_thread(lambda: restore(copy, tmp_path / "again", replace=False, now_ms=1, new_keys=True))
    after = open_key_file(tmp_path / "again/keys.json")
    assert before.vault.current.id not in {after.vault.current.id, *(key.id for key in after.vault.older)}
    assert before.cookie.reveal() != after.cookie.reveal()
    assert before.pepper.reveal() == after.pepper.reveal()  # tokens stay good
    async with SqliteDatabase(tmp_path / "again/legation.db") as database:
        await check_keys(database, after, 2)
        opening = Vault(database, Sealer(after.vault), SystemClock()).open_bytes("local", "run_1", bundle)
        assert await opening == b"secret"
        with pytest.raises(LegationError):
            await Vault(database, Sealer(before.vault), SystemClock()).open_bytes("local", "run_1", bundle)


async def test_new_keys_without_the_old_ones_are_refused_and_nothing_changes(tmp_path: Path) -> None:
    (tmp_path / "data/blobs").mkdir(parents=True)
    copy = await copy_of(tmp_path / "data", tmp_path / "copy.tar")
    with pytest.raises(Conflict, match="cannot make new keys"):
        restore(copy, tmp_path / "again", replace=False, now_ms=1, new_keys=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy.tar", "data"]


# Sealed with a passphrase.

PHRASE = Secret("correct horse battery staple", "passphrase")


async def sealed_copy_of(folder: Path, target: Path) -> Path:
    plain = await copy_of(folder, target.with_suffix(".plain"))
    seal = Seal(PHRASE)
    target.write_bytes(seal.update(plain.read_bytes()) + seal.finish())
    plain.unlink()
    return target


@pytest.mark.heavy
async def test_a_sealed_copy_shows_nothing_and_is_restored_with_its_passphrase(tmp_path: Path) -> None:
    (tmp_path / "data/blobs").mkdir(parents=True)
    (tmp_path / "data/blobs/a").write_bytes(b"canary-5f1e" * 20_000)
    copy = await sealed_copy_of(tmp_path / "data", tmp_path / "copy")
    assert b"canary" not in copy.read_bytes()
    assert b"manifest" not in copy.read_bytes()
    restore(copy, tmp_path / "again", replace=False, now_ms=1, passphrase=PHRASE)
    assert (tmp_path / "again/blobs/a").read_bytes() == b"canary-5f1e" * 20_000


@pytest.mark.heavy
async def test_a_sealed_copy_without_its_passphrase_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "data/blobs").mkdir(parents=True)
    (tmp_path / "data/blobs/a").write_bytes(bytes(300_000))
    copy = await sealed_copy_of(tmp_path / "data", tmp_path / "copy")
    whole = copy.read_bytes()
    cases: list[tuple[bytes, Secret | None, str]] = [
        (whole, None, "--passphrase-file"),
        (whole, Secret("another passphrase", "passphrase"), "not the one"),
        (whole[:-70_000], PHRASE, "damaged or cut off"),
        (whole[: 42 + 16 + 64 * 1024], PHRASE, "not the one|cut off"),
        (whole[:30], PHRASE, "damaged"),
        (b"garbage" * 1000, PHRASE, "not sealed"),
        (b"garbage" * 1000, None, "not a whole backup"),
        ((await copy_of(tmp_path / "data", tmp_path / "plain")).read_bytes(), PHRASE, "not sealed"),
    ]
    (tmp_path / "plain").unlink()
    for content, phrase, told in cases:
        copy.write_bytes(content)
        with pytest.raises(InvalidParams, match=told):
            restore(copy, tmp_path / "data", replace=True, now_ms=1, passphrase=phrase)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "data"]
        assert [path.name for path in (tmp_path / "data").rglob("*") if path.suffix != ".lock"] == [
            "blobs",
            "a",
        ]


async def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    async with SqliteDatabase(tmp_path / "data/legation.db") as database:
        await database.migrate()
        copy = await copy_of(tmp_path / "data", tmp_path / "copy.tar")
        with pytest.raises(Conflict, match="legation stop"):
            restore(copy, tmp_path / "data", replace=True, now_ms=1)


async def test_a_link_in_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("canary-7")
    (tmp_path / "data/blobs").mkdir(parents=True)
    (tmp_path / "data/blobs/link").symlink_to(tmp_path / "secret")
    copy = await copy_of(tmp_path / "data", tmp_path / "copy.tar")
    assert b"canary-7" not in copy.read_bytes()


@pytest.mark.parametrize("keep", [0, 100, 600, 5_000, 20_000])
async def test_a_copy_that_broke_off_is_refused_and_nothing_is_left(tmp_path: Path, keep: int) -> None:
    (tmp_path / "data/blobs").mkdir(parents=True)
    (tmp_path / "data/blobs/a").write_bytes(bytes(30_000))
    copy = await copy_of(tmp_path / "data", tmp_path / "copy.tar")
    copy.write_bytes(copy.read_bytes()[:keep])
    with pytest.raises(InvalidParams, match="not a whole backup"):
        restore(copy, tmp_path / "again", replace=False, now_ms=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy.tar", "data"]


def tar_of(members: Sequence[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    out = io.BytesIO()
    files = {
        info.name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for info, data in members
        if info.isreg()
    }
    manifest = {"format": 1, "madeAt": 0, "legation": "1", "schema": 1, "files": files}
    text = json.dumps(manifest).encode()
    info = tarfile.TarInfo("manifest.json")
    info.size = len(text)
    with tarfile.open(fileobj=out, mode="w") as tar:
        for member, data in (*members, (info, text)):
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


def hostile() -> dict[str, tuple[tarfile.TarInfo, bytes]]:
    link = tarfile.TarInfo("blobs/link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    hard = tarfile.TarInfo("blobs/hard")
    hard.type, hard.linkname = tarfile.LNKTYPE, "/etc/passwd"
    fifo = tarfile.TarInfo("blobs/fifo")
    fifo.type = tarfile.FIFOTYPE
    plain = ("/etc/planted", "../planted", "blobs/../../planted", "planted", "bin/planted")
    return {
        "link": (link, b""),
        "hard link": (hard, b""),
        "fifo": (fifo, b""),
        "damaged database": (tarfile.TarInfo("legation.db"), b"SQLite format 3\0" + bytes(5000)),
        **{name: (tarfile.TarInfo(name), b"x") for name in plain},
    }


@pytest.mark.parametrize("case", hostile())
def test_a_hostile_copy_is_refused_and_writes_nothing_outside(tmp_path: Path, case: str) -> None:
    copy = tmp_path / "copy.tar"
    copy.write_bytes(tar_of([hostile()[case]]))
    with pytest.raises(LegationError, match="cannot restore"):
        restore(copy, tmp_path / "again", replace=False, now_ms=1)
    assert [path.name for path in tmp_path.iterdir()] == ["copy.tar"]


async def test_a_database_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    async with SqliteDatabase(tmp_path / "data/legation.db") as database:
        await database.migrate()
    with closing(sqlite3.connect(tmp_path / "data/legation.db")) as connection, connection:
        connection.execute("insert into migration (number, name, applied_at) values (9999, 'future', 0)")
    connection.close()
    copy = await copy_of(tmp_path / "data", tmp_path / "copy.tar")
    with pytest.raises(LegationError, match="newer Legation"):
        restore(copy, tmp_path / "again", replace=False, now_ms=1)


async def test_a_reader_that_goes_away_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs/a").write_bytes(bytes(5_000_000))
    pieces = archive(tmp_path, with_keys=False, made_at=0, legation="1")
    await anext(pieces)
    await pieces.aclose()
    assert [path.name for path in tmp_path.iterdir()] == ["blobs"]


async def test_a_copy_that_is_sealed_with_another_key_is_refused(tmp_path: Path) -> None:
    ring, other = (ring_of([new_key_text()]) for _ in range(2))
    async with SqliteDatabase(tmp_path / "data/legation.db") as database:
        await database.migrate()
        await database.transact(bootstrap, "usr_1", now_ms=0)
        await Vault(database, Sealer(ring), SystemClock()).put("local", "run_1", b"secret")
    copy = await copy_of(tmp_path / "data", tmp_path / "copy.tar")
    with pytest.raises(Conflict, match=ring.current.id):
        restore(copy, tmp_path / "again", replace=False, now_ms=1, known_keys={other.current.id})
    assert not (tmp_path / "again").exists()
    restore(copy, tmp_path / "again", replace=False, now_ms=1, known_keys={ring.current.id})


async def test_the_port_stays_with_the_place(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/port").write_text("4518\n")
    copy = await copy_of(tmp_path / "data", tmp_path / "copy.tar")
    restore(copy, tmp_path / "data", replace=True, now_ms=1)
    assert (tmp_path / "data/port").read_text() == "4518\n"


def test_a_backup_closes_its_descriptor_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the loop of a server, where the one that reads it may leave in the middle."""
    folder, twice = tmp_path / "data", list[str]()
    (folder / "blobs").mkdir(parents=True)
    (folder / "blobs" / "large").write_bytes(b"x" * 3_000_000)

    class Watched(io.FileIO):
        def close(self) -> None:
            if not self.closed:
                try:
                    os.fstat(self.fileno())
                except OSError as error:
                    twice.append(str(error))
            super().close()

    real = os.fdopen

    def watched(number: int, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        return Watched(number, "rb") if kwargs.get("buffering") == 0 else real(number, mode, *args, **kwargs)

    monkeypatch.setattr(os, "fdopen", watched)

    async def scenario() -> None:
        await copy_of(folder, tmp_path / "copy.tar")
        before = len(list(Path("/proc/self/fd").iterdir()))
        pieces = archive(folder, with_keys=False, made_at=1, legation="1.0")
        assert await anext(pieces)
        await pieces.aclose()
        assert len(list(Path("/proc/self/fd").iterdir())) == before

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(scenario(), 60))
    gc.collect()
    assert twice == []
