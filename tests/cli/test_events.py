import asyncio
import json
import shutil
from pathlib import Path

import pytest
from tests.cli.command import AtTerminal, json_lines, legation, rehearse

from legation.cli.demo import make_demo_repo
from legation.store.jsonl import JsonlBackend
from legation.store.log import EventLog
from legation.wire import event_types
from legation.wire.event_types import SessionReset

pytestmark = pytest.mark.heavy  # a process or more for each test


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A home with one session in it, and what was printed of it: made once."""
    home, repo = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("repo") / "pages"
    make_demo_repo(repo)
    done = legation(home, "exec", "--agent", "rehearsal", "--yes", "--json", "fix it", cwd=repo)
    assert done.returncode == 0
    return home, done.stdout


@pytest.fixture
def recorded(home: Path, recording: tuple[Path, str]) -> str:
    """The session is in this test's home."""
    shutil.copytree(recording[0], home, dirs_exist_ok=True, symlinks=True)
    return recording[1]


def test_without_a_session_there_is_a_hint(home: Path) -> None:
    assert "legation exec" in legation(home, "events").stdout
    assert legation(home, "events", "--json").stdout == ""


def test_sessions_are_listed(home: Path, recorded: str) -> None:
    (row,) = json_lines(legation(home, "events", "--json").stdout)
    assert row["events"] == len(recorded.splitlines())
    assert (row["agent"], row["state"]) == ("rehearsal", "closed")
    assert row["title"] == "Fix test_every_page_has_a_number"  # the agent found a better one than the prompt
    assert row["id"] in legation(home, "events").stdout


def test_a_replay_is_what_was_printed_live(home: Path, recorded: str) -> None:
    assert legation(home, "events", "last", "--json").stdout == recorded


def test_a_replay_starts_after_any_number(home: Path, recorded: str) -> None:
    tail = legation(home, "events", "last", "--json", "--after", "10").stdout
    assert tail.splitlines() == recorded.splitlines()[10:]


def test_a_session_is_found_by_the_start_of_its_id(home: Path, recorded: str) -> None:
    (row,) = json_lines(legation(home, "events", "--json").stdout)
    assert legation(home, "events", row["id"][:-3], "--json").stdout == recorded


def test_unknown_and_ambiguous_ids_are_told_apart(home: Path, repo: Path, recorded: str) -> None:
    unknown = legation(home, "events", "ses_zzz")
    assert (unknown.returncode, "cannot find" in unknown.stderr) == (3, True)
    legation(home, "exec", "--agent", "rehearsal", "--yes", rehearse("say hi"), cwd=repo)
    ambiguous = legation(home, "events", "ses_")
    assert (ambiguous.returncode, "give more" in ambiguous.stderr) == (2, True)


def test_follow_goes_on_until_the_session_ends(home: Path, repo: Path) -> None:
    script = rehearse("say first", "ask shall I go on", "say second")
    writer = AtTerminal(home, "exec", "--agent", "rehearsal", script, cwd=repo)
    writer.until("Allow it, once?")
    reader = AtTerminal(home, "events", "last", "--follow")
    reader.until("first")
    assert reader.text.count("second") == 1  # in the prompt only
    writer.type("y\n")
    reader.until("approved")
    assert (writer.end(), reader.end()) == (0, 0)


def test_a_killed_session_is_interrupted_and_readable(home: Path, repo: Path) -> None:
    writer = AtTerminal(home, "exec", "--agent", "rehearsal", rehearse("say so far", "stall 300"), cwd=repo)
    writer.until("so far")
    writer.kill()
    (row,) = json_lines(legation(home, "events", "--json").stdout)
    assert row["state"] == "interrupted"
    replay = legation(home, "events", "last", "--follow")  # nobody writes any more: it ends
    assert "so far" in replay.stdout
    assert "killed Legation" in legation(home, "doctor").stdout
    legation(home, "exec", "--agent", "rehearsal", "--yes", rehearse("say hello"), cwd=repo)
    assert "none left behind" in legation(home, "doctor").stdout


def test_malformed_lines_are_skipped_and_told(home: Path, recorded: str) -> None:
    (path,) = (home / ".local/share/legation/sessions").glob("*/ses_*.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    lines[3] = b"garbage\n"
    path.write_bytes(b"".join(lines))
    done = legation(home, "events", "last", "--json")
    assert "malformed" in done.stderr
    assert [json.loads(line)["seq"] for line in done.stdout.splitlines()][:4] == [1, 2, 3, 5]


def test_a_broken_session_does_not_hide_the_others(home: Path, repo: Path, recorded: str) -> None:
    (path,) = (home / ".local/share/legation/sessions").glob("*/ses_*.json")
    path.write_text("{")
    legation(home, "exec", "--agent", "rehearsal", "--yes", rehearse("say hi"), cwd=repo)
    done = legation(home, "events", "--json")
    assert len(json_lines(done.stdout)) == 1
    assert f"cannot list session {path.stem}" in done.stderr


def test_a_replay_shows_the_newest_generation_one_or_all(home: Path, recorded: str) -> None:
    """Of a session whose agent told its history anew."""
    (row,) = json_lines(legation(home, "events", "--json").stdout)
    (folder,) = home.rglob(row["id"])
    asyncio.run(tell_anew(folder, row["id"]))
    new = legation(home, "events", "last", "--json").stdout
    assert json_lines(new)[0]["type"] == "session-reset"
    assert [each["seq"] for each in json_lines(new)] == [row["events"] + 1]
    assert legation(home, "events", "last", "--json", "--generation", "1").stdout == recorded
    assert legation(home, "events", "last", "--json", "--all").stdout == recorded + new
    assert legation(home, "events", "last", "--json", "--all", "--after", str(row["events"])).stdout == new
    missing = legation(home, "events", "last", "--generation", "3")
    assert (missing.returncode, "the last is 2" in missing.stderr) == (3, True)
    assert legation(home, "events", "last", "--generation", "0").returncode == 2


async def tell_anew(folder: Path, name: str) -> None:
    async with EventLog(JsonlBackend(folder)) as log:
        await (await log.stream(name)).replace([event_types.draft(SessionReset(reason="loaded"))])
