import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.agents.rehearsal.raw_client import WAIT
from tests.programs import needs_git

from legation.cli.demo import FILES, make_demo_repo


def test_one_test_of_four_fails(tmp_path: Path) -> None:
    make_demo_repo(tmp_path / "demo")
    argv = [sys.executable, "-B", "-m", "unittest"]
    done = subprocess.run(
        argv, cwd=tmp_path / "demo", capture_output=True, text=True, timeout=WAIT, check=False
    )
    assert "Ran 4 tests" in done.stderr
    assert "FAILED (failures=1)" in done.stderr


@needs_git
def test_it_is_a_clean_repository_with_one_commit_and_no_hooks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A machine whose own configuration would spoil it: the demo must not read any of it.
    hostile = tmp_path / "hostile"
    hostile.write_text("[commit]\n\tgpgSign = true\n[user]\n\tname = Someone Else\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(hostile))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    demo = tmp_path / "demo"
    make_demo_repo(demo)
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "GIT_CONFIG_GLOBAL": os.devnull}

    def git(*arguments: str) -> str:
        argv = ["git", "-C", str(demo), *arguments]
        return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=WAIT, check=True).stdout

    assert git("log", "--format=%an %s") == "Rehearsal Pages, with a bug\n"
    assert git("status", "--short") == ""
    assert git("ls-files").split() == sorted(FILES)
    assert not (demo / ".git" / "hooks").exists()


def test_without_git_it_is_a_plain_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    make_demo_repo(tmp_path / "demo")
    assert sorted(path.name for path in (tmp_path / "demo").iterdir()) == sorted(FILES)
