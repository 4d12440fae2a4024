"""The file routes: their shapes, as both SDKs of sandbox-agent read them, and their errors."""

import os
import re
from pathlib import Path
from typing import Annotated, Any

import pytest
from tests.server.fs.drive import Drive, descriptors, open_drive

from legation.server.http.routes import SIGNED_IN, Alias, Call, Routes

ROUTES = [
    ("GET", "entries"),
    ("GET", "file"),
    ("PUT", "file"),
    ("DELETE", "entry"),
    ("POST", "mkdir"),
    ("POST", "move"),
    ("GET", "stat"),
    ("POST", "upload-batch"),
]


@pytest.fixture
def drive(tmp_path: Path) -> Drive:
    return open_drive(tmp_path)


async def test_a_folder_is_listed_by_name_with_exactly_the_members_of_an_entry(drive: Drive) -> None:
    os.utime(drive.root / "a.txt", ns=(0, 1_775_831_400_123_456_789))
    got = await drive("GET", "entries")
    assert [entry["name"] for entry in got.json()] == ["a.txt", "sub"]
    assert got.json()[0] == {
        "name": "a.txt",
        "path": str(drive.root / "a.txt"),
        "entryType": "file",
        "size": 1,
        "modified": "2026-04-10T14:30:00.123Z",
    }
    assert got.json()[1]["entryType"] == "directory"


async def test_a_path_is_described(drive: Drive) -> None:
    found = (await drive("GET", "stat", path="sub/b.txt")).json()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", found.pop("modified"))
    assert found == {"path": str(drive.root / "sub" / "b.txt"), "entryType": "file", "size": 2}
    assert (await drive("GET", "stat", path="sub")).json()["entryType"] == "directory"


async def test_a_time_that_no_calendar_has_is_none(drive: Drive) -> None:
    os.utime(drive.root / "a.txt", (0, -(2**31)))
    assert (await drive("GET", "stat", path="a.txt")).json()["modified"] == "1901-12-13T20:45:52.000Z"
    os.utime(drive.root / "a.txt", (0, 2**33))
    assert (await drive("GET", "stat", path="a.txt")).json()["modified"] == "2242-03-16T12:56:32.000Z"


async def test_a_file_is_written_and_read_as_it_is(drive: Drive) -> None:
    data = bytes(range(256)) * 3000
    got = await drive.write("new/folders/x.bin", data[:1000], data[1000:])
    assert got.json() == {"path": str(drive.root / "new/folders/x.bin"), "bytesWritten": len(data)}
    got = await drive.read("new/folders/x.bin")
    assert got.body == data
    assert got.header("content-type") == "application/octet-stream"
    assert got.header("content-length") == str(len(data))


async def test_an_empty_file_is_written_and_read(drive: Drive) -> None:
    assert (await drive.write("empty", b"")).json()["bytesWritten"] == 0
    assert (await drive.read("empty")).body == b""


async def test_a_head_tells_the_size_and_holds_nothing_open(drive: Drive) -> None:
    before = descriptors()
    for _ in range(100):  # more than may be transferred at once
        got = await drive("HEAD", "file", path="sub/b.txt")
        assert (got.status, got.header("content-length"), got.body) == (200, "2", b"")
    assert descriptors() == before


async def test_folders_are_made_moved_and_deleted(drive: Drive) -> None:
    made = await drive("POST", "mkdir", path="x/y")
    assert made.json() == {"path": str(drive.root / "x" / "y")}
    assert (await drive("POST", "mkdir", path="x/y")).status == 200
    moved = await drive("POST", "move", body={"from": "x/y", "to": "elsewhere/z"})
    assert moved.json() == {"from": str(drive.root / "x" / "y"), "to": str(drive.root / "elsewhere" / "z")}
    assert (drive.root / "elsewhere" / "z").is_dir()
    gone = await drive("DELETE", "entry", path="elsewhere/z")
    assert gone.json() == {"path": str(drive.root / "elsewhere" / "z")}
    assert not (drive.root / "elsewhere" / "z").exists()


@pytest.mark.parametrize("name", ["sessionId", "session_id"])
async def test_a_session_has_its_own_folder_under_either_name(drive: Drive, name: str) -> None:
    assert (await drive.read("b.txt", **{name: "ses_1"})).body == b"bb"
    got = await drive.read(drive.root / "a.txt", **{name: "ses_1"})
    assert (got.status, got.json()["code"]) == (403, "legation/forbidden")
    assert (await drive.read(drive.root / "sub" / "b.txt", **{name: "ses_1"})).body == b"bb"


async def test_both_names_at_once_are_refused(drive: Drive) -> None:
    assert (await drive.read("b.txt", sessionId="ses_1", session_id="ses_1")).status == 400


async def test_another_parameter_is_passed_over_as_sandbox_agent_does(drive: Drive) -> None:
    assert (
        await drive.read("b.txt", session="ses_1")
    ).status == 404  # it is below the session's folder alone
    assert (await drive.read("sub/b.txt", session="ses_1")).body == b"bb"


async def test_an_unknown_session_is_not_found(drive: Drive) -> None:
    assert (await drive.read("b.txt", sessionId="ses_2")).status == 404


async def test_a_session_whose_folder_is_not_served_is_refused(drive: Drive) -> None:
    for path in ("secret", str(drive.outside / "secret")):
        assert (await drive.read(path, sessionId="ses_out")).status == 403


@pytest.mark.parametrize(("method", "route"), ROUTES)
async def test_every_route_needs_to_operate(drive: Drive, method: str, route: str) -> None:
    assert (await drive(method, route, token=None, path="a.txt")).status == 401
    assert (await drive(method, route, token="viewer", path="a.txt")).status == 403
    assert (drive.root / "a.txt").read_text() == "a"


@pytest.mark.parametrize(
    ("method", "route", "query", "status", "code"),
    [
        ("GET", "file", {"path": "none"}, 404, "not-found"),
        ("GET", "stat", {"path": "none/x"}, 404, "not-found"),
        ("GET", "entries", {"path": "none"}, 404, "not-found"),
        ("DELETE", "entry", {"path": "none"}, 404, "not-found"),
        ("GET", "file", {"path": "sub"}, 409, "conflict"),
        ("PUT", "file", {"path": "sub"}, 409, "conflict"),
        ("PUT", "file", {"path": "."}, 409, "conflict"),
        ("PUT", "file", {"path": "a.txt/x"}, 409, "conflict"),
        ("GET", "file", {"path": "a.txt/x"}, 409, "conflict"),
        ("GET", "entries", {"path": "a.txt"}, 409, "conflict"),
        ("GET", "file", {"path": "sub/../a.txt"}, 400, "invalid-params"),
        ("GET", "file", {}, 400, "invalid-params"),
        ("GET", "file", {"path": "a\0b"}, 400, "invalid-params"),
        ("PUT", "file", {"path": "n" * 300}, 409, "conflict"),
        ("PUT", "file", {"path": "d/" * 300 + "x"}, 400, "invalid-params"),
        ("POST", "mkdir", {"path": "a.txt"}, 409, "conflict"),
        ("DELETE", "entry", {"path": "sub"}, 409, "conflict"),
        ("DELETE", "entry", {"path": "."}, 403, "forbidden"),
        ("DELETE", "entry", {"path": "sub", "recursive": "yes"}, 400, "invalid-params"),
    ],
)
async def test_what_cannot_be_done_is_told(
    drive: Drive, method: str, route: str, query: dict[str, Any], status: int, code: str
) -> None:
    got = await drive(method, route, raw=b"x", **query)
    assert (got.status, got.json()["code"]) == (status, f"legation/{code}")
    assert got.json()["detail"].startswith("cannot ")
    assert got.json()["title"]
    assert sorted(path.name for path in drive.root.rglob("*.txt")) == ["a.txt", "b.txt"]


async def test_names_that_are_not_utf8_are_listed_and_break_nothing(drive: Drive) -> None:
    odd = drive.root / os.fsdecode(b"odd-\xff\xfe")
    odd.mkdir()
    (odd / os.fsdecode(b"x-\xff")).touch()
    assert "odd-\ufffd\ufffd" in await drive.names()
    got = await drive("GET", "entries", path="sub", raw=b"")
    assert got.status == 200
    assert (await drive("DELETE", "entry", path="odd-\ufffd\ufffd")).status == 404
    (drive.root / "box").mkdir()
    odd.rename(drive.root / "box" / os.fsdecode(b"\xff"))
    assert (await drive("DELETE", "entry", path="box", recursive="true")).status == 200
    assert await drive.names() == ["a.txt", "sub"]


@pytest.mark.heavy
async def test_ten_thousand_entries_are_listed(drive: Drive) -> None:
    (drive.root / "many").mkdir()
    for number in range(10_000):
        (drive.root / "many" / f"{number:05}").touch()
    assert await drive.names("many") == [f"{number:05}" for number in range(10_000)]
    assert (await drive("DELETE", "entry", path="many", recursive="true")).status == 200
    assert not (drive.root / "many").exists()


async def test_the_document_says_what_the_routes_take_and_give(drive: Drive) -> None:
    paths = drive.app.document["paths"]
    assert isinstance(paths, dict)
    assert set(paths["/v1/fs/file"]["put"]["requestBody"]["content"]) == {"application/octet-stream"}
    assert set(paths["/v1/fs/upload-batch"]["post"]["requestBody"]["content"]) == {"application/x-tar"}
    named = {each["name"] for each in paths["/v1/fs/entry"]["delete"]["parameters"]}
    assert named == {"path", "recursive", "sessionId"}


def test_a_body_that_the_handler_reads_itself_leaves_none_for_another() -> None:
    async def handler(call: Call, body: dict[str, str]) -> None:
        """Wrong."""

    async def bare(call: Call) -> None:
        """Wrong for a GET only."""

    routes = Routes(tag="wrong")
    routes.put("/x", access=SIGNED_IN, takes="text/plain")(handler)
    routes.get("/x", access=SIGNED_IN, takes="text/plain")(bare)
    for wrong in routes.operations:
        with pytest.raises(TypeError, match="a body that the handler reads itself"):
            assert wrong.contract.summary


def test_only_the_query_has_second_names() -> None:
    async def handler(call: Call, name: Annotated[str, Alias("n")]) -> None:
        """Wrong."""

    routes = Routes(tag="wrong")
    routes.get("/x/{name}", access=SIGNED_IN)(handler)
    with pytest.raises(TypeError, match="can have no second name"):
        assert routes.operations[0].contract.summary
