"""The README's two commands in a fresh clone with a new HOME, and again without network once installed."""

import re
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


UP = (("./dev", "up", "--check"), "left behind: nothing")
# All of them would test this test. What it installs is most of its time, and every run of CI is on a clean clone too.
TESTS = (("./dev", "test", "-q", "tests/test_ids.py", "tests/store/test_sqlite.py"), " passed")


@pytest.mark.network
@pytest.mark.timeout(3 * INSTALL_LIMIT)
@pytest.mark.parametrize(
    "commands", [(UP,), pytest.param((UP, TESTS), marks=pytest.mark.slow)], ids=["up", "up and test"]
)
def test_a_command_works_in_a_fresh_clone_and_again_without_network(
    tmp_path: Path, commands: tuple[tuple[tuple[str, ...], str], ...]
) -> None:
    clone, env = fresh_clone(tmp_path / "clone"), newcomer_environment(tmp_path / "home")
    for command, outcome in commands:
        first = run(clone, env, *command)
        assert "installing" in first
        assert outcome in first
    prefix, offline = without_network()
    for command, outcome in commands:
        again = run(clone, env | offline, *prefix, *command)
        assert "installing" not in again
        assert outcome in again


@pytest.mark.heavy
def test_help_installs_and_starts_nothing(tmp_path: Path) -> None:
    clone, env = fresh_clone(tmp_path / "clone"), newcomer_environment(tmp_path / "home")
    before = sorted(clone.rglob("*"))
    commands = re.findall(r"^\./dev (\w+)", (clone / "dev").read_text(), re.MULTILINE)
    assert {"up", "test", "check"} <= {*commands}
    for command in dict.fromkeys(commands):
        for flag in ("--help", "-h"):
            assert run(clone, env, "./dev", command, flag).startswith(f"./dev {command} ")
    assert sorted(clone.rglob("*")) == before
