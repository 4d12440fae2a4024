"""Every example runs as its reader would run it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.heavy

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
SAYS = {
    "one_prompt.py": "end_turn",
    "connect.py": "legation/forbidden",
    "follow_a_stream.py": "3 server-started",
    "prompt_a_session.py": "status: closed",
    "answer_a_permission.py": "written: 42",
}
LIMIT = 60.0  # seconds for one example: its time


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs(example: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(example)],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert SAYS[example.name] in done.stdout
    assert not [path for path in tmp_path.iterdir() if path.name != "__pycache__"]  # it leaves nothing behind
