"""`legation approvals watch` with a person at a real pseudo-terminal, and in a pipe."""

import asyncio
import re
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.command import LIMIT, environment, json_lines
from tests.cli.screen import OURS, at_screen
from tests.client.canned_door import TOKEN, CannedServer, canned, view

from legation.cli.approvals_watch import ENTER, LEAVE
from legation.wire.api.approvals import Approve, Escalation, Resolution

pytestmark = pytest.mark.heavy  # processes and a server each

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"


@pytest.fixture
def server() -> Iterator[CannedServer]:
    with canned(view("apr_1"), view("apr_2", tool="Edit"), view("apr_3")) as running:
        yield running


def statuses(server: CannedServer) -> list[str]:
    return [each.status for each in server.door.approvals.values()]


def test_the_first_is_shown_with_all_that_decides_it_and_answered_by_one_key(
    home: Path, server: CannedServer
) -> None:
    with at_screen(home, server) as screen:
        screen.asked("apr_1")
        shown = "\n".join(screen.lines)
        for words in (
            "3 pending",
            "> apr_1",
            "Bash",
            "claude-1",
            "careful:ask",
            "make deploy",
            "recent",
            "a person",
        ):
            assert words in shown
        assert re.search(r"4m(30|2\d)s", shown)
        screen.type("y")
        screen.asked("apr_2")
        assert statuses(server) == ["approved", "pending", "pending"]
        assert server.door.bodies[1:] == [Approve()]
        assert "apr_1 (Bash of claude-1): approved by you" in "\n".join(screen.lines)
        screen.type("q")
        assert screen.end() == 0


def test_a_denial_may_say_why_and_can_be_taken_back_before_it_is_sent(
    home: Path, server: CannedServer
) -> None:
    with at_screen(home, server) as screen:
        screen.asked("apr_1")
        screen.type("n")
        screen.until("why?")
        screen.type("oops")
        screen.until("oops")
        screen.type("\x1b")
        screen.asked("apr_1")
        assert statuses(server) == ["pending"] * 3
        screen.type("n")
        screen.until("why?")
        screen.type("use q, ymx\x7f\x7fé not main")
        screen.until("use q, yé not main")
        screen.type("\r")
        screen.asked("apr_2")
        reason = "use q, yé not main"
        assert server.door.bodies[-1] == Resolution(reasoning=reason, message=reason)
        screen.type("n")
        screen.until("why?")
        screen.type("\r")
        screen.asked("apr_3")
        assert server.door.bodies[-1] == Resolution()
        assert statuses(server) == ["denied", "denied", "pending"]


def test_one_is_chosen_and_escalated(home: Path, server: CannedServer) -> None:
    with at_screen(home, server) as screen:
        screen.asked("apr_1")
        screen.type("j")
        screen.asked("apr_2")
        screen.type("\x1b[B")
        screen.asked("apr_3")
        screen.type("k")
        screen.asked("apr_2")
        screen.type("e")
        screen.until("apr_2 (Edit of claude-1): left to a person")
        assert server.door.bodies[-1] == Escalation()
        screen.asked("apr_2")  # it is still there to be answered


def test_identical_ones_are_answered_together_and_only_when_confirmed(home: Path) -> None:
    same = [view(f"apr_{number}", group="grp_s") for number in (1, 2)]
    with canned(*same, view("apr_3")) as server, at_screen(home, server) as screen:
        screen.asked("apr_1")
        assert "[i] with 1 identical" in screen.question
        screen.type("i")
        screen.until("all identical, 2 in all")
        screen.type("\x1b")
        screen.asked("apr_1")
        screen.type("i")
        screen.until("all identical, 2 in all")
        screen.type("y")
        screen.asked("apr_3")
        assert statuses(server) == ["approved", "approved", "pending"]


def test_what_somebody_else_answered_is_gone_at_once_says_who_and_takes_no_key(
    home: Path, server: CannedServer
) -> None:
    with at_screen(home, server) as screen:
        screen.asked("apr_1")
        server.resolve("apr_1", "denied", by="user:usr_bob")
        screen.until("2 pending")
        assert "apr_1 (Bash of claude-1): denied by user:usr_bob" in "\n".join(screen.lines)
        assert not any(text.startswith("> ") for text in screen.lines)
        screen.type("y")  # meant for apr_1
        screen.type("?")  # is read after it
        screen.until("this help")
        assert statuses(server) == ["denied", "pending", "pending"]
        screen.type("x")
        screen.type("j")
        screen.asked("apr_2")
        screen.type("y")
        screen.asked("apr_3")
        assert statuses(server) == ["denied", "approved", "pending"]


def test_a_reason_for_what_is_answered_meanwhile_goes_nowhere(home: Path, server: CannedServer) -> None:
    with at_screen(home, server) as screen:
        screen.asked("apr_1")
        screen.type("n")
        screen.until("why?")
        server.resolve("apr_1", "approved", by="user:usr_bob")
        screen.until("nothing to answer here")
        screen.type("because\ry")
        screen.type("?")
        screen.until("this help")
        assert statuses(server) == ["approved", "pending", "pending"]


def test_keys_typed_before_a_question_was_shown_are_no_answer_to_it(home: Path, server: CannedServer) -> None:
    with at_screen(home, server) as screen:
        screen.type("yyyy")  # before anything is on the screen
        screen.asked("apr_1")
        assert statuses(server) == ["pending"] * 3
        screen.type("yyyyy")  # one answer, and what was typed ahead
        screen.asked("apr_2")
        assert statuses(server) == ["approved", "pending", "pending"]
        screen.type("jy")  # the details of the next were not seen
        screen.asked("apr_3")
        assert statuses(server) == ["approved", "pending", "pending"]


def test_what_is_pasted_is_no_answer(home: Path, server: CannedServer) -> None:
    with at_screen(home, server) as screen:
        screen.asked("apr_1")
        screen.type("\x1b[200~yes, y\x1b[201~?")
        screen.until("this help")
        assert statuses(server) == ["pending"] * 3


def test_a_new_one_comes_in_while_nothing_is_pending(home: Path) -> None:
    with canned() as server, at_screen(home, server) as screen:
        screen.until("nothing waits for an answer")
        server.propose(view("apr_9"))
        screen.asked("apr_9")
        screen.type("y")
        screen.until("0 pending")
        assert statuses(server) == ["approved"]


def test_a_newer_one_does_not_take_the_place_of_the_one_looked_at(home: Path, server: CannedServer) -> None:
    with at_screen(home, server) as screen:
        screen.asked("apr_1")
        server.propose(view("apr_0"))
        screen.until("4 pending")
        assert screen.question.startswith("apr_1: [y]")
        screen.type("y")
        screen.until("3 pending")
        assert server.door.approvals["apr_0"].status == "pending"
        assert server.door.approvals["apr_1"].status == "approved"


def test_nothing_an_agent_wrote_reaches_the_terminal_raw(home: Path) -> None:
    evil = view(
        "apr_1",
        agent_id=EVIL,
        tool=EVIL,
        policy_rule=EVIL,
        params={EVIL: f"{EVIL}\napr_1: [y]"},
        injection_risk=True,
    )
    with canned(evil) as server, at_screen(home, server) as screen:
        screen.asked("apr_1")
        assert "INJECTION" in "\n".join(screen.lines)
        server.resolve("apr_1", "denied", by=f"user:{EVIL}")
        screen.until("denied by")
        screen.type("q")
        assert screen.end() == 0
        ours = screen.raw.replace(ENTER, "").replace(LEAVE, "").replace("\x1b[H", "").replace("\x1b[J", "")
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(OURS.sub("", ours))


def test_arguments_that_do_not_fit_are_not_approved_unseen(home: Path) -> None:
    long = view("apr_1", params={"script": [f"line {number}" for number in range(40)], "end": "x" * 300})
    with canned(long) as server, at_screen(home, server, rows=24, columns=60) as screen:
        screen.asked("apr_1")
        assert "space shows them" in "\n".join(screen.lines)
        assert all(len(text) <= 60 for text in screen.lines)
        screen.type("y")
        screen.until("NOT shown: [y] approve anyway")
        screen.type("n")
        screen.asked("apr_1")
        assert statuses(server) == ["pending"]
        while "space shows them" in "\n".join(screen.lines):
            now = screen.lines
            screen.type(" ")
            screen.until(lambda lines, now=now: lines[-2] != "" and lines != now)  # type: ignore[misc]
        assert "xxxx" in "\n".join(screen.lines)
        screen.type("y")
        screen.until("0 pending")
        assert statuses(server) == ["approved"]


def test_a_refusal_is_told_and_the_question_stays(home: Path) -> None:
    with canned(view("apr_1", agent_id="forbidden")) as server, at_screen(home, server) as screen:
        screen.asked("apr_1")
        screen.type("y")
        screen.until("cannot answer this approval: it needs a person")
        screen.asked("apr_1")


def test_another_size_is_drawn_anew(home: Path, server: CannedServer) -> None:
    with at_screen(home, server) as screen:
        screen.asked("apr_1")
        screen.resize(12, 40)
        screen.process.send_signal(signal.SIGWINCH)
        screen.until(lambda lines: len(lines) == 12 and max(map(len, lines)) <= 40)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)]
)
def test_a_signal_leaves_the_terminal_as_it_was(
    home: Path, server: CannedServer, number: signal.Signals, code: int
) -> None:
    with at_screen(home, server) as screen:
        screen.asked("apr_1")
        screen.process.send_signal(number)
        assert screen.end() == code
        assert screen.errors() == ""


def test_a_terminal_that_is_closed_ends_it_and_answers_nothing(home: Path, server: CannedServer) -> None:
    with at_screen(home, server) as screen:
        screen.asked("apr_1")
        screen.hang_up()
        assert screen.process.wait(LIMIT) == 129
        assert "Traceback" not in screen.errors()
        assert statuses(server) == ["pending"] * 3


def test_an_error_leaves_the_terminal_as_it_was_and_is_told(home: Path, server: CannedServer) -> None:
    with at_screen(home, server) as screen:
        screen.asked("apr_1")
        assert server.door.stream is not None
        asyncio.run_coroutine_threadsafe(server.door.stream.delete(), server.loop).result(LIMIT)
        assert screen.end() == 10
        assert screen.errors().startswith("legation: cannot go on watching")


def test_a_server_that_is_not_there_is_told_before_the_terminal_is_touched(home: Path) -> None:
    with canned() as gone:
        pass
    with at_screen(home, gone) as screen:
        assert screen.process.wait(LIMIT) == 10
        assert "see whether the server is up" in screen.errors()
        assert termios.tcgetattr(screen.program) == screen.before


@contextmanager
def piped(home: Path, server: CannedServer, *argv: str) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-m", "legation", "approvals", "watch", *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(home, LEGATION_URL=server.url, LEGATION_TOKEN=TOKEN),
        cwd=home,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_in_a_pipe_it_is_one_line_for_each_change(home: Path, server: CannedServer) -> None:
    with piped(home, server) as process:
        assert process.stdout is not None
        for number in (1, 2, 3):
            assert process.stdout.readline().startswith(f"apr_{number}  pending  ")
        server.propose(view("apr_4", tool=EVIL))
        server.resolve("apr_1", "approved", by="user:usr_bob")
        new, old = process.stdout.readline(), process.stdout.readline()
    assert "apr_4  pending" in new
    assert "\x1b" not in new
    assert "apr_1  approved by user:usr_bob  Bash of claude-1" in old


def test_as_json_it_begins_where_it_is_told(home: Path, server: CannedServer) -> None:
    server.propose(view("apr_4"))
    server.resolve("apr_4", "denied")
    with piped(home, server, "--json", "--after", "0") as process:
        assert process.stdout is not None
        text = process.stdout.readline() + process.stdout.readline()
    first, second = json_lines(text)
    assert (first["seq"], first["id"], first["status"]) == (1, "apr_4", "pending")
    assert (second["seq"], second["status"], second["resolvedBy"]) == (2, "denied", "user:usr_other")
