from pathlib import Path

import pytest
from tests.cli.cli import json_lines, legation

pytestmark = pytest.mark.heavy  # a process or more for each test


def test_a_healthy_machine_is_healthy(home: Path) -> None:
    done = legation(home, "doctor")
    assert done.returncode == 0, done.stdout
    assert "broken" not in done.stdout
    assert "none running, none left behind" in done.stdout


def test_every_limit_names_the_next_command(home: Path) -> None:
    for finding in json_lines(legation(home, "doctor", "--json", PATH="/nonexistent").stdout):
        if finding["verdict"] != "ok":
            assert finding["next"], finding
    about = {
        f["about"]: f["verdict"] for f in json_lines(legation(home, "doctor", "--json", PATH="/none").stdout)
    }
    assert (about["git"], about["bubblewrap"]) == ("limited", "limited")


def test_settings_are_shown_with_their_source(home: Path) -> None:
    shown = legation(home, "doctor", LEGATION_IDLE_TIMEOUT="90s").stdout
    assert (
        "idle_timeout: 90.0 (environment LEGATION_IDLE_TIMEOUT)" in shown or "LEGATION_IDLE_TIMEOUT" in shown
    )


def test_broken_settings_make_it_fail(home: Path) -> None:
    done = legation(home, "doctor", LEGATION_IDLE_TIMEOUT="soon")
    assert done.returncode == 1
    assert "broken" in done.stdout
    assert "LEGATION_IDLE_TIMEOUT" in done.stdout


def test_a_data_folder_that_cannot_be_written_is_broken(home: Path) -> None:
    import os

    if os.geteuid() == 0:
        folder = "/proc/nothing"  # root can write nearly everywhere
    else:
        (home / "closed").mkdir(mode=0o500)
        folder = str(home / "closed/data")
    done = legation(home, "doctor", "--data-dir", folder)
    assert (done.returncode, "not writable" in done.stdout) == (1, True)
