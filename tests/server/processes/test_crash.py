"""INV-P10: a server that is killed leaves processes, and the next start ends them."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.server.processes.process_rig import LIMIT, alive

from legation.proc import reap
from legation.proc.tree import processes

pytestmark = pytest.mark.heavy
ROOT = Path(__file__).parents[3]


def offspring(folder: Path) -> set[int]:
    """Whoever has a HOME in the folder."""
    mark = f"HOME={folder}/homes".encode()
    found = set()
    for each in processes().values():
        try:
            if not each.dead and mark in Path(f"/proc/{each.pid}/environ").read_bytes():
                found.add(each.pid)
        except OSError:
            continue
    return found


def test_after_kill_9_the_next_start_leaves_nothing(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-m", "tests.server.processes.owner_to_kill", str(tmp_path)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
    )
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"ready\n"
        deadline = time.monotonic() + LIMIT
        while len(left := offspring(tmp_path)) < 6 and time.monotonic() < deadline:
            time.sleep(0.02)  # the shells start theirs
        assert len(left) == 6
    finally:
        owner.kill()
        owner.communicate()
    assert (
        len([pid for pid in left if alive(pid)]) >= 4
    )  # HUP, as the terminal ends, may take a sleeper along
    reaped = reap(tmp_path / "children")
    assert {each.outcome for each in reaped} <= {"killed", "gone"}
    assert len(reaped) == 2
    assert offspring(tmp_path) == set()
