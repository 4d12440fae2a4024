"""What a program says that is only asked something."""

from __future__ import annotations

from pathlib import Path

import pytest

from legation.agents.rpc import all_said
from legation.errors import AgentError
from legation.proc import Command, ProcessLauncher


async def test_all_that_it_says_is_read(tmp_path: Path) -> None:
    async with await ProcessLauncher().spawn(
        Command(("/bin/echo", "one\ntwo"), tmp_path, {}, "said")
    ) as child:
        assert await all_said(child) == b"one\ntwo"


@pytest.mark.heavy
async def test_one_that_does_not_stop_talking_is_given_up(tmp_path: Path) -> None:
    async with await ProcessLauncher().spawn(Command(("/usr/bin/yes",), tmp_path, {}, "endless")) as child:
        with pytest.raises(AgentError, match="said more than 1048576 bytes"):
            await all_said(child)
