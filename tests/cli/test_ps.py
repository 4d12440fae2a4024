"""`legation ps` and what stands beside it, with a real `legation up` and the rehearsal agent."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import LIMIT, AtTerminal, json_lines, legation, rehearse
from tests.cli.server_process import running

pytestmark = pytest.mark.heavy  # a server and several processes

AT_ONCE = {"LEGATION_SUPERVISOR_WAIT": "0"}  # nobody supervises: what asks waits for a person at once


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The home of whoever started it, with one session that asks, one that has a question, one that works and one that failed."""
    home = tmp_path_factory.mktemp("home")
    work = home / "pages"
    work.mkdir()
    with running(home, **AT_ONCE) as server:
        server.line()
        for title, *script in (
            ("Cache the pages", "title Something else", "ask write cache.py pages = {}"),
            ("Which database", "elicit Which one? name:string"),
            ("Long work", "stall 600"),
            ("Broken work", "crash 3"),
        ):
            done = legation(
                home,
                "sessions",
                "new",
                "rehearsal",
                rehearse(*script),
                "--title",
                title,
                "--detach",
                "--directory",
                str(work),
            )
            assert done.returncode == 0, done.stderr
        until(home, you=2, wrong=1, working=1)
        yield home


def until(home: Path, **wanted: int) -> dict[str, Any]:
    deadline = time.monotonic() + LIMIT
    while True:
        (inbox,) = json_lines(legation(home, "ps", "--json").stdout)
        works = [each for each in inbox["works"] if each["sessionTitle"] == "Long work"]
        found = inbox["counts"] | {"working": len(works)}
        if all(found[name] == count for name, count in wanted.items()):
            return inbox
        assert time.monotonic() < deadline, inbox


def test_one_screen_says_what_waits_works_and_went_wrong(up: Path) -> None:
    shown = legation(up, "ps").stdout
    heads = [line for line in shown.splitlines() if line and not line.startswith(" ")]
    assert heads[:2] == ["waits for you (2)", "went wrong (1)"]
    assert heads[2].startswith("works (")
    (asks,) = (line for line in shown.splitlines() if "Edit cache.py" in line)
    for word in ("apr_", "Cache the pages", "rehearsal", "~/pages", "left"):
        assert word in asks
    assert "Answer Which one?" in shown
    assert "Long work" in shown
    assert "Broken work" in shown


def test_what_waits_does_not_work_at_the_same_time(up: Path) -> None:
    shown = legation(up, "ps").stdout
    assert shown.count("Cache the pages") == 1
    assert shown.count("Which database") == 1


def test_a_session_that_nobody_named_has_the_name_of_its_prompt(tmp_path: Path) -> None:
    with running(tmp_path, **AT_ONCE) as server:
        server.line()
        prompt = rehearse("ask write a.txt b")
        new = ("sessions", "new", "rehearsal", prompt, "--detach")
        assert legation(tmp_path, *new).returncode == 0
        until(tmp_path, you=1)
        (row,) = (each for each in legation(tmp_path, "ps").stdout.splitlines() if "apr_" in each)
        assert "  #!rehearse ask write" in row
        assert "#!rehearse" in legation(tmp_path, "approvals").stdout


def test_a_run_that_waits_is_told_by_its_task(tmp_path: Path) -> None:
    with running(tmp_path, **AT_ONCE) as server:
        server.line()
        submitted = legation(tmp_path, "run", "Mend it", "--agent", "rehearsal", "--detach")
        until(tmp_path, you=1)
        for shown in (legation(tmp_path, "ps").stdout, legation(tmp_path, "approvals").stdout):
            (row,) = (each for each in shown.splitlines() if "apr_" in each)
            assert "Run python -m unittest" in row
            assert "Mend it" in row
        run = submitted.stdout.strip()
        assert legation(tmp_path, "runs", "cancel", run).returncode == 0
        assert (
            legation(tmp_path, "runs", "wait", run).stdout == f"{run} cancelled\n"
        )  # else its agent outlives the test


def test_what_a_person_named_it_is_not_overwritten_by_the_agent(up: Path) -> None:
    shown = legation(up, "sessions").stdout
    assert "Cache the pages" in shown
    assert "Something else" not in shown
    assert "Something else" not in legation(up, "ps").stdout


def test_approvals_and_status_say_it_too(up: Path) -> None:
    (row,) = (line for line in legation(up, "approvals").stdout.splitlines() if "apr_" in line)
    assert "Edit cache.py" in row
    assert "Cache the pages" in row
    assert "2 wait for you: legation ps" in legation(up, "status").stdout


def test_plain_legation_is_the_same_where_one_is_up_and_help_where_none_is(up: Path, tmp_path: Path) -> None:
    assert "waits for you (2)" in legation(up).stdout
    assert "Usage: legation COMMAND" in legation(tmp_path).stdout


def test_whoever_watches_sees_it_change(up: Path) -> None:
    at = AtTerminal(up, "ps", "--watch", TERM="xterm")
    at.until("waits for you (2)")
    (asked,) = json_lines(legation(up, "approvals", "--json").stdout)
    assert legation(up, "approvals", "deny", asked["id"]).returncode == 0
    at.until("waits for you (1)")
    at.interrupt()
    assert at.end() == 130


def test_whoever_watches_goes_on_with_the_next_server(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        server.line()
        at = AtTerminal(tmp_path, "ps", "--watch")
        at.until("nothing waits for you")
        server.stop()
    at.until("the server went away")
    with running(tmp_path) as server:
        server.line()
        at.until("the server is back")
        asks = rehearse("ask write a.txt b")
        new = ("sessions", "new", "rehearsal", asks, "--title", "After it", "--detach")
        assert legation(tmp_path, *new).returncode == 0
        at.until("After it")
        at.interrupt()
        assert at.end() == 130, at.text


def test_what_was_looked_at_is_gone_from_the_screen(up: Path) -> None:
    (wrong,) = (each for each in until(up, wrong=1)["items"] if each["section"] == "wrong")
    assert legation(up, "sessions", "show", wrong["sessionId"]).returncode == 0
    until(up, wrong=0)
    assert "Broken work" not in legation(up, "ps").stdout


def test_without_a_server_it_says_how_to_start_one(tmp_path: Path) -> None:
    done = legation(tmp_path, "ps")
    assert (done.returncode, done.stdout) == (10, "")
    assert "legation up" in done.stderr
