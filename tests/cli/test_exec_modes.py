"""`legation exec` with agents that would rather not ask: like qwen-code, like mistral-vibe, and worse ones."""

import json
import sys
from pathlib import Path

import pytest
from tests.agents.bytes_agent import PRELUDE
from tests.agents.modes_agent import QWEN, VIBE, moody
from tests.cli.command import AtTerminal, json_lines, legation

pytestmark = pytest.mark.heavy  # two processes for each test

NONE = moody(offers=["auto", "yolo"])
INSISTS = moody(opens="default", leaves="yolo", asking={"default"})


def program(folder: Path, agent: str) -> tuple[str, ...]:
    file = folder / "agent.py"
    file.write_text(PRELUDE + agent)
    return "exec", "--command", f"{sys.executable} -I -S {file}", "write it"


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("agent", [QWEN, VIBE], ids=["qwen-code", "mistral-vibe"])
def test_an_agent_that_opens_in_a_mode_that_does_not_ask_writes_nothing_unattended(
    agent: str, home: Path, work: Path
) -> None:
    done = legation(home, *program(home, agent), "--unattended", cwd=work)
    assert not (work / "out.txt").exists()
    assert "denied · unattended · Write out.txt" in done.stdout
    assert "which does not ask: put into default" in done.stdout
    assert done.returncode == 0


def test_one_that_has_no_asking_mode_is_stopped_at_what_it_does_and_the_exit_code_says_so(
    home: Path, work: Path
) -> None:
    done = legation(home, *program(home, NONE), "--unattended", cwd=work)
    assert "! UNASKING · it began in mode auto, in which it asks nobody" in done.stdout
    assert "! UNASKED · Write out.txt: done, and nobody had allowed it" in done.stdout
    assert "careful:edit would have asked a supervisor; the turn is ended" in done.stdout
    assert done.returncode == 6
    [trace] = home.glob("**/sessions/*/trace.jsonl")
    steps = [json.loads(line) for line in trace.read_text().splitlines()]
    assert [step["step"]["step"] for step in steps].count("unasked") == 2  # the mode and the effect


def test_without_a_terminal_it_is_the_same(home: Path, work: Path) -> None:
    done = legation(home, *program(home, NONE), "--json", cwd=work)
    assert done.returncode == 6
    [effect] = [each for each in json_lines(done.stdout) if each["type"] == "unasked-effect"]
    assert effect["raw"]["endsTurn"] is True


def test_one_that_leaves_its_mode_is_told_of(home: Path, work: Path) -> None:
    done = legation(home, *program(home, INSISTS), "--unattended", cwd=work)
    assert "it went to mode yolo" in done.stdout
    assert done.returncode == 6


def test_where_somebody_watches_the_terminal_it_is_a_warning(home: Path, work: Path) -> None:
    terminal = AtTerminal(home, *program(home, NONE), cwd=work)
    assert terminal.end() == 0
    assert "! UNASKED · Write out.txt" in terminal.text
    assert "the turn is ended" not in terminal.text


def test_a_policy_may_stop_it_there_too(home: Path, work: Path) -> None:
    (home / "policy.yaml").write_text("name: p\nunasked: stop\nrules: [{action: human_approval}]\n")
    terminal = AtTerminal(home, *program(home, NONE), "--policy", str(home / "policy.yaml"), cwd=work)
    assert terminal.end() == 6
    assert "p:rule-1 would have asked a person; the turn is ended" in terminal.text


def test_yes_is_said_beforehand_and_a_deny_stays_one(home: Path, work: Path) -> None:
    done = legation(home, *program(home, NONE), "--yes", cwd=work)
    assert done.returncode == 0
    assert "UNASKED" not in done.stdout
    (home / "policy.yaml").write_text("name: p\nrules: [{kind: edit, action: deny}]\n")
    done = legation(home, *program(home, NONE), "--yes", "--policy", str(home / "policy.yaml"), cwd=work)
    assert done.returncode == 6


def test_a_mode_that_does_not_ask_is_refused(home: Path, work: Path) -> None:
    for agent, mode in ((QWEN, "yolo"), (VIBE, "Auto-Approve"), (QWEN, "bypassPermissions")):
        done = legation(home, *program(home, agent), "--mode", mode, "--yes", cwd=work)
        assert done.returncode == 4
        assert "in it the agent does not ask" in done.stderr
    assert not (work / "out.txt").exists()


def test_a_mode_that_asks_is_taken_and_an_unknown_one_is_named(home: Path, work: Path) -> None:
    done = legation(home, *program(home, QWEN), "--mode", "Plan", "--yes", cwd=work)
    assert "in mode plan" in done.stdout
    done = legation(home, *program(home, QWEN), "--mode", "dreams", cwd=work)
    assert done.returncode == 2
    assert "cannot choose mode 'dreams': choose from plan, default" in done.stderr
