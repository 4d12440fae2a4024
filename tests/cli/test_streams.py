"""However the command was started: closed, full or narrow streams, odd locales, odd bytes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.command import LIMIT, environment, legation, rehearse

pytestmark = pytest.mark.heavy  # a process or more for each test

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
# Nothing of a test may run into it: a question that waits for a dead screen would.
ASKING = ("--permission-timeout", "1h")
ALONE = "legation: runs by itself: "


def shell(home: Path, line: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """`legation` in the line is the command; no controlling terminal."""
    line = line.replace("legation ", f"{sys.executable} -m legation ")
    return subprocess.run(
        ["bash", "-c", line],
        capture_output=True,
        text=True,
        env=environment(home),
        cwd=cwd or home,
        timeout=LIMIT,
        start_new_session=True,
        check=False,
    )


def test_a_terminal_that_knows_only_ascii_shows_what_it_can(home: Path, repo: Path) -> None:
    done = legation(home, "exec", "--agent", "rehearsal", "--yes", *ASKING, "fix it", cwd=repo, **ASCII)
    assert (done.returncode, done.stderr) == (0, f"{ALONE}--permission-timeout is given\n")
    assert "? Edit pages.py" in done.stdout
    assert "1 file(s) changed" in done.stdout


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_closed_streams_do_not_matter(home: Path, repo: Path, closed: str) -> None:
    done = shell(home, f"legation exec --agent rehearsal --yes 'fix it' {closed}", cwd=repo)
    said = "" if "2>&-" in closed else f"{ALONE}no server is up here\n"
    assert (done.returncode, done.stderr) == (0, said)
    assert "size) + 1))" in (repo / "pages.py").read_text()


@pytest.mark.parametrize("more", ["", "--json"])
def test_an_agent_that_nobody_can_watch_any_more_is_stopped(home: Path, repo: Path, more: str) -> None:
    line = f"legation exec --agent rehearsal --yes {' '.join(ASKING)} {more} 'fix it' | head -c 10"
    done = shell(home, f"set -o pipefail; {line}", cwd=repo)
    assert done.returncode == 130
    assert "cannot go on" in done.stderr
    assert "Traceback" not in done.stderr
    assert "none running, none left behind" in legation(home, "doctor").stdout


def test_a_full_device_is_told_and_not_taken_for_success(home: Path) -> None:
    done = shell(home, "legation events > /dev/full")
    assert (done.returncode, "No space left" in done.stderr) == (9, True)
    assert "Traceback" not in done.stderr


def test_arguments_that_are_no_text_are_refused(home: Path) -> None:
    done = shell(home, "legation exec --agent rehearsal $'say \\xff'")
    assert (done.returncode, "not UTF-8" in done.stderr) == (2, True)


def test_a_prompt_that_is_no_text_is_refused(home: Path) -> None:
    done = shell(home, "printf 'say \\xff' | legation exec --agent rehearsal")
    assert (done.returncode, "not UTF-8" in done.stderr) == (2, True)


def test_text_in_another_locale_is_still_text(home: Path, repo: Path) -> None:
    script = rehearse("say déjà vu")
    done = legation(home, "exec", "--agent", "rehearsal", "--json", script, cwd=repo, **ASCII)
    assert done.returncode == 0, done.stderr
    assert os.fsencode("déjà vu") in done.stdout.encode("utf-8", "surrogateescape")


def test_a_folder_that_is_gone_is_named(home: Path) -> None:
    done = shell(home, "mkdir gone; cd gone; rmdir ../gone; legation exec --agent rehearsal hi")
    assert (done.returncode, "this folder is gone" in done.stderr) == (2, True)
