from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from legation.errors import ConfigInvalid, Forbidden, InvalidParams, NotFound
from legation.store.trust import TrustedFolder, TrustedFolders


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def folders(data: Path) -> TrustedFolders:
    return TrustedFolders(data, "local")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The root of a repository, whatever there may be above it."""
    folder = repository(tmp_path / "project")
    (folder / "below").mkdir()
    return folder


def repository(folder: Path) -> Path:
    for part in ("objects", "refs"):
        (folder / ".git" / part).mkdir(parents=True)
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    return folder


def trust(folders: TrustedFolders, folder: Path) -> TrustedFolder:
    return folders.add(folders.checked(str(folder), by="user:ada", now_ms=1))


def test_nothing_is_trusted_by_itself(folders: TrustedFolders, project: Path) -> None:
    assert not folders.trusts(str(project))
    assert folders.all() == ()


def test_a_folder_and_all_beneath_it_are_trusted_and_nothing_beside(
    folders: TrustedFolders, project: Path
) -> None:
    beside = repository(project.with_name("project-two"))
    given = trust(folders, project)
    assert (given.path, given.by, given.state) == (os.path.realpath(project), "user:ada", "trusted")
    assert folders.trusts(str(project))
    assert folders.trusts(str(project / "below"))
    assert folders.trusts(f"{project}/below/../below/")
    assert not folders.trusts(str(beside))
    assert not folders.trusts(str(project.parent))
    assert not folders.trusts(f"{project}/..")


def test_another_workspace_trusts_nothing_of_it(folders: TrustedFolders, project: Path, data: Path) -> None:
    trust(folders, project)
    assert not TrustedFolders(data, "other").trusts(str(project))


def test_a_link_out_of_a_trusted_folder_leads_to_no_trust(
    folders: TrustedFolders, project: Path, tmp_path: Path
) -> None:
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    (project / "link").symlink_to(hostile)
    trust(folders, project)
    assert not folders.trusts(str(project / "link"))


def test_a_link_is_trusted_as_what_it_leads_to(
    folders: TrustedFolders, project: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(project)
    given = trust(folders, tmp_path / "link")
    assert given.path == os.path.realpath(project)
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to(hostile)
    assert not folders.trusts(str(tmp_path / "link"))


def test_a_folder_in_a_repository_counts_only_with_the_repository(
    folders: TrustedFolders, project: Path
) -> None:
    with pytest.raises(InvalidParams, match=r"cannot trust .*below alone") as caught:
        trust(folders, project / "below")
    assert caught.value.message.endswith(f"trust {project}")
    trust(folders, project)
    assert folders.trusts(str(project / "below"))


def test_a_trusted_folder_that_becomes_a_part_of_a_repository_is_trusted_no_more(
    folders: TrustedFolders, project: Path
) -> None:
    within = repository(project / "within")
    trust(folders, within)
    for part in ("HEAD", "objects"):  # without either git takes it for none
        place = within / ".git" / part
        assert folders.trusts(str(within))
        place.rename(within / part)
        assert not folders.trusts(str(within))
        (within / part).rename(place)


def test_another_folder_in_its_place_is_not_trusted(folders: TrustedFolders, project: Path) -> None:
    trust(folders, project)
    project.rename(project.with_name("moved"))
    assert [each.state for each in folders.all()] == ["gone"]
    assert not folders.trusts(str(project))
    repository(project)
    assert [each.state for each in folders.all()] == ["replaced"]
    assert not folders.trusts(str(project))
    assert not folders.trusts(str(project.with_name("moved")))
    trust(folders, project)
    assert [each.state for each in folders.all()] == ["trusted"]
    assert folders.trusts(str(project))


def test_a_link_in_its_place_is_not_trusted(folders: TrustedFolders, project: Path) -> None:
    trust(folders, project)
    moved = project.with_name("moved")
    project.rename(moved)
    project.symlink_to(moved)
    assert not folders.trusts(str(project))


def test_what_was_trusted_stays_as_it_is_and_is_removed_by_its_id(
    folders: TrustedFolders, project: Path
) -> None:
    given = trust(folders, project)
    assert trust(folders, project) == given
    assert folders.remove(given.id) == given
    assert not folders.trusts(str(project))
    with pytest.raises(NotFound, match="cannot find the trusted folder"):
        folders.remove(given.id)


def test_legations_own_data_is_never_trusted(folders: TrustedFolders, data: Path) -> None:
    inside = data / "work"
    inside.mkdir(parents=True)
    for folder in (inside, data, data.parent, Path("/")):
        with pytest.raises(Forbidden, match="Legation's own data is there"):
            trust(folders, folder)
    assert not folders.trusts(str(inside))


def test_what_is_no_folder_is_not_trusted(folders: TrustedFolders, project: Path) -> None:
    (project / "file").write_text("")
    for path in (project / "file", project / "none"):
        with pytest.raises(NotFound, match="there is no such folder"):
            trust(folders, path)


def test_the_file_is_its_owners_alone(folders: TrustedFolders, project: Path, data: Path) -> None:
    trust(folders, project)
    file = data / "trust" / "local.json"
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o666)
    with pytest.raises(ConfigInvalid, match="others can change it"):
        folders.trusts(str(project))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"version": 1}',
        b'{"version": 1, "folders": [{"path": "/"}]}',
        b'{"version": 2, "folders": []}',
        b'{"version": 1, "folders": [], "more": 1}',
    ],
)
def test_a_file_that_is_not_understood_is_told_and_trusts_nothing(
    content: bytes, folders: TrustedFolders, project: Path, data: Path
) -> None:
    trust(folders, project)
    file = data / "trust" / "local.json"
    file.write_bytes(content)
    with pytest.raises(ConfigInvalid, match=r"^cannot use .*local\.json: it"):
        folders.trusts(str(project))
    with pytest.raises(ConfigInvalid):
        trust(folders, project)
    assert file.read_bytes() == content


def test_a_link_for_a_file_is_not_read(folders: TrustedFolders, project: Path, data: Path) -> None:
    trust(folders, project)
    file = data / "trust" / "local.json"
    file.rename(data / "elsewhere.json")
    file.symlink_to(data / "elsewhere.json")
    with pytest.raises(ConfigInvalid, match="it is a link"):
        folders.trusts(str(project))


def test_writers_at_once_lose_nothing_of_one_another(data: Path, tmp_path: Path) -> None:
    places = [repository(tmp_path / f"p{number}") for number in range(24)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda place: trust(TrustedFolders(data, "local"), place), places))
    assert {each.path for each in TrustedFolders(data, "local").all()} == {
        os.path.realpath(place) for place in places
    }
    assert [each.name for each in (data / "trust").iterdir()] == ["local.json"]
