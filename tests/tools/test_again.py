"""What failed is run once more, alone: who passes then is named last, and who does not has failed the run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[2]
LIMIT = 120  # seconds for a run and the second one in it, on a busy machine
# A test counts in a file how often it was begun.
COUNT = """
import os, pytest
from pathlib import Path
def begun(name):
    with Path(name).open("a") as file:
        file.write("x")
    return Path(name).stat().st_size
"""
STEADY = "def test_steady(): begun('steady')\n"
ONCE = "def test_once(): assert begun('once') > 1\n"
ALWAYS = "def test_always(): assert begun('always') > 9\n"
LATE = """
@pytest.fixture
def late():
    yield
    assert begun('late') > 1
def test_late(late): pass
"""
SKIPPED = "def test_skipped():\n    if begun('skipped') > 1: pytest.skip()\n    assert 0\n"
KILLED = "def test_killed():\n    if begun('killed') == 1: os._exit(1)\n"
MANY = "@pytest.mark.parametrize('number', range({}))\ndef test_many(number): assert begun(f'many{{number}}') > 1\n"


def run(folder: Path, text: str, *arguments: str) -> tuple[int, str, str]:
    """The exit code, everything that was said, and its last line."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_planted.py").write_text(COUNT + text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tools.again", "-q", *arguments],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_ADDOPTS": "",
        },
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr, done.stdout.rstrip().rpartition("\n")[2]


def times(folder: Path, name: str) -> int:
    return len((folder / name).read_text())


@pytest.mark.parametrize(
    ("text", "named"),
    [(ONCE, "test_once"), (LATE, "test_late"), (MANY.format(5), "test_many[4]")],
    ids=["once", "teardown", "five"],
)
def test_who_passes_alone_is_named_last_and_the_run_is_green(tmp_path: Path, text: str, named: str) -> None:
    code, said, last = run(tmp_path, STEADY + text)
    assert code == 0, said
    assert last.startswith("unsteady: passed only when run alone: ")
    assert last.endswith(f"test_planted.py::{named}")
    assert times(tmp_path, "steady") == 1


def test_a_test_that_ended_its_process_counts_as_failed_and_is_run_alone(tmp_path: Path) -> None:
    code, said, last = run(tmp_path, STEADY + ONCE + KILLED, "-p", "tools.spread", "--processes", "1")
    assert code == 0, said
    assert {*last.removeprefix("unsteady: passed only when run alone: ").split(", ")} == {
        "test_planted.py::test_once",
        "test_planted.py::test_killed",
    }


@pytest.mark.parametrize(
    ("text", "named"), [(ALWAYS, "test_always"), (SKIPPED, "test_skipped"), (ONCE + ALWAYS, "test_always")]
)
def test_who_does_not_pass_alone_has_failed_the_run(tmp_path: Path, text: str, named: str) -> None:
    code, said, last = run(tmp_path, STEADY + text)
    assert code == 1, said
    assert last.startswith("failed, and not all passed alone: ")
    assert f"test_planted.py::{named}" in last
    assert times(tmp_path, named.removeprefix("test_")) == 2


def test_six_failures_are_not_by_chance(tmp_path: Path) -> None:
    code, said, last = run(tmp_path, MANY.format(6))
    assert code == 1, said
    assert last == "6 tests failed, more than 5: none is run again"
    assert times(tmp_path, "many0") == 1


@pytest.mark.parametrize(("text", "code"), [("", 5), (ONCE + "import nothing_of_that_name\n", 2)])
def test_no_tests_and_a_file_that_cannot_be_read_are_never_green(
    tmp_path: Path, text: str, code: int
) -> None:
    found, said, _ = run(tmp_path, text)
    assert found == code, said
    assert "unsteady" not in said
