"""Detached children: they outlive their owner, a later one adopts them, and none is lost or left unknown."""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from legation.errors import ConfigInvalid, Conflict, InvalidParams, LegationError, NotFound, Unavailable
from legation.proc import Child, Command, Exit, FileStdio, ProcessLauncher, Registry, reap
from legation.proc import child as child_module
from legation.proc import registry as registry_module
from legation.proc.registry import RECORD_KEPT, ChildEntry, Ended, RegisteredChild, listed
from legation.proc.tree import Process, own_children, process

Python = Callable[..., Command]
Count = Callable[[], list[int]]
pytestmark = pytest.mark.heavy  # each starts programs

LIMIT = 90.0  # a loaded machine's time for a few short programs
LOOK_PAUSE = 0.02

# It goes on writing, as real programs do, and ends by itself when a file says so.
WRITER = """
import os, sys, time
tag, stop = sys.argv[1:]
while not os.path.exists(stop):
    print("still here", flush=True)
    time.sleep(0.01)
sys.exit(7)
"""

# It starts as many as it is told, one after the other, or all at once, and names each that it was told has started.
OWNER = """
import asyncio, json, sys
from pathlib import Path
from legation.proc import Command, FileStdio, ProcessLauncher, Registry
folder, place, argv, env, names = json.loads(sys.argv[1])
async def start(launcher, name):
    files = FileStdio(Path(place), f"{name}.out", f"{name}.err")
    child = await launcher.spawn(Command(tuple(argv), Path(place), env, name, detached=True, files=files))
    print(name, child.pid, child.started, flush=True)
async def main():
    launcher = ProcessLauncher(registry=Registry(Path(folder)))
    print("ready", flush=True)
    await asyncio.gather(*(start(launcher, name) for name in names))
    await asyncio.Event().wait()
asyncio.run(main())
"""

# It adopts whatever it can, and names each that is its own.
ADOPTER = """
import asyncio, sys
from pathlib import Path
from legation.errors import LegationError
from legation.proc import ProcessLauncher, Registry
from legation.proc.registry import listed
async def main():
    folder = Path(sys.argv[1])
    launcher = ProcessLauncher(registry=Registry(folder))
    print("ready", flush=True)
    for each in listed(folder):
        try:
            mine = await launcher.adopt(each.pid, each.started)
        except LegationError as error:
            print("refused", each.name, type(error).__name__, flush=True)
        else:
            print("adopted", each.name, flush=True)
    print("done", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "registry"


@pytest.fixture
def stop(tmp_path: Path) -> Path:
    return tmp_path / "stop"


@pytest.fixture
def launcher(folder: Path) -> ProcessLauncher:
    return ProcessLauncher(registry=Registry(folder))


@pytest.fixture
def writer(python: Python, tag: str, stop: Path) -> Command:
    return python(WRITER, tag, str(stop), detached=True)


@pytest.fixture
def owners() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a real owner, or adopter; killed at the end whatever happens."""
    started: list[subprocess.Popen[str]] = []

    def start(source: str, *arguments: str) -> subprocess.Popen[str]:
        program = subprocess.Popen(
            [sys.executable, "-c", source, *arguments],
            env={"PATH": os.environ["PATH"]},
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(program)
        return program

    yield start
    for program in started:
        program.kill()
        program.wait(LIMIT)
        if program.stdout is not None:
            program.stdout.close()


def plan(folder: Path, command: Command, names: list[str]) -> str:
    return msgspec.json.encode(
        [str(folder), str(command.cwd), command.argv, dict(command.env), names]
    ).decode()


def next_line(program: subprocess.Popen[str]) -> str:
    assert program.stdout is not None
    return program.stdout.readline().strip()


def kill(program: subprocess.Popen[str]) -> list[str]:
    """KILL it; what it had said by then."""
    program.kill()
    program.wait(LIMIT)
    assert program.stdout is not None
    return program.stdout.read().splitlines()


def only(folder: Path) -> RegisteredChild:
    (found,) = listed(folder)
    return found


def lives(pid: int, started: int) -> Process | None:
    found = process(pid)
    return found if found is not None and found.started == started and not found.dead else None


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT):
        while not true():
            await asyncio.sleep(LOOK_PAUSE)


def until_dead(pid: int) -> None:
    """It may have become our zombie, or init's."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], LIMIT)[0]
    finally:
        os.close(descriptor)


def change(folder: Path, **changes: object) -> Path:
    (path,) = folder.glob("*.child")
    read = msgspec.json.decode(path.read_bytes(), type=ChildEntry)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(read, **changes)))
    return path


async def left(launcher: ProcessLauncher, command: Command) -> RegisteredChild:
    """One whose owner has left it to others."""
    child = await launcher.spawn(command)
    await child.release()
    assert launcher._registry is not None
    return only(launcher._registry._folder)


def descriptors() -> list[str]:
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


def program_of(keeper: int) -> int:
    """The first that the keeper started; others below it are orphans of that one."""
    tasks = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
    found = [each for each in map(process, map(int, tasks)) if each is not None]
    return min(found, key=lambda each: (each.started, each.pid)).pid


# Files as input and output.


async def test_a_child_reads_and_writes_files_that_are_its_owners_alone(
    python: Python, launcher: ProcessLauncher, tmp_path: Path
) -> None:
    (tmp_path / "in").write_text("hello")
    source = "import sys; print(sys.stdin.read()); print('bad', file=sys.stderr)"
    command = replace(python(source), files=FileStdio(tmp_path, "out", "err", "in"))
    async with await launcher.spawn(command) as child:
        assert [line async for line in child.lines()] == []
        assert (await child.wait()).code == 0
    assert ((tmp_path / "out").read_text(), (tmp_path / "err").read_text()) == ("hello\n", "bad\n")
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("out", "err")] == [0o600, 0o600]
    with pytest.raises(LegationError, match="cannot write to 'test'"):
        child.write(b"x")


async def test_without_a_file_there_is_nothing_to_read_and_output_is_appended(
    python: Python, launcher: ProcessLauncher, tmp_path: Path
) -> None:
    (tmp_path / "both").write_text("before\n")
    command = replace(
        python("import sys; print(repr(sys.stdin.read()))"), files=FileStdio(tmp_path, "both", "both")
    )
    async with await launcher.spawn(command) as child:
        await child.wait()
    assert (tmp_path / "both").read_text() == "before\n''\n"


def nothing(_place: Path) -> None:
    return None


def link(place: Path) -> None:
    (place / "elsewhere").write_text("")
    (place / "out").symlink_to(place / "elsewhere")


def hard_link(place: Path) -> None:
    (place / "elsewhere").write_text("")
    (place / "out").hardlink_to(place / "elsewhere")


@pytest.mark.parametrize(
    ("prepare", "files"),
    [
        (link, {}),
        (hard_link, {}),
        (lambda place: os.mkfifo(place / "out"), {}),
        (lambda place: (place / "out").mkdir(), {}),
        (nothing, {"stdout": "../out"}),
        (nothing, {"stdout": ".."}),
        (nothing, {"stdin": "missing"}),
        (nothing, {"stdin": "/dev/zero"}),
        (lambda place: os.mkfifo(place / "in"), {"stdin": "in"}),
        (nothing, {"stdout": "a\0b"}),
        (lambda place: place.rmdir(), {}),
        (lambda place: (place.rename(f"{place}2"), place.symlink_to(f"{place}2")), {}),
    ],
)
async def test_a_file_that_is_not_one_of_its_own_is_refused_and_nothing_is_open(
    python: Python,
    launcher: ProcessLauncher,
    tmp_path: Path,
    folder: Path,
    prepare: Callable[[Path], object],
    files: dict[str, str],
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    prepare(place)
    command = replace(python(""), files=FileStdio(place, **{"stdout": "out", "stderr": "err", **files}))
    await (await launcher.spawn(python(""))).stop()  # opens what stays open
    before = descriptors()
    for detached in (False, True):
        with pytest.raises(
            ConfigInvalid, match=r"^cannot start 'test': its files in .* give it a folder and regular"
        ):
            await launcher.spawn(replace(command, detached=detached))
    assert descriptors() == before
    assert list(folder.iterdir()) == []
    if (place / "elsewhere").exists():
        assert (place / "elsewhere").read_text() == ""


# The life of a detached child with its first owner.


async def test_detached_needs_files_and_a_registry(
    python: Python, launcher: ProcessLauncher, writer: Command
) -> None:
    with pytest.raises(InvalidParams, match="its pipes would end with us, and it with them; give it files"):
        await launcher.spawn(replace(writer, files=None))
    with pytest.raises(InvalidParams, match="give the launcher a registry"):
        await ProcessLauncher().spawn(writer)


async def test_its_end_stays_on_file_until_its_owner_has_taken_note(
    launcher: ProcessLauncher, writer: Command, folder: Path, stop: Path, zombies: Count
) -> None:
    child = await launcher.spawn(writer)
    stop.touch()
    assert await child.wait() == Exit(7, None)
    found = only(folder)
    assert (found.state, found.owner, found.ended and found.ended.code) == ("ended", os.getpid(), 7)
    assert reap(folder) == []
    child.forget()
    assert (list(folder.iterdir()), zombies()) == ([], [])


async def test_stop_ends_it_in_steps_and_says_by_which_signal(
    launcher: ProcessLauncher, writer: Command, folder: Path, survivors: Count, python: Python, tag: str
) -> None:
    async with await launcher.spawn(writer) as child:
        assert await child.stop() == Exit(None, signal.SIGTERM)
    stubborn = python(
        "import signal, sys; signal.signal(15, signal.SIG_IGN); print('up', flush=True); signal.pause()",
        tag,
        detached=True,
    )
    assert stubborn.files is not None
    out = stubborn.files.folder / "stubborn"
    async with await launcher.spawn(
        replace(stubborn, files=msgspec.structs.replace(stubborn.files, stdout=out.name))
    ) as child:
        await until(out.read_text)
        assert await child.stop(grace=0.05) == Exit(None, signal.SIGKILL)
    assert (survivors(), list(folder.iterdir())) == ([], [])


async def test_what_a_detached_child_started_ends_with_it_without_any_owner(
    launcher: ProcessLauncher, tree: Callable[[str], Command], tmp_path: Path, folder: Path, survivors: Count
) -> None:
    """A daemon that cleared its environment too: its parents' end makes it a child of the keeper."""
    (tmp_path / "in").write_text("grow\n")
    command = replace(tree("stubborn"), detached=True, files=FileStdio(tmp_path, "out", "err", "in"))
    found = await left(launcher, command)
    await until(lambda: len((tmp_path / "out").read_text().split()) == 5)
    assert len(survivors()) == 6  # and the keeper, whose command line has the child's
    os.kill(program_of(found.pid), signal.SIGKILL)
    until_dead(found.pid)
    assert survivors() == []
    assert [each.outcome for each in reap(folder)] == ["ended"]


async def test_what_it_started_ends_with_it_also_where_its_file_was_made_unreadable(
    launcher: ProcessLauncher, tree: Callable[[str], Command], tmp_path: Path, folder: Path, survivors: Count
) -> None:
    (tmp_path / "in").write_text("grow\n")
    command = replace(tree("stubborn"), detached=True, files=FileStdio(tmp_path, "out", "err", "in"))
    found = await left(launcher, command)
    await until(lambda: len((tmp_path / "out").read_text().split()) == 5)
    found.file.write_bytes(b"{")
    os.kill(program_of(found.pid), signal.SIGKILL)
    until_dead(found.pid)
    assert survivors() == []
    assert [each.outcome for each in reap(folder)] == ["malformed"]


async def test_without_a_descriptor_for_the_keeper_nothing_is_expected(
    launcher: ProcessLauncher, writer: Command, folder: Path
) -> None:
    await (await launcher.spawn(replace(writer, detached=False))).stop()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, limits[1]))  # that one, and no second
    try:
        with pytest.raises(Unavailable, match=r"^cannot start 'test': Too many open files"):
            await launcher.spawn(writer)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert list(folder.glob("*.child")) == []


@pytest.mark.parametrize(
    ("argv", "reason"), [(("no-such-program",), "there is no program"), ((), "name a program")]
)
async def test_a_start_that_fails_says_why_and_leaves_nothing(
    launcher: ProcessLauncher, writer: Command, folder: Path, argv: tuple[str, ...], reason: str
) -> None:
    await (await launcher.spawn(replace(writer, detached=False))).stop()
    before = descriptors(), own_children()
    with pytest.raises(LegationError, match=f"^cannot start 'test': .*{reason}"):
        await launcher.spawn(replace(writer, argv=argv))
    assert (descriptors(), own_children()) == before
    assert list(folder.glob("*.child")) == []


async def test_a_cancelled_start_leaves_no_child(
    launcher: ProcessLauncher, writer: Command, folder: Path, survivors: Count
) -> None:
    starting = asyncio.ensure_future(launcher.spawn(writer))
    async with asyncio.timeout(LIMIT):
        while not listed(folder):  # in every step of the loop: a pause would see it started
            await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await until(lambda: not survivors() and not list(folder.glob("*.child")))


async def test_a_passed_descriptor_is_the_childs_and_not_the_keepers(
    launcher: ProcessLauncher, python: Python, tag: str
) -> None:
    reading, writing = os.pipe()
    try:
        source = (
            f"import os; os.write({writing}, b'hello'); os.close({writing}); import signal; signal.pause()"
        )
        async with await launcher.spawn(
            replace(python(source, tag, detached=True), pass_fds=(writing,))
        ) as child:
            os.close(writing)
            assert await asyncio.to_thread(os.read, reading, 10) == b"hello"
            assert await asyncio.to_thread(os.read, reading, 10) == b""  # nobody holds it any more
            assert lives(child.pid, child.started)
    finally:
        os.close(reading)


# Owners that die, and those that come after them.


def test_it_outlives_the_loop_and_is_adopted_in_the_same_process(
    launcher: ProcessLauncher, writer: Command, folder: Path, stop: Path, tmp_path: Path
) -> None:
    async def leave() -> tuple[int, int]:
        child = await launcher.spawn(writer)
        return child.pid, child.started

    async def take(pid: int, started: int) -> Exit:
        async with await launcher.adopt(pid, started) as child:
            stop.touch()
            return await child.wait()

    identity = asyncio.run(leave())
    found = only(folder)
    assert (found.state, found.owner, (found.pid, found.started)) == ("unowned", 0, identity)
    size = (tmp_path / "out").stat().st_size
    asyncio.run(until(lambda: (tmp_path / "out").stat().st_size > size))  # it goes on writing
    assert asyncio.run(take(*identity)) == Exit(7, None)
    assert list(folder.iterdir()) == []


async def test_a_child_whose_owner_was_killed_is_adopted_by_one_of_many(
    owners: Callable[..., subprocess.Popen[str]], writer: Command, folder: Path, stop: Path, tmp_path: Path
) -> None:
    owner = owners(OWNER, plan(folder, writer, ["one"]))
    assert next_line(owner) == "ready"
    pid, started = map(int, next_line(owner).split()[1:])
    launcher = ProcessLauncher(registry=Registry(folder))
    with pytest.raises(Conflict, match=rf"^cannot adopt 'one' \(pid {pid}\): process {owner.pid} owns it"):
        await launcher.adopt(pid, started)
    kill(owner)
    assert [each.outcome for each in reap(folder)] == ["detached"]
    size = (tmp_path / "one.out").stat().st_size
    await until(lambda: (tmp_path / "one.out").stat().st_size > size)  # its output goes nowhere else

    adopters = [owners(ADOPTER, str(folder)) for _ in range(4)]
    said = [line for each in adopters for line in iter(lambda each=each: next_line(each), "done")]  # type: ignore[misc]
    assert sorted(said) == ["adopted one", *["ready"] * 4, *["refused one Conflict"] * 3]
    assert (only(folder).adopted, only(folder).state) == (True, "running")
    for each in adopters:
        kill(each)
    child = await launcher.adopt(pid, started)
    assert not await child.ends_within(0)
    stop.touch()
    assert await child.wait() == Exit(7, None)
    child.forget()
    assert list(folder.iterdir()) == []


async def test_two_adopters_in_one_process_cannot_both_win(
    launcher: ProcessLauncher, writer: Command, folder: Path
) -> None:
    found = await left(launcher, writer)
    tried = await asyncio.gather(
        *(launcher.adopt(found.pid, found.started) for _ in range(8)), return_exceptions=True
    )
    (won,) = [each for each in tried if isinstance(each, Child)]
    assert sum(isinstance(each, Conflict) for each in tried) == 7
    assert await won.stop() == Exit(None, signal.SIGTERM)
    won.forget()
    assert list(folder.iterdir()) == []


async def test_nobody_comes_between_the_look_at_the_owner_and_the_change(
    launcher: ProcessLauncher, writer: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = await left(launcher, writer)
    tried: list[int] = []

    def alive(pid: int, started: int) -> Process | None:
        other = os.open(folder, os.O_RDONLY)
        try:
            with pytest.raises(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(other)
        tried.append(pid)
        return lives(pid, started)

    with monkeypatch.context() as patch:
        patch.setattr(registry_module, "_alive", alive)
        Registry(folder).adopt(found.pid, found.started)
        with pytest.raises(Conflict):
            Registry(folder).adopt(found.pid, found.started)
        assert tried == [0, os.getpid()]
    Registry(folder).release(next(iter(folder.glob("*.child"))).stem)
    async with await launcher.adopt(found.pid, found.started) as child:
        await child.stop()


async def test_how_it_ended_with_no_owner_reaches_the_next_one(
    launcher: ProcessLauncher, writer: Command, folder: Path, stop: Path
) -> None:
    found = await left(launcher, writer)
    stop.touch()
    until_dead(found.pid)
    assert [each.outcome for each in reap(folder)] == ["ended"]
    assert only(folder).state == "ended"
    async with await launcher.adopt(found.pid, found.started) as child:
        assert await child.wait() == Exit(7, None)
    assert list(folder.iterdir()) == []


async def test_a_record_that_nobody_asks_for_is_removed_after_a_week(
    launcher: ProcessLauncher, writer: Command, folder: Path, stop: Path
) -> None:
    found = await left(launcher, writer)
    stop.touch()
    until_dead(found.pid)
    change(folder, ended=Ended(code=7, signal=None, at=time.time() - RECORD_KEPT - 1))
    assert [each.outcome for each in reap(folder)] == ["killed"]  # its keeper was a zombie of ours
    assert list(folder.iterdir()) == []


async def test_a_keeper_that_was_killed_leaves_nothing_and_its_exit_is_unknown(
    launcher: ProcessLauncher, writer: Command, folder: Path, survivors: Count
) -> None:
    found = await left(launcher, writer)
    os.kill(found.pid, signal.SIGKILL)
    until_dead(found.pid)
    assert only(folder).state == "orphaned"
    async with await launcher.adopt(found.pid, found.started) as child:
        assert await child.wait() == Exit(None, None)
    assert (survivors(), list(folder.iterdir())) == ([], [])


async def test_the_reaper_ends_what_a_killed_keeper_left(
    launcher: ProcessLauncher, writer: Command, folder: Path, survivors: Count
) -> None:
    found = await left(launcher, writer)
    await until(survivors)  # for a moment after it has begun, the system shows no arguments of it
    os.kill(found.pid, signal.SIGKILL)
    until_dead(found.pid)
    assert len(survivors()) == 1
    assert [each.outcome for each in reap(folder)] == ["killed"]
    assert (survivors(), list(folder.iterdir())) == ([], [])


async def test_a_keeper_that_does_not_answer_is_ended_too(
    launcher: ProcessLauncher, writer: Command, survivors: Count, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_module, "KEEPER_GRACE", 0.1)
    found = await left(launcher, writer)
    os.kill(found.pid, signal.SIGSTOP)
    async with await launcher.adopt(found.pid, found.started) as child:
        assert await child.stop(grace=0.05) == Exit(None, None)
    assert survivors() == []


@pytest.mark.parametrize(
    "changes", [{"started": 1}, {"boot": "another"}, {"namespace": "pid:[1]"}, {"detached": False}]
)
async def test_another_process_with_the_same_pid_is_never_adopted_nor_ended(
    launcher: ProcessLauncher,
    writer: Command,
    folder: Path,
    survivors: Count,
    changes: dict[str, object],
) -> None:
    found = await left(launcher, writer)
    try:
        await until(lambda: len(survivors()) == 2)  # the keeper, and its program from when that has begun
        before = survivors()
        path = change(folder, **changes)
        with pytest.raises((NotFound, Conflict), match=r"^cannot adopt"):
            await launcher.adopt(found.pid, found.started)
        if "detached" not in changes:  # that one is meant to be killed
            text = path.read_bytes().replace(b'"token":"', b'"token":"other-', 1)  # nor by its token
            path.write_bytes(text)
            reap(folder)
            assert survivors() == before
    finally:
        os.kill(program_of(found.pid), signal.SIGKILL)
        until_dead(found.pid)


async def test_a_sweep_of_its_first_owners_tree_spares_it(
    launcher: ProcessLauncher,
    writer: Command,
    folder: Path,
    survivors: Count,
    zombies: Count,
    python: Python,
) -> None:
    """Its owner is itself somebody's child, as a worker is `legation up`'s."""
    argv = (sys.executable, "-c", OWNER, plan(folder, writer, ["kept"]))
    owner = await launcher.spawn(replace(python(""), argv=argv, name="owner"))
    seen: list[bytes] = []
    async with asyncio.timeout(LIMIT):
        async for lines in owner.lines():
            seen += lines
            if len(seen) == 2:
                break
    await owner.stop(grace=0)
    found = only(folder)
    assert (found.name, found.state) == ("kept", "unowned")
    await until(
        lambda: len(survivors()) == 2
    )  # a program that has just begun has no command line for a moment
    async with await launcher.adopt(found.pid, found.started) as child:
        assert await child.stop() == Exit(None, signal.SIGTERM)
    assert zombies() == []  # its keeper had become our child


# Killed at every moment of a start, and of an adoption.


async def test_an_owner_killed_before_the_keeper_is_on_file_has_started_nothing(
    python: Python, tag: str, folder: Path, tmp_path: Path, survivors: Count
) -> None:
    """The reaper comes first: the keeper finds no file, and starts nothing."""
    Registry(folder).expect(token := "f" * 32, "late", detached=True)
    path = change(folder, owner=2**22 + 1)
    assert only(folder).state == "gone"
    assert [each.outcome for each in reap(folder)] == ["gone"]
    started = tmp_path / "started"
    keeper = subprocess.Popen(
        [*KEEPER, str(path), "1", "", "touch", str(started)],
        env={"PATH": os.environ["PATH"], "LEGATION_CHILD": token},
        stdout=subprocess.PIPE,
    )
    said, _ = keeper.communicate(timeout=LIMIT)
    assert (said, keeper.returncode, started.exists(), list(folder.iterdir())) == (b"", 0, False, [])


async def test_an_owner_killed_before_it_heard_of_the_start_leaves_one_to_adopt(
    launcher: ProcessLauncher, folder: Path, tmp_path: Path, tag: str, stop: Path
) -> None:
    """The keeper comes first: it puts itself on file, though nobody waits for its word any more."""
    Registry(folder).expect(token := "f" * 32, "late", detached=True)
    path = change(folder, owner=2**22 + 1)
    reading, writing = os.pipe()
    os.close(reading)
    keeper = subprocess.Popen(
        [*KEEPER, str(path), str(writing), "", sys.executable, "-c", WRITER, tag, str(stop)],
        env={"PATH": os.environ["PATH"], "LEGATION_CHILD": token},
        pass_fds=(writing,),
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(writing)
    await until(lambda: only(folder).state == "unowned")
    found = only(folder)
    assert found.pid == keeper.pid
    async with await launcher.adopt(found.pid, found.started) as child:
        stop.touch()
        assert await child.wait() == Exit(7, None)
    keeper.wait(LIMIT)


# It kills itself right before, or right after, a step of a start or of an adoption.
SUICIDE = """
import os
from legation.proc import child, keeper, launcher, registry
def kill_at(owner, name, moment):
    step = getattr(owner, name)
    def fatal(*args, **kwargs):
        if moment == "before": os.kill(os.getpid(), 9)
        step(*args, **kwargs)
        os.kill(os.getpid(), 9)
    setattr(owner, name, fatal)
"""


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(
    "step",
    [
        'registry.Registry, "expect"',
        'launcher, "_open_files"',
        'launcher.subprocess, "Popen"',
        'launcher, "set_mark"',
        'launcher, "_refused"',
        'child, "ExitWatch"',
    ],
)
async def test_an_owner_killed_at_any_step_of_a_start_leaves_none_or_one_to_adopt(
    owners: Callable[..., subprocess.Popen[str]],
    writer: Command,
    folder: Path,
    survivors: Count,
    step: str,
    moment: str,
) -> None:
    owner = owners(f"{SUICIDE}\nkill_at({step}, {moment!r})\n{OWNER}", plan(folder, writer, ["one"]))
    assert await asyncio.to_thread(owner.wait, LIMIT) == -signal.SIGKILL
    # The reaper comes at whatever moment: a keeper that is on its way is on file by then, or starts nothing.
    reaped = [each.outcome for each in reap(folder)]
    assert reaped in ([], ["gone"], ["killed"], ["detached"])
    for found in listed(folder):
        launcher = ProcessLauncher(registry=Registry(folder))
        async with await launcher.adopt(found.pid, found.started) as child:
            assert await child.stop() == Exit(None, signal.SIGTERM)
    await until(lambda: not survivors())
    assert list(folder.glob("*.child")) == []
    if step in ('launcher, "_refused"', 'child, "ExitWatch"'):
        assert reaped == ["detached"]  # it had been told that it started


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(
    "step", ['keeper.fcntl, "flock"', 'keeper.os, "write"', 'keeper.os, "replace"', 'child, "ExitWatch"']
)
async def test_an_adopter_killed_at_any_step_leaves_it_to_the_next(
    owners: Callable[..., subprocess.Popen[str]],
    launcher: ProcessLauncher,
    writer: Command,
    folder: Path,
    stop: Path,
    step: str,
    moment: str,
) -> None:
    found = await left(launcher, writer)
    source = ADOPTER.replace("    for each in", f"    kill_at({step}, {moment!r})\n    for each in").replace(
        'print("ready", flush=True)', "pass"
    )
    adopter = owners(f"{SUICIDE}\n{source}", str(folder))
    assert await asyncio.to_thread(adopter.wait, LIMIT) == -signal.SIGKILL
    assert [each.outcome for each in reap(folder)] == ["detached"]
    async with await launcher.adopt(found.pid, found.started) as child:
        stop.touch()
        assert await child.wait() == Exit(7, None)
    assert list(folder.glob("*.child")) == []


KEEPER = (sys.executable, "-I", "-S", str(Path(child_module.__file__).with_name("keeper.py")))


async def chaos(
    owners: Callable[..., subprocess.Popen[str]],
    command: Command,
    folder: Path,
    place: Path,
    survivors: Count,
    *,
    children: int,
    seed: int,
) -> dict[str, int]:
    """Kill an owner in the middle of its starts, then adopters in the middle of adopting; at the end everybody that ever
    started is accounted for. How often which end was met."""
    chance = random.Random(seed)
    names = [f"c{number}" for number in range(children)]
    owner = owners(OWNER, plan(folder, command, names))
    assert next_line(owner) == "ready"
    # Whatever the machine's speed: killed once some number of files is there, and a moment later.
    wanted = chance.randrange(children + 1)
    await until(lambda: len(list(folder.glob("*.child"))) >= wanted or owner.poll() is not None)
    await asyncio.sleep(chance.random() * 0.2)
    told = kill(owner)

    for _ in range(2):
        adopter = owners(ADOPTER, str(folder))
        assert next_line(adopter) == "ready"
        await asyncio.sleep(chance.random() * 0.05)
        kill(adopter)
    launcher = ProcessLauncher(registry=Registry(folder))
    adopted: list[Child] = []
    # The reaper at the next start, while keepers of the dead owner may still be on their way.
    for each in reap(folder):
        assert each.outcome in ("detached", "gone", "killed"), each
    for found in listed(folder):
        adopted.append(await launcher.adopt(found.pid, found.started))
    # Those that were told as started are all among them, and nothing else lives.
    assert {line.split()[0] for line in told} <= {child.name for child in adopted}
    accounted = {child.pid for child in adopted} | {program_of(child.pid) for child in adopted}
    await until(lambda: set(survivors()) <= accounted)  # a keeper that found no file ends by itself
    sizes = {child.name: (place / f"{child.name}.out").stat().st_size for child in adopted}
    await until(lambda: all((place / f"{name}.out").stat().st_size > size for name, size in sizes.items()))
    exits = await asyncio.gather(*(child.stop() for child in adopted))
    assert set(exits) <= {Exit(None, signal.SIGTERM)}
    for child in adopted:
        child.forget()
    assert (survivors(), list(folder.glob("*.child"))) == ([], [])
    return {"adopted": len(adopted), "told": len(told), "never started": children - len(adopted)}


@pytest.mark.heavy
async def test_children_of_an_owner_killed_at_any_moment_are_adopted_or_ended(
    owners: Callable[..., subprocess.Popen[str]],
    writer: Command,
    folder: Path,
    tmp_path: Path,
    survivors: Count,
) -> None:
    for seed in range(3):
        await chaos(owners, writer, folder, tmp_path, survivors, children=5, seed=seed)


@pytest.mark.slow
async def test_twenty_children_of_an_owner_killed_at_any_moment_are_adopted_or_ended(
    owners: Callable[..., subprocess.Popen[str]],
    writer: Command,
    folder: Path,
    tmp_path: Path,
    survivors: Count,
) -> None:
    met = [
        await chaos(owners, writer, folder, tmp_path, survivors, children=20, seed=seed) for seed in range(20)
    ]
    assert any(each["adopted"] > each["told"] for each in met), met  # killed between the start and the word
    assert any(each["never started"] for each in met), met  # and before it
