"""`legation approvals` as a process, against a server whose approvals a test chooses."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.canned_command import Command, command
from tests.cli.command import json_lines, legation
from tests.client.canned_door import CannedServer, canned, view

from legation.wire.api.approvals import Approve, Escalation, Resolution

pytestmark = pytest.mark.heavy  # a process or more for each test

EVIL = "\x1b]0;owned\x07\x1b[2J\u202egnp.exe"


@pytest.fixture
def server() -> Iterator[CannedServer]:
    pending = view("apr_1", group="grp_x"), view("apr_2", group="grp_x"), view("apr_3", tool="Edit")
    done = view("apr_4", status="denied", resolved_by="user:usr_9", resolved_at="2027-01-15T08:00:00Z")
    with canned(*pending, done) as running:
        yield running


@pytest.fixture
def run(home: Path, server: CannedServer) -> Command:
    return command(home, server)


def test_a_bare_noun_lists_what_is_pending(run: Command, server: CannedServer) -> None:
    done = run("approvals")
    assert (done.returncode, done.stderr) == (0, "")
    head, *rows = done.stdout.splitlines()
    assert head.split() == ["id", "agent", "what", "session", "rule", "asked", "needs", "left", "note"]
    assert [row.split()[0] for row in rows] == ["apr_1", "apr_2", "apr_3"]
    assert "4m30s" in rows[0]
    assert server.door.bodies == [("pending", "", "", 100)]


def test_a_list_is_chosen_by_status_tool_and_agent(run: Command, server: CannedServer) -> None:
    found = json_lines(
        run("approvals", "--status", "denied", "--tool", "B*", "--agent", "a", "--json").stdout
    )
    assert [one["id"] for one in found] == ["apr_4"]
    assert server.door.bodies[-1] == ("denied", "B*", "a", 100)
    assert "user:usr_9" in run("approvals", "--all").stdout
    assert server.door.bodies[-1][0] == ""
    assert len(run("approvals", "--limit", "2").stdout.splitlines()) == 3


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--all", "--status", "denied"), "give --status or --all"),
        (("--status", "pendign"), "pendign"),
        (("--limit", "0"), "a number from 1"),
    ],
)
def test_a_list_that_cannot_be_is_a_usage_error(run: Command, argv: tuple[str, ...], words: str) -> None:
    done = run("approvals", *argv)
    assert done.returncode == 2
    assert words in done.stderr


def test_one_is_shown_with_everything_that_decides_it(run: Command) -> None:
    shown = run("approvals", "show", "apr_1").stdout
    for words in ("Bash", "claude-1", "careful:ask", "a person", '"command": "make deploy"', "4m30s", "Read"):
        assert words in shown
    (found,) = json_lines(run("approvals", "show", "apr_1", "--json").stdout)
    assert found["params"] == {"command": "make deploy"}


def test_nothing_an_agent_wrote_reaches_the_terminal_raw(run: Command, server: CannedServer) -> None:
    evil = view(
        f"apr_e{EVIL}", agent_id=EVIL, tool=EVIL, policy_rule=EVIL, params={EVIL: EVIL, "n": "a\nstatus x"}
    )
    server.propose(evil)
    for argv in (("approvals",), ("approvals", "show", evil.id), ("approvals", "approve", evil.id)):
        done = run(*argv)
        assert done.returncode == 0, done.stderr
        assert not {"\x1b", "\x07", "\u202e"} & set(done.stdout)
    assert "\nstatus x" not in run("approvals", "show", evil.id).stdout


def test_approving_and_denying_send_what_was_said(run: Command, server: CannedServer) -> None:
    done = run("approvals", "approve", "apr_1", "--reason", "fine", "--message", "go", "--params", '{"a": 1}')
    assert done.stdout == "approved apr_1 (Bash of claude-1)\n"
    assert run("approvals", "deny", "apr_3", "--reason", "no").stdout == "denied apr_3 (Edit of claude-1)\n"
    assert run("approvals", "escalate", "apr_2", "--reason", "odd").returncode == 0
    assert server.door.bodies == [
        Approve(reasoning="fine", message="go", params={"a": 1}),
        Resolution(reasoning="no"),
        Escalation(reasoning="odd"),
    ]
    assert [server.door.approvals[each].status for each in ("apr_1", "apr_2", "apr_3")] == [
        "approved",
        "pending",
        "denied",
    ]


def test_identical_ones_are_answered_together(run: Command, server: CannedServer) -> None:
    assert run("approvals", "approve", "apr_2", "--identical").stdout == "approved apr_1\napproved apr_2\n"
    assert server.door.approvals["apr_3"].status == "pending"
    done = run("approvals", "deny", "apr_2", "--identical")
    assert (done.returncode, "none of them is pending" in done.stdout) == (5, True)


@pytest.mark.parametrize("verb", ["approve", "deny"])
def test_what_was_answered_says_by_whom(run: Command, verb: str) -> None:
    done = run("approvals", verb, "apr_4")
    assert done.returncode == 5
    assert done.stderr == (
        "legation: cannot answer approval apr_4: it is denied by user:usr_9; the first answer stands\n"
    )


@pytest.mark.parametrize("id_", ["apr", "apr_", "apr_99"])
def test_an_id_counts_only_whole(run: Command, server: CannedServer, id_: str) -> None:
    for verb in ("show", "approve", "deny", "escalate"):
        done = run("approvals", verb, id_)
        assert done.returncode == 3
        assert f"cannot {verb} {id_}: there is no such approval here; give the whole id" in done.stderr
    assert all(one.status == "pending" for one in server.door.approvals.values() if one.id != "apr_4")


@pytest.mark.parametrize("params", ["[1]", "{", "x"])
def test_arguments_that_are_no_object_are_refused_before_anything_is_sent(
    run: Command, server: CannedServer, params: str
) -> None:
    done = run("approvals", "approve", "apr_1", "--params", params)
    assert (done.returncode, "no JSON object" in done.stderr) == (2, True)
    assert run("approvals", "approve", "apr_1", "--params", "{}", "--identical").returncode == 2
    assert server.door.bodies == []


def test_who_may_not_answer_is_told_why(run: Command, server: CannedServer) -> None:
    server.propose(view("apr_f", agent_id="forbidden"))
    done = run("approvals", "approve", "apr_f")
    assert (done.returncode, done.stderr) == (4, "legation: cannot answer this approval: it needs a person\n")


def test_without_a_server_the_next_command_is_named(home: Path) -> None:
    for argv in (
        ("approvals",),
        ("approvals", "approve", "apr_1"),
        ("approvals", "watch"),
        ("grants",),
        ("trace",),
    ):
        done = legation(home, *argv)
        assert done.returncode == 10
        assert "`legation up`" in done.stderr


@pytest.mark.parametrize("noun", ["approvals", "grants", "trace", "policy"])
def test_help_teaches_every_verb(home: Path, noun: str) -> None:
    verbs = {
        "approvals": ("show", "approve", "deny", "escalate", "watch"),
        "grants": ("give", "revoke"),
        "trace": ("show", "verify", "export"),
        "policy": ("check", "explain", "replay", "hits"),
    }
    shown = legation(home, noun, "--help").stdout
    for verb in verbs[noun]:
        assert verb in shown
        done = legation(home, noun, verb, "--help")
        assert done.returncode == 0
        assert len(done.stdout.splitlines()) > 5
    assert noun in legation(home, "--help").stdout


def test_the_help_of_watch_names_its_keys(home: Path) -> None:
    assert (
        "y approves the one that is shown, n denies it"
        in legation(home, "approvals", "watch", "--help").stdout
    )
