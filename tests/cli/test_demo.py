import os
import re
import select
import shutil
import signal
from pathlib import Path

import pytest
from tests.cli.command import LIMIT, AtTerminal, legation

from legation.cli import demo
from legation.cli.folders import Folders
from legation.client import Legation
from legation.proc.registry import listed

pytestmark = pytest.mark.heavy

PLACE = r"\+\+\+ b(/\S+)/pages/pages\.py"


def test_check_holds_every_line(home: Path) -> None:
    done = legation(home, "demo", "--check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "MISSING" not in done.stdout
    assert not list(home.iterdir())  # it leaves nothing, not even a data folder


def test_a_missing_line_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "PROMISES", (*demo.PROMISES, ("a miracle", "a line that nobody writes")))
    monkeypatch.setattr(demo, "_show", lambda *_: 0)
    assert demo.demo(check=True) == 1


def test_a_person_decides_in_the_demo(home: Path) -> None:
    terminal = AtTerminal(home, "demo")
    terminal.until("Allow it, once?")
    assert "killed with -9" in terminal.text
    terminal.type("n\n")
    assert terminal.end() == 0
    assert "denied · owner · Edit pages.py: demo:edit: no, in the terminal, by tester" in terminal.text
    assert "no file changed" in terminal.text
    assert "0 lost, 0 doubled" in terminal.text
    assert "left behind: nothing" in terminal.text


def test_whoever_answers_elsewhere_is_followed_at_once(home: Path) -> None:
    terminal = AtTerminal(home, "demo")
    terminal.until("Allow it, once?")
    (place,) = set(re.findall(PLACE, terminal.text))
    with Legation.find(Path(place) / "data") as server:
        (asked,) = server.approvals.list("pending")
        server.approvals.deny(asked.id, reasoning="no, in the browser")
    terminal.until("answered in the browser")
    assert terminal.end() == 0
    assert "demo:edit: no, in the browser" in terminal.text


def test_a_killed_demo_leaves_neither_server_nor_agent(home: Path) -> None:
    terminal = AtTerminal(home, "demo")
    terminal.until("Allow it, once?")
    (pid,) = map(int, re.findall(r"is back \(pid (\d+)\)", terminal.text))
    server = os.pidfd_open(pid)
    terminal.kill()
    assert select.select([server], [], [], LIMIT)[0], "it goes on"
    os.close(server)
    (place,) = set(re.findall(PLACE, terminal.text))
    children = listed(Folders(Path(place) / "data").children)
    for agent in filter(
        None, (opened(child.pid) for child in children)
    ):  # a run outlives a server, but not the demo
        assert select.select([agent], [], [], LIMIT)[0], "it goes on"
        os.close(agent)
    shutil.rmtree(place)


def opened(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_whoever_stops_it_ends_the_run_and_its_agent(home: Path, number: int) -> None:
    terminal = AtTerminal(home, "demo")
    terminal.until("Allow it, once?")
    os.kill(terminal.pid, number)
    assert terminal.end() == 130
    assert "Traceback" not in terminal.text
    assert "left behind: nothing" in terminal.text


def test_the_rules_of_the_demo_are_its_own(home: Path, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("{name: p, rules: [{action: deny}]}")
    assert "demo:edit: demo:autopilot" in legation(home, "demo", LEGATION_POLICY=str(policy)).stdout
