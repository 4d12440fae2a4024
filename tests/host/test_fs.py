from __future__ import annotations

import threading
from pathlib import Path

import pytest

from legation.agents.rpc import RpcFault
from legation.host import create_default_fs_handler
from legation.host.requests import services as fs_module
from legation.host.requests.services import DefaultFs, SessionFiles
from legation.store.forbidden import ForbiddenPlaces
from legation.wire.acp.methods import ReadTextFileRequest, ReadTextFileResponse, WriteTextFileRequest
from legation.wire.acp.rpc import ErrorCode


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("one", "two", "outside"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    return tmp_path


@pytest.fixture
def fs(place: Path) -> DefaultFs:
    return create_default_fs_handler(
        {"s1": [place / "one"], "s2": [place / "two"], "none": []}.get, ForbiddenPlaces()
    )


async def read(fs: DefaultFs, session: str, path: Path) -> str:
    return (await fs.read_text_file(ReadTextFileRequest(session_id=session, path=str(path)))).content


async def write(fs: DefaultFs, session: str, path: Path) -> None:
    await fs.write_text_file(WriteTextFileRequest(session_id=session, path=str(path), content="new"))


async def test_each_session_has_its_own_folders(fs: DefaultFs, place: Path) -> None:
    assert await read(fs, "s1", place / "one" / "file") == "one"
    await write(fs, "s2", place / "two" / "made")
    assert await read(fs, "s2", place / "two" / "made") == "new"


@pytest.mark.parametrize("session", ["s2", "none", "unknown"])
async def test_what_is_not_in_the_sessions_folders_is_refused(
    fs: DefaultFs, place: Path, session: str
) -> None:
    for attempt in (read, write):
        with pytest.raises(RpcFault) as caught:
            await attempt(fs, session, place / "one" / "file")
        assert caught.value.error.code == ErrorCode.INVALID_PARAMS
    assert (place / "one" / "file").read_text() == "one"


async def test_a_link_in_the_place_of_an_inner_folder_does_not_move_the_boundary(place: Path) -> None:
    inner = place / "one" / "inner"
    inner.mkdir()
    for folders in ([inner, place / "one"], [place / "one", inner]):
        fs = create_default_fs_handler({"s": folders}.get, ForbiddenPlaces())
        await write(fs, "s", inner / "file")
        assert await read(fs, "s", inner / "file") == "new"
        (inner / "file").unlink()
    inner.rmdir()
    inner.symlink_to(place / "outside")
    fs = create_default_fs_handler({"s": [inner, place / "one"]}.get, ForbiddenPlaces())
    for attempt in (read, write):
        with pytest.raises(RpcFault, match="outside the session's folders"):
            await attempt(fs, "s", inner / "file")
    assert (place / "outside" / "file").read_text() == "outside"


async def test_the_disk_does_not_hold_up_the_loop(
    fs: DefaultFs, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    class Watched(SessionFiles):
        def read(self, request: ReadTextFileRequest) -> ReadTextFileResponse:
            threads.append(threading.get_ident())
            return super().read(request)

        def write(self, request: WriteTextFileRequest) -> None:
            threads.append(threading.get_ident())
            super().write(request)

    monkeypatch.setattr(fs_module, "SessionFiles", Watched)
    await read(fs, "s1", place / "one" / "file")
    await write(fs, "s1", place / "one" / "file")
    assert len(threads) == 2
    assert threading.get_ident() not in threads
