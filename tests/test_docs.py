"""The first block of a page runs as it is pasted."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[1]
LIMIT = 60.0  # seconds for one block: its time, on a loaded machine


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(("page", "number"), [("docs/host.md", 0), ("README.md", 1)])
def test_a_block_runs_as_it_is_pasted(page: str, number: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", blocks(page)[number]],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "\nend_turn\n" in done.stdout
    assert not [path for path in tmp_path.iterdir() if path.name != "__pycache__"]  # it leaves nothing behind
