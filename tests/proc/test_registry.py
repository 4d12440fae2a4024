from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from legation.errors import StorageFailed
from legation.proc import Command, ProcessLauncher, Reaped, Registry, reap
from legation.proc.registry import ChildEntry, listed, unreadable
from legation.proc.tree import ProcessTree, process

Make = Callable[[str], Command]
Count = Callable[[], list[int]]
TOKEN = "0123456789abcdef" * 2
DEAD = 2**22 + 1  # beyond the highest pid there can be

OWNER = """
import asyncio, json, os, sys
from pathlib import Path
from legation.proc import Command, ProcessLauncher, Registry
folder, argv, cwd, env, nodes = json.loads(sys.argv[1])
async def main():
    command = Command(tuple(argv), Path(cwd), env, "left")
    child = await ProcessLauncher(registry=Registry(Path(folder))).spawn(command)
    child.write(b"grow\\n")
    seen = set()
    while len(seen) < nodes: seen |= set(await anext(child.lines()))
    print(child.pid, flush=True)
    await asyncio.sleep(3600)
asyncio.run(main())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "registry"


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    program = subprocess.Popen(["sleep", "60"], start_new_session=True)
    yield program
    program.kill()
    program.wait()


def killed_owner(command: Command, folder: Path, *, nodes: int) -> int:
    """A real owner, killed when the tree of its child is up; the child's pid."""
    plan = [str(folder), command.argv, str(command.cwd), dict(command.env), nodes]
    argv = [sys.executable, "-c", OWNER, msgspec.json.encode(plan).decode()]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        owner.kill()
    return pid


def entry(folder: Path, **changes: object) -> Path:
    """A file as a dead owner leaves it."""
    registry = Registry(folder)
    registry.add(TOKEN, "left", DEAD, 1, detached=False)
    path = folder / f"{TOKEN}.child"
    read = msgspec.json.decode(path.read_bytes(), type=ChildEntry)
    changed = msgspec.structs.replace(read, **{"owner": DEAD, **changes})
    path.write_bytes(msgspec.json.encode(changed))
    return path


def started(pid: int) -> int:
    found = process(pid)
    assert found is not None
    return found.started


def outcomes(reaped: list[Reaped]) -> list[str]:
    return [each.outcome for each in reaped]


async def test_a_file_is_there_while_the_child_runs_and_not_after(
    python: Callable[..., Command], folder: Path
) -> None:
    async with await ProcessLauncher(registry=Registry(folder)).spawn(python("input()")) as child:
        (path,) = folder.iterdir()
        read = msgspec.json.decode(path.read_bytes(), type=ChildEntry)
        assert (read.pid, read.started, read.owner) == (child.pid, started(child.pid), os.getpid())
        assert reap(folder) == []  # its owner, this process, lives
        child.write(b"\n")
        assert (await child.wait()).code == 0
        assert list(folder.iterdir()) == []


def test_the_tree_of_an_owner_killed_without_warning_is_reaped(
    tree: Make, nodes: set[bytes], survivors: Count, folder: Path
) -> None:
    # Its own input closes with the owner, so the child must be one that does not care.
    pid = killed_owner(tree("stubborn"), folder, nodes=len(nodes))
    assert pid in survivors()
    (reaped,) = reap(folder)
    assert (reaped.outcome, reaped.name, reaped.pid) == ("killed", "left", pid)
    # What cleared its environment was adopted by init when its owner died: the registry cannot know it.
    assert [each for each in survivors() if _environ(each)] == []
    assert list(folder.iterdir()) == []
    assert reap(folder) == []


def test_a_later_process_with_the_same_pid_is_never_killed(
    folder: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    path = entry(folder, pid=sleeper.pid, started=started(sleeper.pid) - 1)
    assert outcomes(reap(folder)) == ["gone"]
    assert sleeper.poll() is None
    assert not path.exists()


def test_a_later_process_with_the_pid_of_the_owner_is_not_the_owner(
    folder: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    owner = {"owner": sleeper.pid, "owner_started": started(sleeper.pid) - 1}
    entry(folder, **owner)
    assert outcomes(reap(folder)) == ["gone"]
    entry(folder, **owner, pid=sleeper.pid, started=1, detached=True)
    assert outcomes(reap(folder)) == ["gone"]
    assert sleeper.poll() is None


def test_the_same_pid_and_start_time_is_killed(folder: Path, sleeper: subprocess.Popen[bytes]) -> None:
    entry(folder, pid=sleeper.pid, started=started(sleeper.pid))
    assert outcomes(reap(folder)) == ["killed"]
    assert process(sleeper.pid) is None


def test_pids_of_an_earlier_boot_mean_nothing(folder: Path, sleeper: subprocess.Popen[bytes]) -> None:
    entry(folder, pid=sleeper.pid, started=started(sleeper.pid), boot="another")
    assert outcomes(reap(folder)) == ["gone"]
    assert sleeper.poll() is None


def test_children_of_another_container_are_left_alone(folder: Path, sleeper: subprocess.Popen[bytes]) -> None:
    path = entry(folder, pid=sleeper.pid, started=started(sleeper.pid), namespace="pid:[1]")
    assert outcomes(reap(folder)) == ["elsewhere"]
    assert sleeper.poll() is None
    assert path.exists()


def test_an_owner_killed_before_it_knew_the_pid_is_found_by_its_token(folder: Path) -> None:
    left = subprocess.Popen(["sleep", "60"], env={"LEGATION_CHILD": TOKEN})
    entry(folder, pid=0, started=started(os.getpid()))
    assert outcomes(reap(folder)) == ["killed"]
    assert process(left.pid) is None
    left.wait()


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff", b'{"token": "", "pid": 1}'])
def test_a_malformed_file_is_reported_and_the_others_are_done(folder: Path, text: bytes) -> None:
    entry(folder)
    bad = folder / "bad.child"
    bad.write_bytes(text)
    assert sorted(outcomes(reap(folder))) == ["gone", "malformed"]
    assert list(folder.iterdir()) == [bad]


def _pipe(path: Path, _entry: bytes) -> None:
    os.mkfifo(path)


def _endless(path: Path, _entry: bytes) -> None:
    path.symlink_to("/dev/zero")


def _long(path: Path, entry: bytes) -> None:
    path.write_bytes(entry + b" " * 1024 * 1024)


@pytest.mark.parametrize("put", [_pipe, _endless, _long])
def test_what_is_no_small_file_is_not_read(folder: Path, put: Callable[[Path, bytes], None]) -> None:
    path, bad = entry(folder), folder / "bad.child"
    put(bad, path.read_bytes())
    assert unreadable(folder) == [bad]
    assert [each.file for each in listed(folder)] == [path]
    assert sorted(outcomes(reap(folder))) == ["gone", "malformed"]
    assert list(folder.iterdir()) == [bad]


def test_a_disk_that_takes_a_part_of_a_file_changes_none(folder: Path) -> None:
    path = entry(folder, owner=os.getpid(), owner_started=started(os.getpid()), detached=True)
    before = path.read_bytes()
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Far below: an entry that is released is shorter, by as much as its owner's numbers are long.
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, unlimited[1]))
    try:
        with pytest.raises(StorageFailed):
            Registry(folder).add(TOKEN, "left", DEAD, 1, detached=True)
        Registry(folder).release(TOKEN)  # best effort, and it stays what it was
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    assert path.read_bytes() == before


def test_what_a_dead_writer_left_unfinished_is_removed(folder: Path) -> None:
    folder.mkdir()
    old, new = folder / "old.unfinished", folder / "new.unfinished"
    for path in (old, new):
        path.write_bytes(b"{")
    os.utime(old, (1, 1))
    assert reap(folder) == []
    assert list(folder.iterdir()) == [new]


def test_a_folder_that_does_not_exist_has_nothing_to_reap(folder: Path) -> None:
    assert reap(folder) == []


def test_sweeps_spare_what_any_owner_registered_as_detached(folder: Path) -> None:
    entry(folder, pid=77, started=7, detached=True)
    assert Registry(folder).detached() == {(77, 7)}


def test_a_process_that_cannot_be_killed_is_reported_and_stays_on_file(
    folder: Path, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = entry(folder, pid=sleeper.pid, started=started(sleeper.pid))
    monkeypatch.setattr("legation.proc.tree.kill", lambda _target: None)
    sweep = ProcessTree.sweep
    monkeypatch.setattr(ProcessTree, "sweep", lambda self: sweep(self, limit=0.02))
    assert outcomes(reap(folder)) == ["survived"]
    assert path.exists()


def _environ(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()
