"""`legation exec` beside a real `legation up`: its client where it can be, by itself where it cannot, and listed either way."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import AtTerminal, json_lines, legation, rehearse
from tests.cli.server_process import running

pytestmark = pytest.mark.heavy  # a server and several processes

EDIT = rehearse("say at work", "ask write notes.txt hello")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("home")
    with running(home) as server:
        server.line()
        yield home


@pytest.fixture
def work(up: Path, tmp_path: Path) -> Path:
    """A folder that the server may use."""
    made = up / tmp_path.name
    made.mkdir()
    return made


def sessions(home: Path) -> dict[str, dict[str, Any]]:
    return {each["sessionId"]: each for each in json_lines(legation(home, "sessions", "--json").stdout)}


def test_with_a_server_up_it_is_a_session_of_the_server(up: Path, work: Path) -> None:
    before = sessions(up)
    done = legation(up, "exec", "--agent", "rehearsal", EDIT, "--yes", cwd=work)
    assert done.returncode == 0, done.stderr
    assert "at work" in done.stdout
    assert "+hello" in done.stdout
    assert "1 file(s) changed, +1 -0" in done.stdout
    (new,) = sessions(up).keys() - before.keys()
    assert f"session {new} of the server" in done.stderr
    assert f"legation events {new}" in done.stdout
    found = sessions(up)[new]
    assert (found["directory"], found["title"]) == (str(work), EDIT)
    assert "hello" in legation(up, "events", new).stdout
    assert "careful:edit" in legation(up, "trace").stdout  # decided by the server's rules, on its record


@pytest.mark.parametrize("flags", [("--unattended",), ()], ids=["unattended", "without a terminal"])
def test_nobody_there_is_a_no_at_the_server_too(up: Path, work: Path, flags: tuple[str, ...]) -> None:
    done = legation(up, "exec", "--agent", "rehearsal", EDIT, *flags, cwd=work)
    assert "denied" in done.stdout
    assert "no file changed" in done.stdout
    assert not (work / "notes.txt").exists()


def test_a_question_is_not_answered_where_nobody_is(up: Path, work: Path) -> None:
    asking = rehearse("elicit Which one? name:string", "say after it")
    done = legation(up, "exec", "--agent", "rehearsal", asking, "--yes", cwd=work)
    assert (done.returncode, "after it" in done.stdout) == (0, True), done.stderr


def test_at_a_terminal_the_person_is_asked(up: Path, work: Path) -> None:
    terminal = AtTerminal(up, "exec", "--agent", "rehearsal", EDIT, cwd=work)
    terminal.until("[y]es, once")
    terminal.type("y\n")
    terminal.until("1 file(s) changed")
    assert terminal.end() == 0
    assert (work / "notes.txt").read_text() == "hello"


def test_json_has_the_events_alone(up: Path, work: Path) -> None:
    done = legation(up, "exec", "--agent", "rehearsal", EDIT, "--yes", "--json", cwd=work)
    types = [each["type"] for each in json_lines(done.stdout)]
    assert {"prompt-started", "permission-answered", "prompt-finished"} <= set(types)


def test_a_crash_and_a_refused_mode_have_their_exit_codes(up: Path, work: Path) -> None:
    crashed = legation(up, "exec", "--agent", "rehearsal", rehearse("crash 7"), cwd=work)
    assert (crashed.returncode, "Traceback" in crashed.stderr) == (6, False), crashed.stderr
    before = sessions(up)
    refused = legation(up, "exec", "--agent", "rehearsal", EDIT, "--mode", "dreams", cwd=work)
    assert (refused.returncode, "choose from build" in refused.stderr) == (2, True), refused.stderr
    assert sessions(up).keys() == before.keys()


def test_ctrl_c_cancels_the_turn(up: Path, work: Path) -> None:
    stall = rehearse("say waiting now", "stall 600")
    terminal = AtTerminal(up, "exec", "--agent", "rehearsal", stall, cwd=work)
    terminal.until("\nwaiting now")
    terminal.interrupt()
    assert terminal.end() != 0
    assert "cancelling the turn" in terminal.text


# By itself.

AGENT = f"{shlex.quote(sys.executable)} -m legation.agents.rehearsal"
POLICY = "{name: p, rules: [{id: all, action: allow}]}"


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--command", AGENT, "--env", "PYTHONPATH"), "--command"),
        (("--agent", "rehearsal", "--env", "A=b"), "--env"),
        (("--agent", "rehearsal", "--policy", "rules.yaml"), "--policy"),
        (("--agent", "rehearsal", "--trust"), "--trust"),
        (("--agent", "rehearsal", "--idle-timeout", "90"), "--idle-timeout"),
    ],
)
def test_what_a_session_of_the_server_cannot_have_is_run_by_itself_and_listed(
    up: Path, work: Path, flags: tuple[str, ...], why: str
) -> None:
    (work / "rules.yaml").write_text(POLICY)
    before = sessions(up)
    done = legation(up, "exec", *flags, EDIT, "--yes", cwd=work, PYTHONPATH=":".join(sys.path))
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if "runs by itself" in line]
    assert said == [f"legation: runs by itself: {why} is given"]
    (new,) = sessions(up).keys() - before.keys()
    found = sessions(up)[new]
    assert (found["readOnly"], found["status"], found["directory"]) == (True, "closed", str(work))
    (row,) = (line for line in legation(up, "sessions").stdout.splitlines() if new in line)
    assert "closed, by exec" in row
    assert new not in legation(up, "ps").stdout  # it is over, and whoever ran it saw that
    changed = legation(up, "sessions", "send", new, "go on")
    assert (changed.returncode, "cannot find" in changed.stderr) == (3, True)


def test_a_folder_that_the_server_may_not_use_is_worked_in_by_itself(up: Path, tmp_path: Path) -> None:
    done = legation(up, "exec", "--agent", "rehearsal", EDIT, "--yes", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "runs by itself: the server may not use this folder" in done.stderr
    assert (tmp_path / "notes.txt").read_text() == "hello"


def test_a_policy_of_the_environment_is_never_passed_over(up: Path, work: Path) -> None:
    (rules := work / "rules.yaml").write_text("{name: p, rules: [{id: none, action: deny}]}")
    done = legation(up, "exec", "--agent", "rehearsal", EDIT, "--yes", cwd=work, LEGATION_POLICY=str(rules))
    assert f"runs by itself: the server has other rules than {rules}" in done.stderr
    assert not (work / "notes.txt").exists()


def test_an_address_of_the_environment_is_never_passed_over(up: Path, work: Path) -> None:
    agents = up / ".local/share/legation/agents.toml"
    agents.write_text(f'[agents.own]\ncommand = "{AGENT}"\nenv = ["OWN_URL"]\n')
    try:
        argv = ("exec", "--agent", "own", rehearse("say alone"))
        done = legation(up, *argv, cwd=work, OWN_URL="http://127.0.0.1:9", PYTHONPATH=":".join(sys.path))
        assert "runs by itself: OWN_URL is set here" in done.stderr, done.stderr
    finally:
        agents.unlink()


def test_without_a_server_it_says_so(tmp_path: Path) -> None:
    done = legation(tmp_path, "exec", "--agent", "rehearsal", rehearse("say alone"))
    assert (done.returncode, done.stderr) == (0, "legation: runs by itself: no server is up here\n")


def test_what_runs_by_itself_is_on_the_screen_with_what_it_asks_in_its_terminal(up: Path, work: Path) -> None:
    (work / "rules.yaml").write_text("{name: p, rules: [{id: ask, action: human_approval}]}")
    watching = AtTerminal(up, "ps", "--watch", TERM="dumb")
    watching.until("\n")
    terminal = AtTerminal(up, "exec", "--agent", "rehearsal", "--policy", "rules.yaml", EDIT, cwd=work)
    terminal.until("Allow it, once?")
    shown = legation(up, "ps").stdout
    (row,) = (line for line in shown.splitlines() if "asks in its own terminal" in line)
    assert "notes.txt" in row
    watching.until("asks in its own terminal")
    terminal.type("n\n")
    assert terminal.end() == 0
    assert "asks in its own terminal" not in legation(up, "ps").stdout
    watching.interrupt()
    assert watching.end() == 130, watching.text
