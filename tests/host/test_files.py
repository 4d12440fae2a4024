import os
from pathlib import Path

import pytest

from legation.agents.rpc import RpcFault
from legation.host.requests import services
from legation.host.requests.services import SessionFiles
from legation.store.forbidden import ForbiddenPlaces
from legation.wire.acp.methods import ReadTextFileRequest, WriteTextFileRequest


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work" / "sub").mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    return tmp_path / "work"


def read(work: Path, path: str | Path, line: int | None = None, limit: int | None = None) -> str:
    request = ReadTextFileRequest(session_id="s", path=str(path), line=line, limit=limit)
    return SessionFiles([work], ForbiddenPlaces()).read(request).content


def write(work: Path, path: str | Path, content: str = "new") -> None:
    SessionFiles([work], ForbiddenPlaces()).write(
        WriteTextFileRequest(session_id="s", path=str(path), content=content)
    )


def refusal(work: Path, path: str | Path, *, writing: bool = False) -> tuple[int, str]:
    with pytest.raises(RpcFault) as caught:
        write(work, path) if writing else read(work, path)
    return caught.value.error.code, caught.value.error.message


def test_a_file_is_read_as_it_is(work: Path) -> None:
    (work / "a").write_bytes("\ufeffé\r\nb\x0cc\u2028d\n".encode())
    assert read(work, work / "a") == "\ufeffé\r\nb\x0cc\u2028d\n"


@pytest.mark.parametrize(
    ("line", "limit", "expected"),
    [
        (1, None, "one\ntwo\x0c\u2028\nthree"),
        (2, 1, "two\x0c\u2028\n"),
        (3, 10, "three"),
        (None, 1, "one\n"),
        (0, 1, "one\n"),
        (9, 1, ""),
        (1, 0, ""),
        (2, -1, ""),
    ],
)
def test_lines_count_from_one_and_end_at_newlines_only(
    work: Path, line: int | None, limit: int | None, expected: str
) -> None:
    (work / "a").write_text("one\ntwo\x0c\u2028\nthree")
    assert read(work, work / "a", line, limit) == expected


def test_a_write_makes_the_folders_above_and_replaces_what_was_there(work: Path) -> None:
    write(work, work / "x" / "y" / "z", "a long text")
    write(work, work / "x" / "y" / "z", "short")
    assert (work / "x" / "y" / "z").read_text() == "short"


@pytest.mark.parametrize("writing", [False, True])
@pytest.mark.parametrize(
    "path", ["{work}/../secret", "{place}/secret", "{work}", "/", "{work}2/x", "/dev/null"]
)
def test_what_is_outside_stays_outside(work: Path, path: str, writing: bool) -> None:
    (work.parent / "work2").mkdir()
    named = path.format(work=work, place=work.parent)
    assert refusal(work, named, writing=writing) == (-32602, f"{named} is outside the session's folders")
    assert (work.parent / "secret").read_text() == "secret"
    assert not (work.parent / "work2" / "x").exists()


@pytest.mark.parametrize("path", ["secret", "", "./a", "/a\0b"])
def test_a_path_that_is_not_absolute_is_refused(work: Path, path: str) -> None:
    assert refusal(work, path)[0] == -32602


@pytest.mark.parametrize("writing", [False, True])
@pytest.mark.parametrize("target", ["../secret", "/", ".."])
def test_links_that_lead_out_are_not_followed(work: Path, target: str, writing: bool) -> None:
    (work / "link").symlink_to(target)
    path = work / "link" if target == "../secret" else work / "link" / "secret"
    code, message = refusal(work, path, writing=writing)
    assert (code, message.endswith("outside the session's folders")) == (-32602, True)
    assert (work.parent / "secret").read_text() == "secret"


def test_a_dangling_link_that_leads_out_is_not_written_through(work: Path) -> None:
    (work / "link").symlink_to(work.parent / "fresh")
    refusal(work, work / "link", writing=True)
    assert not (work.parent / "fresh").exists()


def test_links_inside_the_folder_work(work: Path) -> None:
    (work / "real").write_text("x")
    (work / "link").symlink_to("real")
    (work / "folder").symlink_to("sub")
    assert read(work, work / "link") == "x"
    write(work, work / "folder" / "new")
    assert (work / "sub" / "new").read_text() == "new"
    assert (work / "link").is_symlink()


def test_a_folder_that_is_itself_reached_by_a_link_works(work: Path) -> None:
    (work.parent / "way").symlink_to(work)
    (work / "a").write_text("x")
    assert read(work, work.parent / "way" / "a") == "x"


@pytest.mark.parametrize("writing", [False, True])
def test_a_path_that_is_too_long_to_be_opened_is_refused(work: Path, writing: bool) -> None:
    assert "too long" in refusal(work, f"{work}/{'./' * 2048}a", writing=writing)[1]


@pytest.mark.parametrize("writing", [False, True])
@pytest.mark.parametrize("swapped", ["itself", "above"])
def test_a_link_in_the_place_of_the_folder_does_not_move_the_boundary(
    work: Path, swapped: str, writing: bool
) -> None:
    other = work.parent / "other"
    (other / "work").mkdir(parents=True)
    for folder in (other, other / "work"):
        (folder / "secret").write_text("secret")
    folder = work if swapped == "itself" else work / "work"
    folder.mkdir(exist_ok=True)
    work.rename(work.parent / "moved")
    work.symlink_to(other)
    for path in (folder / "secret", Path(os.path.realpath(folder)) / "secret"):
        assert "outside the session's folders" in refusal(folder, path, writing=writing)[1]
    assert {each.read_text() for each in other.rglob("secret")} == {"secret"}


@pytest.mark.parametrize("writing", [False, True])
def test_a_folder_above_that_becomes_a_link_after_the_check_is_not_followed(
    work: Path, monkeypatch: pytest.MonkeyPatch, writing: bool
) -> None:
    (work.parent / "other" / "sub").mkdir(parents=True)
    (work.parent / "other" / "sub" / "secret").write_text("secret")
    (work / "sub" / "secret").write_text("own")
    locate = SessionFiles._locate

    def swap(self: SessionFiles, path: str) -> tuple[Path, tuple[str, ...]]:
        found = locate(self, path)
        work.rename(work.parent / "moved")
        work.symlink_to(work.parent / "other")
        return found

    monkeypatch.setattr(SessionFiles, "_locate", swap)
    assert "moved or replaced" in refusal(work / "sub", work / "sub" / "secret", writing=writing)[1]
    assert (work.parent / "other" / "sub" / "secret").read_text() == "secret"


@pytest.mark.parametrize("writing", [False, True])
@pytest.mark.parametrize("swapped", ["last", "parent"])
def test_a_link_put_there_after_the_check_is_not_followed(
    work: Path, monkeypatch: pytest.MonkeyPatch, swapped: str, writing: bool
) -> None:
    path = work / "sub" / "secret"
    path.write_text("harmless")
    locate = SessionFiles._locate

    def locate_then_swap(self: SessionFiles, named: str) -> tuple[Path, tuple[str, ...]]:
        found = locate(self, named)
        path.unlink()
        if swapped == "last":
            path.symlink_to(work.parent / "secret")
        else:
            path.parent.rmdir()
            path.parent.symlink_to(work.parent)
        return found

    monkeypatch.setattr(SessionFiles, "_locate", locate_then_swap)
    assert refusal(work, path, writing=writing)[0] == -32602
    assert (work.parent / "secret").read_text() == "secret"


@pytest.mark.parametrize("writing", [False, True])
def test_a_pipe_is_refused_without_waiting(work: Path, writing: bool) -> None:
    os.mkfifo(work / "pipe")
    assert refusal(work, work / "pipe", writing=writing)[0] == -32602


def test_a_pipe_with_a_reader_gets_nothing(work: Path) -> None:
    os.mkfifo(work / "pipe")
    reader = os.open(work / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert "not a regular file" in refusal(work, work / "pipe", writing=True)[1]
        assert os.read(reader, 10) == b""
    finally:
        os.close(reader)


@pytest.mark.parametrize("writing", [False, True])
def test_a_folder_is_no_file(work: Path, writing: bool) -> None:
    assert refusal(work, work / "sub", writing=writing)[0] == -32602


def test_a_file_in_the_place_of_a_folder_is_an_error(work: Path) -> None:
    (work / "a").write_text("x")
    assert refusal(work, work / "a" / "b", writing=True)[0] == -32602
    assert (work / "a").read_text() == "x"


def test_a_missing_file_is_not_found_and_makes_no_folder(work: Path) -> None:
    assert refusal(work, work / "no" / "file")[0] == -32002
    assert not (work / "no").exists()


def test_what_is_not_text_is_refused(work: Path) -> None:
    (work / "a").write_bytes(b"\xff\xfe")
    code, message = refusal(work, work / "a")
    assert (code, "not UTF-8" in message) == (-32602, True)


def test_half_a_character_is_not_written(work: Path) -> None:
    (work / "a").write_text("kept")
    with pytest.raises(RpcFault):
        write(work, work / "a", "\ud800")
    assert (work / "a").read_text() == "kept"


def test_a_path_with_half_a_character_is_refused(work: Path) -> None:
    assert refusal(work, f"{work}/\ud800", writing=True)[0] == -32602


def test_a_file_beyond_the_limit_is_refused(work: Path) -> None:
    with (work / "huge").open("wb") as file:
        file.truncate(services.READ_LIMIT + 1)
    assert "larger than" in refusal(work, work / "huge")[1]


def test_no_descriptor_is_left_behind(work: Path) -> None:
    (work / "a").write_text("x")
    before = sorted(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names, not paths
    for path in ("a", "sub", "no/file", "a/b", "x/y"):
        for writing in (False, True):
            try:
                write(work, work / path) if writing else read(work, work / path)
            except RpcFault:
                continue
    assert sorted(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
