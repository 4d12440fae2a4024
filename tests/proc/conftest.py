from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from legation.proc import Command, FileStdio, child_environment
from legation.proc.tree import own_children, process

Python = Callable[..., Command]

# It waits for a line, and then every node names itself on the common stdout once it runs, so that nobody has to guess when the tree is up.
NODE = "import signal, sys; print(sys.argv[1], flush=True); signal.pause()"
TREE = f"""
import os, signal, sys
tag, manner = sys.argv[1:]
def node(name, environment=os.environ):
    os.execve(sys.executable, [sys.executable, "-c", {NODE!r}, name, tag], environment)
def daemon(name, environment=os.environ):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0: node(name, environment)
        os._exit(0)
sys.stdin.readline()  # the launcher has done all it wanted to do
if os.fork() == 0: node("grandchild")
if os.fork() == 0: os.setsid(); node("setsid")
daemon("daemon")
daemon("nameless", {{}})  # its environment is cleared
if manner == "stubborn": signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("child", flush=True)
while manner == "stubborn": signal.pause()
if sys.stdin.readline() == "crash\\n": os.kill(os.getpid(), signal.SIGSEGV)
"""
NODES = {"child", "grandchild", "setsid", "daemon", "nameless"}


@pytest.fixture
def python(tmp_path: Path) -> Python:
    """Makes a command out of Python source."""
    environment = child_environment({}, home=tmp_path, tmp=tmp_path)

    def make(source: str, *arguments: str, detached: bool = False) -> Command:
        argv = (sys.executable, "-c", source, *arguments)
        files = FileStdio(tmp_path, "out", "err") if detached else None
        return Command(argv, tmp_path, environment, "test", detached=detached, files=files)

    return make


@pytest.fixture
def tag() -> Iterator[str]:
    """Marks processes on their command line, and kills those that a failed test has left."""
    value = f"tag-{secrets.token_hex(8)}"
    yield value
    for pid in tagged(value):
        os.kill(pid, 9)
        with contextlib.suppress(ChildProcessError):  # init has adopted it, not we
            os.waitpid(pid, 0)


def tagged(tag: str) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and tag.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return [pid for pid in found if (each := process(pid)) is not None and not each.dead]


@pytest.fixture
def survivors(tag: str) -> Callable[[], list[int]]:
    return lambda: tagged(tag)


@pytest.fixture
def zombies() -> Callable[[], list[int]]:
    """Children of ours that have ended since the test began and whose exit code nobody has taken."""
    before = set(own_children())

    def find() -> list[int]:
        new = set(own_children()) - before
        return [pid for pid in new if (each := process(pid)) is not None and each.dead]

    return find


@pytest.fixture
def tree(python: Python, tag: str) -> Callable[[str], Command]:
    return lambda manner: python(TREE, tag, manner)


@pytest.fixture
def nodes() -> set[bytes]:
    """What a tree prints when all of it is up."""
    return {name.encode() for name in NODES}
