"""With real programs."""

import asyncio
import json
import logging
import os
import sys
from pathlib import Path

import pytest
from tests.approvals.notify.notices import LIMIT, notice

from legation.approvals.notify import NotDelivered
from legation.approvals.notify.command import CommandChannel
from legation.errors import ConfigInvalid
from legation.proc.tree import process

pytestmark = pytest.mark.heavy

KEEP = """
import json, os, sys
with open(sys.argv[1], "w") as file:
    json.dump({"input": sys.stdin.read(), "env": dict(os.environ), "argv": sys.argv[2:], "cwd": os.getcwd(),
               "leads": os.getsid(0) == os.getpgid(0) == os.getpid()}, file)
"""
STUBBORN = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
if child:
    with open(sys.argv[1] + ".new", "w") as file: file.write(f"{os.getpid()} {child}")
    os.rename(sys.argv[1] + ".new", sys.argv[1])
while True: signal.pause()
"""


def python(source: str, *arguments: str, timeout: float = 30.0) -> CommandChannel:
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "LANG": "C.UTF-8",
        "LEGATION_TOKEN": "CANARY",
    }
    return CommandChannel((sys.executable, "-c", source, *arguments), environ=environ, timeout=timeout)


def alive(pid: int) -> bool:
    found = process(pid)
    return found is not None and not found.dead


async def test_the_program_gets_the_notice_on_one_line_and_a_clean_environment(tmp_path: Path) -> None:
    file = tmp_path / "kept"
    await python(KEEP, str(file), "$HOME; echo *").send(notice(agent="two\nlines"))
    kept = json.loads(file.read_text())
    assert kept["input"].count("\n") == 1
    assert kept["input"] == notice(agent="two\nlines").encode().decode() + "\n"
    assert kept["argv"] == ["$HOME; echo *"]
    assert kept["cwd"] == "/"
    assert kept["leads"]
    assert set(kept["env"]) - {"LC_CTYPE"} == {"PATH", "HOME", "LANG", "LEGATION_CHILD"}
    assert "CANARY" not in kept["env"].values()


async def test_a_program_that_reads_nothing_and_ends_well_has_delivered() -> None:
    await python("import sys; sys.stdin.close()").send(notice())


async def test_a_program_that_prints_without_end_of_it_is_not_held_up() -> None:
    await python("print('x' * 99 * 99 * 99, flush=True); print('line\\n' * 1_000_000)").send(notice())


async def test_a_failure_is_told_and_its_last_lines_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    source = (
        "import sys; print('\\n'.join(f'out {n}' for n in range(9)));"
        "print('bad \\x1b[31m\\u202e' + 'y' * 999, file=sys.stderr); sys.exit(3)"
    )
    with pytest.raises(
        NotDelivered, match=r"^cannot notify by command: it ended with exit code 3;"
    ) as failure:
        await python(source).send(notice())
    assert failure.value.again
    said = [record.getMessage().removeprefix("notify_command said: ") for record in caplog.records]
    assert said[:5] == [f"out {n}" for n in range(4, 9)]
    assert said[5].startswith("bad ?[31m?yyy")
    assert len(said[5]) <= 300
    assert len(said) == 6


async def test_success_logs_nothing_of_what_it_says(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    await python("print('CANARY')").send(notice())
    assert "CANARY" not in caplog.text


async def test_a_program_that_ignores_term_is_killed_with_its_group_after_the_bound(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    with pytest.raises(NotDelivered, match=r"it took longer than 4 s") as failure:
        await python(STUBBORN, str(file), timeout=4.0).send(notice())
    assert failure.value.again
    assert [alive(int(pid)) for pid in file.read_text().split()] == [False, False]


async def test_a_cancelled_notice_leaves_nothing_behind(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    task = asyncio.create_task(python(STUBBORN, str(file)).send(notice()))
    async with asyncio.timeout(LIMIT):
        while not file.exists():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # On a busy machine it runs before its start has come back, and is then ended behind the caller's back.
        while any(alive(int(pid)) for pid in file.read_text().split()):
            await asyncio.sleep(0.01)


async def test_a_program_that_went_missing_is_not_tried_again(tmp_path: Path) -> None:
    program = tmp_path / "notify"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    channel = CommandChannel((str(program),), environ={"PATH": os.environ["PATH"]})
    await channel.send(notice())
    program.unlink()
    with pytest.raises(NotDelivered, match=r"^cannot start 'notify_command': there is no program") as failure:
        await channel.send(notice())
    assert not failure.value.again


def test_a_program_that_cannot_be_run_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "plain"
    file.write_text("")
    for argv, words in (
        ((str(file),), "is not an executable file"),
        ((str(tmp_path / "none"),), "there is no program"),
        (("no-such-program-here",), "there is no program"),
        ((str(tmp_path),), "there is no program"),
        (("./notify",), "is a relative path"),
    ):
        with pytest.raises(ConfigInvalid, match=f"^cannot use notify_command: .*{words}"):
            CommandChannel(argv, environ={"PATH": os.environ["PATH"]})
