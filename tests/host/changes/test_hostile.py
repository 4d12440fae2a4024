"""A repository that an agent has prepared: no program of its choice runs, and nothing it wrote hides a change.

Each program that git could be made to run leaves a marker. Plain git is run on the same trap afterwards, to
prove that it would have sprung.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import tempfile
import zlib
from collections.abc import Callable, Iterator
from hashlib import sha1
from pathlib import Path

import pytest
from tests.programs import needs_git

from legation.host.changes import FileChange, FolderChanges, Snapshot
from legation.host.changes import git as git_module

pytestmark = [pytest.mark.heavy, needs_git]  # a process or more for each test

GIT_SECONDS = 60.0
IDENTITY = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "protocol.file.allow=always")


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(
        ["git", *IDENTITY, *arguments], cwd=folder, capture_output=True, timeout=GIT_SECONDS, check=True
    )


def spring(folder: Path, *arguments: str) -> None:
    """Plain git walking into the trap; whether it then succeeds does not matter."""
    subprocess.run(
        ["git", *IDENTITY, *arguments],
        cwd=folder,
        capture_output=True,
        timeout=GIT_SECONDS,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def commit(folder: Path) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "x")


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    assert list(folder.iterdir()) == []


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "marker"


@pytest.fixture
def trap(tmp_path: Path, marker: Path) -> Path:
    program = tmp_path / "trap"
    program.write_text(f"#!/bin/sh\necho sprung >> '{marker}'\nexec cat\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "a.txt").write_text("one\n")
    (folder / "b.txt").write_text("two\n")
    commit(folder)
    return folder


def set_fsmonitor(repo: Path, trap: Path) -> None:
    git(repo, "config", "core.fsmonitor", str(trap))


def set_filter(repo: Path, trap: Path) -> None:
    (repo / ".gitattributes").write_text("* filter=evil diff=evil merge=evil\n")
    git(repo, "config", "filter.evil.clean", str(trap))
    git(repo, "config", "filter.evil.smudge", str(trap))


def set_process_filter(repo: Path, trap: Path) -> None:
    (repo / ".git" / "info" / "attributes").write_text("* filter=evil\n")
    git(repo, "config", "filter.evil.process", str(trap))


def set_textconv(repo: Path, trap: Path) -> None:
    (repo / ".gitattributes").write_text("* diff=evil\n")
    git(repo, "config", "diff.evil.textconv", str(trap))


def set_diff_driver(repo: Path, trap: Path) -> None:
    (repo / ".gitattributes").write_text("* diff=evil\n")
    git(repo, "config", "diff.evil.command", str(trap))


def set_external_diff(repo: Path, trap: Path) -> None:
    git(repo, "config", "diff.external", str(trap))


def set_hook(repo: Path, trap: Path) -> None:
    hook = repo / ".git" / "hooks" / "post-index-change"
    hook.parent.mkdir(exist_ok=True)
    shutil.copy(trap, hook)


def set_hooks_path(repo: Path, trap: Path) -> None:
    (repo / "hooks").mkdir()
    shutil.copy(trap, repo / "hooks" / "post-index-change")
    git(repo, "config", "core.hooksPath", "hooks")


def set_included_configuration(repo: Path, trap: Path) -> None:
    (repo / "more").write_text(f"[core]\nfsmonitor = {trap}\n")
    git(repo, "config", "include.path", "../more")


def set_work_tree_configuration(repo: Path, trap: Path) -> None:
    git(repo, "config", "extensions.worktreeConfig", "true")
    git(repo, "config", "--worktree", "core.fsmonitor", str(trap))


def set_submodule_configuration(repo: Path, trap: Path) -> None:
    git(repo.parent, "clone", "-q", str(repo), "library")
    git(repo, "submodule", "add", "-q", str(repo.parent / "library"), "module")
    commit(repo)
    git(repo / "module", "config", "core.fsmonitor", str(trap))


def set_promisor(repo: Path, trap: Path) -> None:
    """A missing object would be fetched from a remote, by a program of the repository's choice."""
    git(repo, "config", "remote.origin.url", f"ext::touch {trap.with_name('marker')}")
    git(repo, "config", "remote.origin.promisor", "true")
    git(repo, "config", "protocol.ext.allow", "always")
    git(repo, "config", "extensions.partialClone", "origin")
    git(repo, "config", "core.repositoryFormatVersion", "1")
    blob = sha1(b"blob 4\0one\n").hexdigest()
    (repo / ".git" / "objects" / blob[:2] / blob[2:]).unlink()


TRAPS = [
    (set_fsmonitor, ("status",)),
    (set_filter, ("add", "-A")),
    (set_process_filter, ("add", "-A")),
    (set_textconv, ("diff",)),
    (set_diff_driver, ("diff",)),
    (set_external_diff, ("diff",)),
    (set_hook, ("add", "-A")),
    (set_hooks_path, ("add", "-A")),
    (set_included_configuration, ("status",)),
    (set_work_tree_configuration, ("status",)),
    (set_submodule_configuration, ("status",)),
    (set_promisor, ("diff",)),
]


@pytest.mark.parametrize("when", ["before", "during"])
@pytest.mark.parametrize(("set_trap", "springing"), TRAPS, ids=[set_trap.__name__ for set_trap, _ in TRAPS])
async def test_no_program_of_the_repository_runs(
    repo: Path,
    trap: Path,
    marker: Path,
    when: str,
    set_trap: Callable[[Path, Path], None],
    springing: tuple[str, ...],
) -> None:
    if when == "before":
        set_trap(repo, trap)
        marker.unlink(missing_ok=True)  # laying a trap may have sprung it
    async with await Snapshot.take(repo) as snapshot:
        if when == "during":
            set_trap(repo, trap)
            marker.unlink(missing_ok=True)
        (repo / "a.txt").write_text("changed\n")
        (repo / "new.txt").write_text("new\n")
        changes = await snapshot.changes()
    assert not marker.exists()
    assert {"a.txt", "new.txt"} <= {file.path for file in changes.files}
    assert "+changed\n" in changes.diff or set_trap is set_promisor
    spring(repo, *springing)
    assert marker.exists()


async def test_a_git_inside_the_work_tree_is_not_run(
    repo: Path, trap: Path, marker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repo / "bin").mkdir()
    shutil.copy(trap, repo / "bin" / "git")
    monkeypatch.setenv("PATH", f"{repo / 'bin'}:bin::{os.environ['PATH']}")
    monkeypatch.chdir(repo)
    async with await Snapshot.take(repo) as snapshot:
        (repo / "a.txt").write_text("changed\n")
        assert [file.path for file in (await snapshot.changes()).files] == ["a.txt"]
    assert not marker.exists()
    spring(repo, "status")
    assert marker.exists()


async def test_the_environment_of_the_caller_does_not_reach_git(
    repo: Path, trap: Path, marker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", str(trap))
    monkeypatch.setenv("GIT_INDEX_FILE", str(repo / "nowhere"))
    monkeypatch.setenv("GIT_TRACE", str(marker))
    async with await Snapshot.take(repo) as snapshot:
        (repo / "a.txt").write_text("changed\n")
        assert len((await snapshot.changes()).files) == 1
    assert not marker.exists()


async def test_a_folder_of_another_user_is_no_problem(repo: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    for path in (repo, repo / ".git"):
        os.chown(path, 12345, 12345)
    async with await Snapshot.take(repo) as snapshot:
        (repo / "a.txt").write_text("changed\n")
        changes = await snapshot.changes()
    assert changes == FolderChanges(changes.diff, (FileChange("a.txt", 1, 1, "modified", False),), None)
    with pytest.raises(subprocess.CalledProcessError):
        git(repo, "status")


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
@pytest.mark.parametrize("when", ["before", "during"])
async def test_a_flag_in_the_index_hides_no_change(repo: Path, flag: str, when: str) -> None:
    if when == "before":
        git(repo, "update-index", flag, "a.txt")
    async with await Snapshot.take(repo) as snapshot:
        git(repo, "update-index", flag, "a.txt")
        (repo / "a.txt").write_text("hidden\n")
        assert [file.path for file in (await snapshot.changes()).files] == ["a.txt"]


async def test_an_fsmonitor_in_the_index_hides_no_change(repo: Path, tmp_path: Path) -> None:
    quiet = tmp_path / "quiet"  # says that nothing ever changes
    quiet.write_text("#!/bin/sh\nprintf 'token\\0'\n")
    quiet.chmod(0o755)
    git(repo, "config", "core.fsmonitor", str(quiet))
    git(repo, "config", "core.fsmonitorHookVersion", "2")
    git(repo, "update-index", "--fsmonitor")
    git(repo, "status")
    (repo / "a.txt").write_text("dirty before\n")
    async with await Snapshot.take(repo) as snapshot:
        (repo / "a.txt").write_text("dirty before\nhidden\n")
        changes = await snapshot.changes()
    assert changes.files == (FileChange("a.txt", 1, 0, "modified", False),)


async def test_paths_of_the_index_that_lead_outside_are_not_read(repo: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret\n")
    head = struct.pack(">4sII", b"DIRC", 2, 1)
    status = struct.pack(">24xI8xI", 0o100644, 7)
    name = b"../secret"
    entry = status + bytes(20) + struct.pack(">H", len(name)) + name
    body = head + entry.ljust((len(entry) + 8) & ~7, b"\0")
    (repo / ".git" / "index").write_bytes(body + sha1(body).digest())
    async with await Snapshot.take(repo) as snapshot:
        (tmp_path / "secret").write_text("other secret\n")
        assert await snapshot.changes() == FolderChanges("", (), None)


@pytest.mark.parametrize(
    "content", [b"", b"DIRC", b"DIRC\0\0\0\2\xff\xff\xff\xff" + bytes(40), os.urandom(500)]
)
async def test_a_corrupt_index_only_costs_time(repo: Path, content: bytes) -> None:
    (repo / ".git" / "index").write_bytes(content)
    async with await Snapshot.take(repo) as snapshot:
        (repo / "a.txt").write_text("changed\n")
        changes = await snapshot.changes()
    assert changes.files == (FileChange("a.txt", 1, 1, "modified", False),)


async def test_a_forged_object_does_not_forge_the_diff(repo: Path) -> None:
    blob = sha1(b"blob 4\0one\n").hexdigest()
    file = repo / ".git" / "objects" / blob[:2] / blob[2:]
    async with await Snapshot.take(repo) as snapshot:
        (repo / "a.txt").write_text("evil\n")
        file.chmod(0o644)
        file.write_bytes(zlib.compress(b"blob 5\0evil\n"))
        changes = await snapshot.changes()
    assert changes.files == (FileChange("a.txt", 0, 0, "modified", True),)
    assert changes.incomplete == "earlier content not to be had: a.txt"


async def test_a_damaged_object_costs_only_its_own_file(repo: Path) -> None:
    blob = sha1(b"blob 4\0one\n").hexdigest()
    file = repo / ".git" / "objects" / blob[:2] / blob[2:]
    async with await Snapshot.take(repo) as snapshot:
        for name in ("a.txt", "b.txt"):
            (repo / name).write_text("changed\n")
        file.chmod(0o644)
        file.write_bytes(b"rubbish")
        changes = await snapshot.changes()
    assert [(file.path, file.binary) for file in changes.files] == [("a.txt", True), ("b.txt", False)]


async def test_a_removed_repository_still_lists_the_files(repo: Path) -> None:
    async with await Snapshot.take(repo) as snapshot:
        shutil.rmtree(repo / ".git")
        (repo / "a.txt").write_text("changed\n")
        (repo / "new.txt").write_text("new\n")
        changes = await snapshot.changes()
    assert [(file.path, file.binary) for file in changes.files] == [("a.txt", True), ("new.txt", False)]
    assert changes.incomplete == "earlier content not to be had: a.txt"


async def test_a_new_repository_around_known_files_hides_nothing(repo: Path) -> None:
    (repo / "sub").mkdir()
    (repo / "sub" / "known").write_text("x\n")
    async with await Snapshot.take(repo) as snapshot:
        git(repo, "init", "-q", "sub")
        (repo / "sub" / "known").write_text("y\n")
        (repo / "sub" / "new").write_text("y\n")
        assert [file.path for file in (await snapshot.changes()).files] == ["sub/known", "sub/new"]


async def test_names_that_git_refuses_are_said_and_stop_nothing(repo: Path) -> None:
    async with await Snapshot.take(repo) as snapshot:
        (repo / ".GIT").mkdir()
        (repo / ".GIT" / "x").write_text("x\n")
        (repo / ".gitmodules").symlink_to("a.txt")
        (repo / "new.txt").write_text("new\n")
        changes = await snapshot.changes()
    assert [file.path for file in changes.files] == ["new.txt"]
    assert changes.incomplete == (
        "not looked at: .GIT/x, which git does not take; not looked at: .gitmodules, which git does not take"
    )


async def test_a_file_that_became_a_repository_is_deleted(repo: Path) -> None:
    async with await Snapshot.take(repo) as snapshot:
        (repo / "a.txt").unlink()
        git(repo.parent, "clone", "-q", str(repo), str(repo / "a.txt"))
        changes = await snapshot.changes()
    assert changes.files == (FileChange("a.txt", 0, 1, "deleted", False),)


async def test_a_pipe_where_git_reads_its_rules_is_bounded_and_said(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await Snapshot.take(repo) as snapshot:
        monkeypatch.setattr(git_module, "GIT_SECONDS", 0.5)
        os.mkfifo(repo / ".gitignore")
        changes = await snapshot.changes()
    assert changes.incomplete is not None
    assert "git failed or took too long" in changes.incomplete


async def test_a_snapshot_kept_inside_the_folder_does_not_report_itself(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repo / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(repo / "tmp"))
    async with await Snapshot.take(repo) as snapshot:
        (repo / "tmp" / "new").write_text("new\n")
        assert [file.path for file in (await snapshot.changes()).files] == ["tmp/new"]
