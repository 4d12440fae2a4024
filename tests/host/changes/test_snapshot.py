"""Snapshots with and without git, on ordinary folders; hostile ones are in test_changes_hostile.py."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.programs import needs_git

from legation.errors import Conflict, NotFound
from legation.host.changes import FileChange, FolderChanges, Snapshot, gittree
from legation.host.changes import git as git_module
from legation.host.changes import snapshot as folder_module

pytestmark = [pytest.mark.heavy, needs_git]  # a process or more for each test

GIT_SECONDS = 60.0

Files = dict[str, tuple[int, bytes]]


def git(folder: Path, *arguments: str, stdin: bytes = b"") -> bytes:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "protocol.file.allow=always")
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, input=stdin, capture_output=True, timeout=GIT_SECONDS
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def commit(folder: Path) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "x")


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A HOME without git configuration, and a TMPDIR that must be empty in the end."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    yield scratch
    assert list(scratch.iterdir()) == []


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "a.txt").write_text("one\ntwo\nthree\n")
    (folder / "b.txt").write_text("bee\n")
    commit(folder)
    return folder


@pytest.fixture(params=["git", "plain"])
def folder(request: pytest.FixtureRequest, repo: Path, tmp_path: Path) -> Path:
    """The same files once in a repository and once not: what holds for both is tested with this."""
    if request.param == "git":
        return repo
    plain = tmp_path / "plain"
    plain.mkdir()
    for name in ("a.txt", "b.txt"):
        (plain / name).write_bytes((repo / name).read_bytes())
    return plain


def contents(folder: Path) -> Files:
    """Every file and link outside .git, with its mode and content."""
    found = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = (0o120000, os.fsencode(path.readlink()))
        elif path.is_file() and not name.startswith(".git/"):
            found[name] = (0o100755 if path.stat().st_mode & 0o100 else 0o100644, path.read_bytes())
    return found


def restore(folder: Path, before: Files) -> None:
    for name in contents(folder):
        (folder / name).unlink()
    for name, (mode, content) in before.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if mode == 0o120000:
            path.symlink_to(os.fsdecode(content))
        else:
            path.write_bytes(content)
            path.chmod(mode & 0o777)


def assert_applies(folder: Path, before: Files, changes: FolderChanges) -> None:
    """The diff on top of the earlier files gives the later ones."""
    after = contents(folder)
    restore(folder, before)
    git(folder, "apply", "--whitespace=nowarn", "-", stdin=changes.diff.encode())
    assert contents(folder) == after


async def test_modified_added_and_deleted_files_are_listed_and_the_diff_applies(folder: Path) -> None:
    (folder / "gone.txt").write_text("x\ny\n")
    before = contents(folder)
    async with await Snapshot.take(folder) as snapshot:
        (folder / "a.txt").write_text("one\n2\nthree\nfour")
        (folder / "sub").mkdir()
        (folder / "sub" / "new.txt").write_text("hello\n")
        (folder / "gone.txt").unlink()
        changes = await snapshot.changes()
    assert changes.files == (
        FileChange("a.txt", 2, 1, "modified", False),
        FileChange("gone.txt", 0, 2, "deleted", False),
        FileChange("sub/new.txt", 1, 0, "added", False),
    )
    assert changes.incomplete is None
    assert_applies(folder, before, changes)


async def test_nothing_changed_is_an_empty_diff(folder: Path) -> None:
    async with await Snapshot.take(folder) as snapshot:
        os.utime(folder / "a.txt", ns=(1, 1))
        assert await snapshot.changes() == FolderChanges("", (), None)


async def test_what_was_dirty_before_is_not_reported(folder: Path) -> None:
    (folder / "a.txt").write_text("dirty\n")
    (folder / "untracked.txt").write_text("mine\n")
    (folder / "b.txt").unlink()
    before = contents(folder)
    async with await Snapshot.take(folder) as snapshot:
        (folder / "untracked.txt").write_text("mine\nyours\n")
        changes = await snapshot.changes()
    assert changes.files == (FileChange("untracked.txt", 1, 0, "modified", False),)
    assert_applies(folder, before, changes)


async def test_changes_can_be_asked_for_again_and_count_from_the_snapshot(folder: Path) -> None:
    async with await Snapshot.take(folder) as snapshot:
        (folder / "a.txt").write_text("1\n")
        await snapshot.changes()
        (folder / "c.txt").write_text("c\n")
        changes = await snapshot.changes()
    assert [file.path for file in changes.files] == ["a.txt", "c.txt"]


async def test_a_change_of_the_same_size_in_the_same_moment_is_seen(folder: Path) -> None:
    for number in range(5):
        async with await Snapshot.take(folder) as snapshot:
            (folder / "b.txt").write_text(f"be{number}\n")
            assert [file.path for file in (await snapshot.changes()).files] == ["b.txt"]


@pytest.mark.parametrize(
    "name",
    [
        b"with space",
        b'quo"te',
        b"back\\slash",
        b"new\nline",
        b"tab\there",
        "h\u00e9".encode(),
        b"caf\xe9",
        b":(glob)*",
        b"-dash",
    ],
)
async def test_odd_file_names_survive(folder: Path, name: bytes) -> None:
    full = Path(os.fsdecode(os.fsencode(folder) + b"/" + name))
    full.write_text("old\n")
    before = contents(folder)
    async with await Snapshot.take(folder) as snapshot:
        full.write_text("new\n")
        changes = await snapshot.changes()
    path = name.decode("utf-8", "backslashreplace")
    assert changes.files == (FileChange(path, 1, 1, "modified", False),)
    assert_applies(folder, before, changes)


async def test_modes_links_empty_files_and_type_changes_apply(folder: Path) -> None:
    (folder / "link").symlink_to("a.txt")
    (folder / "turns").write_text("file\n")
    (folder / "empty-gone").touch()
    before = contents(folder)
    async with await Snapshot.take(folder) as snapshot:
        (folder / "a.txt").chmod(0o755)
        (folder / "link").unlink()
        (folder / "link").symlink_to("b.txt")
        (folder / "turns").unlink()
        (folder / "turns").symlink_to("/etc/hostname")
        (folder / "empty-gone").unlink()
        (folder / "empty-new").touch()
        changes = await snapshot.changes()
    assert [(file.path, file.status, file.binary) for file in changes.files] == [
        ("a.txt", "modified", False),
        ("empty-gone", "deleted", False),
        ("empty-new", "added", False),
        ("link", "modified", False),
        ("turns", "modified", False),
    ]
    assert_applies(folder, before, changes)


async def test_a_file_that_becomes_a_folder_and_the_reverse_apply(folder: Path) -> None:
    (folder / "dir").mkdir()
    (folder / "dir" / "x").write_text("x\n")
    before = contents(folder)
    async with await Snapshot.take(folder) as snapshot:
        (folder / "dir" / "x").unlink()
        (folder / "dir").rmdir()
        (folder / "dir").write_text("now a file\n")
        (folder / "a.txt").unlink()
        (folder / "a.txt").mkdir()
        (folder / "a.txt" / "y").write_text("y\n")
        changes = await snapshot.changes()
        after = contents(folder)
    for path in ("dir", "a.txt/y"):
        (folder / path).unlink()
    (folder / "a.txt").rmdir()
    restore(folder, before)
    git(folder, "apply", "-", stdin=changes.diff.encode())
    assert contents(folder) == after


@pytest.mark.parametrize("content", [b"\0\1\2", b"caf\xe9 \xff\n"])
async def test_what_is_not_utf8_text_is_listed_as_binary_and_kept_out_of_the_diff(
    folder: Path, content: bytes
) -> None:
    before = contents(folder)
    async with await Snapshot.take(folder) as snapshot:
        (folder / "a.txt").write_bytes(content)
        (folder / "new.txt").write_text("text\n")
        changes = await snapshot.changes()
    assert changes.files[0] == FileChange("a.txt", 0, 0, "modified", True)
    (folder / "a.txt").write_text("one\ntwo\nthree\n")
    assert_applies(folder, before, changes)


async def test_links_are_never_followed(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret\n")
    async with await Snapshot.take(folder) as snapshot:
        (folder / "to-folder").symlink_to(outside)
        (folder / "to-file").symlink_to(outside / "secret")
        (folder / "loop").symlink_to(folder)
        changes = await snapshot.changes()
    assert [file.path for file in changes.files] == ["loop", "to-file", "to-folder"]
    assert "+secret" not in changes.diff


async def test_a_folder_replaced_by_a_link_outside_shows_as_deleted_files(
    folder: Path, tmp_path: Path
) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "x").write_text("mine\n")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_text("secret\n")
    async with await Snapshot.take(folder) as snapshot:
        (folder / "sub" / "x").unlink()
        (folder / "sub").rmdir()
        (folder / "sub").symlink_to(outside)
        changes = await snapshot.changes()
    assert {(file.path, file.status) for file in changes.files} == {("sub", "added"), ("sub/x", "deleted")}
    assert "secret" not in changes.diff


async def test_fifos_are_not_opened(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    async with await Snapshot.take(folder) as snapshot:
        (folder / "a.txt").unlink()
        os.mkfifo(folder / "a.txt")
        changes = await snapshot.changes()
    assert changes.files == (FileChange("a.txt", 0, 3, "deleted", False),)


async def test_a_removed_folder_is_said_and_not_raised(folder: Path, tmp_path: Path) -> None:
    async with await Snapshot.take(folder) as snapshot:
        folder.rename(tmp_path / "elsewhere")
        changes = await snapshot.changes()
    assert changes.files == ()
    assert changes.incomplete is not None
    assert "removed" in changes.incomplete


async def test_a_folder_replaced_by_a_link_is_not_looked_into(folder: Path, tmp_path: Path) -> None:
    async with await Snapshot.take(folder) as snapshot:
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere")
        assert (await snapshot.changes()).incomplete is not None


async def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="cannot watch"):
        await Snapshot.take(tmp_path / "nowhere")


async def test_a_closed_snapshot_refuses_and_closing_twice_is_fine(folder: Path) -> None:
    snapshot = await Snapshot.take(folder)
    await snapshot.close()
    await snapshot.close()
    with pytest.raises(Conflict, match="closed"):
        await snapshot.changes()


async def test_a_cancelled_take_leaves_nothing_behind(repo: Path) -> None:
    task = asyncio.create_task(Snapshot.take(repo))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.get_running_loop().shutdown_default_executor()


# With git only


async def test_the_repository_is_left_as_it_was(repo: Path) -> None:
    (repo / "b.txt").write_text("staged\n")
    git(repo, "add", "b.txt")
    (repo / "dirty.txt").write_text("one\ntwo\nthree\n")  # a blob that the repository has already

    def state() -> list[tuple[str, int, int]]:
        return sorted((str(p), p.lstat().st_mtime_ns, p.lstat().st_size) for p in (repo / ".git").rglob("*"))

    for file in (repo / ".git").rglob("*"):
        os.utime(file, ns=(10**18, 10**18))
    before = state()
    async with await Snapshot.take(repo) as snapshot:
        (repo / "c.txt").write_text("bee\n")
        await snapshot.changes()
    assert state() == before


async def test_ignored_files_are_not_reported(repo: Path, tmp_path: Path) -> None:
    (repo / ".gitignore").write_text("*.log\nbuild/\n")
    (repo / ".git" / "info" / "exclude").write_text("*.local\n")
    ignore = tmp_path / "home" / ".config" / "git" / "ignore"
    ignore.parent.mkdir(parents=True)
    ignore.write_text("*.swp\n")
    (repo / "build").mkdir()
    async with await Snapshot.take(repo) as snapshot:
        for name in ("x.log", "build/out", "x.local", "x.swp", "kept.txt"):
            (repo / name).write_text("x\n")
        assert [file.path for file in (await snapshot.changes()).files] == ["kept.txt"]


async def test_the_users_excludes_file_is_honoured(repo: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".gitconfig").write_text("[core]\nexcludesFile = ~/my ignores\n")
    (tmp_path / "home" / "my ignores").write_text("*.mine\n")
    async with await Snapshot.take(repo) as snapshot:
        (repo / "x.mine").write_text("x\n")
        assert (await snapshot.changes()).files == ()


async def test_a_subfolder_is_compared_alone_and_relative_to_itself(repo: Path) -> None:
    sub = repo / "su b"
    sub.mkdir()
    (sub / "x").write_text("x\n")
    commit(repo)
    (repo / ".gitignore").write_text("*.log\n")
    before = contents(sub)
    async with await Snapshot.take(sub) as snapshot:
        (repo / "a.txt").write_text("outside\n")
        (sub / "x").write_text("y\n")
        (sub / "y").write_text("new\n")
        (sub / "y.log").write_text("ignored above\n")
        changes = await snapshot.changes()
    assert [file.path for file in changes.files] == ["x", "y"]
    (sub / "y.log").unlink()
    after = contents(sub)
    restore(sub, before)
    git(repo, "apply", "--directory=su b", "-", stdin=changes.diff.encode())
    assert contents(sub) == after


async def test_an_ignored_subfolder_is_compared_without_git(repo: Path) -> None:
    (repo / ".gitignore").write_text("work/\n")
    (repo / "work").mkdir()
    async with await Snapshot.take(repo / "work") as snapshot:
        (repo / "work" / "x").write_text("x\n")
        assert [file.path for file in (await snapshot.changes()).files] == ["x"]


async def test_an_empty_repository_works(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "empty")
    async with await Snapshot.take(tmp_path / "empty") as snapshot:
        (tmp_path / "empty" / "x").write_text("x\n")
        changes = await snapshot.changes()
    assert changes == FolderChanges(changes.diff, (FileChange("x", 1, 0, "added", False),), None)


async def test_a_sha256_repository_works(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "--object-format=sha256", "big")
    repo = tmp_path / "big"
    (repo / "a").write_text("a\n")
    commit(repo)
    before = contents(repo)
    async with await Snapshot.take(repo) as snapshot:
        (repo / "a").write_text("b\n")
        changes = await snapshot.changes()
    assert changes.files == (FileChange("a", 1, 1, "modified", False),)
    assert_applies(repo, before, changes)


async def test_a_linked_work_tree_works(repo: Path, tmp_path: Path) -> None:
    git(repo, "worktree", "add", "-q", str(tmp_path / "linked"))
    (repo / ".git" / "info" / "exclude").write_text("*.local\n")
    async with await Snapshot.take(tmp_path / "linked") as snapshot:
        (tmp_path / "linked" / "a.txt").write_text("1\n")
        (tmp_path / "linked" / "x.local").write_text("1\n")
        changes = await snapshot.changes()
    assert changes.files == (FileChange("a.txt", 1, 3, "modified", False),)


@pytest.mark.parametrize("breakage", ["empty", "garbage file", "no objects"])
async def test_a_broken_repository_is_compared_without_git(tmp_path: Path, breakage: str) -> None:
    folder = tmp_path / "broken"
    folder.mkdir()
    if breakage == "garbage file":
        (folder / ".git").write_bytes(b"gitdir: \xff\0nowhere")
    else:
        (folder / ".git").mkdir()
    if breakage == "no objects":
        (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    async with await Snapshot.take(folder) as snapshot:
        (folder / "x").write_text("x\n")
        assert "x" in [file.path for file in (await snapshot.changes()).files]


async def test_without_git_on_the_path_the_files_are_still_compared(
    repo: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    async with await Snapshot.take(repo) as snapshot:
        (repo / "a.txt").unlink()
        changes = await snapshot.changes()
    assert changes.files == (FileChange("a.txt", 0, 3, "deleted", False),)
    assert changes.incomplete == "not looked into: .git"


async def test_submodules_and_nested_repositories_are_not_entered(repo: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", str(repo), "library")
    git(repo, "submodule", "add", "-q", str(tmp_path / "library"), "module")
    commit(repo)
    git(repo, "init", "-q", "nested")
    async with await Snapshot.take(repo) as snapshot:
        (repo / "module" / "a.txt").write_text("changed\n")
        (repo / "nested" / "x").write_text("x\n")
        changes = await snapshot.changes()
    assert changes.files == ()
    assert changes.incomplete == (
        "not looked into: nested repository module; not looked into: nested repository nested"
    )


async def test_a_large_file_is_listed_as_binary(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gittree, "LARGE_BYTES", 1000)
    monkeypatch.setattr(folder_module, "FILE_BYTES", 1000)
    (folder / "same").write_text("s" * 2000)
    (folder / "grows").write_text("g")
    (folder / "large").write_text("l" * 2000)
    (folder / "gone").write_text("l" * 2000)
    if (folder / ".git").exists():
        commit(folder)
    async with await Snapshot.take(folder) as snapshot:
        (folder / "grows").write_text("g" * 2000)
        (folder / "large").write_text("m" * 2000)
        (folder / "gone").unlink()
        (folder / "new").write_text("n" * 2000)
        changes = await snapshot.changes()
    assert [(file.path, file.status, file.binary) for file in changes.files] == [
        ("gone", "deleted", True),
        ("grows", "modified", True),
        ("large", "modified", True),
        ("new", "added", True),
    ]
    assert changes.diff == ""


async def test_a_sparse_file_of_60_megabytes_is_not_copied(repo: Path, temporary: Path) -> None:
    async with await Snapshot.take(repo) as snapshot:
        with (repo / "huge").open("wb") as file:
            file.truncate(60 * 1024 * 1024)
        changes = await snapshot.changes()
    assert changes.files == (FileChange("huge", 0, 0, "added", True),)


async def test_files_beyond_the_budget_are_compared_by_status(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gittree, "COPIED_BYTES", 10)
    (repo / "untracked").write_text("more than ten bytes\n")
    async with await Snapshot.take(repo) as snapshot:
        (repo / "untracked").write_text("more than ten again\n")
        (repo / "a.txt").write_text("changed\n")  # its original is too large to borrow
        changes = await snapshot.changes()
    assert [(file.path, file.binary) for file in changes.files] == [("a.txt", True), ("untracked", True)]
    assert changes.incomplete is not None
    assert "earlier content not to be had: a.txt" in changes.incomplete
    assert "by size and time only" in changes.incomplete


async def test_a_long_diff_is_cut_between_files_and_says_so(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gittree, "DIFF_BYTES", 400)
    before = contents(repo)
    async with await Snapshot.take(repo) as snapshot:
        (repo / "a.txt").write_text("short\n")
        (repo / "c.txt").write_text("long\n" * 100)
        changes = await snapshot.changes()
    assert [(file.path, file.binary) for file in changes.files] == [("a.txt", False), ("c.txt", True)]
    assert changes.incomplete is not None
    assert "diff cut" in changes.incomplete
    (repo / "c.txt").unlink()
    assert_applies(repo, before, changes)


@pytest.mark.parametrize("attributes", ["* text=auto\n", "*.txt text eol=crlf\n"])
async def test_line_ends_are_compared_byte_for_byte(repo: Path, attributes: str) -> None:
    (repo / ".gitattributes").write_text(attributes)
    (repo / "dos.txt").write_bytes(b"1\r\n2\r\n3\r\n")
    commit(repo)
    async with await Snapshot.take(repo) as snapshot:
        (repo / "dos.txt").write_bytes(b"1\r\ntwo\r\n3\r\n")
        changes = await snapshot.changes()
    assert changes.files == (FileChange("dos.txt", 1, 1, "modified", False),)
    assert "+two\r\n" in changes.diff


async def test_a_garbage_collection_by_the_agent_does_not_matter(repo: Path) -> None:
    async with await Snapshot.take(repo) as snapshot:
        (repo / "a.txt").write_text("committed\n")
        commit(repo)
        git(repo, "gc", "-q", "--prune=now")
        changes = await snapshot.changes()
    assert changes.files == (FileChange("a.txt", 1, 3, "modified", False),)


@pytest.mark.parametrize(
    "configuration",
    [
        ("index.version", "4"),
        ("core.splitIndex", "true"),
        ("core.untrackedCache", "true"),
        ("index.skipHash", "true"),
    ],
)
async def test_every_kind_of_index_is_understood(repo: Path, configuration: tuple[str, str]) -> None:
    git(repo, "config", *configuration)
    for number in range(30):
        (repo / f"long-common-name-{number}").write_text("x\n")
    commit(repo)
    git(repo, "update-index", "--force-write-index")
    git(repo, "status")
    async with await Snapshot.take(repo) as snapshot:
        (repo / "long-common-name-7").write_text("y\n")
        (repo / "new").write_text("y\n")
        changes = await snapshot.changes()
    assert [file.path for file in changes.files] == ["long-common-name-7", "new"]
    assert changes.incomplete is None


async def test_a_half_done_merge_does_not_matter(repo: Path) -> None:
    git(repo, "checkout", "-qb", "side")
    (repo / "a.txt").write_text("side\n")
    commit(repo)
    git(repo, "checkout", "-q", "-")
    (repo / "a.txt").write_text("main\n")
    commit(repo)
    with pytest.raises(AssertionError):
        git(repo, "merge", "side")
    async with await Snapshot.take(repo) as snapshot:
        (repo / "a.txt").write_text("resolved\n")
        changes = await snapshot.changes()
    assert changes.files == (FileChange("a.txt", 1, 5, "modified", False),)


async def test_a_snapshot_that_was_cleaned_away_is_said_and_not_raised(repo: Path, temporary: Path) -> None:
    async with await Snapshot.take(repo) as snapshot:
        for place in temporary.iterdir():
            shutil.rmtree(place)
        changes = await snapshot.changes()
    assert changes.files == ()
    assert changes.incomplete is not None
    assert "git failed" in changes.incomplete


# Without git only


async def test_a_plain_copy_says_what_it_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "COPIED_FILES", 2)
    folder = tmp_path / "plain"
    (folder / "node_modules").mkdir(parents=True)
    for name in ("a", "b", "c"):
        (folder / name).write_text("x\n")
    async with await Snapshot.take(folder) as snapshot:
        (folder / "a").write_text("y\n")
        (folder / "node_modules" / "x").write_text("y\n")
        changes = await snapshot.changes()
    assert [file.path for file in changes.files] == ["a"]
    assert changes.incomplete == "not looked at: files beyond the first 2; not looked into: node_modules"


async def test_a_bottomless_folder_is_left_at_a_depth(tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    deep = folder / Path(*["d"] * (folder_module.DEPTH + 20))
    deep.mkdir(parents=True)
    async with await Snapshot.take(folder) as snapshot:
        (deep / "x").write_text("x")
        changes = await snapshot.changes()
    assert changes.files == ()
    assert changes.incomplete == "not looked into: folders more than 100 deep"


async def test_a_very_long_file_is_shown_as_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git_module, "COMPARED_LINES", 5)
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "x").write_text("1\n2\n3\n4")
    before = contents(folder)
    async with await Snapshot.take(folder) as snapshot:
        (folder / "x").write_text("1\n2\n3\n5\n")
        changes = await snapshot.changes()
    assert changes.files == (FileChange("x", 4, 4, "modified", False),)
    assert_applies(folder, before, changes)
