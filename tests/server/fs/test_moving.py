"""Moving, replacing and deleting: what is replaced, what is not, and what is never lost."""

import asyncio
import os
from pathlib import Path

import pytest
from tests.server.fs.drive import Drive, descriptors
from tests.server.toy_app import Got

from legation.errors import Forbidden
from legation.server.fs import operations
from legation.server.fs.paths import ServedFolders
from legation.store.forbidden import ForbiddenPlaces


async def move(drive: Drive, source: str, target: str, overwrite: bool | None = None) -> Got:
    body = {"from": source, "to": target} | ({} if overwrite is None else {"overwrite": overwrite})
    return await drive("POST", "move", body=body)


@pytest.mark.parametrize("overwrite", [None, False])
@pytest.mark.parametrize("target", ["sub/b.txt", "sub", "empty", "link"])
async def test_nothing_is_replaced_unless_asked(drive: Drive, target: str, overwrite: bool | None) -> None:
    (drive.root / "empty").mkdir()
    (drive.root / "link").symlink_to("nowhere")
    for source in ("a.txt", "sub/deep"):
        got = await move(drive, source, target, overwrite)
        assert got.status == (400 if (source, target) == ("sub/deep", "sub") else 409)
    assert (drive.root / "a.txt").read_text() == "a"
    assert (drive.root / "sub" / "b.txt").read_text() == "bb"


async def test_nothing_is_replaced_where_the_kernel_has_no_call_for_it(
    drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "_renameat2", lambda: None)
    assert (await move(drive, "a.txt", "sub/b.txt")).status == 409
    assert (await move(drive, "a.txt", "sub/c.txt")).status == 200
    assert (drive.root / "sub" / "c.txt").read_text() == "a"


@pytest.mark.parametrize("source", ["a.txt", "full"])
@pytest.mark.parametrize("target", ["sub/b.txt", "sub", "new/place", "link"])
async def test_everything_is_replaced_if_asked(drive: Drive, source: str, target: str) -> None:
    (drive.root / "full").mkdir()
    (drive.root / "full" / "x").write_text("x")
    (drive.root / "link").symlink_to(drive.outside / "secret")
    got = await move(drive, source, target, True)
    assert got.status == 200, got.body
    moved = drive.root / target
    assert not moved.is_symlink()
    assert (moved.read_text() if source == "a.txt" else (moved / "x").read_text()) == source[0].replace(
        "f", "x"
    )
    assert not (drive.root / source).exists()


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    ("source", "target"), [("sub", "sub/deep/x"), ("sub/deep", "sub"), ("sub/b.txt", "sub")]
)
async def test_a_folder_is_not_moved_into_itself_nor_replaced_by_what_is_in_it(
    drive: Drive, source: str, target: str, overwrite: bool
) -> None:
    assert (await move(drive, source, target, overwrite)).status == 400
    assert (drive.root / "sub" / "b.txt").read_text() == "bb"
    assert (drive.root / "sub" / "deep").is_dir()


@pytest.mark.parametrize("name", ["a.txt", "sub"])
async def test_to_move_something_onto_itself_changes_nothing(drive: Drive, name: str) -> None:
    assert (await move(drive, name, name, True)).status == 200
    assert (await move(drive, name, name, False)).status == 409
    assert (drive.root / "a.txt").read_text() == "a"
    assert (drive.root / "sub" / "b.txt").read_text() == "bb"


async def test_what_does_not_exist_is_not_moved_and_makes_no_folders(drive: Drive) -> None:
    assert (await move(drive, "none", "new/place")).status == 404
    assert not (drive.root / "new").exists()


async def test_a_link_is_moved_itself(drive: Drive) -> None:
    (drive.root / "link").symlink_to(drive.outside / "secret")
    assert (await move(drive, "link", "sub/link")).status == 200
    assert (drive.root / "sub" / "link").readlink() == drive.outside / "secret"
    assert (await drive.read("sub/link")).status == 403


async def test_the_allowed_folder_itself_stays(drive: Drive) -> None:
    for source, target in ((".", "x"), ("a.txt", "."), (str(drive.root), "x")):
        for overwrite in (False, True):
            assert (await move(drive, source, target, overwrite)).status in (400, 403, 409)
    assert (drive.root / "a.txt").read_text() == "a"


@pytest.mark.parametrize(
    "body", [{}, {"from": "a"}, {"from": "a", "to": 1}, {"from": "a", "to": "b", "x": 1}, []]
)
async def test_a_wrong_body_is_refused(drive: Drive, body: object) -> None:
    assert (await drive("POST", "move", body=body)).status == 400


async def test_a_nul_in_the_body_is_refused(drive: Drive) -> None:
    assert (await move(drive, "a\0", "b")).status == 400
    assert (await move(drive, "a.txt", "b\0")).status == 400


async def test_of_many_that_move_to_one_place_one_wins_and_none_is_lost(drive: Drive) -> None:
    for number in range(30):
        (drive.root / f"n{number}").write_text(f"{number}")
    got = await asyncio.gather(*(move(drive, f"n{number}", "winner") for number in range(30)))
    assert sorted(each.status for each in got) == [200] + [409] * 29
    left = {path.read_text() for path in drive.root.glob("n*")} | {(drive.root / "winner").read_text()}
    assert left == {f"{number}" for number in range(30)}


async def test_a_tree_is_deleted_with_links_and_pipes_but_not_what_they_lead_to(drive: Drive) -> None:
    tree = drive.root / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "folder").symlink_to(drive.outside)
    (tree / "a" / "file").symlink_to(drive.outside / "secret")
    (tree / "a" / "inside").symlink_to(drive.root / "sub")
    os.mkfifo(tree / "a" / "b" / "pipe")
    os.link(drive.outside / "secret", tree / "hard")
    assert (await drive("DELETE", "entry", path="tree")).status == 409
    assert (await drive("DELETE", "entry", path="tree", recursive="true")).status == 200
    assert not tree.exists()
    assert (drive.root / "sub" / "b.txt").read_text() == "bb"


async def test_a_tree_that_is_nested_too_deeply_is_refused_and_the_innermost_can_go(drive: Drive) -> None:
    deep = drive.root / "deep"
    deep.joinpath(*["d"] * 200).mkdir(parents=True)
    assert (await drive("DELETE", "entry", path="deep", recursive="true")).status == 409
    inner = "/".join(["deep", *["d"] * 100])
    assert (await drive("DELETE", "entry", path=inner, recursive="true")).status == 200
    assert (await drive("DELETE", "entry", path="deep", recursive="true")).status == 200


async def test_descriptors_are_all_closed_again(drive: Drive) -> None:
    (drive.root / "out").symlink_to(drive.outside)
    before = descriptors()
    for _ in range(20):
        await drive.names()
        await drive.read("out/secret")
        await drive.read("none/x")
        await drive.write("x/y", b"1")
        await drive.write("sub", b"1")
        await move(drive, "x/y", "x/z", True)
        await move(drive, "x/z", "out/z")
        await drive("DELETE", "entry", path="x", recursive="true")
        await drive("POST", "upload-batch", path="sub", raw=b"garbage" * 1000)
    assert descriptors() == before


def test_nothing_is_moved_to_where_it_would_hold_what_is_never_served(tmp_path: Path) -> None:
    """A configuration that is not there yet must not be put there with the folder around it."""
    (tmp_path / "mine/legation").mkdir(parents=True)
    (tmp_path / "mine/legation/legation.toml").write_text("processes = true")
    where = ServedFolders(
        [tmp_path], ForbiddenPlaces([], [tmp_path / ".config/legation/legation.toml"])
    ).everywhere()
    for source, target in (
        ("mine", ".config"),
        ("mine/legation", ".config/legation"),
        ("mine/legation/legation.toml", ".config/legation/legation.toml"),
    ):
        with pytest.raises(Forbidden):
            operations.move(where, source, target, overwrite=False)
    assert (tmp_path / "mine/legation/legation.toml").is_file()
    operations.move(where, "mine", ".configuration", overwrite=False)
