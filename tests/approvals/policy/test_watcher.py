"""INV-P5: there is always a set that was good."""

import asyncio
import contextlib
import os
from pathlib import Path

import pytest

from legation.approvals.policies import INTERVAL, PolicyWatcher
from legation.approvals.policy.load import MAX_BYTES, load
from legation.approvals.policy.rules import PolicySet
from legation.errors import ConfigInvalid
from legation.testing.clock import FakeClock

GOOD = "name: {}\nrules:\n- action: allow\n"


class Watched:
    def __init__(self, path: Path) -> None:
        self.sets: list[PolicySet] = []
        self.problems: list[ConfigInvalid] = []
        self.watcher = PolicyWatcher(path, on_change=self.sets.append, on_problem=self.problems.append)

    def settle(self) -> list[str]:
        """The names in force, once two looks have seen the same."""
        self.watcher.poll()
        self.watcher.poll()
        return self.names

    @property
    def names(self) -> list[str]:
        return [policy.name for policy in self.watcher.current.policies]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "p.yaml"
    path.write_text(GOOD.format("one"))
    return path


def test_the_first_set_must_be_good(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid):
        PolicyWatcher(tmp_path / "gone.yaml")


def test_an_edit_is_taken_when_it_has_settled(file: Path) -> None:
    watched = Watched(file)
    assert watched.watcher.poll() is False
    file.write_text(GOOD.format("two"))
    assert watched.watcher.poll() is False
    assert watched.names == ["one"]
    assert watched.watcher.poll() is True
    assert watched.names == ["two"]
    assert len(watched.sets) == 1


def test_a_broken_edit_keeps_the_old_set_and_is_reported_once(file: Path) -> None:
    watched = Watched(file)
    file.write_text(GOOD.format("two").replace("allow", "alow"))
    for _ in range(5):
        assert watched.settle() == ["one"]
    (problem,) = watched.problems
    with pytest.raises(ConfigInvalid) as refused:
        load(file)
    assert problem.message == refused.value.message
    file.write_text(GOOD.format("two"))
    assert watched.settle() == ["two"]


def test_another_broken_edit_is_reported_again(file: Path) -> None:
    watched = Watched(file)
    for word in ("alow", "denny"):
        file.write_text(GOOD.format("two").replace("allow", word))
        watched.settle()
    assert [
        word in problem.message for word, problem in zip(("alow", "denny"), watched.problems, strict=True)
    ] == [True, True]


def test_a_broken_edit_that_is_taken_back_is_told(file: Path) -> None:
    watched = Watched(file)
    before = file.read_text()
    file.write_text("rules: [")
    watched.settle()
    file.write_text(before)
    assert watched.settle() == ["one"]
    assert (len(watched.problems), len(watched.sets)) == (1, 1)


def test_a_file_that_is_half_written_is_not_taken(file: Path) -> None:
    """Its first half is a valid rulebook, and a milder one."""
    file.write_text("name: one\nrules:\n- {tools: x, action: deny}\n- {tools: y, action: deny}\n")
    watched = Watched(file)
    with file.open("w") as writer:
        for line in (
            "name: two\n",
            "rules:\n",
            "- {tools: y, action: allow}\n",
            "- {tools: x, action: deny}\n",
        ):
            writer.write(line)
            writer.flush()
            watched.watcher.poll()
            assert watched.names == ["one"]
    assert watched.settle() == ["two"]
    assert watched.problems == []


def test_a_removed_file_keeps_the_old_set(file: Path) -> None:
    watched = Watched(file)
    file.unlink()
    for _ in range(3):
        assert watched.settle() == ["one"]
    (problem,) = watched.problems
    assert "p.yaml: cannot be read: No such file or directory" in problem.message
    file.write_text(GOOD.format("back"))
    assert watched.settle() == ["back"]


def test_a_file_replaced_by_a_link_is_followed(file: Path, tmp_path: Path) -> None:
    watched = Watched(file)
    other = tmp_path / "other"
    other.write_text(GOOD.format("two"))
    file.unlink()
    file.symlink_to(other)
    assert watched.settle() == ["two"]
    other.write_text(GOOD.format("three"))
    assert watched.settle() == ["three"]
    other.unlink()
    assert watched.settle() == ["three"]
    assert len(watched.problems) == 1


def test_a_file_replaced_with_the_same_size_and_time_is_noticed(file: Path) -> None:
    watched = Watched(file)
    before = file.stat()
    fresh = file.with_name("fresh")
    fresh.write_text(GOOD.format("two"))
    os.utime(fresh, ns=(before.st_atime_ns, before.st_mtime_ns))
    fresh.replace(file)
    assert watched.settle() == ["two"]


def test_a_huge_file_is_refused_and_the_old_set_kept(file: Path) -> None:
    watched = Watched(file)
    file.write_bytes(b"#" * (MAX_BYTES + 1))
    assert watched.settle() == ["one"]
    assert "larger than 1024 KiB" in watched.problems[0].message


def test_a_pipe_in_its_place_holds_nobody(file: Path) -> None:
    watched = Watched(file)
    file.unlink()
    os.mkfifo(file)
    assert watched.settle() == ["one"]
    assert "not a regular file" in watched.problems[0].message


def test_a_folder_follows_its_files(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(GOOD.format("a"))
    watched = Watched(tmp_path)
    (tmp_path / "b.yaml").write_text(GOOD.format("b"))
    assert watched.settle() == ["a", "b"]
    (tmp_path / "a.yaml").unlink()
    assert watched.settle() == ["b"]
    (tmp_path / "b.yaml").unlink()
    assert watched.settle() == ["b"]
    assert "no policies" in watched.problems[0].message
    assert len(watched.problems) == 1


def test_a_touch_changes_nothing(file: Path) -> None:
    watched = Watched(file)
    file.touch()
    watched.settle()
    assert watched.sets == []


async def test_it_looks_every_second(file: Path) -> None:
    clock, watched = FakeClock(), Watched(file)
    running = asyncio.create_task(watched.watcher.run(clock))
    file.write_text(GOOD.format("two"))
    for expected in (["one"], ["two"]):
        await clock.until_sleeping()
        clock.advance(INTERVAL)
        await clock.until_sleeping()
        assert watched.names == expected
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
