"""A start that is given up on the way."""

import asyncio
import os
from pathlib import Path

import pytest
from tests.server.processes.process_rig import LIMIT

from legation.errors import InvalidParams
from legation.proc import Child, Command, Pipes, ProcessLauncher, Registry
from legation.server.processes.start import ProcessSpec, start_child

pytestmark = pytest.mark.heavy


class Held:
    """A launcher that starts when it is let, and looks whether what it hands on is still what it was given."""

    def __init__(self, children: Path) -> None:
        self.real = ProcessLauncher(registry=Registry(children))
        self.asked, self.let = asyncio.Event(), asyncio.Event()
        self.child: Child | None = None

    async def spawn(self, command: Command, pipes: Pipes | None = None) -> Child:
        before = [os.fstat(each).st_ino for each in command.pass_fds]
        self.asked.set()
        await self.let.wait()
        assert [os.fstat(each).st_ino for each in command.pass_fds] == before
        self.child = await self.real.spawn(command, pipes)
        return self.child


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))  # noqa: PTH208


@pytest.mark.parametrize("tty", [False, True])
async def test_who_is_cancelled_keeps_the_descriptors_until_the_child_has_them_and_leaves_nothing(
    tmp_path: Path, *, tty: bool
) -> None:
    first = await ProcessLauncher().spawn(Command(("true",), tmp_path, dict(os.environ), "first"))
    await first.stop()  # what the first start of all opens stays open
    before, launcher = open_descriptors(), Held(tmp_path / "children")
    order = ProcessSpec("test", ("sleep", "1000"), tmp_path, {"PATH": os.environ["PATH"]}, tty)
    starting = asyncio.create_task(start_child(launcher, order))
    async with asyncio.timeout(LIMIT):
        await launcher.asked.wait()
        starting.cancel()
        await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait({starting}, timeout=0.05)
        assert not starting.done()
        launcher.let.set()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert launcher.child is not None
        await launcher.child.wait()
    assert list((tmp_path / "children").glob("*.child")) == []
    assert open_descriptors() <= before


async def test_a_command_that_cannot_be_run_leaves_nothing_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "no-program").write_bytes(b"\0\1\2")
    (tmp_path / "no-program").chmod(0o755)
    (tmp_path / "closed").touch(0o644)
    launcher, before = ProcessLauncher(registry=Registry(tmp_path / "children")), set[str]()
    for words, why in (
        ("missing", "no such program"),
        ("./no-program", "it is no program"),
        ("./closed", "not executable"),
        ("./", "not executable"),
        ("closed/x", "no such program"),
    ):
        order = ProcessSpec("test", (words,), tmp_path, {"PATH": os.environ["PATH"]}, tty=False)
        with pytest.raises(InvalidParams, match=why):
            await start_child(launcher, order)
        before = before or open_descriptors()
        assert open_descriptors() <= before
    assert list((tmp_path / "children").glob("*.child")) == []
