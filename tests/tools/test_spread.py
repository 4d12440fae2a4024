"""Processes take a file each when they are done with their last, and what is said at the end is said of all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tools.spread import files_to_run, left_out

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[2]
LIMIT = 120  # seconds for a run on a busy machine
PID = "import os\nfrom pathlib import Path\ndef test_{0}(): Path('{0}').write_text(str(os.getpid()))\n"
# Both of two such files are begun before either is done: two processes run them.
MEETS = (
    "import time\nfrom pathlib import Path\ndef test_meets():\n    Path('{0}').touch()\n"
    "    while not Path('{1}').exists(): time.sleep(0.01)\n"
)
FAILS = "def test_fails(): assert 0, 'as planted'\n"
UNREADABLE = "raise LookupError('as planted')\n"
KILLED = "import os\ndef test_before(): pass\ndef test_killed(): os._exit(9)\ndef test_behind(): pass\n"
KILLED_AT_ONCE = "import os\nos._exit(9)\n"


def run(folder: Path, *arguments: str, **texts: str) -> tuple[int, str]:
    (folder / "pytest.ini").write_text("[pytest]\n")
    for name, text in texts.items():
        (folder / f"test_{name}.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tools.spread", *arguments],
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


def test_two_processes_take_a_file_each(tmp_path: Path) -> None:
    code, said = run(tmp_path, a=MEETS.format("a", "b"), b=MEETS.format("b", "a"))
    assert code == 0, said
    assert "2 passed" in said


def test_each_file_is_run_once_by_as_many_processes_as_are_asked_for(tmp_path: Path) -> None:
    files = {f"f{number}": PID.format(f"f{number}") for number in range(12)}
    code, said = run(tmp_path, "--processes", "3", **files)
    assert code == 0, said
    assert "12 passed" in said
    assert 1 <= len({(tmp_path / name).read_text() for name in files}) <= 3


def test_a_fixture_of_the_run_is_made_once_in_a_process(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import pytest\nfrom pathlib import Path\n@pytest.fixture(scope='session')\ndef one():\n"
        "    yield\n    with Path('ended').open('a') as file: file.write('x')\n"
    )
    files = {f"f{number}": "def test_it(one): pass\n" for number in range(5)}
    code, said = run(tmp_path, "--processes", "1", **files)
    assert code == 0, said
    assert (tmp_path / "ended").read_text() == "x"


def test_fixtures_of_a_folder_are_there_for_each_of_its_files(tmp_path: Path) -> None:
    for folder in (tmp_path / "sub", tmp_path / "sub" / "deep"):
        folder.mkdir()
        (folder / "conftest.py").write_text(
            f"import pytest\n@pytest.fixture\ndef name(): return '{folder.name}'\n"
        )
        for number in range(3):
            text = f"def test_{folder.name}_{number}(name): assert name == '{folder.name}'\n"
            (folder / f"test_{folder.name}_{number}.py").write_text(text)
    for folders in ((), ("sub/deep", "sub")):
        code, said = run(tmp_path, "--processes", "1", *folders)
        assert code == 0, said
        assert "6 passed" in said


def test_what_fails_when_the_run_is_taken_down_is_no_success(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import pytest\n@pytest.fixture(scope='session')\ndef one():\n    yield\n    raise OSError('as planted')\n"
    )
    code, said = run(tmp_path, a="def test_it(one): pass\n")
    assert code == pytest.ExitCode.TESTS_FAILED, said
    assert "as planted" in said


def test_a_file_may_be_named(tmp_path: Path) -> None:
    code, said = run(tmp_path, "test_a.py", a=PID.format("a"), b=PID.format("b"))
    assert code == 0, said
    assert "1 passed" in said


def test_a_failure_is_told_and_counts(tmp_path: Path) -> None:
    code, said = run(tmp_path, a=FAILS, m=PID.format("m"), z=FAILS)
    assert code == pytest.ExitCode.TESTS_FAILED, said
    assert "2 failed, 1 passed" in said
    assert "as planted" in said


def test_the_first_failure_ends_the_run_where_that_is_asked_for(tmp_path: Path) -> None:
    files = {f"f{number}": FAILS + PID.format(f"f{number}") for number in range(9)}
    code, said = run(tmp_path, "-x", "--processes", "1", **files)
    assert code == pytest.ExitCode.TESTS_FAILED, said
    assert "1 failed" in said
    assert "passed" not in said


def test_a_file_that_cannot_be_read_counts(tmp_path: Path) -> None:
    code, said = run(tmp_path, a=UNREADABLE, m=PID.format("m"))
    assert code == pytest.ExitCode.TESTS_FAILED, said
    assert "1 passed, 1 error" in said
    assert "as planted" in said


def test_what_ends_its_process_has_failed_and_all_else_is_run(tmp_path: Path) -> None:
    code, said = run(tmp_path, "--processes", "1", a=KILLED, m=PID.format("m"))
    assert code == pytest.ExitCode.TESTS_FAILED, said
    assert "1 failed, 3 passed" in said
    assert "its process ended before its time, with 9" in said
    assert "FAILED test_a.py::test_killed" in said


def test_a_file_that_ends_its_process_when_it_is_read_counts(tmp_path: Path) -> None:
    code, said = run(tmp_path, "--processes", "1", a=KILLED_AT_ONCE, m=PID.format("m"))
    assert code == pytest.ExitCode.TESTS_FAILED, said
    assert "1 passed, 1 error" in said


def test_processes_that_cannot_begin_are_no_success(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import sys\ndef pytest_sessionstart():\n    if '--part' in ' '.join(sys.argv): raise SystemExit(3)\n"
    )
    code, said = run(tmp_path, m=PID.format("m"))
    assert code == pytest.ExitCode.TESTS_FAILED, said
    assert "2 errors" in said  # one process, for there is one file, and that file
    assert "its process ended before its time" in said
    assert "no process has begun it" in said


def test_what_is_skipped_and_what_is_expected_to_fail_is_told(tmp_path: Path) -> None:
    text = (
        "import pytest\ndef test_skipped(): pytest.skip('as planted')\n"
        "@pytest.mark.xfail(strict=True)\ndef test_expected(): assert 0\n"
    )
    code, said = run(tmp_path, "-rs", a=text)
    assert code == 0, said
    assert "1 skipped, 1 xfailed" in said
    assert "as planted" in said


def test_what_failed_is_run_again_once(tmp_path: Path) -> None:
    once = "from pathlib import Path\ndef test_once():\n    Path('{0}').open('a').write('x')\n    assert len(Path('{0}').read_text()) > 1\n"
    code, said = run(tmp_path, "-p", "tools.again", a=once.format("a"), b=once.format("b"))
    assert code == 0, said
    assert (tmp_path / "a").read_text() == (tmp_path / "b").read_text() == "xx"
    again = said.partition("unsteady: passed only when run alone: ")[2].splitlines()[0].split(", ")
    assert {*again} == {"test_a.py::test_once", "test_b.py::test_once"}


def test_no_tests_are_no_success(tmp_path: Path) -> None:
    code, said = run(tmp_path)
    assert code == pytest.ExitCode.NO_TESTS_COLLECTED, said


def test_long_files_come_first_then_the_largest(tmp_path: Path) -> None:
    for name, size in {"test_a": 10, "test_b": 1000, "test_newcomer": 1, "test_marked": 5000}.items():
        (tmp_path / f"{name}.py").write_text("#" * size)
    (tmp_path / "test_marked.py").write_text("pytestmark = pytest.mark.heavy\n" + "#" * 5000)
    found = files_to_run([str(tmp_path)], "not heavy")
    assert [path.name for path in found] == ["test_newcomer.py", "test_b.py", "test_a.py"]


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
