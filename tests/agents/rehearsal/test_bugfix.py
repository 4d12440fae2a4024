import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.agents.rehearsal.rawclient import WAIT, Played, RawClient, choose
from tests.programs import needs_git

from legation.agents.rehearsal.demo_repo import make_demo_repo

pytestmark = pytest.mark.heavy


@pytest.fixture
def demo(work: Path) -> Path:
    make_demo_repo(work)
    return work


def plan(played: Played) -> list[str]:
    return [entry["status"] for entry in played.of("plan")[-1]["entries"]]


@needs_git
def test_the_bug_is_fixed_with_one_permission(client: RawClient, demo: Path) -> None:
    before = (demo / "pages.py").read_text()
    session = client.open(demo)
    played = client.prompt(session, "Please fix the failing test.")
    (request,) = played.requests
    call = request["params"]["toolCall"]
    (diff,) = call["content"]
    assert (call["kind"], len(request["params"]["options"])) == ("edit", 4)
    assert (diff["oldText"], diff["newText"]) == (before, (demo / "pages.py").read_text())
    assert "page_count(total, size) + 1" in diff["newText"]
    tests = subprocess.run(
        [sys.executable, "-B", "-m", "unittest"], cwd=demo, timeout=WAIT, capture_output=True
    )
    assert tests.returncode == 0
    assert plan(played) == ["completed"] * 4
    assert played.of("usage_update")[0]["used"] > 0
    assert played.of("agent_thought_chunk")
    assert "All 4 tests pass" in played.text
    assert played.stop == "end_turn"
    runs = [update for update in played.of("tool_call") if update["title"] == "Run python -m unittest"]
    assert len(runs) == 2
    git = subprocess.run(
        ["git", "-c", f"safe.directory={demo}", "status", "--short"],
        cwd=demo,
        timeout=WAIT,
        capture_output=True,
    )
    assert git.stdout == b" M pages.py\n"


def test_a_denied_edit_changes_nothing_and_is_admitted(client: RawClient, demo: Path) -> None:
    before = (demo / "pages.py").read_text()
    session = client.open(demo)
    client.handlers["session/request_permission"] = choose("reject-once")
    played = client.prompt(session, "Fix it")
    assert (demo / "pages.py").read_text() == before
    assert "not allowed" in played.text
    assert (played.stop, plan(played)[2:]) == ("end_turn", ["in_progress", "pending"])


def test_plan_mode_only_tells(client: RawClient, demo: Path) -> None:
    before = (demo / "pages.py").read_text()
    session = client.open(demo)
    client.call("session/set_mode", {"sessionId": session, "modeId": "plan"})
    played = client.prompt(session, "Fix it")
    assert (played.requests, (demo / "pages.py").read_text()) == ([], before)
    assert "I would change" in played.text


def test_bypass_mode_does_not_ask(client: RawClient, demo: Path) -> None:
    session = client.open(demo)
    client.call("session/set_mode", {"sessionId": session, "modeId": "bypass"})
    option = {"sessionId": session, "configId": "model", "value": "rehearsal-terse"}
    client.call("session/set_config_option", option)
    played = client.prompt(session, "Fix it")
    assert played.requests == []
    assert "Fixed. pages.py, line 19" in played.text


FAILING = """
import unittest


class T(unittest.TestCase):
    def test_hopeless(self):
        self.assertEqual("a", "b")
"""


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "I found no tests here"),
        ({"test_a.py": FAILING.replace('"b"', '"a"')}, "All 1 tests pass"),
        ({"test_a.py": FAILING, "a.py": "def f(n):\n    return n < 1\n"}, "I changed nothing"),
        ({"test_a.py": "import nothing_of_that_name"}, "I changed nothing"),
    ],
)
def test_it_says_so_when_there_is_nothing_it_can_fix(
    client: RawClient, work: Path, files: dict[str, str], said: str
) -> None:
    for name, text in files.items():
        (work / name).write_text(text)
    session = client.open(work)
    played = client.prompt(session, "Fix it")
    assert said in played.text
    assert (played.requests, played.stop) == ([], "end_turn")


def test_a_cancel_during_the_question_leaves_the_file_alone(client: RawClient, demo: Path) -> None:
    before = (demo / "pages.py").read_text()
    session = client.open(demo)

    def cancel(_: dict[str, Any]) -> dict[str, Any]:
        client.send(method="session/cancel", params={"sessionId": session})
        return {"outcome": {"outcome": "cancelled"}}

    client.handlers["session/request_permission"] = cancel
    assert client.prompt(session, "Fix it").stop == "cancelled"
    assert (demo / "pages.py").read_text() == before
