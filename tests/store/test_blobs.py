"""One suite for every kind of blob storage, then what only a folder or only a bucket can suffer."""

import asyncio
import hashlib
import json
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.store.blob_stores import KINDS, blob_store, signer
from tests.store.s3_server import S3Server, conditional_server, needs_rclone, s3_server

from legation.errors import ConfigInvalid, Conflict, InvalidParams, NotFound, StorageFailed, TooLarge
from legation.secret import Secret
from legation.store.blobs import base as seam
from legation.store.blobs.base import Blobs, check_key, check_prefix, open_blobs, workspace_key
from legation.store.blobs.folder import CHUNK, FolderBlobs, NewBlob
from legation.store.blobs.s3 import PART, S3Blobs

ROOT = Path(__file__).parents[2]
KEY = "ws_a/runs/run_1/out=1.tar.gz"


@pytest.fixture(params=KINDS)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Blobs]]:
    with blob_store(request.param, tmp_path) as opens:
        yield opens


@pytest.fixture
def blobs(opened: Callable[[], Blobs]) -> Blobs:
    return opened()


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def everything(blobs: Blobs, key: str) -> bytes:
    return b"".join([part async for part in await blobs.get(key)])


async def keys(blobs: Blobs, prefix: str) -> list[str]:
    return [found.key async for found in blobs.list(prefix)]


async def test_what_was_put_comes_back_after_a_restart(opened: Callable[[], Blobs]) -> None:
    blobs = opened()
    await blobs.check()
    started = time.time()
    for data in (b"hello", b"", bytes(range(256)) * 100):
        info = await blobs.put(KEY, data, content_type="text/html")
        assert (info.key, info.size, info.sha256) == (KEY, len(data), hashlib.sha256(data).hexdigest())
        assert abs(info.modified_ms / 1000 - started) < 100
        again = opened()
        assert await everything(again, KEY) == data
        assert await again.read(KEY, len(data)) == data
        found = await again.head(KEY)
        assert (found.key, found.size) == (KEY, len(data))
        assert abs(found.modified_ms / 1000 - started) < 100


async def test_a_long_stream_comes_back_in_parts(blobs: Blobs) -> None:
    sizes = [1, PART, 3, PART + 5, 0, CHUNK, 100_000]
    data = [os.urandom(size) for size in sizes]
    info = await blobs.put(KEY, pieces(*data))
    assert (info.size, info.sha256) == (sum(sizes), hashlib.sha256(b"".join(data)).hexdigest())
    parts = [part async for part in await blobs.get(KEY)]
    assert b"".join(parts) == b"".join(data)
    assert len(parts) > 5
    assert (await blobs.put("ws_a/empty", pieces())).size == 0
    assert await everything(blobs, "ws_a/empty") == b""


async def test_a_stream_that_breaks_leaves_what_was_there(blobs: Blobs) -> None:
    async def broken(size: int) -> AsyncIterator[bytes]:
        yield bytes(size)
        raise FileNotFoundError("the caller's own trouble")

    await blobs.put(KEY, b"before")
    for size in (10, 2 * PART):
        for key in (KEY, "ws_a/other"):
            for if_absent in (False, True):
                with pytest.raises(FileNotFoundError, match="the caller's own"):
                    await blobs.put(key, broken(size), if_absent=if_absent)
    assert await everything(blobs, KEY) == b"before"
    assert await keys(blobs, "ws_a") == [KEY]


async def test_a_cancelled_put_leaves_nothing(blobs: Blobs, tmp_path: Path) -> None:
    reached = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield bytes(CHUNK)
        yield bytes(CHUNK)
        reached.set()
        await asyncio.Event().wait()

    putting = asyncio.create_task(blobs.put(KEY, endless()))
    await asyncio.wait_for(reached.wait(), 10)
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting
    assert await keys(blobs, "ws_a") == []
    assert list((tmp_path / "blobs" / ".incoming").glob("*")) == []


async def test_a_reader_may_stop_early(blobs: Blobs) -> None:
    await blobs.put(KEY, bytes(3 * CHUNK))
    async with aclosing(await blobs.get(KEY)) as reading:
        async for _ in reading:
            break
    assert [part async for part in reading] == []


async def test_too_large_is_told_without_reading(blobs: Blobs) -> None:
    await blobs.put(KEY, b"12345")
    with pytest.raises(TooLarge, match="larger than 4 bytes"):
        await blobs.read(KEY, 4)


async def test_what_is_absent_is_not_found(blobs: Blobs) -> None:
    await blobs.put("ws_a/dir/file", b"")
    for key in (KEY, "ws_a/dir/file2"):
        for call in (blobs.get, blobs.head):
            with pytest.raises(NotFound, match=key):
                await call(key)
        await blobs.delete(key)
    assert await keys(blobs, "ws_b") == []
    assert await blobs.delete_prefix("ws_b") == 0


async def test_if_absent_keeps_the_first(blobs: Blobs) -> None:
    assert (await blobs.put(KEY, b"first", if_absent=True)).size == 5
    for data in (b"second", pieces(b"sec", b"ond")):
        with pytest.raises(Conflict, match=KEY):
            await blobs.put(KEY, data, if_absent=True)
    assert await everything(blobs, KEY) == b"first"
    await blobs.put(KEY, b"third")
    assert await everything(blobs, KEY) == b"third"
    await blobs.delete(KEY)
    await blobs.put(KEY, pieces(b"fourth"), if_absent=True)
    assert await keys(blobs, "ws_a") == [KEY]


async def test_a_prefix_is_whole_segments_in_order(blobs: Blobs) -> None:
    stored = ["ws_a/a-b/c", "ws_a/a/b", "ws_a/a/b.txt", "ws_a/a/c/d/e", "ws_a/ab", "ws_ab/a", "ws_b/a/b"]
    for key in reversed(stored):
        await blobs.put(key, key.encode())
    assert await keys(blobs, "ws_a") == stored[:5]
    assert await keys(blobs, "ws_a/a") == stored[1:4]
    assert await keys(blobs, "ws_a/ab") == []  # a blob is not beneath itself
    assert [found.size async for found in blobs.list("ws_b")] == [8]
    assert await blobs.delete_prefix("ws_a/a") == 3
    assert await keys(blobs, "ws_a") == ["ws_a/a-b/c", "ws_a/ab"]
    assert await blobs.delete_prefix("ws_a") == 2
    assert await keys(blobs, "ws_a") == []
    assert await keys(blobs, "ws_ab") == ["ws_ab/a"]


async def test_many_at_once_do_not_disturb_each_other(blobs: Blobs) -> None:
    """Also in folders that come and go."""

    async def one(number: int) -> None:
        key = f"ws_a/{number % 3}/{number}"
        await blobs.put(key, pieces(b"%d" % number))
        assert await everything(blobs, key) == b"%d" % number
        await blobs.delete(key)

    await asyncio.gather(*[one(number) for number in range(60)])
    assert await keys(blobs, "ws_a") == []


HOSTILE = [
    *(
        "",
        "/",
        "ws_a",
        "/ws_a/x",
        "ws_a/",
        "ws_a//x",
        "ws_a/../x",
        "ws_a/./x",
        "../x",
        "./x",
        "ws_a/..",
        ".x/y",
    ),
    *("ws_a/x\0", "ws_a/x y", "ws_a/ä", "ws_a/x\n", "ws_a\\x/y", "ws_a/x%2e", "ws_a/x?y", "ws_a/x#y", "-x/y"),
    *("ws_a/" + "x" * 256, "ws_a/" + "x/" * 300 + "x", ".incoming/x", "ws_a/\ud800"),
]


@pytest.mark.parametrize("key", HOSTILE, ids=ascii)
async def test_a_hostile_key_reaches_nothing(key: str, tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path / "blobs", signer())
    for call in (
        blobs.get(key),
        blobs.head(key),
        blobs.delete(key),
        blobs.put(key, b"x"),
        blobs.link(key, expires_in=1),
    ):
        with pytest.raises(InvalidParams, match="cannot use that blob key"):
            await call
    if key != "ws_a":
        with pytest.raises(InvalidParams):
            await blobs.delete_prefix(key)


@given(st.text(alphabet=st.sampled_from("ab./\\\0= -_%é\n"), max_size=20) | st.text(max_size=600))
def test_a_key_that_is_taken_stays_beneath(key: str) -> None:
    try:
        check_key(key)
    except InvalidParams:
        return
    assert os.path.normpath(key) == key
    assert not key.startswith(("/", "."))
    assert key.isascii()
    assert len(key) <= 512
    assert check_prefix(key) == key


def test_a_key_is_made_of_its_parts() -> None:
    assert workspace_key("ws_a", "runs", "run_1") == "ws_a/runs/run_1"
    for parts in (("ws_a", "a/b"), ("ws_a", ""), ("ws_a/x", "b"), ("ws_a", ".."), ("", "a")):
        with pytest.raises(InvalidParams):
            workspace_key(*parts)


# A folder.


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "blobs"


@pytest.fixture
def folder(root: Path) -> FolderBlobs:
    return FolderBlobs(root, signer())


async def test_files_and_folders_are_the_owners_alone(root: Path, folder: FolderBlobs) -> None:
    before = os.umask(0)
    try:
        await folder.put(KEY, b"x")
    finally:
        os.umask(before)
    for path in (root, *root.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


async def test_a_planted_link_leads_nowhere(root: Path, folder: FolderBlobs, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("canary")
    await folder.put("ws_a/real", b"x")
    (root / "ws_a" / "dir").symlink_to(outside)
    (root / "ws_a" / "file").symlink_to(outside / "secret")
    for key in ("ws_a/dir/secret", "ws_a/file"):
        for call in (folder.get, folder.head):
            with pytest.raises(NotFound):
                await call(key)
    with pytest.raises(Conflict):
        await folder.put("ws_a/dir/new", b"x")
    with pytest.raises(Conflict):
        await folder.put("ws_a/file", b"x", if_absent=True)
    assert await keys(folder, "ws_a") == ["ws_a/real"]
    await folder.delete("ws_a/dir/secret")
    assert await folder.delete_prefix("ws_a/dir") == 0
    await folder.put("ws_a/file", b"mine")  # takes the link's place
    assert await everything(folder, "ws_a/file") == b"mine"
    assert {path.name: path.read_text() for path in outside.iterdir()} == {"secret": "canary"}


async def test_a_link_in_place_of_the_incoming_folder_is_not_followed(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    root.mkdir()
    (root / ".incoming").symlink_to(outside)
    with pytest.raises(StorageFailed, match="cannot open the blobs"):
        FolderBlobs(root, signer())
    assert (outside / "precious").exists()


async def test_a_pipe_is_no_blob(root: Path, folder: FolderBlobs) -> None:
    await folder.put("ws_a/x", b"")
    os.mkfifo(root / "ws_a" / "pipe")
    for call in (folder.get, folder.head):
        with pytest.raises(NotFound):
            await asyncio.wait_for(call("ws_a/pipe"), 5)
    assert await keys(folder, "ws_a") == ["ws_a/x"]


async def test_a_key_cannot_be_both_a_blob_and_a_folder(folder: FolderBlobs) -> None:
    await folder.put("ws_a/x", b"blob")
    with pytest.raises(Conflict, match="begins with that of another"):
        await folder.put("ws_a/x/y", b"")
    await folder.put("ws_a/d/y", b"")
    for if_absent in (False, True):
        with pytest.raises(Conflict):
            await folder.put("ws_a/d", b"", if_absent=if_absent)
    assert await everything(folder, "ws_a/x") == b"blob"
    assert await keys(folder, "ws_a/d") == ["ws_a/d/y"]


async def test_a_reader_keeps_what_it_opened(folder: FolderBlobs) -> None:
    old = os.urandom(3 * CHUNK)
    await folder.put(KEY, old)
    reading = await folder.get(KEY)
    await folder.put(KEY, b"new")
    assert reading.info.size == len(old)
    assert b"".join([part async for part in reading]) == old
    assert await everything(folder, KEY) == b"new"


async def one_of_many(blobs: Blobs) -> None:
    outcomes = await asyncio.gather(
        *[blobs.put(KEY, b"%d" % number, if_absent=True) for number in range(20)], return_exceptions=True
    )
    assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 19
    assert sum(isinstance(outcome, seam.BlobInfo) for outcome in outcomes) == 1


async def test_of_many_that_store_if_absent_one_does(folder: FolderBlobs) -> None:
    await one_of_many(folder)


async def test_what_is_no_blob_is_not_deleted(folder: FolderBlobs) -> None:
    await folder.put("ws_a/d/y", b"")
    for key in ("ws_a/d", "ws_a/d/y/z", "ws_a/d/none"):
        await folder.delete(key)
    assert await keys(folder, "ws_a") == ["ws_a/d/y"]


async def test_empty_folders_go_with_their_last_blob(root: Path, folder: FolderBlobs) -> None:
    await folder.put(KEY, b"")
    await folder.delete(KEY)
    assert [path.name for path in root.iterdir()] == [".incoming"]


async def test_a_cancelled_put_waits_for_its_thread(
    root: Path, folder: FolderBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its descriptor would be closed, and maybe another's by then, while the thread writes to it."""
    writing, go_on = threading.Event(), threading.Event()
    write = NewBlob.write

    def slow(draft: NewBlob, block: bytes | memoryview) -> None:
        writing.set()
        assert go_on.wait(10)
        write(draft, block)

    monkeypatch.setattr(NewBlob, "write", slow)
    putting = asyncio.create_task(folder.put(KEY, pieces(b"x")))
    assert await asyncio.to_thread(writing.wait, 10)
    for _ in range(3):
        putting.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert not putting.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await putting
    assert list((root / ".incoming").iterdir()) == []
    assert await keys(folder, "ws_a") == []


async def test_a_folder_that_goes_at_the_last_moment_is_made_again(
    root: Path, folder: FolderBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another delete took the last blob in it, and the folder with it."""
    rename = os.rename
    gone: list[Path] = []

    def late(*arguments: Any, **options: Any) -> None:
        if not gone:
            gone.append((root / KEY).parent)
            gone[0].rmdir()
        rename(*arguments, **options)

    monkeypatch.setattr(os, "rename", late)
    await folder.put(KEY, b"x")
    assert gone
    assert await everything(folder, KEY) == b"x"


async def test_opening_spares_what_another_is_writing(root: Path, folder: FolderBlobs) -> None:
    (root / ".incoming" / "left-by-a-crash").write_text("half")
    going, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield bytes(CHUNK)
        going.set()
        await go_on.wait()
        yield b"end"

    putting = asyncio.create_task(folder.put(KEY, slow()))
    await asyncio.wait_for(going.wait(), 10)
    other = FolderBlobs(root, signer())
    assert len(list((root / ".incoming").iterdir())) == 1
    go_on.set()
    assert (await putting).size == CHUNK + 3
    assert (await other.head(KEY)).size == CHUNK + 3


async def test_a_folder_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageFailed, match="cannot open the blobs in"):
        FolderBlobs(tmp_path / "file", signer())
    with pytest.raises(StorageFailed):
        FolderBlobs(Path("/proc/blobs"), signer())
    vanished = FolderBlobs(tmp_path / "blobs", signer())
    (tmp_path / "blobs" / ".incoming").rmdir()
    (tmp_path / "blobs").rmdir()
    with pytest.raises(StorageFailed, match="cannot write blobs to"):
        await vanished.check()
    with pytest.raises(StorageFailed, match="cannot store blob"):
        await vanished.put(KEY, b"")


def child(program: str, *arguments: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", f"tests.store.{program}", *arguments],
        stdout=subprocess.PIPE,
        env={"PATH": os.environ["PATH"]},
        cwd=ROOT,
    )


@pytest.mark.heavy
async def test_a_kill_leaves_each_blob_whole_or_absent(root: Path) -> None:
    for attempt in range(8):
        writer = child("blob_writer_to_kill", "endless", str(root))
        assert writer.stdout
        acknowledged = [json.loads(writer.stdout.readline())]
        time.sleep(attempt * 0.007)  # the point of the kill: what is waited for is the kill itself
        writer.kill()
        acknowledged += [
            json.loads(line) for line in writer.stdout.read().splitlines(keepends=True) if b"\n" in line
        ]
        writer.stdout.close()
        writer.wait()
        blobs = FolderBlobs(root, signer())
        assert list((root / ".incoming").iterdir()) == []
        stored = await keys(blobs, "ws_a")
        for key in stored:
            data = await everything(blobs, key)
            assert len(data) == 3 * CHUNK
            assert data == data[:1] * len(data)
        assert {entry["key"] for entry in acknowledged} <= set(stored)
        await blobs.delete_prefix("ws_a")


@pytest.mark.heavy
async def test_a_full_disk_is_told_and_leaves_nothing(root: Path) -> None:
    writer = child("blob_writer_to_kill", "full", str(root))
    output, _ = writer.communicate(timeout=60)
    assert writer.returncode == 0
    saw = json.loads(output)
    assert saw["codes"] == ["legation/storage-failed"] * 2
    assert all("make room" in message for message in saw["messages"])
    blobs = FolderBlobs(root, signer())
    assert await keys(blobs, "ws_a") == ["ws_a/small"]
    assert saw["incoming"] == []


def test_the_setting_chooses_the_place(tmp_path: Path) -> None:
    assert isinstance(open_blobs(None, tmp_path, signer()), FolderBlobs)
    assert (tmp_path / "blobs" / ".incoming").is_dir()
    open_blobs(str(tmp_path / "else"), tmp_path, signer())
    assert (tmp_path / "else" / ".incoming").is_dir()
    for setting in ("relative", "https://x", ""):
        with pytest.raises(ConfigInvalid, match="write an absolute path"):
            open_blobs(setting, tmp_path, signer())
    assert isinstance(open_blobs("s3://bucket", tmp_path, signer()), S3Blobs)


# A bucket.


@pytest.fixture
def server(tmp_path: Path) -> Iterator[S3Server]:
    with s3_server(tmp_path) as running:
        yield running


@needs_rclone
@pytest.mark.heavy
async def test_objects_lie_beneath_the_prefix(server: S3Server) -> None:
    blobs = S3Blobs(server.url(), access_key=server.access_key, secret_key=server.secret_key)
    await blobs.put(KEY, b"x", if_absent=True)
    files = [path for path in (server.folder / "bucket").rglob("*") if path.is_file()]
    assert [str(path.relative_to(server.folder / "bucket")) for path in files] == [f"some/prefix/{KEY}"]


async def test_of_many_that_store_if_absent_one_does_where_the_server_heeds_conditions() -> None:
    with conditional_server() as (endpoint, objects):
        blobs = S3Blobs(f"s3://bucket?endpoint={endpoint}", access_key=Secret("a"), secret_key=Secret("b"))
        await one_of_many(blobs)
        assert list(objects) == [f"/bucket/{KEY.replace('=', '%3D')}"]


@needs_rclone
@pytest.mark.heavy
async def test_what_is_too_long_for_one_request_is_not_stored_if_absent(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("legation.store.blobs.s3.IF_ABSENT_LIMIT", 10)
    blobs = S3Blobs(server.url(), access_key=server.access_key, secret_key=server.secret_key)
    await blobs.put(KEY, pieces(b"12345", b"67890"), if_absent=True)
    with pytest.raises(TooLarge, match="over 10 bytes"):
        await blobs.put("ws_a/x", pieces(b"12345", b"678901"), if_absent=True)


@needs_rclone
@pytest.mark.heavy
async def test_credentials_may_come_from_the_environment(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.access_key.reveal())
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret_key.reveal())
    blobs = S3Blobs(server.url())
    await blobs.put(KEY, b"x")
    assert "response-content-disposition" in await blobs.link(KEY, expires_in=5)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "another")
    given = S3Blobs(server.url(), access_key=server.access_key, secret_key=server.secret_key)
    assert await given.read(KEY, 1) == b"x"


@needs_rclone
@pytest.mark.heavy
async def test_refused_credentials_and_a_missing_bucket_are_told(server: S3Server) -> None:
    wrong = S3Blobs(server.url(), access_key=server.access_key, secret_key=Secret("canary-secret"))
    missing = S3Blobs(server.url("no-bucket"), access_key=server.access_key, secret_key=server.secret_key)
    for blobs, told in ((wrong, "refused the credentials"), (missing, "there is no such bucket")):
        for call in (blobs.check(), blobs.put(KEY, b"x"), blobs.put(KEY, pieces(b"x"), if_absent=True)):
            with pytest.raises(StorageFailed, match=told) as caught:
                await call
            assert "canary" not in caught.value.message
        with pytest.raises(StorageFailed, match=r"S3 does not answer .*credentials"):
            await keys(blobs, "ws_a")


@needs_rclone
@pytest.mark.heavy
async def test_a_server_that_is_gone_is_told(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("legation.store.blobs.s3.RETRIES", 1)
    blobs = S3Blobs(server.url(), access_key=server.access_key, secret_key=server.secret_key)
    server.process.kill()
    server.process.wait()
    for call in (blobs.check(), blobs.put(KEY, b"x"), blobs.get(KEY), blobs.delete(KEY), keys(blobs, "ws_a")):
        with pytest.raises(StorageFailed, match="S3 does not answer"):
            await call


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "s3:///x",
        "s3://B",
        "s3://bucket/../x",
        "s3://bucket?endpoint=ftp://x",
        "s3://bucket?endpoint=http://user:canary@x",
        "s3://id:canary@bucket",
        "s3://bucket?secret=canary",
        "s3://bucket?region",
        "s3://bucket#x",
    ],
)
def test_an_address_that_is_wrong_is_refused(url: str) -> None:
    with pytest.raises(ConfigInvalid, match="cannot keep blobs there") as caught:
        S3Blobs(url)
    assert "canary" not in caught.value.message


def test_half_a_credential_is_refused() -> None:
    with pytest.raises(ConfigInvalid, match="half a credential"):
        S3Blobs("s3://bucket", access_key=Secret("x"))


def test_without_its_client_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(ConfigInvalid, match=r"pip install legation\[s3\]"):
        open_blobs("s3://bucket", tmp_path, signer())


def test_a_folder_needs_no_client_of_s3() -> None:
    code = f"import sys, {seam.__name__}, {FolderBlobs.__module__}; sys.exit('obstore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={}, check=False).returncode == 0
