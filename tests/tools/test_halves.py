"""Two processes run one half of the files each, and what is said at the end is said of both."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tools.halves import left_out, second_half

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[2]
LIMIT = 120  # seconds for a run on a busy machine
PID = "import os\nfrom pathlib import Path\ndef test_{0}(): Path('{0}').write_text(str(os.getpid()))\n"
FAILS = "def test_fails(): assert 0, 'as planted'\n"
UNREADABLE = "raise LookupError('as planted')\n"
KILLED = "import os\ndef test_killed(): os._exit(9)\n"


def run(folder: Path, *arguments: str, **texts: str) -> tuple[int, str]:
    (folder / "pytest.ini").write_text("[pytest]\n")
    for name, text in texts.items():
        (folder / f"test_{name}.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tools.halves", *arguments],
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
    return done.returncode, done.stdout + done.stderr


def test_each_process_runs_a_half(tmp_path: Path) -> None:
    code, said = run(tmp_path, a=PID.format("a"), b=PID.format("b"))
    assert code == 0, said
    assert "2 passed" in said
    assert (tmp_path / "a").read_text() != (tmp_path / "b").read_text()


# The heavier file is the first half's, of two that weigh the same the one with the lower name.
@pytest.mark.parametrize("name", ["a", "z"])
def test_a_failure_of_either_half_is_told_and_counts(tmp_path: Path, name: str) -> None:
    pad = "#" * (len(PID.format("m")) - len(FAILS))
    code, said = run(tmp_path, **{name: FAILS + pad, "m": PID.format("m")})
    assert code == pytest.ExitCode.TESTS_FAILED, said
    assert "1 failed, 1 passed" in said
    assert "as planted" in said


@pytest.mark.parametrize("name", ["a", "z"])
def test_a_file_of_either_half_that_cannot_be_read_counts(tmp_path: Path, name: str) -> None:
    pad = "#" * (len(PID.format("m")) - len(UNREADABLE))
    code, said = run(tmp_path, **{name: UNREADABLE + pad, "m": PID.format("m")})
    assert code != 0, said
    assert "as planted" in said


@pytest.mark.parametrize("name", ["a", "z"])
def test_a_half_that_ends_before_its_time_is_no_success(tmp_path: Path, name: str) -> None:
    pad = "#" * (len(PID.format("m")) - len(KILLED))
    code, said = run(tmp_path, **{name: KILLED + pad, "m": PID.format("m")})
    assert code != 0, said


def test_what_failed_in_either_half_is_run_again_once(tmp_path: Path) -> None:
    once = "from pathlib import Path\ndef test_once():\n    Path('{0}').open('a').write('x')\n    assert len(Path('{0}').read_text()) > 1\n"
    code, said = run(tmp_path, "-p", "tools.again", a=once.format("a"), b=once.format("b"))
    assert code == 0, said
    assert (tmp_path / "a").read_text() == (tmp_path / "b").read_text() == "xx"
    assert "unsteady: passed only when run alone: test_a.py::test_once, test_b.py::test_once" in said


def test_one_half_may_be_empty(tmp_path: Path) -> None:
    assert run(tmp_path, a=PID.format("a"))[0] == 0


def test_halves_weigh_the_same_and_are_the_same_each_time(tmp_path: Path) -> None:
    files = [tmp_path / f"test_{number}.py" for number in range(9)]
    for number, path in enumerate(files):
        path.write_bytes(b"#" * 1000 * (number + 1))
    second = second_half(files)
    assert second == second_half(reversed(files))
    assert abs(2 * sum(path.stat().st_size for path in second) - 45_000) <= 1000


@pytest.mark.parametrize(
    ("marks", "text", "out"),
    [
        ("not slow and not heavy", "pytestmark = pytest.mark.heavy\n", True),
        ("not slow and not heavy", "pytestmark = [pytest.mark.asyncio, pytest.mark.slow]\n", True),
        ("not slow and not heavy", "@pytest.mark.heavy\n", False),
        ("not slow", "pytestmark = pytest.mark.heavy\n", False),
        ("heavy", "pytestmark = pytest.mark.heavy\n", False),
        ("", "pytestmark = pytest.mark.heavy\n", False),
    ],
)
def test_a_file_is_left_out_by_the_marks_of_the_whole(
    tmp_path: Path, marks: str, text: str, out: bool
) -> None:
    (tmp_path / "test_x.py").write_text(text)
    assert left_out(tmp_path / "test_x.py", marks) is out
