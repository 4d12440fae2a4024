import asyncio
import errno
import json
import signal
import sys
from pathlib import Path

import pytest

from legation.errors import StorageFailed
from legation.store import files
from legation.store import jsonl as jsonl_module
from legation.store.codec import StorageTrouble
from legation.store.jsonl import JsonlBackend, stream_info
from legation.store.log import EventLog
from legation.wire.events import Draft


async def write(folder: Path, count: int) -> Path:
    async with EventLog(JsonlBackend(folder)) as log:
        await (await log.stream("ses_a")).append(
            [Draft("x", b'{"n":%d}' % number) for number in range(count)]
        )
    return folder / "ses_a.jsonl"


async def read(folder: Path, after: int = 0) -> tuple[list[int], list[StorageTrouble]]:
    troubles: list[StorageTrouble] = []
    async with EventLog(JsonlBackend(folder), report=troubles.append) as log:
        stream = await log.stream("ses_a")
        return [event.seq async for event in stream.subscribe(after, follow=False)], troubles


async def test_a_line_is_plain_json(tmp_path: Path) -> None:
    path = await write(tmp_path, 1)
    line = json.loads(path.read_text())
    assert (line["seq"], line["type"], line["raw"]) == (1, "x", {"n": 0})


async def test_a_torn_tail_is_cut_off_and_reported(tmp_path: Path) -> None:
    path = await write(tmp_path, 3)
    with path.open("ab") as file:
        file.write(b'{"seq":4,"at":1,"ty')
    seqs, troubles = await read(tmp_path)
    assert seqs == [1, 2, 3]
    assert [(trouble.code, trouble.stream) for trouble in troubles] == [("storage/recovered", "ses_a")]
    assert path.read_bytes().endswith(b"}\n")


async def test_malformed_lines_are_skipped_and_reported(tmp_path: Path) -> None:
    path = await write(tmp_path, 5)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = b"\x00\x00 half of nothing\n"
    path.write_bytes(b"".join(lines))
    seqs, troubles = await read(tmp_path)
    assert seqs == [1, 2, 4, 5]
    assert {trouble.code for trouble in troubles} == {"storage/malformed-line"}


async def test_a_malformed_last_line_does_not_hide_the_head(tmp_path: Path) -> None:
    path = await write(tmp_path, 5)
    with path.open("ab") as file:
        file.write(b"rubbish\n" * 3)
    async with EventLog(JsonlBackend(tmp_path)) as log:
        assert (await log.stream("ses_a")).append([Draft("x", b"1")]).first_seq == 6


@pytest.mark.parametrize("after", [0, 1, 7_777, 19_999, 20_000])
async def test_bisection_finds_any_number_among_rubbish_and_long_lines(tmp_path: Path, after: int) -> None:
    path = await write(tmp_path, 20_000)
    lines = path.read_bytes().splitlines(keepends=True)
    for index in range(100, 20_000, 1000):
        lines[index] = lines[index].replace(b'{"n"', b'{"long":"' + b"z" * 200_000 + b'","n"') + b"rubbish\n"
    path.write_bytes(b"".join(lines))
    seqs, _ = await read(tmp_path, after)
    assert seqs == list(range(after + 1, 20_001))


async def test_a_broken_state_file_is_named(tmp_path: Path) -> None:
    await write(tmp_path, 1)
    (tmp_path / "ses_a.json").write_text("{")
    with pytest.raises(StorageFailed, match=r"ses_a\.json"):
        await read(tmp_path)


async def test_files_are_private(tmp_path: Path) -> None:
    path = await write(tmp_path / "log", 1)
    assert path.stat().st_mode & 0o077 == 0
    assert path.parent.stat().st_mode & 0o077 == 0


async def test_files_that_are_open_are_few_however_many_streams_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl_module, "OPEN_FILES", 4)
    backend = JsonlBackend(tmp_path)
    async with EventLog(backend) as log:
        streams = [await log.stream(f"ses_{number}") for number in range(20)]
        for number in range(3):
            for stream in streams:
                await stream.append([Draft("x", b"%d" % number)])
            assert len(backend._files) <= 4
        for stream in streams:
            assert [event.raw async for event in stream.subscribe(follow=False)] == [b"0", b"1", b"2"]


async def test_a_replace_that_fails_leaves_a_closed_stream_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with EventLog(JsonlBackend(tmp_path)) as log:
        stream = await log.stream("ses_a")
        await stream.append([Draft("x", b"1")])
        await stream.close()
        with monkeypatch.context() as full:
            full.setattr(files, "write_all", no_room)
            with pytest.raises(StorageFailed, match="free some space"):
                await stream.replace([Draft("x", b"2")])
        assert stream.info().state == "closed"
    assert stream_info(tmp_path, "ses_a").state == "closed"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", "ses_a.json", "ses_a.jsonl"]


def no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


DELETES = """
import asyncio, os, signal, sys
from pathlib import Path
from legation.store import files, jsonl
from legation.store.log import EventLog
from legation.wire.events import Draft

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with EventLog(jsonl.JsonlBackend(Path(sys.argv[1]))) as log:
        stream = await log.stream("ses_a")
        await stream.append([Draft("x", b'"quiet"')])
        if sys.argv[2] == "first":
            files.write_atomically = die
        else:
            Path.unlink = die
        await stream.delete()

asyncio.run(main())
"""


@pytest.mark.parametrize("where", ["first", "second"])
async def test_one_that_is_killed_while_it_is_deleted_is_whole_or_gone(tmp_path: Path, where: str) -> None:
    """Two files are written for it."""
    folder = tmp_path / "log"
    command = (sys.executable, "-c", DELETES, str(folder), where)
    died = await asyncio.create_subprocess_exec(*command)
    async with asyncio.timeout(60):
        assert await died.wait() == -signal.SIGKILL
    async with EventLog(JsonlBackend(folder)) as log:
        whole = where == "first"
        assert await log.deleted() == ([] if whole else ["ses_a"])
        assert len([event async for event in (await log.stream("ses_a")).subscribe(follow=False)]) == whole
    assert any(b"quiet" in path.read_bytes() for path in folder.iterdir()) == whole
