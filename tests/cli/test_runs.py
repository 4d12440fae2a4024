"""`legation run` and `legation runs` with a real `legation up`, whose worker runs the rehearsal agent."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.command import LIMIT, AtTerminal, json_lines, legation, rehearse
from tests.cli.server_process import running

from legation.client import Legation

pytestmark = pytest.mark.heavy  # a server and several processes for each test


@contextmanager
def a_run_at_a_terminal(up: Path) -> Iterator[AtTerminal]:
    terminal = AtTerminal(up, "run", rehearse("say begun", "stall 600"), "--agent", "rehearsal")
    try:
        yield terminal
    finally:
        terminal.kill()


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The home of whoever started it."""
    home = tmp_path_factory.mktemp("home")
    with running(home) as server:
        server.line()
        yield home
        assert server.stop() == 0


def test_a_run_from_its_task_to_its_patch(up: Path) -> None:
    work = up / "work"
    work.mkdir()
    (work / "note.txt").write_text("old\n")
    task = rehearse("say hello", "ask edit note.txt old => new")
    terminal = AtTerminal(up, "run", task, "--agent", "rehearsal", "--repo", str(work))
    terminal.until("Allow it, once?")
    assert "rehearsal asks: Edit note.txt" in terminal.text
    assert "why you: rule careful:edit asks a person" in terminal.text
    assert "\n-old\n+new" in terminal.text
    assert (work / "note.txt").read_text() == "old\n"
    terminal.type("perhaps\n")
    terminal.until("Allow it, once? [y]es [n]o: perhaps\nAllow it, once?")
    terminal.type("y\n")
    assert terminal.end() == 0, terminal.text
    run = terminal.text.splitlines()[0]
    assert run.startswith("run_")
    assert "hello" in terminal.text
    assert f"{run} succeeded" in terminal.text
    assert (
        terminal.text.index("\n-old\n+new")
        < terminal.text.rindex("succeeded")
        < terminal.text.rindex("\n-old\n+new")
    )
    assert (work / "note.txt").read_text() == "new\n"
    shown = legation(up, "runs", "show", run)
    assert "state        succeeded (succeeded)" in shown.stdout
    assert "\n-old\n+new" in legation(up, "runs", "show", run, "--diff").stdout
    (row,) = json_lines(legation(up, "runs", "show", run, "--json").stdout)
    assert (row["id"], row["state"], row["cleanup"]) == (run, "succeeded", "succeeded")
    tail = legation(up, "runs", "tail", run, "--json")
    assert tail.returncode == 0
    events = json_lines(tail.stdout)
    assert [event["seq"] for event in events] == [*range(1, len(events) + 1)]
    assert events[-1]["type"] == "prompt-finished"
    listed = [row["id"] for row in json_lines(legation(up, "runs", "--search", run, "--json").stdout)]
    assert listed == [run]


def test_one_that_fails_is_1_one_not_waited_for_is_3_and_a_cancelled_one_is_1(up: Path) -> None:
    failed = legation(up, "run", rehearse("crash 3"), "--agent", "rehearsal", "--json")
    assert failed.returncode == 1
    last = json_lines(failed.stdout)[-1]
    assert (last["state"], last["errorClass"]) == ("failed", "agent_failed")
    left = legation(up, "run", rehearse("stall 600"), "--agent", "rehearsal", "--detach")
    run = left.stdout.strip()
    assert left.returncode == 0
    late = legation(up, "runs", "wait", run, "--timeout", "0.2")
    assert (late.returncode, "has not ended" in late.stdout) == (3, True)
    assert legation(up, "runs", "cancel", run).stdout == f"{run} is being cancelled\n"
    ended = legation(up, "runs", "wait", run)
    assert (ended.returncode, ended.stdout) == (1, f"{run} cancelled\n")
    assert legation(up, "runs", "cancel", run).stdout == f"{run} has ended already\n"


def test_ctrl_c_cancels_the_run(up: Path) -> None:
    terminal = AtTerminal(up, "run", rehearse("say begun", "stall 600"), "--agent", "rehearsal")
    terminal.until("begun")
    terminal.interrupt()
    terminal.until(" cancelled")
    assert terminal.end() == 1


def test_a_run_waits_for_somebody_and_says_so_and_a_no_is_a_no(up: Path) -> None:
    work = up / "asked"
    work.mkdir()
    task = rehearse("ask write note.txt hi", "say after it")
    left = legation(up, "run", task, "--agent", "rehearsal", "--repo", str(work), "--detach")
    run = left.stdout.strip()
    deadline = time.monotonic() + LIMIT
    while (shown := json_lines(legation(up, "runs", "show", run, "--json").stdout)[0])["state"] != "waiting":
        assert time.monotonic() < deadline, shown
    assert (shown["status"], shown["liveness"]) == ("provider_idle", "waiting-on-you")
    assert shown["waitsOn"] in ("supervisor", "person")
    assert f"{shown['waitsFor']} ({shown['waitsOn']})" in legation(up, "runs", "show", run).stdout
    asked = json_lines(legation(up, "approvals", "--json").stdout)
    (approval,) = (each for each in asked if each["id"] == shown["waitsFor"])
    assert approval["agent_id"] == "rehearsal"
    (diff,) = json_lines(legation(up, "approvals", "show", approval["id"], "--json").stdout)[0]["diffs"]
    assert (diff["path"], diff["new_text"]) == (str(work / "note.txt"), "hi")
    no = ("approvals", "deny", approval["id"], "--reason", "not in this folder")
    assert legation(up, *no).returncode == 0
    ended = legation(up, "runs", "wait", run)
    assert (ended.returncode, ended.stdout) == (0, f"{run} succeeded\n")
    assert not (work / "note.txt").exists()
    assert json_lines(legation(up, "runs", "show", run, "--json").stdout)[0]["waitsFor"] is None
    events = json_lines(legation(up, "runs", "tail", run, "--json").stdout)
    (answered,) = (each["raw"] for each in events if each["type"] == "permission-answered")
    assert (
        answered["reason"] == "careful:edit: not in this folder"
    )  # by which rule somebody was asked, and what they said
    assert answered["message"] == "not in this folder"  # what the agent was told


def test_mistakes_are_told_in_one_line(up: Path) -> None:
    for argv, words in (
        (("run", "x", "--agent", "claude"), "being signed in does not count for runs"),
        (("run", "x"), "cannot run without an agent"),
        (("run", "x", "--agent", "nobody"), "cannot find agent 'nobody'"),
        (("run", "x", "--agent", "rehearsal", "--key-file", "k"), "which needs none"),
        (("run", "x", "--agent", "claude", "--key-file", "absent"), "cannot read the key"),
        (("run", "x", "--agent", "rehearsal", "--env", "API_KEY=1"), "looks like a secret"),
        (("run", "x", "--agent", "rehearsal", "--var", "one"), "NAME=VALUE"),
    ):
        done = legation(up, *argv)
        assert (done.returncode, done.stdout) == (2, ""), (argv, done)
        assert words in done.stderr
        assert len(done.stderr.splitlines()) == 1
    for command in ("show", "tail", "wait", "cancel", "resume"):
        gone = legation(up, "runs", command, "run_absent")
        assert (gone.returncode, "as `legation runs` lists it" in gone.stderr) == (3, True), gone


def test_the_client_runs_waits_and_follows(up: Path) -> None:
    with Legation.find(up / ".local/share/legation") as client:
        run = client.run("rehearsal", rehearse("say hello"), key="once")
        assert client.run("rehearsal", rehearse("say hello"), key="once").id == run.id
        assert run.wait(60).state == "succeeded"
        with run.stream_events() as events:
            kinds = [event.type for event in events]
        assert kinds[-1] == "prompt-finished"
        assert "agent-message-chunk" in kinds
        assert [each.type for each in run.events(content=False)] == kinds
        assert run.cancel().state == "succeeded"
