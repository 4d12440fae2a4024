"""A runner as a provider starts it: detached, by a descriptor, on file, and outliving whoever started it."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest
from tests.cli.command import environment, rehearse
from tests.runner.caller_server import LIMIT, Caller
from tests.runner.rig import texts
from tests.runner.test_runner import REHEARSAL, alive, config_of, played, scripted, started

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


SAYS = scripted("hello(); session(); p = prompted(); update('here'); done(p)")


def ended(home: Path) -> dict[str, object]:
    [path] = home.rglob("exit.json")
    return json.loads(path.read_text())  # type: ignore[no-any-return]


async def test_asked_again_under_the_same_names_it_says_that_it_starts_nothing(tmp_path: Path) -> None:
    async with Caller() as caller:
        assert (await played(tmp_path, caller, "go", agent=SAYS))[0] == 0
        code, said = await played(tmp_path, caller, "go", agent="/no/such/agent")
        assert (code, len(caller.ended), texts(caller.notifications)) == (0, 1, ["here"])
        assert "this prompt has ended" in said
        assert "give another promptId" in said


async def test_a_second_one_in_the_same_folder_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    agent = scripted("hello(); session(); p = prompted(); update('one'); read(); stay()")
    async with Caller() as caller, started(tmp_path, config_of(caller, "go"), agent=agent) as first:
        await caller.until(lambda each: bool(each.notifications))
        code, said = await played(tmp_path, caller, "go", agent=SAYS)
        assert (code, f"process {first.process.pid} owns it" in said) == (5, True)
        assert texts(caller.notifications) == ["one"]
        first.process.terminate()
        assert (await first.ended())[0] == 143
        assert [each["kind"] for each in caller.taken] == ["session_update", "prompt_failed"]


@pytest.mark.parametrize("name", ["runId", "taskId", "sandboxId", "promptId"])
async def test_what_a_folder_has_is_not_sent_under_other_names(tmp_path: Path, name: str) -> None:
    place = ("--folder", str(tmp_path / "spool"))
    async with Caller(fault=lambda each: 503 if each.report["sequence"] else None) as caller:
        fields = {"flushTimeout": 0.2}
        assert (await played(tmp_path, caller, "go", *place, agent=SAYS, fields=fields))[0] == 8
        caller.fault = lambda _: None
        code, said = await played(tmp_path, caller, "go", *place, agent=SAYS, fields={name: "another"})
        assert (code, caller.taken) == (2, [])
        assert "promptId 'prompt_1'" in said
        assert ended(tmp_path)["code"] == 8
        assert (await played(tmp_path, caller, "go", *place, agent=SAYS))[0] == 0
        assert (texts(caller.notifications), len(caller.ended)) == (["here"], 1)


@pytest.mark.parametrize("name", ["..", ".", "a/../../b", "x" * 300, "é" * 100])
async def test_whatever_its_names_are_its_folder_is_below_the_others(tmp_path: Path, name: str) -> None:
    fields = {"runId": name, "promptId": name}
    async with Caller() as caller:
        assert (await played(tmp_path, caller, "go", agent=SAYS, fields=fields))[0] == 0
    [place] = tmp_path.rglob("runner.json")
    assert place.parents[2] == tmp_path / ".local/share/legation/runners"
    assert json.loads(place.read_text())["promptId"] == name


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_stopped_while_nobody_takes_its_last_report_it_ends_and_keeps_it(
    tmp_path: Path, number: signal.Signals
) -> None:
    """A second signal takes the little time that the first one leaves; so does it for one that sends what another left."""
    async with Caller(fault=lambda each: 503 if each.report["sequence"] else None) as caller:
        config = config_of(caller, "go", flushTimeout=3600)
        for _ in range(2):
            async with started(tmp_path, config, agent=SAYS) as run:
                tried = len(caller.requests)
                await caller.until(
                    lambda each, tried=tried: (
                        any(r.report["sequence"] for r in each.requests[tried:])  # type: ignore[misc]
                        and any(
                            b"prompt_complete" in p.read_bytes() for p in tmp_path.rglob("_reports.jsonl")
                        )
                    )
                )
                run.process.send_signal(number)
                run.process.send_signal(number)
                code, said = await run.ended()
            assert (code, ended(tmp_path)["code"]) == (128 + number, 128 + number)
            assert f"stopped by {number.name} before the last report was accepted" in said
            assert "Traceback" not in said
        caller.fault = lambda _: None
        assert (await played(tmp_path, caller, "go", agent="/no/such/agent"))[0] == 0
        assert [each["kind"] for each in caller.taken] == ["session_update", "prompt_complete"]


async def test_told_to_send_the_rest_alone_it_sends_what_a_killed_one_left_and_begins_nothing(
    tmp_path: Path,
) -> None:
    agent = scripted("hello(); session(); p = prompted(); update('one'); update('two'); read(); stay()")
    rest = {"restOnly": True}
    async with Caller(fault=lambda each: 503 if each.report["sequence"] else None) as caller:
        async with started(tmp_path, config_of(caller, "go"), agent=agent) as run:
            await caller.until(lambda each: any(r.report["sequence"] for r in each.requests))
            run.process.kill()
            await run.ended()
        assert caller.taken == []
        caller.fault = lambda _: None
        code, _ = await played(tmp_path, caller, "go", agent="/no/such/agent", fields=rest)
        assert (code, caller.ended[0]["kind"], caller.ended[0]["error"]["code"]) == (
            6,
            "prompt_failed",
            "runner",
        )
        assert texts(caller.notifications) == ["one", "two"][: len(caller.notifications)] != []
    # In a folder in which nothing was begun it begins nothing either, whatever it was given.
    async with Caller() as caller:
        (tmp_path / "new").mkdir()
        code, said = await played(tmp_path / "new", caller, "go", agent=SAYS, fields=rest)
        assert (code, caller.requests) == (0, [])
        assert "nothing was begun here, and nothing is" in said
