"""INV-F1 to INV-F3: nothing outside the allowed folders is touched. The fixture checks that the outside is as it was."""

import asyncio
import ctypes
import io
import os
import shutil
import socket
import stat
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.server.fs.drive import SECRET, Drive, open_drive

from legation.server.fs import operations

ROUNDS = 300
FORBIDDEN = (403, "legation/forbidden")


async def everything(drive: Drive, path: object, inside: str = "") -> list[tuple[int, str]]:
    """What each route answers, for a path and, where it may be a folder, for a name in it."""
    where = f"{path}/{inside}" if inside else path
    got = [
        await drive.read(where),
        await drive.write(where),
        await drive("GET", "stat", path=where),
        await drive("GET", "entries", path=path),
        await drive("POST", "mkdir", path=f"{path}/made"),
        await drive("DELETE", "entry", path=f"{path}/x" if not inside else where, recursive="true"),
        await drive("POST", "move", body={"from": str(where), "to": "stolen"}),
        await drive("POST", "move", body={"from": "a.txt", "to": f"{path}/planted", "overwrite": True}),
        await drive("POST", "upload-batch", path=path, raw=bytes(1024)),
    ]
    return [(each.status, each.json()["code"] if each.status != 200 else "") for each in got]


@pytest.mark.parametrize(
    "path",
    ["{outside}", "{place}", "/", "/etc", "{root}2", "//{outside}", "/proc/self", "{place}/./outside/."],
)
async def test_a_path_outside_is_refused_whether_it_exists_or_not(drive: Drive, path: str) -> None:
    named = path.format(root=drive.root, outside=drive.outside, place=drive.place)
    assert set(await everything(drive, named, "secret")) == {FORBIDDEN}
    assert set(await everything(drive, named, "no/such/thing")) == {FORBIDDEN}


@pytest.mark.parametrize("path", ["..", "sub/../../outside", "../outside", "{root}/../outside", "sub/.."])
async def test_a_way_up_is_refused(drive: Drive, path: str) -> None:
    named = path.format(root=drive.root)
    assert set(await everything(drive, named, "secret")) == {(400, "legation/invalid-params")}


@pytest.mark.parametrize(
    "path", ["‥/outside", "\uff0e\uff0e/outside", "..\\outside", "%2e%2e/outside", "~/x", "sub/b.txt\u200b"]
)
async def test_what_only_looks_like_a_way_up_is_a_plain_name(drive: Drive, path: str) -> None:
    assert (await drive.read(path)).status == 404


@pytest.mark.parametrize(
    "target", ["{outside}", "../outside", "sub/../../outside", "../../../../../..{outside}"]
)
async def test_a_link_that_leads_outside_is_not_followed(drive: Drive, target: str) -> None:
    (drive.root / "out").symlink_to(target.format(outside=drive.outside))
    assert set(await everything(drive, "out", "secret")) == {FORBIDDEN}
    assert set(await everything(drive, "out", "absent")) == {FORBIDDEN}


async def test_a_link_to_a_file_outside_is_not_followed_but_can_be_deleted(drive: Drive) -> None:
    (drive.root / "out").symlink_to(drive.outside / "secret")
    (drive.root / "dangling").symlink_to(drive.outside / "absent")
    for name in ("out", "dangling"):
        assert (await drive.read(name)).status == 403
        assert (await drive.write(name)).status == 403
        assert (await drive("GET", "stat", path=name)).status == 403
        assert (await drive("DELETE", "entry", path=name)).status == 200
    assert await drive.names() == ["a.txt", "sub"]


async def test_links_that_stay_inside_are_followed(drive: Drive) -> None:
    (drive.root / "relative").symlink_to("sub")
    (drive.root / "absolute").symlink_to(drive.root / "sub")
    (drive.root / "sub" / "up").symlink_to("../a.txt")
    (drive.root / "sub" / "winding").symlink_to("deep/../../relative/up")
    for path in ("relative/b.txt", "absolute/b.txt", "relative/deep/../b.txt".replace("deep/../", "")):
        assert (await drive.read(path)).body == b"bb"
    assert (await drive.read("sub/winding")).body == b"a"
    assert (await drive.write("absolute/new/c.txt", b"c")).json()["path"] == str(drive.root / "sub/new/c.txt")
    assert (await drive("GET", "stat", path="relative")).json()["entryType"] == "directory"
    assert {"b.txt", "winding"} < set(await drive.names("absolute"))


async def test_to_write_a_link_writes_what_it_leads_to(drive: Drive) -> None:
    (drive.root / "link").symlink_to("sub/b.txt")
    (drive.root / "dangling").symlink_to("sub/later.txt")
    assert (await drive.write("link", b"through")).status == 200
    assert (await drive.write("dangling", b"made")).status == 200
    assert (drive.root / "sub" / "b.txt").read_text() == "through"
    assert (drive.root / "sub" / "later.txt").read_text() == "made"
    assert (drive.root / "link").is_symlink()


async def test_a_link_after_a_link_goes_up_from_where_it_leads(drive: Drive) -> None:
    """`link/..` is the parent of what the link leads to, not of the link."""
    (drive.root / "sub" / "deep" / "inner").mkdir()
    (drive.root / "sub" / "deep" / "here").write_text("right")
    (drive.root / "here").write_text("wrong")
    (drive.root / "link").symlink_to("sub/deep/inner")
    (drive.root / "way").symlink_to("link/../here")
    assert (await drive.read("way")).body == b"right"


async def test_links_without_an_end_are_refused(drive: Drive) -> None:
    (drive.root / "loop").symlink_to("loop")
    (drive.root / "one").symlink_to("two")
    (drive.root / "two").symlink_to("one")
    (drive.root / "grows").symlink_to("grows/x")
    for name in ("loop", "one", "grows", "loop/x"):
        assert (await drive.read(name)).status == 409
        assert (await drive("GET", "entries", path=name)).status == 409
    assert (await drive("DELETE", "entry", path="loop")).status == 200


async def test_a_session_cannot_leave_its_folder_by_a_link(drive: Drive) -> None:
    (drive.root / "sub" / "up").symlink_to("../a.txt")
    (drive.root / "sub" / "above").symlink_to("..")
    assert (await drive.read("up")).status == 404  # of the root
    for path in ("up", "above/a.txt", "above/none"):
        assert (await drive.read(path, sessionId="ses_1")).status == 403
    assert (await drive("GET", "entries", path="above", sessionId="ses_1")).status == 403
    assert (await drive("DELETE", "entry", path=".", recursive="true", sessionId="ses_1")).status == 403
    (drive.root / "sub").rename(drive.root / "moved")
    (drive.root / "sub").symlink_to("moved")
    assert (await drive.read("b.txt", sessionId="ses_1")).status == 403


async def test_a_root_may_be_spelt_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to("root")
    drive = open_drive(tmp_path, folders=[tmp_path / "alias"])
    assert (await drive.read(tmp_path / "alias" / "a.txt")).body == b"a"
    assert (await drive.read(tmp_path / "root" / "a.txt")).body == b"a"
    (drive.root / "sub" / "link").symlink_to(tmp_path / "alias" / "a.txt")
    assert (await drive.read("sub/link")).body == b"a"


async def test_a_root_in_a_root_is_no_way_out(tmp_path: Path) -> None:
    """Who may write in the outer one replaces a folder above the inner one."""
    drive = open_drive(tmp_path, folders=[tmp_path / "root", tmp_path / "root" / "sub" / "deep"])
    (drive.outside / "deep").mkdir()
    (drive.outside / "deep" / "secret").write_text(SECRET)
    (drive.root / "sub").rename(drive.root / "away")
    (drive.root / "sub").symlink_to(drive.outside)
    assert (await drive.read(drive.root / "sub" / "deep" / "secret")).status == 403
    assert (await drive.write(drive.root / "sub" / "deep" / "planted")).status == 403


@pytest.mark.parametrize("kind", ["fifo", "socket", "device", "folder"])
async def test_only_regular_files_are_read_and_written_and_none_holds_us_up(drive: Drive, kind: str) -> None:
    path = drive.root / "thing"
    with made(kind, path):
        async with asyncio.timeout(10):
            for got in (await drive.read("thing"), await drive.write("thing")):
                assert (got.status, got.json()["code"]) == (409, "legation/conflict")
                assert "not a regular file" in got.json()["detail"]
            assert (await drive("GET", "stat", path="thing")).status == 200
            assert "thing" in await drive.names()
            assert (await drive("DELETE", "entry", path="thing")).status == 200
    assert not path.exists()


@contextmanager
def made(kind: str, path: Path) -> Iterator[None]:
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        try:
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # zeros without an end
        except PermissionError:
            pytest.skip("making a device needs root: run the tests as root to have this one")
    else:
        with socket.socket(socket.AF_UNIX) as listener:
            at = os.open(path.parent, os.O_RDONLY)
            listener.bind(f"/proc/self/fd/{at}/{path.name}")
            os.close(at)
            yield
            return
    yield


async def test_what_is_legations_own_is_refused_and_not_listed(drive: Drive) -> None:
    assert await drive.names() == ["a.txt", "sub"]
    for path in ("data", str(drive.data)):
        assert set(await everything(drive, path, "keys.json")) == {FORBIDDEN}
        assert set(await everything(drive, path, "none")) == {FORBIDDEN}
    assert (await drive("DELETE", "entry", path="data", recursive="true")).status == 403
    assert (await drive("POST", "move", body={"from": "data", "to": "x"})).status == 403


async def test_a_link_to_what_is_legations_own_is_refused(drive: Drive) -> None:
    (drive.root / "sub" / "link").symlink_to("../data/keys.json")
    (drive.root / "sub" / "folder").symlink_to("../data")
    assert (await drive.read("sub/link")).status == 403
    assert (await drive.read("sub/folder/keys.json")).status == 403
    assert (await drive.write("sub/folder/new")).status == 403


async def test_a_hard_link_to_a_key_is_refused(drive: Drive) -> None:
    for name in ("keys.json", "legation.db", "server.json"):
        os.link(drive.data / name, drive.root / name)
        assert (await drive.read(name)).status == 403
        assert (await drive.write(name)).status == 403
        (drive.root / name).unlink()
    assert (drive.data / "keys.json").read_text() == "key"


async def test_a_hard_link_to_a_file_outside_cannot_be_told_but_writing_leaves_that_as_it_is(
    drive: Drive,
) -> None:
    os.link(drive.outside / "secret", drive.root / "linked")
    assert (await drive.read("linked")).body == SECRET.encode()
    assert (await drive.write("linked", b"new")).status == 200
    assert (drive.root / "linked").read_text() == "new"


async def test_a_folder_with_legations_own_in_it_is_neither_deleted_nor_moved(tmp_path: Path) -> None:
    drive = open_drive(tmp_path, folders=[tmp_path])
    assert (await drive("DELETE", "entry", path="root", recursive="true")).status == 403
    assert (await drive("POST", "move", body={"from": "root", "to": "x"})).status == 403
    moved = {"from": "outside", "to": "root", "overwrite": True}
    assert (await drive("POST", "move", body=moved)).status == 403
    assert (drive.data / "keys.json").read_text() == "key"
    assert (drive.root / "a.txt").exists()


async def test_the_kernels_files_are_refused_even_under_the_root_of_all() -> None:
    # Not in pytest's folder, which may be in memory beneath /dev, where all is refused.
    with TemporaryDirectory(dir="/var/tmp") as folder:
        drive = open_drive(Path(folder), folders=[Path("/")])
        assert (await drive.read(drive.root / "a.txt")).body == b"a"
    for path in ("/proc/self/environ", "/proc/self/mem", "/proc/1/environ", "/sys/kernel", "/dev/null"):
        assert (await drive.read(path)).status == 403
    assert (await drive("GET", "entries", path="/proc/self/fd")).status == 403


def exchange(one: Path, other: Path) -> bool:
    """In one step: there is never nothing."""
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    failed: int = ctypes.CDLL(None).renameat2(here, os.fsencode(one), here, os.fsencode(other), swap)
    return not failed


@contextmanager
def swapping(turn: Callable[[], object]) -> Iterator[None]:
    """Somebody who changes it back and forth all the time."""
    end = threading.Event()

    def swap() -> None:
        while not end.is_set():
            turn()

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


@pytest.mark.heavy
@pytest.mark.parametrize("what", ["read", "write", "list", "delete", "move", "make", "stat", "unpack"])
async def test_a_folder_that_is_swapped_for_a_link_is_no_way_out(drive: Drive, what: str) -> None:
    """`root/door` is a folder or a link to the outside, changed thousands of times while requests run."""
    door, link = drive.root / "door", drive.root / "link"
    door.mkdir()
    (door / "secret").write_text("fine")
    link.symlink_to(drive.outside)
    statuses: set[int] = set()
    with swapping(lambda: exchange(door, link)):
        for number in range(ROUNDS):
            statuses |= await one_round(drive, what, number)
    assert 200 in statuses
    assert 403 in statuses  # the swapper was seen at work
    assert statuses <= {200, 403, 404, 409}


async def one_round(drive: Drive, what: str, number: int) -> set[int]:
    if what == "read":
        got = await drive.read("door/secret")
        assert got.status != 200 or got.body == b"fine"
    elif what == "write":
        got = await drive.write(f"door/n{number}", b"planted")
    elif what == "list":
        got = await drive("GET", "entries", path="door")
        assert got.status != 200 or [entry["name"] for entry in got.json()] == ["secret"]
    elif what == "stat":
        got = await drive("GET", "stat", path="door/secret")
        assert got.status != 200 or got.json()["size"] == len("fine")
    elif what == "delete":
        (drive.root / "sub" / "secret").write_text("fine")
        put = await drive("POST", "move", body={"from": "sub/secret", "to": "door/secret", "overwrite": True})
        got = await drive("DELETE", "entry", path="door/secret", recursive="true")
        return {put.status, got.status}
    elif what == "move":
        out = await drive("POST", "move", body={"from": "door/secret", "to": "sub/out", "overwrite": True})
        got = await drive("POST", "move", body={"from": "sub/out", "to": "door/secret", "overwrite": True})
        return {out.status, got.status}
    elif what == "make":
        got = await drive("POST", "mkdir", path=f"door/{number}/deep")
    else:
        got = await drive("POST", "upload-batch", path="door", raw=small_tar(number))
    return {got.status}


def small_tar(number: int) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        info = tarfile.TarInfo(f"folder{number}/planted")
        info.size = 3
        archive.addfile(info, io.BytesIO(b"abc"))
    return target.getvalue()


@pytest.mark.heavy
async def test_a_file_that_is_swapped_for_a_link_or_a_pipe_is_not_followed(drive: Drive) -> None:
    door, link, pipe = (drive.root / name for name in ("door", "link", "pipe"))
    door.write_text("fine")
    link.symlink_to(drive.outside / "secret")
    os.mkfifo(pipe)

    def turn() -> None:
        for other in (link, pipe, link, pipe):
            exchange(door, other)

    read: set[int] = set()
    with swapping(turn):
        async with asyncio.timeout(60):
            for _ in range(ROUNDS):
                got = await drive.read("door")
                read.add(got.status)
                assert got.status != 200 or got.body == b"fine"
    assert read == {200, 403, 409}  # the file, the pipe, the link


@pytest.mark.heavy
async def test_a_tree_whose_folders_are_swapped_for_links_is_deleted_without_following(drive: Drive) -> None:
    tree, links = drive.root / "tree", drive.root / "links"
    swapped = 0

    def turn() -> None:
        nonlocal swapped
        for number in range(20):
            swapped += exchange(tree / f"{number}", links / f"{number}")

    for _ in range(20):
        links.mkdir()
        for number in range(20):
            (tree / f"{number}" / "sub").mkdir(parents=True, exist_ok=True)
            (links / f"{number}").symlink_to(drive.outside)
        with swapping(turn):
            got = await drive("DELETE", "entry", path="tree", recursive="true")
            assert got.status == 200, got.body
        shutil.rmtree(links)
    assert swapped > 100


@pytest.mark.parametrize("kind", ["link", "pipe"])
async def test_a_file_that_is_replaced_between_look_and_open_is_refused(
    drive: Drive, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The narrowest of races, made sure of: it happens right after the file was found to be one."""
    path, check, looks = drive.root / "a.txt", operations.must_be_regular, list[str]()

    def check_and_replace(status: os.stat_result, said: str) -> None:
        check(status, said)
        looks.append(said)
        path.unlink()
        if kind == "link":
            path.symlink_to(drive.outside / "secret")
        else:
            os.mkfifo(path)

    monkeypatch.setattr(operations, "must_be_regular", check_and_replace)
    async with asyncio.timeout(10):
        assert (await drive.read("a.txt")).status == 409
    assert looks == ["a.txt"]
