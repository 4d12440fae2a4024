from pathlib import Path

import pytest
from tests.cli.command import legation

import legation as package

pytestmark = pytest.mark.heavy  # a process or more for each test


def test_version(home: Path) -> None:
    assert legation(home, "--version").stdout == f"legation {package.__version__}\n"


def test_help_names_every_command_and_where_to_start(home: Path) -> None:
    shown = legation(home, "--help").stdout
    for word in ("exec", "events", "doctor", "demo", "legation exec --agent rehearsal"):
        assert word in shown


def test_nothing_is_coloured_when_piped(home: Path) -> None:
    assert "\x1b" not in legation(home, "--help").stdout + legation(home, "doctor").stdout


def test_an_unknown_command_is_a_usage_error_with_a_hint(home: Path) -> None:
    done = legation(home, "exce")
    assert done.returncode == 2
    assert "exec" in done.stderr
    assert "--help" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_flag_is_a_usage_error(home: Path) -> None:
    done = legation(home, "exec", "--agnet", "rehearsal", "hi")
    assert done.returncode == 2
    assert "--agnet" in done.stderr
    assert "legation exec --help" in done.stderr


def test_bad_settings_are_listed_all_at_once(home: Path) -> None:
    done = legation(home, "events", LEGATION_IDLE_TIMEOUT="soon", LEGATION_DATA_DRI="/x")
    assert done.returncode == 2
    assert "LEGATION_IDLE_TIMEOUT" in done.stderr
    assert "LEGATION_DATA_DIR" in done.stderr  # the nearest valid name


def test_a_closed_pipe_is_no_error(home: Path, repo: Path) -> None:
    import subprocess
    import sys

    from tests.cli.command import environment

    assert legation(home, "exec", "--agent", "rehearsal", "--yes", "fix it", cwd=repo).returncode == 0
    done = subprocess.run(
        f"{sys.executable} -m legation events last | head -n 1",
        shell=True,
        env=environment(home),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""


def test_a_mistyped_command_is_sent_to_the_help_that_exists(home: Path) -> None:
    done = legation(home, "evnts")
    assert "cannot read the command line" in done.stderr
    assert "`legation --help`" in done.stderr


def test_a_noun_alone_lists_and_so_does_its_list(home: Path) -> None:
    done = legation(home, "agents", "list")
    assert (done.returncode, done.stdout) == (0, legation(home, "agents").stdout), done.stderr
    assert "rehearsal" in done.stdout
    assert "list" in legation(home, "sessions", "--help").stdout
