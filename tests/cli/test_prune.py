"""`legation prune`, `status` and `doctor` on what is kept: a real server, asked as its owner asks."""

import asyncio
import time
from pathlib import Path

import msgspec
import pytest
from tests.cli.command import AtTerminal, json_lines, legation
from tests.cli.server_process import running
from tests.server.sessions.test_making import NEW, play, speaking
from tests.server.test_retention_killed import Place, add_calls

from legation.store.sizes import Sample

pytestmark = pytest.mark.heavy

DAY_MS = 86_400_000
GIB = 2**30


def test_what_is_old_is_shown_and_goes_where_somebody_says_so(tmp_path: Path) -> None:
    def prune(*argv: str) -> tuple[int, str, str]:
        done = legation(tmp_path, "prune", *argv)
        return done.returncode, done.stdout, done.stderr

    with running(tmp_path, "server", "--port", "0") as server, speaking(server) as http:
        for name in ("one", "two", "live"):
            assert http.post(f"/v1/sessions/{name}", json=NEW).status_code == 200
            assert "hello" in play(http, name, "say hello")
        for name in ("one", "two"):
            assert http.post(f"/v1/sessions/{name}/terminate").status_code == 204

        code, out, _ = prune("--older-than", "90d", "--dry-run")
        assert (code, out.splitlines()[-1]) == (0, "nothing would go")
        code, out, _ = prune("--older-than", "0s", "--dry-run")
        assert (code, out.split()[:2]) == (0, ["2", "sessions"])
        assert "would go" in out.splitlines()[-1]
        code, out, _ = prune("--older-than", "0s", "--dry-run", "--json", "--kind", "sessions")
        [told] = json_lines(out)
        assert (told["kind"], told["count"], told["done"]) == ("sessions", 2, True)

        # Three mistakes, and nobody to ask: each says what to do.
        code, _, err = prune("--older-than", "ninety", "--dry-run")
        assert (code, '"90d"' in err) == (2, True)
        code, _, err = prune("--older-than", "90", "--dry-run")
        assert (code, '"90d"' in err) == (2, True)
        code, _, err = prune("--older-than", "90d", "--kind", "logs")
        assert (code, '"sessions", "work", "content", "traces"' in err) == (2, True)
        code, _, err = prune()
        assert (code, "--older-than" in err) == (2, True)
        code, _, err = prune("--older-than", "0s")
        assert (code, "--dry-run, then give --yes" in err) == (2, True)

        terminal = AtTerminal(tmp_path, "prune", "--older-than", "0s")
        assert "2 sessions" in terminal.until("[y/N] ")
        terminal.type("n\n")
        assert terminal.end() != 0
        assert len(http.get("/v1/sessions").json()["sessions"]) == 3
        terminal = AtTerminal(tmp_path, "prune", "--older-than", "0s", "--kind", "work")
        assert "2 work folders" in terminal.until("[y/N] ")
        terminal.type("y\n")
        terminal.until("went")
        assert terminal.end() == 0
        assert {each.name for each in (server.data_dir / "work/local").iterdir()} == {"live"}

        (server.data_dir / "work/local/live/made.txt").write_bytes(b"x" * 10_000)
        code, out, _ = prune("--older-than", "0s", "--yes")
        assert (code, out.split()[:2]) == (0, ["2", "sessions"])
        assert out.splitlines()[-1].endswith(" went")
        assert [each["sessionId"] for each in http.get("/v1/sessions").json()["sessions"]] == ["live"]

        shown = legation(tmp_path, "status").stdout
        for kind in ("sessions", "traces", "content", "work", "all"):
            assert f"\n    {kind} " in shown
        [told] = json_lines(legation(tmp_path, "status", "--json").stdout)
        sizes = {each["kind"]: each["bytes"] for each in told["sizes"]["kinds"]}
        assert sizes["sessions"] > 0
        assert sizes.keys() >= {"sessions", "traces", "content", "blobs", "work", "backups"}
    code, _, err = prune("--older-than", "90d", "--dry-run")
    assert (code, "legation up" in err) == (10, True)


def test_a_trace_that_was_cut_says_how_far_back_it_reaches(tmp_path: Path) -> None:
    with running(tmp_path, "server", "--port", "0") as server:
        server.line()
    asyncio.run(add_calls(Place(tmp_path), 4))
    with running(tmp_path, "server", "--port", "0") as server:
        server.line()
        assert "reaches back" not in legation(tmp_path, "trace", "verify").stdout
        done = legation(tmp_path, "prune", "--older-than", "1d", "--kind", "traces", "--yes")
        assert done.stdout.split()[:4] == ["12", "contents", "of", "the"]
        assert "36 steps of the trace" in done.stdout
        verified = legation(tmp_path, "trace", "verify")
        assert (verified.returncode, ": good; 1 steps" in verified.stdout) == (0, True)
        assert "reaches back to step 37, of 20" in verified.stdout
        [told] = json_lines(legation(tmp_path, "trace", "verify", "--json").stdout)
        assert (told["first"], told["problems"]) == (37, [])
        exported = legation(tmp_path, "trace", "export", str(tmp_path / "t.jsonl"))
        assert exported.returncode == 0
    assert (
        "reaches back to step 37" in legation(tmp_path, "trace", "verify", str(tmp_path / "t.jsonl")).stdout
    )


@pytest.mark.parametrize(
    ("own", "free", "verdict", "says", "following"),
    [
        ((1, 2), (100, 100), "ok", "the disk does not fill", ""),
        ((1, 2), (101, 100), "ok", "full in about 700 days", ""),
        ((1, 8), (100, 93), "ok", "full in about 93 days", ""),
        ((1, 80), (100, 21), "limited", "full in about 2 days", "legation prune --older-than 90d --dry-run"),
        ((1, 2), (100, 30), "limited", "most of it not by Legation", "free some space"),
    ],
)
def test_doctor_says_when_the_disk_is_full(
    home: Path, own: tuple[int, int], free: tuple[int, int], verdict: str, says: str, following: str
) -> None:
    data, now = home / ".local/share/legation", time.time_ns() // 1_000_000
    data.mkdir(parents=True)
    samples = [
        Sample(now - 7 * DAY_MS * (1 - number), {"sessions": own[number] * GIB}, free[number] * GIB)
        for number in (0, 1)
    ]
    (data / "sizes.json").write_bytes(msgspec.json.encode(samples))
    found = {each["about"]: each for each in json_lines(legation(home, "doctor", "--json").stdout)}["growth"]
    assert (found["verdict"], says in found["says"], found["next"]) == (verdict, True, following), found


def test_doctor_knows_nothing_of_growth_before_a_server_ran(home: Path) -> None:
    data = home / ".local/share/legation"
    data.mkdir(parents=True)
    for text in (None, b"", b"[{}]", b"{"):
        if text is not None:
            (data / "sizes.json").write_bytes(text)
        done = legation(home, "doctor")
        assert (done.returncode, "growth: not known yet" in done.stdout) == (0, True)
