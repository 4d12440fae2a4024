"""`legation sessions` with a real `legation up` and the rehearsal agent."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.cli.command import AtTerminal, json_lines, legation, rehearse
from tests.cli.server_process import running

from legation.errors import STATUS, Code

pytestmark = pytest.mark.heavy  # a server and several processes for each test


@pytest.fixture
def up(home: Path) -> Iterator[Path]:
    """The home of whoever started it."""
    with running(home) as server:
        server.line()
        yield home


def test_a_session_from_its_beginning_to_its_end(up: Path) -> None:
    work = up / "pages"
    work.mkdir()
    done = legation(
        up, "sessions", "new", "rehearsal", rehearse("say hello"), "--id", "mine", "--directory", str(work)
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == "mine"
    assert "\nhello\n" in done.stdout
    sent = legation(up, "sessions", "send", "mine", rehearse("write note.txt hi"), "--json")
    assert json_lines(sent.stdout)[-1]["type"] == "prompt-finished"
    assert (work / "note.txt").read_text() == "hi"
    crashed = legation(up, "sessions", "send", "mine", rehearse("crash 3"))
    assert crashed.returncode == STATUS[Code.AGENT_ERROR].exit
    (row,) = json_lines(legation(up, "sessions", "--json").stdout)
    assert (row["sessionId"], row["directory"]) == ("mine", str(work))
    assert legation(up, "sessions", "terminate", "mine").returncode == 0
    tail = legation(up, "sessions", "tail", "mine")
    assert tail.returncode == 0
    assert "\nhello\n" in tail.stdout
    assert legation(up, "sessions", "send", "mine", "more").returncode == STATUS[Code.SESSION_CLOSED].exit
    assert "mine" in legation(up, "events").stdout
    assert "\nhello\n" in legation(up, "events", "last").stdout
    assert legation(up, "sessions", "delete", "mine", "--yes").stdout == "deleted mine\n"
    for command in ("show", "tail", "delete"):
        gone = legation(up, "sessions", command, "mine", *(["--yes"] if command == "delete" else []))
        assert (gone.returncode, "it was deleted" in gone.stderr) == (STATUS[Code.NOT_FOUND].exit, True)
    assert "mine" not in legation(up, "sessions").stdout


def test_each_of_two_equal_messages_is_followed_to_the_end_of_its_own_turn(up: Path) -> None:
    legation(up, "sessions", "new", "rehearsal", "--id", "mine")
    legation(up, "sessions", "send", "mine", rehearse("stall 4"), "--detach")
    with ThreadPoolExecutor() as pool:
        again = ("sessions", "send", "mine", rehearse("say again"), "--json")
        sent = [pool.submit(legation, up, *again) for _ in range(2)]
        ends = [json_lines(each.result().stdout)[-1] for each in sent]
    assert {end["type"] for end in ends} == {"prompt-finished"}
    assert len({end["raw"]["turn"] for end in ends}) == 2


def test_an_agent_that_is_none_has_the_exit_code_of_the_other_commands(up: Path) -> None:
    done = legation(up, "sessions", "new", "rehersal", "hi")
    assert done.returncode == STATUS[Code.NOT_FOUND].exit
    assert "did you mean rehearsal?" in done.stderr
    assert done.returncode == legation(up, "agents", "doctor", "rehersal").returncode


def test_whoever_sits_at_the_terminal_is_asked(up: Path) -> None:
    steps = rehearse("ask write a.txt one", "ask write b.txt two", "elicit Name? who:string")
    terminal = AtTerminal(up, "sessions", "new", "rehearsal", steps, "--id", "mine")
    terminal.until("[c]ancel the turn: ")
    assert "+one" in terminal.text
    terminal.type("a\n")
    terminal.until("nothing: no answer): ")
    terminal.type("Ada\n")
    assert terminal.end() == 0
    assert terminal.text.count("Allow it?") == 1  # the second is granted
    assert '"who": "Ada"' in terminal.text
    (row,) = json_lines(legation(up, "sessions", "--json").stdout)
    assert sorted(path.name for path in Path(row["directory"]).glob("*.txt")) == ["a.txt", "b.txt"]


def test_an_answer_that_does_not_fit_is_asked_for_again(up: Path) -> None:
    terminal = AtTerminal(up, "sessions", "new", "rehearsal", rehearse("elicit Sure? ok:boolean"))
    terminal.until("nothing: no answer): ")
    terminal.type("perhaps\n")
    terminal.until("; correct the answers\n\nasked: Sure?\n  ok (Yes | No; nothing: no answer): ")
    terminal.type("Yes\n")
    assert terminal.end() == 0
    assert '"ok": true' in terminal.text


def test_an_answer_given_elsewhere_takes_the_question_back(up: Path) -> None:
    terminal = AtTerminal(up, "sessions", "new", "rehearsal", rehearse("ask write a.txt one"))
    terminal.until("[c]ancel the turn: ")
    (pending,) = json_lines(legation(up, "approvals", "--json").stdout)
    assert legation(up, "approvals", "deny", pending["id"]).returncode == 0
    assert terminal.end() == 0
    assert "(no longer asked)" in terminal.text


def test_ctrl_c_cancels_the_turn_and_leaves_the_session(up: Path) -> None:
    steps = rehearse("say working", "stall 600")
    terminal = AtTerminal(up, "sessions", "new", "rehearsal", steps, "--id", "mine")
    terminal.until("\nworking")
    terminal.interrupt()
    assert terminal.end() == STATUS[Code.CANCELLED].exit
    (row,) = json_lines(legation(up, "sessions", "show", "mine", "--json").stdout)
    assert not row["ended"]
