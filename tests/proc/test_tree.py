"""A tree of child, grandchild, setsid grandchild, double-forked daemon and one that cleared its environment."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from legation.proc import Child, Command, Exit, ProcessLauncher, tree
from legation.proc import child as child_module
from legation.proc.child import spawner
from legation.proc.tree import (
    TOKEN_NAME,
    Look,
    Process,
    ProcessTree,
    mark_of,
    new_token,
    own_children,
    process,
    processes,
    release_mark,
    set_mark,
)

Count = Callable[[], list[int]]
Make = Callable[[str], Command]
Python = Callable[..., Command]
LIMIT = 60.0  # a loaded machine's time to start or to end five small programs
MANY_LIMIT = 60.0  # and a hundred of them


async def grow(command: Command, nodes: set[bytes]) -> Child:
    child = await ProcessLauncher().spawn(command)
    child.write(b"grow\n")
    missing = set(nodes)
    async with asyncio.timeout(LIMIT):
        while missing:
            missing -= set(await anext(child.lines()))
    return child


async def test_a_graceful_stop_leaves_no_survivor(
    tree: Make, nodes: set[bytes], survivors: Count, zombies: Count
) -> None:
    child = await grow(tree("obedient"), nodes)
    assert len(survivors()) == len(nodes)
    async with asyncio.timeout(LIMIT):
        assert await child.stop() == Exit(0, None)
    assert (survivors(), zombies(), child.survivors) == ([], [], ())


async def test_a_child_that_ignores_everything_leaves_no_survivor(
    tree: Make, nodes: set[bytes], survivors: Count, zombies: Count, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_module, "TERM_GRACE", 0.1)
    child = await grow(tree("stubborn"), nodes)
    async with asyncio.timeout(LIMIT):
        assert await child.stop(grace=0.1) == Exit(None, signal.SIGKILL)
    assert (survivors(), zombies()) == ([], [])


async def test_a_child_that_crashes_by_itself_leaves_no_survivor(
    tree: Make, nodes: set[bytes], survivors: Count, zombies: Count
) -> None:
    child = await grow(tree("obedient"), nodes)
    child.write(b"crash\n")
    async with asyncio.timeout(LIMIT):
        assert await child.wait() == Exit(None, signal.SIGSEGV)
    assert (survivors(), zombies()) == ([], [])


async def test_a_cancelled_stop_goes_on_and_leaves_no_survivor(
    tree: Make, nodes: set[bytes], survivors: Count, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_module, "TERM_GRACE", 0.1)
    child = await grow(tree("stubborn"), nodes)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(child.stop(grace=0.1), 0.01)
    async with asyncio.timeout(LIMIT):
        assert await child.wait() == Exit(None, signal.SIGKILL)
    assert survivors() == []


@pytest.mark.parametrize("stopping", [False, True])
def test_the_end_of_the_loop_leaves_no_survivor(
    tree: Make, nodes: set[bytes], survivors: Count, zombies: Count, stopping: bool
) -> None:
    async def leave_without_waiting() -> None:
        child = await grow(tree("stubborn"), nodes)
        if stopping:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(child.stop(), 0.01)

    asyncio.run(leave_without_waiting())
    assert (survivors(), zombies()) == ([], [])


async def test_stopping_one_child_spares_the_others(tree: Make, nodes: set[bytes], survivors: Count) -> None:
    first, second = await grow(tree("obedient"), nodes), await grow(tree("obedient"), nodes)
    async with asyncio.timeout(LIMIT):
        await first.stop()
        assert len(survivors()) == len(nodes)
        await second.stop()
    assert survivors() == []


async def test_exit_codes_of_the_embedding_programs_own_children_are_not_taken(
    tree: Make, nodes: set[bytes]
) -> None:
    child = await grow(tree("obedient"), nodes)
    own = subprocess.Popen([sys.executable, "-c", "raise SystemExit(42)"], start_new_session=True)
    lasting = subprocess.Popen(["sleep", "60"], start_new_session=True)
    os.waitid(os.P_PID, own.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie of ours, like the adopted ones
    async with asyncio.timeout(LIMIT):
        await child.stop()
    assert (own.wait(), lasting.poll()) == (42, None)
    lasting.kill()
    lasting.wait()


async def test_daemons_that_end_by_themselves_do_not_pile_up(
    python: Python, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_module, "ADOPTED_PERIOD", 0.02)
    source = """
import os
for _ in range(3):
    if os.fork() == 0:
        if os.fork() == 0: os.setsid(); os.execve("/bin/sleep", ["sleep", "0"], {})
        os._exit(0)
    os.wait()
print("up", flush=True); input()
"""
    before = set(own_children())
    async with await ProcessLauncher().spawn(python(source)) as child, asyncio.timeout(LIMIT):
        await anext(child.lines())
        while set(own_children()) - before != {child.pid}:
            await asyncio.sleep(0.01)


def test_a_mark_reaches_what_was_started_before_it_was_set() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        grandchild = int(program.stdout.readline())
        mark = set_mark(program.pid)
        assert mark is not None
        assert mark_of(program.pid) == mark
        assert mark_of(grandchild) == mark
        assert mark_of(os.getpid()) != mark
        release_mark(mark)
        os.kill(grandchild, signal.SIGKILL)


def test_a_token_derives_from_our_own_unless_it_is_detached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_NAME, "outer")
    assert new_token().startswith("outer/")
    assert "/" not in new_token(detached=True)


def test_a_process_of_a_legation_below_belongs_to_the_tree() -> None:
    token = new_token()
    below = subprocess.Popen(["sleep", "60"], env={TOKEN_NAME: f"{token}/below"})
    other = subprocess.Popen(["sleep", "60"], env={TOKEN_NAME: f"{token}other"})
    try:
        tree = ProcessTree(2**22 + 1, 0, token)
        assert [each.pid for each in tree.members(Look())] == [below.pid]
        tree.sweep()
        assert process(below.pid) is None
        assert other.poll() is None
    finally:
        below.wait()  # its exit code is gone with the sweep, and Python does not mind
        other.kill()
        other.wait()


def test_a_spared_tree_is_not_touched() -> None:
    token = new_token()
    spared = subprocess.Popen(["sleep", "60"], env={TOKEN_NAME: token})
    try:
        found = process(spared.pid)
        assert found is not None
        tree = ProcessTree(2**22 + 1, 0, token, spared=lambda: {found.identity})
        assert tree.sweep() == []
        assert spared.poll() is None
        assert [each.pid for each in ProcessTree(2**22 + 1, 0, token).members(Look())] == [spared.pid]
    finally:
        spared.kill()
        spared.wait()


@pytest.mark.heavy
async def test_a_hundred_children_are_stopped_with_two_looks_at_the_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that remembers who belongs to whom, and one that kills what they left: asked for together, made once."""
    looks: list[int] = []
    launcher, command = ProcessLauncher(), Command(("cat",), tmp_path, {"PATH": os.environ["PATH"]}, "cat")
    children = [await launcher.spawn(command) for _ in range(100)]

    def counted() -> dict[int, Process]:
        looks.append(1)
        return processes()

    monkeypatch.setattr("legation.proc.tree.processes", counted)
    first, second = threading.Event(), threading.Event()
    try:
        spawner().submit(first.wait)
        stopping = [asyncio.ensure_future(child.stop(grace=MANY_LIMIT)) for child in children]
        for _ in range(5):
            await asyncio.sleep(0)
        spawner().submit(second.wait)  # behind the looks that were asked for by now
        first.set()
        async with asyncio.timeout(MANY_LIMIT):
            for child in children:
                await child._watch.ended
        for _ in range(5):
            await asyncio.sleep(0)
        second.set()
        async with asyncio.timeout(MANY_LIMIT):
            assert {str(each) for each in await asyncio.gather(*stopping)} == {"exit code 0"}
    finally:
        first.set()
        second.set()
        await asyncio.gather(*(child.stop(grace=0.0) for child in children))
    assert len(looks) == 2


def test_who_belongs_to_a_hundred_trees_is_known_from_one_way_through_the_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two hundred agents that obey nothing took a second and a half of processor to stop, each going through all."""
    went: list[str] = []

    class Everybody(dict[int, Process]):
        def values(self) -> Any:
            went.append("values")
            return super().values()

    count, us = 100, os.getpid()
    everybody = Everybody({us: Process(us, 1, us, us, 0, False)})
    for at in range(count):
        agent, child, daemon = (1_000_000 + 10 * at + which for which in range(3))
        everybody[agent] = Process(agent, us, agent, agent, 100 + at, False)
        everybody[child] = Process(child, agent, child, child, 100 + at, False)
        everybody[daemon] = Process(daemon, 1, daemon, daemon, 300, False)  # known by its token alone

    def token(pid: int, _name: str) -> str | None:
        went.append("token")
        return f"t{(pid - 1_000_000) // 10}/below" if pid % 10 == 2 else None

    monkeypatch.setattr(tree, "processes", lambda: everybody)
    monkeypatch.setattr(tree, "environment_value", token)
    monkeypatch.setattr(tree, "mark_of", lambda _: went.append("mark"))
    look = Look()
    trees = [ProcessTree(1_000_000 + 10 * at, 100 + at, f"t{at}", mark=at) for at in range(count)]
    for each in reversed(trees):  # the youngest first, whose start leaves out the most
        assert {found.pid for found in each.members(look)} == {each.pid + 1, each.pid + 2}
    assert went.count("values") <= 5
    assert went.count("token") <= len(everybody)
    assert went.count("mark") <= len(everybody)
