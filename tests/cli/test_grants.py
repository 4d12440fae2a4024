from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.canned_command import Command, command
from tests.cli.command import json_lines
from tests.client.canned_door import CannedServer, canned, grant

from legation.wire.api.approvals import NewGrant

pytestmark = pytest.mark.heavy  # a process or more for each test


@pytest.fixture
def server() -> Iterator[CannedServer]:
    with canned() as running:
        yield running


@pytest.fixture
def run(home: Path, server: CannedServer) -> Command:
    return command(home, server)


def test_a_grant_is_given_listed_and_revoked(run: Command, server: CannedServer) -> None:
    assert "no grants in force" in run("grants").stdout
    argv = (
        "grants",
        "give",
        "claude-*",
        "Bash",
        "--for",
        "1h",
        "--kind",
        "execute",
        "--kind",
        "read",
        "--reason",
        "r",
    )
    done = run(*argv)
    assert done.stdout == (
        "grt_1: claude-* may use Bash for 1h0m0s; end it with: legation grants revoke grt_1\n"
    )
    assert server.door.bodies == [
        NewGrant(agent="claude-*", tools="Bash", duration="1h", kinds=["execute", "read"], reason="r")
    ]
    (found,) = json_lines(run("grants", "--json").stdout)
    assert (found["id"], found["active"]) == ("grt_1", True)
    assert run("grants", "revoke", "grt_1").stdout == "revoked grt_1\n"
    again = run("grants", "revoke", "grt_1")
    assert again.returncode == 3
    assert "give the whole id, as `legation grants` lists it" in again.stderr


def test_what_ended_is_listed_only_when_asked_for(run: Command, server: CannedServer) -> None:
    server.door.grants["grt_2"] = grant(id="grt_2", active=False)
    server.door.grants["grt_3"] = grant(id="grt_3", active=False, revoked_at="T", revoked_by="user:u")
    assert "grt_2" not in run("grants").stdout
    shown = run("grants", "--all").stdout
    assert "ended 2027-" in shown
    assert "revoked T by user:u" in shown


def test_a_grant_without_an_end_cannot_be_given(run: Command, server: CannedServer) -> None:
    done = run("grants", "give", "claude-*", "Bash")
    assert (done.returncode, "--for" in done.stderr) == (2, True)
    assert server.door.bodies == []


def test_a_grant_is_for_a_session_and_a_folder(run: Command, server: CannedServer, home: Path) -> None:
    argv = ("grants", "give", "claude", "*", "--for", "15m", "--session", "ses_1", "--in", "src")
    done = run(*argv)
    assert done.returncode == 0, done.stderr
    given = server.door.bodies[-1]
    assert isinstance(given, NewGrant)
    assert (given.session_id, given.folder) == ("ses_1", str(home / "src"))
