from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import json_lines, legation
from tests.cli.server_process import running

from legation.cli.doctor import doctor

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


def test_the_parser_of_shell_lines_is_tried_and_missed(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {each["about"]: each for each in json_lines(legation(home, "doctor", "--json").stdout)}
    assert found["shell lines"]["verdict"] == "ok"
    monkeypatch.setenv("HOME", str(home))
    for missing in (None, Path("/nonexistent/shfmt")):
        monkeypatch.setattr("legation.approvals.policy.shell.lines.program", lambda missing=missing: missing)
        doctor(json=True)
        found = {each["about"]: each for each in json_lines(capsys.readouterr().out)}
        assert found["shell lines"]["verdict"] == "limited"
        assert found["shell lines"]["next"] == "pip install shfmt-py"


def test_settings_are_shown_with_their_source(home: Path) -> None:
    shown = legation(home, "doctor", "--all", LEGATION_IDLE_TIMEOUT="90s").stdout
    assert "idle_timeout: 90.0 (env LEGATION_IDLE_TIMEOUT)" in shown
    assert "stop_grace: " in shown


def test_without_being_asked_it_only_names_the_settings_that_somebody_set(home: Path) -> None:
    shown = legation(home, "doctor", LEGATION_IDLE_TIMEOUT="90s").stdout
    assert "settings: idle_timeout set, the others as they come" in shown
    assert "stop_grace" not in shown


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


def about(home: Path, what: str, **env: Any) -> dict[str, Any]:
    done = legation(home, "doctor", "--json", **env)
    return next(row for row in json_lines(done.stdout) if row["about"] == what)


def test_a_server_that_is_up_is_found(home: Path) -> None:
    assert about(home, "server")["next"] == "legation up"
    assert "none yet" in about(home, "keys")["says"]
    with running(home) as up:
        up.line()
        assert about(home, "server") == {
            "verdict": "ok",
            "about": "server",
            "says": f"{up.server_file().url}, pid {up.process.pid}, ready",
            "next": "",
        }
        keys = up.data_dir / "keys.json"
        assert about(home, "keys")["verdict"] == "ok"
        keys.chmod(0o644)
        assert about(home, "keys")["verdict"] == "broken"


def test_a_database_that_cannot_be_reached_is_told_without_its_password(home: Path) -> None:
    found = about(home, "database", LEGATION_DATABASE_URL="postgresql://u:canary-pw@127.0.0.1:1/x")
    assert found["verdict"] == "broken"
    assert "canary" not in str(found)


def test_a_restore_that_was_cut_off_is_broken_and_nothing_is_to_be_deleted(home: Path) -> None:
    old = home / ".local/share/.legation-restore-x/replaced/1"
    old.mkdir(parents=True)
    done = legation(home, "doctor", "--json")
    (found,) = [each for each in json_lines(done.stdout) if each["about"] == "old data"]
    assert (found["verdict"], str(old) in found["says"]) == ("broken", True)
    assert "rm" not in found["next"].split()
    assert str(old) in legation(home, "up", "--port", "0").stderr
    assert old.exists()
