from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.cli.command import json_lines, legation
from tests.cli.server_process import running
from tests.server.peers.servers import until

from legation.proc import Command, FileStdio, ProcessLauncher, Registry, reap
from legation.proc.registry import ChildEntry, listed
from legation.proc.tree import children as direct_children

pytestmark = pytest.mark.heavy  # a process or more for each test

DEAD = 2**22 + 1  # beyond the highest pid there can be
OWNER = """
import asyncio, sys
from pathlib import Path
from legation.proc import Command, ProcessLauncher, Registry
async def main():
    command = Command(("sleep", "600"), Path("/"), {"PATH": sys.argv[2]}, "left")
    await ProcessLauncher(registry=Registry(Path(sys.argv[1]))).spawn(command)
    print("up", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.fixture
def data(home: Path) -> Path:
    return home / "data"


def leaks(home: Path, data: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return legation(home, "leaks", "--data-dir", str(data), *arguments)


def detached(place: Path, name: str, *argv: str) -> Command:
    env = {"PATH": os.environ["PATH"]}
    return Command(
        argv, place, env, name, detached=True, files=FileStdio(place, f"{name}.out", f"{name}.err")
    )


def test_an_empty_machine_says_so_in_one_line(home: Path, data: Path) -> None:
    done = leaks(home, data)
    assert (done.returncode, done.stdout) == (0, f"nothing runs and nothing is left behind in {data}\n")
    assert (leaks(home, data, "--json").stdout, data.exists()) == ("", False)  # it has made nothing either


def test_it_says_what_is_alive_and_why(home: Path, data: Path, tmp_path: Path) -> None:
    async def show() -> None:
        launcher = ProcessLauncher(registry=Registry(data / "children"))
        attached = await launcher.spawn(
            Command(("sleep", "600"), tmp_path, {"PATH": os.environ["PATH"]}, "attached")
        )
        kept = await launcher.spawn(detached(tmp_path, "kept", "sleep", "600"))
        ended = await launcher.spawn(detached(tmp_path, "ended", "sh", "-c", "exit 3"))
        await ended.wait()
        free = await launcher.spawn(detached(tmp_path, "free", "sleep", "600"))
        await free.release()
        left = await launcher.spawn(detached(tmp_path, "taken", "sleep", "600"))
        await left.release()
        taken = await launcher.adopt(left.pid, left.started)
        own = os.getpid()
        done = await asyncio.to_thread(leaks, home, data)
        assert done.returncode == 0, done.stdout
        said = sorted(done.stdout.splitlines())
        assert said == sorted(
            (
                f"ok      attached (pid {attached.pid}): started by process {own}, which lives and ends it",
                f"ok      kept (pid {kept.pid}): detached, started by process {own}, which lives",
                f"ok      taken (pid {taken.pid}): detached, adopted by process {own}, which lives",
                f"waits   free (pid {free.pid}): detached, released by its owner: it goes on until somebody adopts or ends it",
                f"waits   ended (pid {ended.pid}): detached, has ended with exit code 3; nobody has taken note of it yet",
            )
        )
        found = {
            each["name"]: each
            for each in json_lines((await asyncio.to_thread(leaks, home, data, "--json")).stdout)
        }
        assert (found["taken"]["adopted"], found["taken"]["state"], found["taken"]["owner"]) == (
            True,
            "running",
            own,
        )
        assert found["free"]["seconds"] >= 0
        os.killpg(free.pid, signal.SIGTERM)  # as its help says
        for child in (attached, kept, taken):
            await child.stop()

    asyncio.run(show())


def test_what_a_killed_owner_left_is_shown_and_gone_after_the_next_start(home: Path, data: Path) -> None:
    children = data / "children"
    argv = [sys.executable, "-c", OWNER, str(children), os.environ["PATH"]]
    with subprocess.Popen(argv, env={"PATH": os.environ["PATH"]}, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "up\n"
        owner.kill()
    (found,) = listed(children)
    folder = data / "agents" / "local" / "rehearsal" / "tmp" / "tmp_1"
    folder.mkdir(parents=True)
    os.utime(folder, (1, 1))
    done = leaks(home, data)
    assert done.returncode == 1
    assert (
        f"left    left (pid {found.pid}): of process {found.owner}, which is dead, and this is" in done.stdout
    )
    assert f"{folder}: an agent's temporary folder" in done.stdout
    assert "next: legation up" in done.stdout
    assert (
        "legation leaks"
        in next(
            each
            for each in json_lines(legation(home, "doctor", "--json", "--data-dir", str(data)).stdout)
            if each["about"] == "agents"
        )["next"]
    )
    assert (
        legation(home, "exec", "--data-dir", str(data), "--agent", "rehearsal", "say hello").returncode == 0
    )
    done = leaks(home, data)
    assert (done.returncode, done.stdout) == (0, f"nothing runs and nothing is left behind in {data}\n")


def test_what_a_living_owner_has_yet_to_end_is_no_leak(home: Path, data: Path) -> None:
    children = data / "children"
    source = OWNER.replace('("sleep", "600")', '("sh", "-c", "sleep 600 & wait")')
    with subprocess.Popen(
        [sys.executable, "-c", source, str(children), os.environ["PATH"]],
        env={"PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        try:
            assert owner.stdout is not None
            assert owner.stdout.readline() == "up\n"
            (found,) = listed(children)
            below = until(lambda: direct_children(found.pid))
            owner.send_signal(signal.SIGSTOP)
            os.kill(found.pid, signal.SIGKILL)
            until(lambda: listed(children)[0].state == "orphaned")
            done = leaks(home, data)
            why = f"of process {owner.pid}, which lives and ends what is left of it: {below[0]}"
            assert (done.returncode, done.stdout) == (0, f"ok      left (pid {found.pid}): {why}\n")
        finally:
            owner.kill()
    reap(children)


def test_files_that_say_nothing_are_shown_and_those_of_another_boot_are_no_leak(
    home: Path, data: Path
) -> None:
    Registry(data / "children").add("f" * 32, "old", os.getpid(), 1, detached=False)
    (path,) = (data / "children").iterdir()
    entry = msgspec.json.decode(path.read_bytes(), type=ChildEntry)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(entry, owner=DEAD, boot="another")))
    done = leaks(home, data)
    assert (done.returncode, "nothing of it is left but its file" in done.stdout) == (0, True)
    (data / "children" / "bad.child").write_text("{")
    done = leaks(home, data)
    assert (done.returncode, "bad.child: names no process" in done.stdout) == (1, True)


def test_it_works_beside_a_server(home: Path) -> None:
    with running(home):
        done = legation(home, "leaks")
    assert done.returncode == 0, done.stdout


def test_help_says_what_each_word_means(home: Path) -> None:
    text = legation(home, "leaks", "--help").stdout
    for word in ("waits", "left", "exit code is 1", "kill -- -PID", "--json"):
        assert word in text
