"""INV-F5: archives, good and hostile."""

import gzip
import io
import os
import stat
import tarfile
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.server.fs.drive import Drive
from tests.server.fs.test_writing import Line
from tests.server.toy_app import Got

from legation.errors import LegationError
from legation.server.fs import upload as module
from legation.server.fs.upload import TarMember, TarReader


def packed(*members: tuple[str, bytes | None], format: int = tarfile.PAX_FORMAT) -> bytes:  # noqa: A002
    """None: a folder."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=format) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.mtime = 1_700_000_000
            if data is None:
                info.type, info.mode = tarfile.DIRTYPE, 0o755
            else:
                info.size = len(data)
            archive.addfile(info, io.BytesIO(data or b""))
    return target.getvalue()


def one(change: Callable[[tarfile.TarInfo], None], data: bytes = b"abc") -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        info = tarfile.TarInfo("good")
        info.size = 2
        archive.addfile(info, io.BytesIO(b"ok"))
        info = tarfile.TarInfo("bad")
        info.size = len(data)
        change(info)
        archive.addfile(info, io.BytesIO(data))
    return target.getvalue()


async def upload(drive: Drive, raw: bytes, path: str = "into", size: int = 100_000) -> Got:
    parts = [raw[at : at + size] for at in range(0, len(raw), size)]
    return await drive("POST", "upload-batch", path=path, raw=parts or b"")


@pytest.mark.parametrize("size", [1, 7, 512, 100_000])
@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
async def test_an_archive_is_unpacked_however_its_bytes_arrive(drive: Drive, size: int, format: int) -> None:  # noqa: A002
    long = "long/" + "n" * 150 + "/x"
    raw = packed(
        ("./", None), ("d/", None), ("d/é.txt", b"1" * 1000), (long, b""), ("top", b"t"), format=format
    )
    got = await upload(drive, raw, size=size)
    into = drive.root / "into"
    names = ["d", "d/é.txt", long, "top"]
    assert got.json() == {"paths": [str(into / name) for name in names], "truncated": False}
    assert (into / "d" / "é.txt").read_bytes() == b"1" * 1000
    assert (into / long).read_bytes() == b""
    assert (into / "top").stat().st_mtime == 1_700_000_000


async def test_a_gzipped_archive_is_unpacked(drive: Drive) -> None:
    for size in (1, 100_000):
        got = await upload(drive, gzip.compress(packed(("a", b"1" * 10_000))), size=size)
        assert got.json()["paths"] == [str(drive.root / "into" / "a")]
    assert (drive.root / "into" / "a").read_bytes() == b"1" * 10_000


@pytest.mark.parametrize("size", [1, 100, 100_000])
async def test_what_is_gzipped_to_next_to_nothing_comes_out_whole(drive: Drive, size: int) -> None:
    raw = gzip.compress(packed(("a", bytes(1_000_000)), ("b", b"end")))
    assert (await upload(drive, raw, size=size)).status == 200
    assert (drive.root / "into" / "a").read_bytes() == bytes(1_000_000)
    assert (drive.root / "into" / "b").read_bytes() == b"end"


async def test_without_a_path_it_is_unpacked_into_the_first_folder(drive: Drive) -> None:
    got = await drive("POST", "upload-batch", raw=packed(("here", b"x")), sessionId="ses_1")
    assert got.json()["paths"] == [str(drive.root / "sub" / "here")]


async def test_files_are_replaced_and_modes_are_kept_within_bounds(drive: Drive) -> None:
    (drive.root / "into").mkdir()
    (drive.root / "into" / "bad").write_text("old")

    def change(info: tarfile.TarInfo) -> None:
        info.mode = 0o6755

    assert (await upload(drive, one(change))).status == 200
    assert (drive.root / "into" / "bad").read_text() == "abc"
    assert not (drive.root / "into" / "bad").stat().st_mode & (stat.S_ISUID | stat.S_ISGID)


@pytest.mark.heavy
async def test_the_answer_names_the_first_1024(drive: Drive) -> None:
    got = await upload(drive, packed(*[(f"{number:04}", b"") for number in range(1100)]))
    assert len(got.json()["paths"]) == 1024
    assert got.json()["truncated"] is True
    assert len(list((drive.root / "into").iterdir())) == 1100
    got = await upload(drive, packed(*[(f"{number:04}", b"") for number in range(1024)]))
    assert got.json()["truncated"] is False


async def test_a_name_that_is_not_utf8_is_unpacked_as_it_is(drive: Drive) -> None:
    raw = packed((os.fsdecode(b"odd-\xff"), b"x"), format=tarfile.GNU_FORMAT)
    assert (await upload(drive, raw)).json()["paths"] == [str(drive.root / "into" / "odd-\ufffd")]
    assert [os.fsencode(each.name) for each in (drive.root / "into").iterdir()] == [b"odd-\xff"]


def kind(type_: bytes, link: str = "") -> Callable[[tarfile.TarInfo], None]:
    def change(info: tarfile.TarInfo) -> None:
        info.type, info.linkname, info.size = type_, link, 0

    return change


def name(text: str) -> Callable[[tarfile.TarInfo], None]:
    def change(info: tarfile.TarInfo) -> None:
        info.name = text

    return change


def extended(**records: str) -> Callable[[tarfile.TarInfo], None]:
    def change(info: tarfile.TarInfo) -> None:
        info.pax_headers = {key.replace("__", "."): value for key, value in records.items()}

    return change


@pytest.mark.parametrize(
    "change",
    [
        kind(tarfile.SYMTYPE, "../outside"),
        kind(tarfile.SYMTYPE, "good"),
        kind(tarfile.LNKTYPE, "../outside/secret"),
        kind(tarfile.LNKTYPE, "good"),
        kind(tarfile.CHRTYPE),
        kind(tarfile.BLKTYPE),
        kind(tarfile.FIFOTYPE),
        kind(b"Z"),
        kind(b"M"),
        kind(tarfile.GNUTYPE_SPARSE),
        name("/etc/planted"),
        name("../outside/planted"),
        name("x/../../outside/planted"),
        name("x/.."),
        name("n" * 300),
        name("good/inside-a-file"),
        name("."),
        extended(path="../outside/planted"),
        extended(path="/etc/planted"),
        extended(size="-1"),
        extended(size="99999999999999999999"),
        extended(size="1e3"),
        extended(GNU__sparse__major="1", GNU__sparse__name="../outside/planted"),
        extended(comment="x" * (module.LONGEST_HEADER + 1)),
    ],
)
async def test_a_hostile_member_is_refused_and_what_came_before_it_stays(
    drive: Drive, change: Callable[[tarfile.TarInfo], None]
) -> None:
    got = await upload(drive, one(change))
    assert got.status in (400, 409, 413)
    assert got.json()["detail"].endswith("(1 were unpacked before that)")
    assert [each.name for each in (drive.root / "into").iterdir()] == ["good"]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x1f",
        b"not a tar at all" * 100,
        packed(("a", b"1" * 5000))[:2000],
        packed(("a", b""))[:512],
        gzip.compress(packed(("a", b"1" * 5000)))[:-20],
        b"\x1f\x8b" + b"garbage" * 100,
    ],
    ids=range(7),
)
async def test_what_is_no_whole_archive_is_refused(drive: Drive, raw: bytes) -> None:
    assert (await upload(drive, raw)).status == 400
    assert not (drive.root / "into" / "a").exists() or (drive.root / "into" / "a").stat().st_size in (0, 5000)


async def test_an_archive_that_unpacks_to_too_much_is_refused(drive: Drive) -> None:
    bomb = gzip.compress(packed(("a", bytes(20 << 20))))
    assert len(bomb) < 100_000
    assert (await upload(drive, bomb)).status == 413
    assert not (drive.root / "into" / "a").exists()


async def test_a_member_that_claims_more_than_there_is_never_appears(drive: Drive) -> None:
    info = tarfile.TarInfo("bad")
    info.size = 1 << 50
    claimed = info.tobuf(tarfile.GNU_FORMAT) + bytes(4096)
    assert (await upload(drive, packed(("good", b""))[:512] + claimed)).status == 400
    assert [each.name for each in (drive.root / "into").iterdir()] == ["good"]


async def test_more_members_than_allowed_are_refused(drive: Drive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_MEMBERS", 10)
    assert (await upload(drive, packed(*[(f"{number}", b"") for number in range(11)]))).status == 413
    assert len(list((drive.root / "into").iterdir())) == 10


async def test_a_link_in_the_target_is_no_way_out(drive: Drive) -> None:
    (drive.root / "into").mkdir()
    (drive.root / "into" / "door").symlink_to(drive.outside)
    (drive.root / "into" / "file").symlink_to(drive.outside / "secret")
    assert (await upload(drive, packed(("door/planted", b"x")))).status == 403
    assert (await upload(drive, packed(("door", None), ("door/x", b"x")))).status == 403
    assert (await upload(drive, packed(("file", b"x")))).status == 403


async def test_a_pipe_in_the_target_is_not_written(drive: Drive) -> None:
    (drive.root / "into").mkdir()
    os.mkfifo(drive.root / "into" / "a")
    assert (await upload(drive, packed(("a", b"x")))).status == 409


async def test_who_hangs_up_in_the_middle_leaves_no_part_of_a_file(drive: Drive) -> None:
    raw = packed(("first", b"1" * 1000), ("second", b"2" * 600_000))
    line = Line(drive, "into", "POST /v1/fs/upload-batch")
    await line.send(raw[:400_000])
    assert len(drive.leftovers()) == 1
    line.hang_up()
    assert await line.status() == 499
    assert [each.name for each in (drive.root / "into").iterdir()] == ["first"]


async def test_whoever_lost_the_right_while_sending_unpacks_no_more(drive: Drive) -> None:
    raw = packed(("first", b"1" * 1000), ("second", b"2" * 600_000))
    line = Line(drive, "into", "POST /v1/fs/upload-batch")
    await line.send(raw[:300_000])
    drive.clock.advance(5)
    drive.revoked.add("operator")
    await line.send(raw[300_000:], more=False)
    assert await line.status() == 401
    assert [each.name for each in (drive.root / "into").iterdir()] == ["first"]


class Nothing:
    """Counts what it is given."""

    def __init__(self) -> None:
        self.members: list[TarMember] = []
        self.bytes = 0

    def begin(self, member: TarMember) -> None:
        assert not member.name.startswith("/")
        assert ".." not in member.name.split("/")
        self.members.append(member)

    def write(self, data: bytes) -> None:
        self.bytes += len(data)

    def finish(self) -> None:
        pass


@pytest.mark.heavy
@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_archive_ends_in_an_error_of_ours_or_in_plain_names(data: st.DataObject) -> None:
    raw = bytearray(packed(("d/", None), ("d/é", b"1" * 700), ("n" * 200, b"xy")))
    for _ in range(data.draw(st.integers(1, 8))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    sink = Nothing()
    try:
        reader = TarReader(sink, 1 << 20)
        for at in range(0, len(raw), 1000):
            reader.feed(bytes(raw[at : at + 1000]))
        reader.end()
    except LegationError:
        pass
    assert sink.bytes <= len(raw)
