"""Tarballs as they should be, and as somebody who means harm would make them."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from pathlib import Path

import pytest
from tests.agents.install.local_registry import everything_in, link, member, packed, tarball

from legation.agents.install.installer import Bounds, MalformedTarball, unpack

ROOMY = Bounds(files=100, size=10_000_000)


def unpacked(tmp_path: Path, body: bytes, bounds: Bounds = ROOMY) -> Path:
    (tmp_path / "it.tgz").write_bytes(body)
    unpack(tmp_path / "it.tgz", tmp_path / "deep" / "inside", bounds)
    return tmp_path / "deep" / "inside"


def test_files_come_out_without_the_first_folder_and_cannot_be_written(tmp_path: Path) -> None:
    body = tarball({"package.json": b"{}", "bin/run": b"#!/bin/sh\n", "a/b/c.txt": b"c"}, ("bin/run",))
    into = unpacked(tmp_path, body)
    assert everything_in(into) == {"package.json", "bin/run", "a/b/c.txt"}
    assert (into / "a/b/c.txt").read_bytes() == b"c"
    modes = {name: (into / name).stat().st_mode & 0o777 for name in ("bin/run", "a/b/c.txt")}
    assert modes == {"bin/run": 0o555, "a/b/c.txt": 0o444}


def test_what_came_out_is_told_by_size_and_hash(tmp_path: Path) -> None:
    (tmp_path / "it.tgz").write_bytes(tarball({"b": b"bee", "a": b""}))
    marks = unpack(tmp_path / "it.tgz", tmp_path / "out", ROOMY)
    assert [(mark.path, mark.size, mark.sha256) for mark in marks] == [
        ("a", 0, hashlib.sha256(b"").hexdigest()),
        ("b", 3, hashlib.sha256(b"bee").hexdigest()),
    ]


@pytest.mark.parametrize("named", ['{"bin": {"x": "./bin/run"}}', '{"bin": "bin/run"}'])
def test_programs_that_a_package_names_are_made_executable_as_npm_does(tmp_path: Path, named: str) -> None:
    into = unpacked(tmp_path, tarball({"package.json": named.encode(), "bin/run": b"x", "bin/no": b"x"}))
    modes = [(into / name).stat().st_mode & 0o777 for name in ("bin/run", "bin/no")]
    assert modes == [0o555, 0o444]


@pytest.mark.parametrize("named", ["../../outside", "/etc/passwd", "nothing", "[1]"])
def test_a_package_cannot_name_programs_that_are_not_its_own(tmp_path: Path, named: str) -> None:
    outside = tmp_path / "deep" / "outside"
    outside.parent.mkdir()
    outside.write_text("x")
    outside.chmod(0o600)
    unpacked(tmp_path, tarball({"package.json": f'{{"bin": {{"x": "{named}"}}}}'.encode()}))
    assert outside.stat().st_mode & 0o777 == 0o600


def special(kind: bytes) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo("package/device")
    info.type, info.devmajor, info.devminor = kind, 1, 3
    return info, b""


HOSTILE = {
    "a path upwards": [member("package/../../../escaped", b"x")],
    "a path upwards from the first folder": [member("../escaped", b"x")],
    "an absolute path": [member("/escaped", b"x")],
    "an absolute path below a folder": [member("package//escaped", b"x")],
    "a dot": [member("package/./x", b"x")],
    "a control character": [member("package/a\nb", b"x")],
    "a backslash": [member("package/..\\escaped", b"x")],
    "a symbolic link": [link("package/link", "../../escaped", tarfile.SYMTYPE)],
    "a file through a symbolic link": [
        link("package/link", "../..", tarfile.SYMTYPE),
        member("package/link/escaped", b"x"),
    ],
    "a hard link": [link("package/link", "/etc/passwd", tarfile.LNKTYPE)],
    "a device": [special(tarfile.CHRTYPE)],
    "a fifo": [special(tarfile.FIFOTYPE)],
    "a file twice": [member("package/x", b"1"), member("package/x", b"2")],
    "a file that is a folder too": [member("package/x", b"1"), member("package/x/y", b"2")],
    "a file in place of the first folder": [member("package", b"1")],
}


@pytest.mark.parametrize("members", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_tarballs_end_it_and_nothing_is_outside(
    tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]]
) -> None:
    with pytest.raises(MalformedTarball):
        unpacked(tmp_path, packed([member("package/good", b"good"), *members]))
    outside = {name for name in everything_in(tmp_path) if not name.startswith("deep/inside/")}
    assert outside == {"it.tgz"}


def test_more_files_than_locked_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MalformedTarball, match="more than the lock allows"):
        unpacked(tmp_path, tarball({"a": b"", "b": b"", "c": b""}), Bounds(files=2, size=100))


def test_more_bytes_than_locked_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MalformedTarball, match="more than the lock allows"):
        unpacked(tmp_path, tarball({"a": b"x" * 60, "b": b"x" * 60}), Bounds(files=2, size=100))


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    """Thirty megabytes of zeros in thirty kilobytes, behind a header that says nothing of it."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        tar.addfile(*_opened(member("package/a", b"a")))
    plain.seek(-tarfile.RECORDSIZE, io.SEEK_END)
    bomb = gzip.compress(plain.getvalue()[:1024] + pax_bomb(30_000_000))
    with pytest.raises(MalformedTarball, match="unpacks to more"):
        unpacked(tmp_path, bomb, Bounds(files=3, size=100))
    assert sum(path.stat().st_size for path in (tmp_path / "deep").rglob("*") if path.is_file()) <= 1


def pax_bomb(size: int) -> bytes:
    """An extended header, which a reader takes into memory as a whole."""
    info = tarfile.TarInfo("package/long")
    info.type, info.size = tarfile.XHDTYPE, size
    return info.tobuf(tarfile.USTAR_FORMAT) + b"\0" * size


def _opened(one: tuple[tarfile.TarInfo, bytes]) -> tuple[tarfile.TarInfo, io.BytesIO]:
    return one[0], io.BytesIO(one[1])


@pytest.mark.parametrize("part", [0.0, 0.3, 0.9])
def test_a_tarball_that_was_cut_off_is_refused(tmp_path: Path, part: float) -> None:
    body = tarball({"a": bytes(range(256)) * 400, "b": hashlib.sha512(b"b").digest() * 200})
    with pytest.raises(MalformedTarball):
        unpacked(tmp_path, body[: int(len(body) * part)])


def test_what_is_no_tarball_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MalformedTarball):
        unpacked(tmp_path, gzip.compress(b"not a tar " * 200))
