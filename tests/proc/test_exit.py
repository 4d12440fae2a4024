from __future__ import annotations

import asyncio
import os
import signal
import subprocess

import pytest

from legation.proc import Exit
from legation.proc.child import ExitWatch, peek

LIMIT = 10.0  # a loaded machine's time for one short program


def test_an_exit_says_what_it_was() -> None:
    assert str(Exit(3, None)) == "exit code 3"
    assert str(Exit(None, signal.SIGKILL)) == "signal 9 (SIGKILL)"
    assert str(Exit(None, None)) == "unknown exit"


def test_peeking_leaves_the_exit_code_for_its_owner() -> None:
    program = subprocess.Popen(["sh", "-c", "exit 5"])
    assert peek(program.pid, block=True) == Exit(5, None)
    assert peek(program.pid) == Exit(5, None)
    assert program.wait() == 5
    assert peek(program.pid) == Exit(None, None)


@pytest.mark.parametrize("pidfd", [True, False])
async def test_an_exit_is_noticed_with_and_without_pidfd(
    pidfd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_pid: int) -> int:
        raise OSError(38, "Function not implemented")

    if not pidfd:
        monkeypatch.setattr(os, "pidfd_open", missing)
    program = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    watch = ExitWatch(program.pid)
    assert peek(program.pid) is None
    assert not watch.ended.done()
    program.kill()
    assert await asyncio.wait_for(watch.ended, LIMIT) == Exit(None, signal.SIGKILL)
    program.communicate()
    watch.close()
