"""INV-F4: a file is whole or as it was, whatever happens to the one who writes it."""

import asyncio
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.server.fs.drive import LIMIT, Drive

from legation.errors import RateLimited
from legation.server.fs.files import Transfers
from legation.server.fs.operations import RegularFile
from legation.wire.principal import Principal

ROOT = Path(__file__).parents[3]


async def test_a_file_that_is_replaced_hands_on_its_permissions(drive: Drive) -> None:
    path = drive.root / "a.txt"
    path.chmod(0o4751)
    assert (await drive.write("a.txt", b"longer than before")).status == 200
    assert stat.S_IMODE(path.stat().st_mode) == 0o751  # and no program runs as another user by it
    assert path.read_text() == "longer than before"


async def test_a_new_file_has_what_the_umask_leaves(drive: Drive) -> None:
    before = os.umask(0o027)
    try:
        assert (await drive.write("new.txt")).status == 200
    finally:
        os.umask(before)
    assert stat.S_IMODE((drive.root / "new.txt").stat().st_mode) == 0o640


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away: run the tests as root")
async def test_a_file_that_is_replaced_keeps_its_owner(drive: Drive) -> None:
    os.chown(drive.root / "a.txt", 12345, 54321)
    assert (await drive.write("a.txt")).status == 200
    status = (drive.root / "a.txt").stat()
    assert (status.st_uid, status.st_gid) == (12345, 54321)


@pytest.mark.parametrize("parts", [[b"1" * (LIMIT + 1)], [b"1" * LIMIT, b"1"], [b"1" * 100_000] * 12])
async def test_too_much_is_refused_and_leaves_what_was_there(drive: Drive, parts: list[bytes]) -> None:
    got = await drive.write("a.txt", *parts)
    assert (got.status, got.json()["data"]) == (413, {"limit": LIMIT})
    assert (drive.root / "a.txt").read_text() == "a"


async def test_exactly_the_limit_is_taken(drive: Drive) -> None:
    assert (await drive.write("a.txt", b"1" * LIMIT)).json()["bytesWritten"] == LIMIT


@pytest.mark.parametrize(
    ("name", "value"), [("Content-Length", str(LIMIT + 1)), ("Content-Length", "9" * 99)]
)
async def test_too_much_is_refused_by_its_announced_length(drive: Drive, name: str, value: str) -> None:
    got = await drive.write("new/folder/x", b"1", headers=[(name, value)])
    assert got.status == 413
    assert not (drive.root / "new").exists()


async def test_a_compressed_body_is_refused(drive: Drive) -> None:
    assert (await drive.write("a.txt", b"1", headers=[("Content-Encoding", "gzip")])).status == 415
    assert (drive.root / "a.txt").read_text() == "a"


class Line:
    """A connection on which the test sends the body piece by piece."""

    def __init__(
        self, drive: Drive, path: str, route: str = "PUT /v1/fs/file", token: str = "operator"
    ) -> None:
        self.sent: list[Any] = []
        self._messages: asyncio.Queue[dict[str, object]] = asyncio.Queue()
        self.taken = asyncio.Event()
        method, target = route.split()
        scope = {
            "type": "http",
            "method": method,
            "path": target,
            "raw_path": target.encode(),
            "query_string": f"path={path}".encode(),
            "headers": [(b"host", b"x"), (b"authorization", f"Bearer {token}".encode())],
            "http_version": "1.1",
            "scheme": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
        }
        self.task = asyncio.ensure_future(drive.app(scope, self._receive, self._send))

    async def _receive(self) -> Any:
        if self._messages.empty():
            self.taken.set()
        return await self._messages.get()

    async def _send(self, message: Any) -> None:
        self.sent.append(message)

    async def send(self, data: bytes, *, more: bool = True) -> None:
        """Until the application asks for the next."""
        self.taken.clear()
        self._messages.put_nowait({"type": "http.request", "body": data, "more_body": more})
        if more:
            await asyncio.wait_for(self.taken.wait(), 60)

    def hang_up(self) -> None:
        self._messages.put_nowait({"type": "http.disconnect"})

    async def status(self) -> int:
        await asyncio.wait_for(self.task, 60)
        status: int = self.sent[0]["status"]
        return status


async def test_who_hangs_up_in_the_middle_leaves_what_was_there(drive: Drive) -> None:
    line = Line(drive, "a.txt")
    await line.send(b"x" * 300_000)
    assert len(drive.leftovers()) == 1  # it is being written
    line.hang_up()
    assert await line.status() == 499
    assert (drive.root / "a.txt").read_text() == "a"


async def test_who_is_cancelled_in_the_middle_leaves_what_was_there(drive: Drive) -> None:
    line = Line(drive, "a.txt")
    await line.send(b"x" * 300_000)
    line.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await line.task
    assert (drive.root / "a.txt").read_text() == "a"


async def test_nobody_sees_a_part_of_a_file(drive: Drive) -> None:
    line = Line(drive, "a.txt")
    await line.send(b"x" * 300_000)
    assert (await drive.read("a.txt")).body == b"a"
    await line.send(b"y", more=False)
    assert await line.status() == 200
    assert (await drive.read("a.txt")).body == b"x" * 300_000 + b"y"


async def test_of_two_writers_at_once_the_last_to_end_has_written_all(drive: Drive) -> None:
    first, second = Line(drive, "a.txt"), Line(drive, "a.txt")
    for _ in range(3):
        await first.send(b"1" * 300_000)
        await second.send(b"2" * 300_000)
    await second.send(b"2", more=False)
    assert await second.status() == 200
    assert (drive.root / "a.txt").read_bytes() == b"2" * 900_001
    await first.send(b"1", more=False)
    assert await first.status() == 200
    assert (drive.root / "a.txt").read_bytes() == b"1" * 900_001


async def test_many_writers_at_once_leave_one_whole_file(drive: Drive) -> None:
    bodies = [bytes([48 + number]) * (50_000 + number) for number in range(20)]
    got = await asyncio.gather(*(drive.write("a.txt", body) for body in bodies))
    assert {each.status for each in got} == {200}
    assert (drive.root / "a.txt").read_bytes() in bodies


async def test_whoever_lost_the_right_while_sending_writes_nothing(drive: Drive) -> None:
    line = Line(drive, "a.txt")
    await line.send(b"x" * 300_000)
    drive.clock.advance(5)
    drive.revoked.add("operator")
    await line.send(b"y", more=False)
    assert await line.status() == 401
    assert (drive.root / "a.txt").read_text() == "a"


async def test_a_folder_that_was_moved_out_meanwhile_is_not_written(drive: Drive) -> None:
    """The descriptor would still lead to it, wherever it is by now."""
    line = Line(drive, "sub/b.txt")
    await line.send(b"x" * 300_000)
    (drive.root / "sub").rename(drive.place / "moved")
    (drive.root / "sub").mkdir()
    await line.send(b"y", more=False)
    assert await line.status() == 409
    assert (drive.place / "moved" / "b.txt").read_text() == "bb"
    assert list((drive.root / "sub").iterdir()) == []
    shutil.rmtree(drive.place / "moved")


async def test_a_pipe_or_a_link_that_took_the_files_place_meanwhile_is_not_written_through(
    drive: Drive,
) -> None:
    for kind in ("pipe", "link"):
        (drive.root / "a.txt").unlink()
        (drive.root / "a.txt").write_text("a")
        line = Line(drive, "a.txt")
        await line.send(b"x" * 300_000)
        (drive.root / "a.txt").unlink()
        if kind == "pipe":
            os.mkfifo(drive.root / "a.txt")
        else:
            (drive.root / "a.txt").symlink_to(drive.outside / "secret")
        await line.send(b"y", more=False)
        assert await line.status() == (409 if kind == "pipe" else 403)


async def test_more_transfers_than_allowed_are_refused_and_one_that_ends_makes_room(drive: Drive) -> None:
    callers = ("operator", "operator 2", "operator 3", "operator 4")
    lines = [Line(drive, f"{number}", token=callers[number // 32]) for number in range(128)]
    for line in lines:
        await line.send(b"x")
    got = await drive.read("a.txt", token="operator 5")
    assert (got.status, got.json()["code"]) == (503, "legation/unavailable")
    lines[0].hang_up()
    assert await lines[0].status() == 499
    assert (await drive.read("a.txt", token="operator 5")).body == b"a"
    for line in lines[1:]:
        line.hang_up()
        await line.status()


async def test_one_caller_has_a_share_of_the_transfers_and_the_rest_is_for_others(drive: Drive) -> None:
    lines = [Line(drive, f"{number}") for number in range(32)]
    for line in lines:
        await line.send(b"x")
    for got in (await drive.read("a.txt"), await drive.write("b.txt")):
        assert (got.status, got.json()["code"], got.header("retry-after")) == (
            429,
            "legation/rate-limited",
            "1",
        )
    assert (await drive.read("a.txt", token="operator 2")).body == b"a"
    lines[0].hang_up()
    assert await lines[0].status() == 499
    assert (await drive.read("a.txt")).body == b"a"
    for line in lines[1:]:
        line.hang_up()
        await line.status()


def test_an_agent_leaves_half_of_its_makers_share_and_no_token_makes_it_larger() -> None:
    transfers = Transfers(64)
    maker = Principal(kind="user", id="usr_1", user="usr_1", workspace="local", scopes=frozenset(), level=2)
    agents = [replace(maker, kind="token", id=f"tok_{number}", agent="claude") for number in range(3)]
    held = [transfers.begin(agents[0]) for _ in range(8)]
    with pytest.raises(RateLimited):
        transfers.begin(agents[0])
    held += [transfers.begin(maker) for _ in range(4)] + [transfers.begin(agents[1]) for _ in range(4)]
    for each in (maker, *agents, replace(maker, kind="token", id="tok_9")):
        with pytest.raises(RateLimited):
            transfers.begin(each)
    transfers.begin(replace(maker, id="usr_2", user="usr_2")).end()
    for transfer in held:
        transfer.end()
        transfer.end()  # twice counts once
    assert transfers.running == 0
    transfers.begin(agents[0]).end()


async def test_a_file_that_grows_while_it_is_read_is_sent_as_it_was_announced(drive: Drive) -> None:
    (drive.root / "big").write_bytes(b"1" * 400_000)
    where = await drive.files.confinement(None, "local")
    reading = await drive.files.run(RegularFile, where, "big")
    with (drive.root / "big").open("ab") as file:
        file.write(b"2" * 1000)
    assert b"".join([piece async for piece in drive.files.pieces(reading)]) == b"1" * 400_000
    reading.close()


FULL_DISK = """
import asyncio, resource, sys
from pathlib import Path
from tests.server.fs.drive import open_drive

async def main():
    drive = open_drive(Path(sys.argv[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
    put = await drive.write("a.txt", b"x" * 300_000, b"x" * 300_000)
    assert (drive.root / "a.txt").read_text() == "a"
    assert drive.leftovers() == []
    print(put.status, put.json()["code"], put.json()["detail"])

asyncio.run(main())
"""


@pytest.mark.heavy
def test_a_full_disk_is_told_and_leaves_what_was_there(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path / "place")],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.stdout == (
        "500 legation/storage-failed cannot write a.txt: the disk is full or its quota used up; make room\n"
    ), ran.stderr


NOT_ALLOWED = """
import asyncio, os, sys
from pathlib import Path
from tests.server.fs.drive import open_drive
import legation.server.fs.upload  # loads late, and the other user may not read it

async def main():
    drive = open_drive(Path(sys.argv[1]))
    (drive.root / "a.txt").chmod(0)
    (drive.root / "sub").chmod(0o500)
    (drive.root / "sub" / "deep").chmod(0)
    if os.geteuid() == 0:
        for path in (drive.place, *drive.place.rglob("*")):
            os.chown(path, 65534, 65534)
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
    got = [
        await drive.read("a.txt"),
        await drive.write("sub/new"),
        await drive("DELETE", "entry", path="sub/b.txt"),
        await drive("GET", "entries", path="sub/deep"),
        await drive("POST", "move", body={"from": "sub/b.txt", "to": "x"}),
    ]
    print({(each.status, each.json()["detail"].split(": ")[1]) for each in got})
    assert drive.leftovers() == []

asyncio.run(main())
"""


@pytest.mark.heavy
def test_what_the_servers_user_may_not_is_told(tmp_path: Path) -> None:
    place = Path(tempfile.mkdtemp())  # one that another user reaches
    place.chmod(0o755)
    try:
        ran = subprocess.run(
            [sys.executable, "-c", NOT_ALLOWED, str(place / "place")],
            cwd=ROOT,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
            capture_output=True,
            text=True,
            timeout=60,
        )
    finally:
        shutil.rmtree(place)
    assert ran.stdout == '{(403, "the server\'s user may not; change its permissions")}\n', ran.stderr
