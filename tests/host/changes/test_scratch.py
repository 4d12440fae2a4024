from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from legation.host.changes.git import Scratch

CHILD_SECONDS = 30.0


@pytest.fixture(autouse=True)
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_closing_removes_the_folder_and_all_in_it(parent: Path) -> None:
    scratch = Scratch()
    (scratch.path / "x").write_text("x")
    scratch.close()
    scratch.close()
    assert list(parent.iterdir()) == []


def test_a_forgotten_folder_goes_with_its_object(parent: Path) -> None:
    Scratch()
    assert list(parent.iterdir()) == []


def test_a_folder_in_use_survives_the_next_one(parent: Path) -> None:
    first, second = Scratch(), Scratch()
    assert sorted(parent.iterdir()) == sorted([first.path, second.path])
    first.close()
    second.close()


def test_the_folder_of_a_killed_process_is_removed_by_the_next(parent: Path) -> None:
    program = (
        "import os, signal, tempfile\n"
        "from legation.host.changes.git import Scratch\n"
        f"tempfile.tempdir = {str(parent)!r}\n"
        "kept = Scratch()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", program], timeout=CHILD_SECONDS, check=False)
    (left,) = parent.iterdir()
    scratch = Scratch()
    assert list(parent.iterdir()) == [scratch.path]
    assert left != scratch.path
    scratch.close()


def test_a_link_or_a_folder_without_a_lock_is_left_alone(
    parent: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "owner").touch()
    (parent / "legation-changes-link").symlink_to(elsewhere)
    (parent / "legation-changes-folder").mkdir()
    Scratch().close()
    assert (elsewhere / "owner").exists()
    assert len(list(parent.iterdir())) == 2
