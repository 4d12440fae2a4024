"""The README's two commands in a fresh clone with a new HOME, and again without network once installed."""

import subprocess
from pathlib import Path

import pytest
from tests.fresh_clone import INSTALL_LIMIT, fresh_clone, newcomer_environment, without_network


def run(clone: Path, env: dict[str, str], *argv: str) -> str:
    done = subprocess.run(
        argv, cwd=clone, env=env, capture_output=True, text=True, timeout=INSTALL_LIMIT, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.network
@pytest.mark.timeout(3 * INSTALL_LIMIT)
def test_both_commands_work_in_a_fresh_clone_and_again_without_network(tmp_path: Path) -> None:
    clone, env = fresh_clone(tmp_path / "clone"), newcomer_environment(tmp_path / "home")
    up = ("./dev", "up", "--check")
    tests = (
        "./dev",
        "test",
        "-q",
        "tests/test_ids.py",
        "tests/store/test_sqlite.py",
    )  # all would test this test
    first = run(clone, env, *up)
    assert "installing" in first
    assert "left behind: nothing" in first
    assert " passed" in run(clone, env, *tests)
    prefix, offline = without_network()
    again = run(clone, env | offline, *prefix, *up)
    assert "installing" not in again
    assert " passed" in run(clone, env | offline, *prefix, *tests)
