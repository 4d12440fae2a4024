from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from legation.errors import ConfigInvalid, InvalidParams, LegationError, StorageFailed, Unavailable
from legation.proc import Command, ProcessLauncher, Registry
from legation.proc import launcher as launcher_module
from legation.proc.tree import own_children

Python = Callable[..., Command]
LIMIT = 20.0  # a loaded machine's time for one short program


def script(folder: Path, text: str, mode: int = 0o755) -> str:
    path = folder / "program"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def open_descriptors() -> list[str]:
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize(
    ("change", "kind", "reason"),
    [
        (
            lambda _: {"argv": ("no-such-program",)},
            ConfigInvalid,
            "there is no program 'no-such-program'",
        ),
        (lambda folder: {"argv": (str(folder / "none"),)}, ConfigInvalid, "install it or give its full path"),
        (lambda folder: {"argv": (script(folder, "", 0o644),)}, ConfigInvalid, "chmod"),
        (lambda folder: {"argv": (script(folder, "no first line"),)}, ConfigInvalid, "check its first line"),
        (lambda folder: {"argv": (script(folder, "#!/none\n"),)}, ConfigInvalid, "interpreter"),
        (lambda _: {"argv": ()}, InvalidParams, "name a program"),
        (lambda _: {"argv": ("true", "hunter2\0")}, InvalidParams, "NUL"),
        (lambda _: {"argv": ("true", "hunter2" * 100_000)}, InvalidParams, "too long"),
        (lambda folder: {"cwd": folder / "none"}, ConfigInvalid, "there is no folder"),
        (lambda folder: {"cwd": Path(script(folder, ""))}, ConfigInvalid, "there is no folder"),
    ],
)
async def test_a_start_that_fails_says_why_and_leaves_nothing(
    python: Python,
    tmp_path: Path,
    change: Callable[[Path], dict[str, object]],
    kind: type[LegationError],
    reason: str,
) -> None:
    launcher = ProcessLauncher(registry=Registry(tmp_path / "registry"))
    async with await launcher.spawn(python("")) as child:  # opens what stays open
        await child.wait()
    command = replace(python(""), **change(tmp_path))  # type: ignore[arg-type]
    before = open_descriptors(), own_children()
    with pytest.raises(kind, match=f"^cannot start 'test': .*{reason}") as caught:
        await launcher.spawn(command)
    assert "hunter2" not in str(caught.value)
    assert (open_descriptors(), own_children()) == before
    assert list((tmp_path / "registry").iterdir()) == []


async def test_a_system_without_resources_is_unavailable(
    python: Python, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(Unavailable, match="try again"):
        await ProcessLauncher().spawn(python(""))


async def test_a_registry_that_cannot_be_written_starts_nothing(python: Python, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    before = own_children()
    with pytest.raises(StorageFailed, match="cannot register the process 'test'"):
        await ProcessLauncher(registry=Registry(tmp_path / "file")).spawn(python(""))
    assert own_children() == before


async def test_a_child_has_a_session_of_its_own_the_given_environment_and_a_token(
    python: Python, tmp_path: Path
) -> None:
    source = "import os; print(os.getsid(0) == os.getpgid(0) == os.getpid()); print(*sorted(os.environ)); print(os.getcwd())"
    command = replace(python(source), env={"ONE": "1"})
    async with await ProcessLauncher().spawn(command) as child:
        lines = [line.decode() async for lines in child.lines() for line in lines]
    own_session, names, folder = lines
    assert own_session == "True"
    assert set(names.split()) - {"LC_CTYPE"} == {"LEGATION_CHILD", "ONE"}  # Python sets LC_CTYPE by itself
    assert folder == str(tmp_path)


async def test_a_child_inherits_only_the_descriptors_it_is_meant_to(python: Python) -> None:
    reading, writing = os.pipe()
    source = f"import os; os.write({writing}, b'hello'); print(sorted(os.listdir('/proc/self/fd')))"
    async with await ProcessLauncher().spawn(replace(python(source), pass_fds=(writing,))) as child:
        await child.wait()
        (line,) = [line async for lines in child.lines() for line in lines]
    assert os.read(reading, 10) == b"hello"
    assert eval(line) == sorted(["0", "1", "2", "3", str(writing)], key=str)  # 3 is the listing itself
    os.close(reading)
    os.close(writing)


async def test_all_children_are_started_by_one_thread_that_never_ends(
    python: Python, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    start = launcher_module._start

    def watched(*arguments: object) -> object:
        threads.append(threading.current_thread())
        return start(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(launcher_module, "_start", watched)
    launcher = ProcessLauncher()
    children = await asyncio.gather(*(launcher.spawn(python("")) for _ in range(3)))
    await asyncio.gather(*(child.stop() for child in children))
    assert len(set(threads)) == 1
    assert threads[0].daemon
    assert threads[0] is not threading.main_thread()
    assert threads[0].is_alive()


async def test_a_cancelled_start_leaves_no_child(
    python: Python,
    tag: str,
    survivors: Callable[[], list[int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cancelled while the spawner thread is at work: the child comes too late, and goes at once."""
    entered, go_on, discarded = threading.Event(), threading.Event(), threading.Event()
    start, discard = launcher_module._start, launcher_module._discard

    def slow(*arguments: object) -> object:
        entered.set()
        assert go_on.wait(LIMIT)
        return start(*arguments)  # type: ignore[arg-type]

    def watched(future: object) -> None:
        discard(future)  # type: ignore[arg-type]
        discarded.set()

    monkeypatch.setattr(launcher_module, "_start", slow)
    monkeypatch.setattr(launcher_module, "_discard", watched)
    launcher = ProcessLauncher(registry=Registry(tmp_path / "registry"))
    spawning = asyncio.ensure_future(launcher.spawn(python("import signal; signal.pause()", tag)))
    assert await asyncio.to_thread(entered.wait, LIMIT)
    spawning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await spawning
    go_on.set()
    assert await asyncio.to_thread(discarded.wait, LIMIT)
    assert (survivors(), list((tmp_path / "registry").iterdir())) == ([], [])
