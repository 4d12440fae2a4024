"""A session's `directory`: a folder that is served, by its real path, or a refusal."""

import os
import socket
from pathlib import Path

import pytest
from tests.server.fs.drive import Drive

from legation.errors import Conflict, Forbidden, InvalidParams, LegationError, NotFound


async def test_a_folder_is_told_by_its_real_path(drive: Drive) -> None:
    (drive.root / "link").symlink_to("sub/deep")
    for path in (
        "sub/deep",
        "./sub//deep/",
        str(drive.root / "sub" / "deep"),
        "link",
        str(drive.root / "link"),
    ):
        assert await drive.files.folder(path) == drive.root / "sub" / "deep"
    assert await drive.files.folder(".") == drive.root


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("{outside}", Forbidden),
        ("/", Forbidden),
        ("/proc/self", Forbidden),
        ("{outside}/none", Forbidden),
        ("out", Forbidden),
        ("out/sub", Forbidden),
        ("data", Forbidden),
        ("own", Forbidden),
        ("sub/..", InvalidParams),
        ("../outside", InvalidParams),
        ("a\0b", InvalidParams),
        ("a.txt", Conflict),
        ("hard", Conflict),
        ("pipe", Conflict),
        ("socket", Conflict),
        ("loop", Conflict),
        ("none", NotFound),
    ],
)
async def test_what_is_no_folder_that_is_served_is_refused(
    drive: Drive, path: str, kind: type[LegationError], monkeypatch: pytest.MonkeyPatch
) -> None:
    (drive.root / "out").symlink_to(drive.outside)
    (drive.root / "own").symlink_to("data")
    (drive.root / "loop").symlink_to("loop")
    (drive.root / "hard").hardlink_to(drive.outside / "secret")
    os.mkfifo(drive.root / "pipe")
    monkeypatch.chdir(drive.root)  # a socket's path must be short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        with pytest.raises(kind, match=r"^cannot "):
            await drive.files.folder(path.format(outside=drive.outside))
    Path("socket").unlink()
