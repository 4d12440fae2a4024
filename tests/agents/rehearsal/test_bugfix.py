import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.agents.rehearsal.raw_client import WAIT, Played, RawClient, choose
from tests.programs import needs_git

from legation.cli.demo import make_demo_repo

pytestmark = pytest.mark.heavy


@pytest.fixture
def demo(work: Path) -> Path:
    make_demo_repo(work)
    return work


def plan(played: Played) -> list[str]:
    return [entry["status"] for entry in played.of("plan")[-1]["entries"]]


@needs_git
def test_the_bug_is_fixed_and_nothing_is_run_or_edited_without_permission(
    client: RawClient, demo: Path
) -> None:
    before = (demo / "pages.py").read_text()
    session = client.open(demo)
    played = client.prompt(session, "Please fix the failing test.")
    calls = [request["params"]["toolCall"] for request in played.requests]
    assert [(call["kind"], call["title"]) for call in calls] == [
        ("execute", "Run python -m unittest"),
        ("execute", "Run python -m unittest on changes in a scratch copy"),
        ("edit", "Edit pages.py"),
        ("execute", "Run python -m unittest"),
    ]
    assert {call["rawInput"]["command"] for call in calls if call["kind"] == "execute"} == {
        "python -m unittest"
    }
    unasked = [
        update["kind"]
        for update in played.of("tool_call")
        if update["toolCallId"] not in {call["toolCallId"] for call in calls}
    ]
    assert unasked == ["read", "search", "read"]
    request, call = played.requests[2], calls[2]
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


@pytest.mark.parametrize(
    ("denied", "said", "at"),
    [
        (1, "I may not run the tests here", 0),
        (2, "I may not try changes here", 1),
        (3, "The edit was not allowed", 2),
    ],
)
def test_what_is_denied_changes_nothing_and_is_admitted(
    client: RawClient, demo: Path, denied: int, said: str, at: int
) -> None:
    before = (demo / "pages.py").read_text()
    session = client.open(demo)
    answers = [choose("allow-once")] * (denied - 1) + [choose("reject-once")]
    client.handlers["session/request_permission"] = lambda request: answers.pop(0)(request)
    played = client.prompt(session, "Fix it")
    assert (demo / "pages.py").read_text() == before
    assert said in played.text
    assert (played.stop, plan(played)[at]) == ("end_turn", "in_progress")
    ran = [update for update in played.of("tool_call_update") if "exitCode" in update.get("rawOutput", {})]
    assert len(ran) == (0 if denied == 1 else 1)


def test_tests_that_may_not_run_again_are_not_said_to_pass(client: RawClient, demo: Path) -> None:
    session = client.open(demo)
    answers = [choose("allow-once")] * 3 + [choose("reject-once")]
    client.handlers["session/request_permission"] = lambda request: answers.pop(0)(request)
    played = client.prompt(session, "Fix it")
    assert "may not run the tests again" in played.text
    assert plan(played)[3] == "in_progress"


def test_plan_mode_only_tells(client: RawClient, demo: Path) -> None:
    before = (demo / "pages.py").read_text()
    session = client.open(demo)
    client.call("session/set_mode", {"sessionId": session, "modeId": "plan"})
    played = client.prompt(session, "Fix it")
    kinds = [request["params"]["toolCall"]["kind"] for request in played.requests]
    assert (kinds, (demo / "pages.py").read_text()) == (["execute", "execute"], before)
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
    kinds = {request["params"]["toolCall"]["kind"] for request in played.requests}
    assert (kinds, played.stop) == ({"execute"}, "end_turn")


def test_a_cancel_during_the_question_leaves_the_file_alone(client: RawClient, demo: Path) -> None:
    before = (demo / "pages.py").read_text()
    session = client.open(demo)

    def cancel(_: dict[str, Any]) -> dict[str, Any]:
        client.send(method="session/cancel", params={"sessionId": session})
        return {"outcome": {"outcome": "cancelled"}}

    client.handlers["session/request_permission"] = cancel
    assert client.prompt(session, "Fix it").stop == "cancelled"
    assert (demo / "pages.py").read_text() == before
