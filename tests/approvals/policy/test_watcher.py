"""INV-P5: there is always a set that was good."""

import asyncio
import contextlib
import gc
import os
from itertools import pairwise
from pathlib import Path

import pytest

from legation.approvals.policies import INTERVAL, LET_GO, NEVER, PolicyWatcher
from legation.approvals.policy.load import MAX_BYTES, load
from legation.approvals.policy.rules import PolicySet, Rule
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


def test_nothing_is_looked_through_for_garbage_while_rules_are_read(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That stops every thread: beside ten thousand rules 0.9 s, and again and again."""
    usual, seen = gc.get_threshold(), list[tuple[int, int, int]]()
    watcher = PolicyWatcher(file)

    def load_counted(path: Path) -> PolicySet:
        seen.append(gc.get_threshold())
        return load(path)

    monkeypatch.setattr("legation.approvals.policy.load.load", load_counted)
    for text in (GOOD.format("two"), "name: [broken"):
        file.write_text(text)
        watcher.poll()
        watcher.poll()
        assert gc.get_threshold() == usual
    assert seen == [(usual[0], usual[1], NEVER)] * 2
    assert watcher.current.policies[0].name == "two"


@pytest.mark.heavy
def test_a_rule_is_few_objects_for_whoever_looks_for_garbage(file: Path) -> None:
    """Full collections go through all of them at once: 48 a rule were 370 ms for ten thousand, and are 9 now."""
    count = 500
    rules = [
        f'  - {{id: r{at}, kind: [read, edit], action: deny, when: {{paths: {{glob: "**/some-name-{at}"}}}}}}'
        for at in range(count)
    ]
    file.write_text("name: many\nagent: '*'\nrules:\n" + "\n".join(rules) + "\n")
    load(file)  # what is kept for all of them
    gc.collect()
    before = len(gc.get_objects())
    found = load(file)
    gc.collect()
    assert len(gc.get_objects()) - before <= 12 * count
    assert len(found.policies[0].rules) == count


async def test_old_rules_are_let_go_of_a_few_at_a_time(file: Path) -> None:
    """All at once they were 40 ms of the loop, of ten thousand."""
    many = "".join(f"- {{id: r{at}, action: allow, tools: t{at}}}\n" for at in range(3 * LET_GO))
    file.write_text(f"name: many\nrules:\n{many}")
    clock, left, loop = FakeClock(), list[int](), asyncio.get_running_loop()

    def neighbour() -> None:
        left.append(sum(isinstance(each, Rule) for each in gc.get_objects()))
        if len(left) < 10:
            loop.call_soon(neighbour)

    watcher = PolicyWatcher(file, on_change=lambda _: neighbour())
    running = asyncio.create_task(watcher.run(clock))
    file.write_text(GOOD.format("two"))
    for _ in range(2):
        await clock.until_sleeping()
        clock.advance(INTERVAL)
    await clock.until_sleeping()
    while len(left) < 10:
        await asyncio.sleep(0)
    running.cancel()
    assert left[0] - left[-1] == 3 * LET_GO
    assert max(before - after for before, after in pairwise(left)) <= LET_GO
