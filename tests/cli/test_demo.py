import os
import re
import select
from pathlib import Path

import pytest
from tests.cli.command import LIMIT, AtTerminal, legation

from legation.cli import demo
from legation.client import Legation

pytestmark = pytest.mark.heavy


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
    (place,) = set(re.findall(r"\+\+\+ b(/\S+)/pages/pages\.py", terminal.text))
    with Legation.find(Path(place) / "data") as server:
        (asked,) = server.approvals.list("pending")
        server.approvals.deny(asked.id, reasoning="no, in the browser")
    terminal.until("answered in the browser")
    assert terminal.end() == 0
    assert "demo:edit: no, in the browser" in terminal.text


def test_a_killed_demo_leaves_no_server(home: Path) -> None:
    terminal = AtTerminal(home, "demo")
    terminal.until("Allow it, once?")
    (pid,) = map(int, re.findall(r"is back \(pid (\d+)\)", terminal.text))
    server = os.pidfd_open(pid)
    terminal.kill()
    assert select.select([server], [], [], LIMIT)[0], "it goes on"
    os.close(server)


def test_ctrl_c_ends_the_run_and_its_agent(home: Path) -> None:
    terminal = AtTerminal(home, "demo")
    terminal.until("Allow it, once?")
    terminal.interrupt()
    assert terminal.end() == 130
    assert "Traceback" not in terminal.text
    assert "left behind: nothing" in terminal.text


def test_the_rules_of_the_demo_are_its_own(home: Path, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("{name: p, rules: [{action: deny}]}")
    assert "demo:edit: demo:autopilot" in legation(home, "demo", LEGATION_POLICY=str(policy)).stdout
