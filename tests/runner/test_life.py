"""A runner as a provider starts it: detached, by a descriptor, on file, and outliving whoever started it."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest
from tests.cli.command import environment, rehearse
from tests.runner.caller_server import LIMIT, Caller
from tests.runner.test_runner import REHEARSAL, alive, config_of, scripted

from legation.proc.launcher import Command, FileStdio, ProcessLauncher
from legation.proc.registry import Registry, listed

pytestmark = pytest.mark.heavy


def command(home: Path, config: object, agent: str) -> Command:
    """The configuration is in a pipe by the time it starts: nobody has to be there to write it."""
    work, reading = home / "work", _pipe(json.dumps(config).encode())
    work.mkdir(exist_ok=True)
    argv = (
        sys.executable,
        "-m",
        "legation",
        "runner",
        "--config-fd",
        str(reading),
        "--folder",
        str(home / "spool"),
    )
    env = environment(home, CODING_AGENT_ACP_COMMAND=agent)
    files = FileStdio(home, "out", "err")
    return Command(argv, work, env, "runner run_1", detached=True, pass_fds=(reading,), files=files)


def _pipe(content: bytes) -> int:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    assert os.write(writing, content) == len(content)
    os.close(writing)
    return reading


async def test_it_is_on_file_by_pid_and_start_time_and_leaves_how_it_ended(tmp_path: Path) -> None:
    registry = tmp_path / "children"
    registry.mkdir()
    async with Caller() as caller:
        launcher = ProcessLauncher(registry=Registry(registry))
        started = command(tmp_path, config_of(caller, rehearse("say one")), REHEARSAL)
        child = await launcher.spawn(started)
        os.close(started.pass_fds[0])
        [entry] = listed(registry)
        assert (entry.pid, entry.detached, entry.name) == (child.pid, True, "runner run_1")
        async with asyncio.timeout(LIMIT):
            found = await child.wait()
        assert (found.code, caller.taken[-1]["kind"]) == (0, "prompt_complete"), (
            tmp_path / "err"
        ).read_text()
        assert json.loads((tmp_path / "spool" / "exit.json").read_text())["code"] == 0
        own = json.loads((tmp_path / "spool" / "runner.json").read_text())
        assert (own["runId"], own["promptId"]) == ("run_1", "prompt_1")
        assert own["started"] > 0


async def test_another_adopts_it_and_stopped_it_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    registry = tmp_path / "children"
    registry.mkdir()
    agent = scripted("hello(); session(); prompted(); update(str(os.getpid())); stay()")
    async with Caller() as caller:
        started = command(tmp_path, config_of(caller, "go"), agent)
        child = await ProcessLauncher(registry=Registry(registry)).spawn(started)
        os.close(started.pass_fds[0])
        await caller.until(lambda each: bool(each.notifications))
        own = json.loads((tmp_path / "spool" / "runner.json").read_text())
        await child.release()  # as a server that stops does it
        [entry] = listed(registry)
        later = await ProcessLauncher(registry=Registry(registry)).adopt(entry.pid, entry.started)
        async with asyncio.timeout(LIMIT):
            await later.stop(30)
        assert caller.taken[-1]["kind"] == "prompt_failed"
        assert json.loads((tmp_path / "spool" / "exit.json").read_text())["code"] == 143
        assert not alive(own["pid"])
        assert not alive(int(caller.notifications[0]["update"]["content"]["text"]))
